// RUN: kaon-opt %s --kaon-fuse-kernels --split-input-file | FileCheck %s

// Momentum, scaling and the rounding to half precision are one kernel, which
// feeds the product directly; what follows a product widens it where it is read.

// CHECK-LABEL: func.func @direct
// CHECK: %[[K:.*]]:2 = kaon.kernel elementwise
// CHECK: arith.truncf %{{.*}} : tensor<4x6xf32> to tensor<4x6xbf16>
// CHECK: -> tensor<4x6xf32>, tensor<4x6xbf16>
// CHECK-NEXT: %[[P:.*]] = kaon.matmul %[[K]]#1, %[[K]]#1 transpose_b
// CHECK-NEXT: %[[Q:.*]] = kaon.matmul %[[P]], %[[K]]#1
// CHECK-NEXT: %{{.*}} = kaon.kernel elementwise ins(%[[Q]], %{{.*}} : tensor<4x6xbf16>, tensor<4x6xf32>)
// CHECK: arith.extf
// CHECK: arith.subf
func.func @direct(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %m1 = arith.addf %m, %g : tensor<4x6xf32>
  %x = arith.truncf %m1 : tensor<4x6xf32> to tensor<4x6xbf16>
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %y = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
  %w1 = arith.subf %w, %y : tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A product copies whole pieces of rows, which need not be aligned in the
// caller's matrices: those are copied once.

// CHECK-LABEL: func.func @argument
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x4xbf16>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x4xbf16>
// CHECK-NEXT: %[[COPY:.*]] = kaon.kernel elementwise ins(%[[G]] : tensor<4x4xbf16>)
// CHECK-NOT: kaon.kernel
// CHECK: %[[P:.*]] = kaon.matmul %[[COPY]], %[[COPY]] :
// CHECK-NEXT: kaon.matmul %[[P]], %[[COPY]] beta %{{.*}} %[[COPY]]
func.func @argument(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                    %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xbf16> attributes {kaon.update} {
  %p = kaon.matmul %g, %g : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %q = kaon.matmul %p, %g beta %s %g : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %q : tensor<4x4xbf16>
}
