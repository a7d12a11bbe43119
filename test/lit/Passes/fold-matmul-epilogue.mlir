// RUN: kaon-opt %s -split-input-file -kaon-fold-matmul-epilogue | FileCheck %s

// b * A + c * (A A)
// CHECK-LABEL: func.func @polynomial
// CHECK-SAME: %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: f64, %[[C:.*]]: f64
// CHECK-NEXT: %[[S:.*]] = kaon.matmul %[[A]], %[[A]] symmetric : (
// CHECK-NEXT: %[[R:.*]] = kaon.matmul %[[S]], %[[S]] symmetric alpha %[[C]] beta %[[B]] %[[S]]
// CHECK-NEXT: return %[[R]]
func.func @polynomial(%a: tensor<4x4xf32>, %b: f64, %c: f64) -> tensor<4x4xf32> {
  %s = kaon.matmul %a, %a symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %p = kaon.matmul %s, %s symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b32 = arith.truncf %b : f64 to f32
  %c32 = arith.truncf %c : f64 to f32
  %bs = tensor.splat %b32 : tensor<4x4xf32>
  %cs = tensor.splat %c32 : tensor<4x4xf32>
  %t = arith.mulf %bs, %s : tensor<4x4xf32>
  %u = arith.mulf %p, %cs : tensor<4x4xf32>
  %r = arith.addf %t, %u : tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}

// -----

// a * X + B X, then scaled: both factors are.
// CHECK-LABEL: func.func @scaled
// CHECK-SAME: %[[B:.*]]: tensor<4x4xf64>, %[[X:.*]]: tensor<4x6xf64>, %[[S:.*]]: f64
// CHECK-DAG: %[[A:.*]] = arith.constant 1.5{{.*}} : f64
// CHECK-DAG: %[[AS:.*]] = arith.mulf %[[S]], %[[A]] : f64
// CHECK: kaon.matmul %[[B]], %[[X]] alpha %[[S]] beta %[[AS]] %[[X]]
func.func @scaled(%b: tensor<4x4xf64>, %x: tensor<4x6xf64>, %s: f64) -> tensor<4x6xf64> {
  %a = arith.constant dense<1.5> : tensor<4x6xf64>
  %ax = arith.mulf %a, %x : tensor<4x6xf64>
  %bx = kaon.matmul %b, %x : (tensor<4x4xf64>, tensor<4x6xf64>) -> tensor<4x6xf64>
  %y = arith.addf %ax, %bx : tensor<4x6xf64>
  %ss = tensor.splat %s : tensor<4x6xf64>
  %r = arith.mulf %ss, %y : tensor<4x6xf64>
  return %r : tensor<4x6xf64>
}

// -----

// CHECK-LABEL: func.func @differences
// CHECK-SAME: %[[A:.*]]: tensor<4x4xf64>, %[[X:.*]]: tensor<4x4xf64>, %[[Y:.*]]: tensor<4x4xf64>, %[[S:.*]]: f64
// CHECK-DAG: %[[MINUS:.*]] = arith.constant -1.0{{.*}} : f64
// CHECK-DAG: %[[ONE:.*]] = arith.constant 1.0{{.*}} : f64
// CHECK-DAG: %[[NEG:.*]] = arith.negf %[[S]] : f64
// CHECK-DAG: kaon.matmul %[[A]], %[[X]] alpha %[[MINUS]] beta %[[ONE]] %[[Y]]
// CHECK-DAG: kaon.matmul %[[X]], %[[A]] beta %[[NEG]] %[[Y]]
func.func @differences(%a: tensor<4x4xf64>, %x: tensor<4x4xf64>, %y: tensor<4x4xf64>, %s: f64) -> (tensor<4x4xf64>, tensor<4x4xf64>) {
  %p = kaon.matmul %a, %x : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %d = arith.subf %y, %p : tensor<4x4xf64>
  %q = kaon.matmul %x, %a : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %ss = tensor.splat %s : tensor<4x4xf64>
  %sy = arith.mulf %ss, %y : tensor<4x4xf64>
  %e = arith.subf %q, %sy : tensor<4x4xf64>
  return %d, %e : tensor<4x4xf64>, tensor<4x4xf64>
}

// -----

// Not folded: another use of the product, a scale that only the device knows, an
// addend that would cost the symmetry.
// CHECK-LABEL: func.func @kept
// CHECK: %[[P:.*]] = kaon.matmul %{{.*}}, %{{.*}} : (
// CHECK: arith.addf %[[P]]
// CHECK: %[[Q:.*]] = kaon.matmul %{{.*}}, %{{.*}} transpose_a : (
// CHECK: arith.mulf %{{.*}}, %[[Q]]
// CHECK: %[[S:.*]] = kaon.matmul %{{.*}}, %{{.*}} transpose_b symmetric : (
// CHECK: arith.addf %[[S]]
func.func @kept(%a: tensor<4x4xf32>, %x: tensor<4x4xf32>, %s: tensor<1x1xf32>)
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %p = kaon.matmul %a, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = arith.addf %p, %x : tensor<4x4xf32>
  %q = kaon.matmul %a, %x transpose_a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = kaon.broadcast %s : tensor<1x1xf32> to tensor<4x4xf32>
  %e = arith.mulf %b, %q : tensor<4x4xf32>
  %g = kaon.matmul %a, %a transpose_b symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %f = arith.addf %g, %x : tensor<4x4xf32>
  return %p, %d, %e, %f : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
