// RUN: kaon-opt %s -split-input-file -kaon-orient-products | FileCheck %s
// RUN: kaon-opt %s -split-input-file -kaon-orient-products -remarks-filter=kaon-orient-products -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=Missed

// CHECK-LABEL: func.func @tall
// CHECK-SAME: %[[X:.*]]: tensor<6x4xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[AA:.*]] = kaon.matmul %[[A]], %[[A]] : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[C:.*]] = arith.constant dense<2.0{{.*}}> : tensor<4x4xf32>
// CHECK-NEXT: %[[S:.*]] = arith.mulf %[[C]], %[[A]]
// CHECK-NEXT: %[[P:.*]] = arith.addf %[[S]], %[[AA]]
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[X]], %[[P]] : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
// CHECK-NEXT: return %[[Y]]
func.func @tall(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %aa = kaon.matmul %a, %a : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>
  %c = arith.constant dense<2.0> : tensor<6x6xf32>
  %s = arith.mulf %c, %a : tensor<6x6xf32>
  %p = arith.addf %s, %aa : tensor<6x6xf32>
  %y = kaon.matmul %p, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// The other direction: a user wrote the longer side.
// CHECK-LABEL: func.func @wide
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[N:.*]] = arith.negf %[[A]]
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[N]], %[[X]] : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
func.func @wide(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %a = kaon.matmul %x, %x transpose_a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  %n = arith.negf %a : tensor<6x6xf32>
  %y = kaon.matmul %x, %n : (tensor<4x6xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// A base that is transposed stays so on its new side.
// CHECK-LABEL: func.func @transposed_base
// CHECK-SAME: %[[X:.*]]: tensor<6x4xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[A]], %[[X]] transpose_b : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
func.func @transposed_base(%x: tensor<6x4xf32>) -> tensor<4x6xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %y = kaon.matmul %x, %a transpose_a : (tensor<6x4xf32>, tensor<6x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// A scale that is known on the device only.
// CHECK-LABEL: func.func @device_scalar
// CHECK-SAME: %[[X:.*]]: tensor<6x4xf32>, %[[S:.*]]: tensor<1x1xf32>
// CHECK: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a
// CHECK: %[[B:.*]] = kaon.broadcast %[[S]] : tensor<1x1xf32> to tensor<4x4xf32>
// CHECK: %[[P:.*]] = arith.divf %[[A]], %[[B]]
// CHECK: kaon.matmul %[[X]], %[[P]]
func.func @device_scalar(%x: tensor<6x4xf32>, %s: tensor<1x1xf32>) -> tensor<6x4xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %b = kaon.broadcast %s : tensor<1x1xf32> to tensor<6x6xf32>
  %p = arith.divf %a, %b : tensor<6x6xf32>
  %y = kaon.matmul %p, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// Two steps of an iteration, each with a base of its own.
// CHECK-LABEL: func.func @two_steps
// CHECK-NOT: tensor<6x6xf32>
// CHECK: return
func.func @two_steps(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %y = kaon.matmul %a, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  %b = kaon.matmul %y, %y transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %z = kaon.matmul %b, %y : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %z : tensor<6x4xf32>
}

// -----

// The short side already.
// CHECK-LABEL: func.func @good
// CHECK: kaon.matmul %[[X:.*]], %[[X]] transpose_b : {{.*}} -> tensor<4x4xf32>
func.func @good(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %y = kaon.matmul %a, %x : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// The Gram matrix itself is asked for.
// REMARK: remark: {{.*}}Missed{{.*}}Function=escapes {{.*}}products with a Gram matrix of 6x6 do not use one of 4x4: something else needs the larger one
// CHECK-LABEL: func.func @escapes
// CHECK: kaon.matmul %[[X:.*]], %[[X]] transpose_b : {{.*}} -> tensor<6x6xf32>
// CHECK-NEXT: kaon.matmul %{{.*}}, %[[X]] : (tensor<6x6xf32>
func.func @escapes(%x: tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x6xf32>) {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %y = kaon.matmul %a, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y, %a : tensor<6x4xf32>, tensor<6x6xf32>
}

// -----

// Adding one to every element leaves the polynomials.
// CHECK-LABEL: func.func @not_a_polynomial
// CHECK: kaon.matmul %{{.*}} : (tensor<6x6xf32>, tensor<6x4xf32>)
func.func @not_a_polynomial(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
  %one = arith.constant dense<1.0> : tensor<6x6xf32>
  %p = arith.addf %a, %one : tensor<6x6xf32>
  %y = kaon.matmul %p, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// As the front end writes it: transposes are ops of their own.
// CHECK-LABEL: func.func @front_end
// CHECK-SAME: %[[X:.*]]: tensor<6x4xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[T:.*]] = kaon.transpose %[[A]] : tensor<4x4xf32> -> tensor<4x4xf32>
// CHECK-NEXT: %[[AA:.*]] = kaon.matmul %[[A]], %[[T]] : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[X]], %[[AA]] : {{.*}} -> tensor<6x4xf32>
// CHECK-NEXT: return %[[Y]]
func.func @front_end(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %xt = kaon.transpose %x : tensor<6x4xf32> -> tensor<4x6xf32>
  %a = kaon.matmul %x, %xt : (tensor<6x4xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  %at = kaon.transpose %a : tensor<6x6xf32> -> tensor<6x6xf32>
  %aa = kaon.matmul %a, %at : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>
  %y = kaon.matmul %aa, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// The base seen through its transpose: P(X X^T) X = (X^T P(X X^T))^T.
// CHECK-LABEL: func.func @front_end_base
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b : {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[X]], %[[A]] transpose_a : (tensor<4x6xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
// CHECK-NEXT: return %[[Y]]
func.func @front_end_base(%x: tensor<4x6xf32>) -> tensor<6x4xf32> {
  %t = kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>
  %tt = kaon.transpose %t : tensor<6x4xf32> -> tensor<4x6xf32>
  %a = kaon.matmul %t, %tt : (tensor<6x4xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  %y = kaon.matmul %a, %t : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}

// -----

// What has a factor is left alone.
// CHECK-LABEL: func.func @factor
// CHECK-SAME: %[[X:.*]]: tensor<6x4xbf16>, %[[F:.*]]: tensor<1x1xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b factor %[[F]] : {{.*}} -> tensor<6x6xbf16>
// CHECK-NEXT: kaon.matmul %[[A]], %[[X]] :
func.func @factor(%x: tensor<6x4xbf16>, %f: tensor<1x1xf32>) -> tensor<6x4xbf16> {
  %a = kaon.matmul %x, %x transpose_b factor %f : (tensor<6x4xbf16>, tensor<6x4xbf16>) -> tensor<6x6xbf16>
  %y = kaon.matmul %a, %x : (tensor<6x6xbf16>, tensor<6x4xbf16>) -> tensor<6x4xbf16>
  return %y : tensor<6x4xbf16>
}
