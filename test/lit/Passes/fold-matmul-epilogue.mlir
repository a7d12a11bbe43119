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

// a * X + B X, then scaled. The two may cancel where one of them, scaled, is no
// number any more: the scale stays.
// CHECK-LABEL: func.func @scaled
// CHECK-SAME: %[[B:.*]]: tensor<4x4xf64>, %[[X:.*]]: tensor<4x6xf64>, %[[S:.*]]: f64
// CHECK-DAG: %[[A:.*]] = arith.constant 1.5{{.*}} : f64
// CHECK-DAG: %[[FILL:.*]] = tensor.splat %[[S]]
// CHECK-DAG: %[[P:.*]] = kaon.matmul %[[B]], %[[X]] beta %[[A]] %[[X]]
// CHECK: arith.mulf %[[FILL]], %[[P]]
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

// -----

// A second factor joins the first one if both are constants, and so is their
// product, as a normal number of the element type.
// CHECK-LABEL: func.func @constants
// CHECK-SAME: %[[A:.*]]: tensor<4x4xf32>
// CHECK-DAG: %[[SIX:.*]] = arith.constant 6.0{{.*}} : f64
// CHECK: %[[R:.*]] = kaon.matmul %[[A]], %[[A]] alpha %[[SIX]] :
// CHECK-NEXT: return %[[R]]
func.func @constants(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %two = arith.constant dense<2.0> : tensor<4x4xf32>
  %three = arith.constant dense<3.0> : tensor<4x4xf32>
  %p = kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = arith.mulf %p, %two : tensor<4x4xf32>
  %r = arith.mulf %three, %q : tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}

// -----

// 1e60 is no f32, 1e-60 is zero in f32: a zero product would become NaN, a large
// one would vanish.
// CHECK-LABEL: func.func @extreme
// CHECK-DAG: %[[LARGE:.*]] = arith.constant dense<{{1.*e\+30}}> : tensor<4x4xf32>
// CHECK-DAG: %[[SMALL:.*]] = arith.constant dense<{{1.*e-30|9.*e-31}}> : tensor<4x4xf32>
// CHECK-DAG: %[[P:.*]] = kaon.matmul %{{.*}}, %{{.*}} alpha %{{.*}} :
// CHECK-DAG: arith.mulf %[[P]], %[[LARGE]]
// CHECK-DAG: %[[Q:.*]] = kaon.matmul %{{.*}}, %{{.*}} transpose_a alpha %{{.*}} :
// CHECK-DAG: arith.mulf %[[Q]], %[[SMALL]]
func.func @extreme(%a: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %large = arith.constant dense<1.0e+30> : tensor<4x4xf32>
  %small = arith.constant dense<1.0e-30> : tensor<4x4xf32>
  %p = kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = arith.mulf %p, %large : tensor<4x4xf32>
  %r = arith.mulf %q, %large : tensor<4x4xf32>
  %s = kaon.matmul %a, %a transpose_a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = arith.mulf %s, %small : tensor<4x4xf32>
  %u = arith.mulf %t, %small : tensor<4x4xf32>
  return %r, %u : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// What two run-time scalars make together is not known.
// CHECK-LABEL: func.func @run_time
// CHECK-SAME: %[[A:.*]]: tensor<4x4xf64>, %[[S:.*]]: f64, %[[T:.*]]: f64
// CHECK-DAG: %[[FILL:.*]] = tensor.splat %[[T]]
// CHECK-DAG: %[[P:.*]] = kaon.matmul %[[A]], %[[A]] alpha %[[S]] :
// CHECK: arith.mulf %[[P]], %[[FILL]]
func.func @run_time(%a: tensor<4x4xf64>, %s: f64, %t: f64) -> tensor<4x4xf64> {
  %p = kaon.matmul %a, %a : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  %ss = tensor.splat %s : tensor<4x4xf64>
  %q = arith.mulf %p, %ss : tensor<4x4xf64>
  %ts = tensor.splat %t : tensor<4x4xf64>
  %r = arith.mulf %q, %ts : tensor<4x4xf64>
  return %r : tensor<4x4xf64>
}

// -----

// A factor scales what is folded into the product with it: its own scaling, but
// no addend.
// CHECK-LABEL: func.func @factor
// CHECK-SAME: %[[A:.*]]: tensor<4x4xbf16>, %[[F:.*]]: tensor<1x1xf32>, %[[S:.*]]: f64
// CHECK-DAG: %[[P:.*]] = kaon.matmul %[[A]], %[[A]] alpha %{{.*}} factor %[[F]] :
// CHECK-DAG: %[[Q:.*]] = kaon.matmul %[[A]], %[[A]] transpose_a factor %[[F]] :
// CHECK: arith.addf %[[Q]], %[[A]]
func.func @factor(%a: tensor<4x4xbf16>, %f: tensor<1x1xf32>, %s: f64) -> (tensor<4x4xbf16>, tensor<4x4xbf16>) {
  %half = arith.truncf %s : f64 to bf16
  %ss = tensor.splat %half : tensor<4x4xbf16>
  %p = kaon.matmul %a, %a factor %f : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %scaled = arith.mulf %ss, %p : tensor<4x4xbf16>
  %q = kaon.matmul %a, %a transpose_a factor %f : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %sum = arith.addf %q, %a : tensor<4x4xbf16>
  return %scaled, %sum : tensor<4x4xbf16>, tensor<4x4xbf16>
}
