// RUN: kaon-opt %s --split-input-file --kaon-narrow-products | FileCheck %s

// Operands are rounded once, chains of products stay narrow, and other users
// see what is widened.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @chain
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-SAME: %[[S:[a-z0-9]+]]: f64
// CHECK-NEXT: %[[X:.*]] = arith.negf
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[X]] : tensor<4x6xf32> to tensor<4x6xbf16>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[H]], %[[H]] transpose_b symmetric : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[B:.*]] = kaon.matmul %[[A]], %[[A]] symmetric alpha %[[S]] beta %[[S]] %[[A]] : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[B]], %[[H]] beta %[[S]] %[[H]] : (tensor<4x4xbf16>, tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
// CHECK-NEXT: %[[Y32:.*]] = arith.extf %[[Y]] : tensor<4x6xbf16> to tensor<4x6xf32>
// CHECK-NEXT: arith.subf %[[W]], %[[Y32]]
func.func @chain(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x6xf32> attributes {kaon.update} {
  %x = arith.negf %g : tensor<4x6xf32>
  %a = kaon.matmul %x, %x transpose_b symmetric : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %a, %a symmetric alpha %s beta %s %a
      : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = kaon.matmul %b, %x beta %s %x : (tensor<4x4xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %w1 = arith.subf %w, %y : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

}

// -----

// What was narrow before is not rounded again; an argument is rounded where the function begins.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @wide
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x4xbf16>
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[W]] : tensor<4x4xf32> to tensor<4x4xbf16>
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[G]], %[[H]] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[Y32:.*]] = arith.extf %[[Y]]
// CHECK-NEXT: return %[[Y32]]
func.func @wide(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %g32 = arith.extf %g : tensor<4x4xbf16> to tensor<4x4xf32>
  %y = kaon.matmul %g32, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

}

// -----

// The other type, which the gradient does not have: it is rounded.

module attributes {kaon.cuda = #kaon.cuda_target<half = f16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @other
// CHECK: %[[G:.*]] = arith.extf
// CHECK-NEXT: %[[H:.*]] = arith.truncf %[[G]] : tensor<4x4xf32> to tensor<4x4xf16>
// CHECK-NEXT: kaon.matmul %[[H]], %[[H]] : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
func.func @other(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %g32 = arith.extf %g : tensor<4x4xbf16> to tensor<4x4xf32>
  %y = kaon.matmul %g32, %g32 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

}

// -----

// A vector that is seen as a row is widened first: its rows have gaps.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @view
// CHECK-NOT: kaon.transpose {{.*}}bf16
// CHECK: kaon.transpose %{{.*}} : tensor<4x1xf32> -> tensor<1x4xf32>
// CHECK-NOT: kaon.transpose {{.*}}bf16
// CHECK: kaon.transpose %{{.*}} : tensor<1x4xf32> -> tensor<4x1xf32>
// CHECK: return %{{.*}} : tensor<4x1xbf16>
func.func @view(%w: tensor<4x1xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x1xbf16> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x1xbf16> attributes {kaon.update} {
  %t = kaon.transpose %g : tensor<4x1xbf16> -> tensor<1x4xbf16>
  %u = kaon.transpose %t : tensor<1x4xbf16> -> tensor<4x1xbf16>
  return %u : tensor<4x1xbf16>
}

}

// -----

// A parameter is not rounded to be added to what changes it, even if a product
// reads it, too; neither is what no product reads.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @param
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[S:[a-z0-9]+]]: f64
// CHECK: %[[P:.*]] = kaon.matmul %{{.*}}, %{{.*}} alpha %[[S]] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
// CHECK: %[[WIDE:.*]] = arith.extf %[[P]]
// CHECK: %[[SPLAT:.*]] = tensor.splat
// CHECK: %[[KEPT:.*]] = arith.mulf %[[SPLAT]], %[[W]] : tensor<4x4xf32>
// CHECK: %[[W1:.*]] = arith.addf %[[KEPT]], %[[WIDE]] : tensor<4x4xf32>
// CHECK: return %[[W1]]
func.func @param(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xf32> attributes {kaon.update} {
  %w1 = kaon.matmul %w, %g alpha %s beta %s %w : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// CHECK-LABEL: func.func @sum
// CHECK: %[[C:.*]] = math.absf
// CHECK: kaon.matmul %{{.*}}, %{{.*}} : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
// CHECK: arith.mulf %{{.*}}, %[[C]] : tensor<4x4xf32>
func.func @sum(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
               %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xf32> attributes {kaon.update} {
  %c = math.absf %w : tensor<4x4xf32>
  %w1 = kaon.matmul %g, %g beta %s %c : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

}
