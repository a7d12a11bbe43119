// RUN: kaon-opt %s -kaon-outline-kernels | FileCheck %s
// RUN: kaon-opt %s -kaon-outline-kernels > %t.plain
// RUN: kaon-opt %s -kaon-outline-kernels -mlir-print-debuginfo | kaon-opt > %t.debuginfo
// RUN: kaon-opt %s -kaon-outline-kernels -mlir-print-op-generic | kaon-opt > %t.generic
// RUN: kaon-opt %s -kaon-outline-kernels -mlir-use-nameloc-as-prefix | kaon-opt > %t.names
// RUN: diff %t.plain %t.debuginfo
// RUN: diff %t.plain %t.generic
// RUN: diff %t.plain %t.names

// Kernels that differ in shapes and names only are one function.
// CHECK-LABEL: func.func @small
// CHECK: kaon.launch @[[$K:kernel_[0-9a-f]{16}]] ins(%{{.*}} : tensor<4x6xf32>, tensor<4x1xf32>) scalars(%{{.*}} : f64) -> tensor<4x6xf32>
func.func @small(%x: tensor<4x6xf32>, %r: tensor<4x1xf32>, %s: f64) -> tensor<4x6xf32> {
  %y = kaon.kernel rows ins(%x, %r : tensor<4x6xf32>, tensor<4x1xf32>) scalars(%s : f64) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x1xf32>, %c: f64):
    %c32 = arith.truncf %c : f64 to f32
    %f = tensor.splat %c32 : tensor<4x6xf32>
    %zero = arith.constant dense<0.0> : tensor<4x1xf32>
    %m = arith.maximumf %b, %zero : tensor<4x1xf32>
    %p = kaon.broadcast %m : tensor<4x1xf32> to tensor<4x6xf32>
    %q = arith.mulf %a, %p : tensor<4x6xf32>
    %t = arith.addf %q, %f : tensor<4x6xf32>
    kaon.yield %t : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// CHECK-LABEL: func.func @large
// CHECK: kaon.launch @[[$K]] ins(%{{.*}} : tensor<40x60xf32>, tensor<40x1xf32>) scalars(%{{.*}} : f64) -> tensor<40x60xf32>
func.func @large(%x: tensor<40x60xf32>, %r: tensor<40x1xf32>, %s: f64) -> tensor<40x60xf32> {
  %y = kaon.kernel rows ins(%x, %r : tensor<40x60xf32>, tensor<40x1xf32>) scalars(%s : f64) {
  ^bb0(%matrix: tensor<40x60xf32>, %rows: tensor<40x1xf32>, %scalar: f64):
    %c32 = arith.truncf %scalar : f64 to f32
    %f = tensor.splat %c32 : tensor<40x60xf32>
    %zero = arith.constant dense<0.0> : tensor<40x1xf32>
    %m = arith.maximumf %rows, %zero : tensor<40x1xf32>
    %p = kaon.broadcast %m : tensor<40x1xf32> to tensor<40x60xf32>
    %q = arith.mulf %matrix, %p : tensor<40x60xf32>
    %t = arith.addf %q, %f : tensor<40x60xf32>
    kaon.yield %t : tensor<40x60xf32>
  } -> tensor<40x60xf32>
  return %y : tensor<40x60xf32>
}

// A vector stays one: its dimension of one is part of the kernel.
// CHECK-LABEL: func.func @vector
// CHECK: kaon.launch @[[$V:kernel_[0-9a-f]{16}]] ins(%{{.*}} : tensor<1x6xf32>) -> tensor<1x6xf32>
func.func @vector(%x: tensor<1x6xf32>) -> tensor<1x6xf32> {
  %y = kaon.kernel elementwise ins(%x : tensor<1x6xf32>) {
  ^bb0(%a: tensor<1x6xf32>):
    %n = arith.negf %a : tensor<1x6xf32>
    kaon.yield %n : tensor<1x6xf32>
  } -> tensor<1x6xf32>
  return %y : tensor<1x6xf32>
}

// No operand tells the size of what is filled.
// CHECK-LABEL: func.func @fill
// CHECK: kaon.launch @[[$F:kernel_[0-9a-f]{16}]] scalars(%{{.*}} : f64) -> tensor<4x6xf64>
func.func @fill(%s: f64) -> tensor<4x6xf64> {
  %y = kaon.kernel elementwise scalars(%s : f64) {
  ^bb0(%c: f64):
    %f = tensor.splat %c : tensor<4x6xf64>
    kaon.yield %f : tensor<4x6xf64>
  } -> tensor<4x6xf64>
  return %y : tensor<4x6xf64>
}

// CHECK: func.func private @[[$K]](%[[X:.*]]: tensor<?x?xf32>, %[[R:.*]]: tensor<?x1xf32>, %[[S:.*]]: f64) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>}
// CHECK-DAG: %[[S32:.*]] = arith.truncf %[[S]]
// CHECK-DAG: %[[F:.*]] = tensor.splat %[[S32]][%{{.*}}, %{{.*}}] : tensor<?x?xf32>
// CHECK-DAG: %[[ZERO:.*]] = arith.constant 0.0{{.*}} : f32
// CHECK-DAG: %[[ZEROS:.*]] = tensor.splat %[[ZERO]][%{{.*}}] : tensor<?x1xf32>
// CHECK: %[[M:.*]] = arith.maximumf %[[R]], %[[ZEROS]] : tensor<?x1xf32>
// CHECK: %[[B:.*]] = kaon.broadcast %[[M]] : tensor<?x1xf32> to tensor<?x?xf32>
// CHECK: %[[Q:.*]] = arith.mulf %[[X]], %[[B]]
// CHECK: %[[T:.*]] = arith.addf %[[Q]], %[[F]]
// CHECK: return %[[T]]
// CHECK: func.func private @[[$V]](%{{.*}}: tensor<1x?xf32>) -> tensor<1x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>}
// CHECK: func.func private @[[$F]](%{{.*}}: f64) -> tensor<4x6xf64>
// CHECK-NOT: func.func
