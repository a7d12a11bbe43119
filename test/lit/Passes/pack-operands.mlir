// RUN: kaon-opt %s -split-input-file -kaon-pack-operands | FileCheck %s

module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 96>} {
  // Slivers of 6 rows and of 16 columns; the depth is rounded up to four.
  // CHECK-LABEL: func.func @f32
  // CHECK-SAME: %[[A:.*]]: tensor<20x10xf32>, %[[B:.*]]: tensor<40x10xf32>
  // CHECK: %[[P:.*]] = kaon.pack lhs %[[A]] : tensor<20x10xf32> -> tensor<4x72xf32>
  // CHECK: %[[Q:.*]] = kaon.pack rhs %[[B]] transpose : tensor<40x10xf32> -> tensor<3x192xf32>
  // CHECK: kaon.matmul %[[P]], %[[Q]] packed sizes [20, 40, 10] alpha %{{.*}}
  func.func @f32(%a: tensor<20x10xf32>, %b: tensor<40x10xf32>, %s: f64) -> tensor<20x40xf32> {
    %d = kaon.matmul %a, %b transpose_b alpha %s : (tensor<20x10xf32>, tensor<40x10xf32>) -> tensor<20x40xf32>
    return %d : tensor<20x40xf32>
  }

  // f64 has half the columns in a register tile.
  // CHECK-LABEL: func.func @f64
  // CHECK: kaon.pack lhs %{{.*}} transpose : tensor<8x20xf64> -> tensor<4x48xf64>
  // CHECK: kaon.pack rhs %{{.*}} : tensor<8x40xf64> -> tensor<5x64xf64>
  func.func @f64(%a: tensor<8x20xf64>, %b: tensor<8x40xf64>) -> tensor<20x40xf64> {
    %d = kaon.matmul %a, %b transpose_a : (tensor<8x20xf64>, tensor<8x40xf64>) -> tensor<20x40xf64>
    return %d : tensor<20x40xf64>
  }

  // An operand is packed once per side and transposition.
  // CHECK-LABEL: func.func @shared
  // CHECK-COUNT-3: kaon.pack
  // CHECK-NOT: kaon.pack
  func.func @shared(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
    %d = kaon.matmul %a, %a transpose_b symmetric : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %e = kaon.matmul %a, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    return %d, %e : tensor<8x8xf32>, tensor<8x8xf32>
  }
}
