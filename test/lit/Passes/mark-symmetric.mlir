// RUN: kaon-opt %s -split-input-file -kaon-mark-symmetric | FileCheck %s

// CHECK-LABEL: func.func @gram
// CHECK: kaon.matmul %{{.*}}, %{{.*}} transpose_b symmetric :
// CHECK: kaon.matmul %{{.*}}, %{{.*}} transpose_a symmetric :
func.func @gram(%x: tensor<4x6xf32>) -> (tensor<4x4xf32>, tensor<6x6xf32>) {
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %x, %x transpose_a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  return %a, %b : tensor<4x4xf32>, tensor<6x6xf32>
}

// -----

// Products of polynomials in one Gram matrix, whatever is transposed.
// CHECK-LABEL: func.func @polynomials
// CHECK: %[[A:.*]] = kaon.matmul %{{.*}}, %{{.*}} transpose_b symmetric :
// CHECK: %[[SQUARE:.*]] = kaon.matmul %[[A]], %[[A]] symmetric :
// CHECK: kaon.matmul %{{.*}}, %[[SQUARE]] transpose_a symmetric :
func.func @polynomials(%x: tensor<4x6xf32>, %s: f32) -> tensor<4x4xf32> {
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %aa = kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = tensor.splat %s : tensor<4x4xf32>
  %ca = arith.mulf %c, %a : tensor<4x4xf32>
  %p = arith.subf %ca, %aa : tensor<4x4xf32>
  %r = kaon.matmul %p, %aa transpose_a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}

// -----

// Two Gram matrices do not commute; their sum is symmetric, and so is its
// square, but the sum does not commute with its parts.
// CHECK-LABEL: func.func @two_grams
// CHECK: %[[A:.*]] = kaon.matmul %{{.*}} transpose_b symmetric :
// CHECK: %[[B:.*]] = kaon.matmul %{{.*}} transpose_b symmetric :
// CHECK: kaon.matmul %[[A]], %[[B]] :
// CHECK: %[[SUM:.*]] = arith.addf %[[A]], %[[B]]
// CHECK: kaon.matmul %[[SUM]], %[[SUM]] symmetric :
// CHECK: kaon.matmul %[[SUM]], %[[A]] :
func.func @two_grams(%x: tensor<4x6xf32>, %y: tensor<4x6xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %y, %y transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %ab = kaon.matmul %a, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %sum = arith.addf %a, %b : tensor<4x4xf32>
  %square = kaon.matmul %sum, %sum : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %mixed = kaon.matmul %sum, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %ab, %square, %mixed : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// An elementwise function keeps symmetry, but leaves the polynomials.
// CHECK-LABEL: func.func @elementwise
// CHECK: %[[E:.*]] = math.exp
// CHECK: kaon.matmul %[[E]], %[[E]] symmetric :
// CHECK: kaon.matmul %[[E]], %{{.*}} :
func.func @elementwise(%x: tensor<4x6xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %e = math.exp %a : tensor<4x4xf32>
  %b = kaon.matmul %e, %e : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = kaon.matmul %e, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %b, %c : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// The promise covers the addend.
// CHECK-LABEL: func.func @addend
// CHECK: kaon.matmul {{.*}} transpose_b beta
// CHECK: %[[A:.*]] = kaon.matmul {{.*}} transpose_b symmetric :
// CHECK: kaon.matmul {{.*}} symmetric beta %{{.*}} %[[A]]
func.func @addend(%x: tensor<4x6xf32>, %c: tensor<4x4xf32>, %beta: f64) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %d = kaon.matmul %x, %x transpose_b beta %beta %c : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %e = kaon.matmul %a, %a beta %beta %a : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d, %e : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A square matrix is not symmetric for being square.
// CHECK-LABEL: func.func @square
// CHECK-NOT: symmetric
func.func @square(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = kaon.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %x, %y transpose_b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// As the front end writes it: transposes are ops of their own, and equal Gram
// matrices are several values.
// CHECK-LABEL: func.func @front_end
// CHECK: %[[A:.*]] = kaon.matmul %{{.*}}, %{{.*}} symmetric :
// CHECK: %[[B:.*]] = kaon.matmul %{{.*}}, %{{.*}} symmetric :
// CHECK: kaon.matmul %[[A]], %[[B]] symmetric :
// CHECK: %[[C:.*]] = kaon.matmul %{{.*}}, %{{.*}} symmetric :
// CHECK: kaon.matmul %[[A]], %[[C]] :
func.func @front_end(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %t = kaon.transpose %x : tensor<4x4xf32> -> tensor<4x4xf32>
  %a = kaon.matmul %x, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %u = kaon.transpose %x : tensor<4x4xf32> -> tensor<4x4xf32>
  %b = kaon.matmul %x, %u : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %ab = kaon.matmul %a, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = kaon.matmul %t, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %ac = kaon.matmul %a, %c : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %ab, %ac : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A Gram matrix with something added is symmetric, but does not commute with the
// Gram matrix alone.
// CHECK-LABEL: func.func @gram_and_addend
// CHECK: %[[C:.*]] = kaon.matmul %{{.*}} transpose_b symmetric :
// CHECK: %[[P:.*]] = kaon.matmul %{{.*}} transpose_b symmetric beta
// CHECK: %[[Q:.*]] = kaon.matmul %{{.*}} transpose_b symmetric :
// CHECK: kaon.matmul %[[P]], %[[Q]] :
func.func @gram_and_addend(%x: tensor<4x6xf32>, %y: tensor<4x6xf32>, %s: f64) -> tensor<4x4xf32> {
  %c = kaon.matmul %y, %y transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %p = kaon.matmul %x, %x transpose_b beta %s %c : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %r = kaon.matmul %p, %q : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}

// -----

// A factor scales a polynomial, which stays one in the same matrix.
// CHECK-LABEL: func.func @factor
// CHECK: %[[A:.*]] = kaon.matmul %{{.*}} transpose_b symmetric factor
// CHECK: kaon.matmul %[[A]], %[[A]] symmetric factor
func.func @factor(%x: tensor<4x6xbf16>, %f: tensor<1x1xf32>) -> tensor<4x4xbf16> {
  %a = kaon.matmul %x, %x transpose_b factor %f : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %b = kaon.matmul %a, %a factor %f : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %b : tensor<4x4xbf16>
}
