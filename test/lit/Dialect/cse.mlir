// RUN: kaon-opt %s --cse | FileCheck %s

// Equal pure ops are merged; unequal attributes keep them apart.

// CHECK-LABEL: func.func @merge
// CHECK: kaon.matmul %{{.*}} transpose_b symmetric
// CHECK-NEXT: kaon.matmul %{{.*}} transpose_b :
// CHECK-NEXT: kaon.normalize %{{.*}} along row
// CHECK-NEXT: kaon.normalize %{{.*}} along column
// CHECK-NEXT: return
func.func @merge(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>,
                                          tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = kaon.matmul %x, %x transpose_b symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %x, %x transpose_b symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = kaon.matmul %x, %x transpose_b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = kaon.normalize %x along row max epsilon 0.0 scale 1.0 : tensor<4x4xf32>
  %e = kaon.normalize %x along row max epsilon 0.0 scale 1.0 : tensor<4x4xf32>
  %f = kaon.normalize %x along column max epsilon 0.0 scale 1.0 : tensor<4x4xf32>
  return %a, %b, %c, %d, %e, %f : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>,
                                  tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
