// RUN: not kaon-opt %s -kaon-bucket=max-concurrent-bytes=0 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: not kaon-opt %s -kaon-bucket -kaon-bucket 2>&1 | FileCheck %s --check-prefix=TWICE

// BYTES: error: max-concurrent-bytes must be positive, but got 0
// TWICE: error: 'kaon.program' op expects no phases before bucketing, but has 1
func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @f "w" scalars 0 phase 0
}
