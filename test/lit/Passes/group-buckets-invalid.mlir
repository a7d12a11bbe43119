// RUN: not kaon-opt %s -kaon-group-buckets=max-workspace-bytes=-1 2>&1 | FileCheck %s --check-prefix=BYTES
// RUN: not kaon-opt %s -kaon-group-buckets 2>&1 | FileCheck %s --check-prefix=PLAN
// RUN: sed -e 's/{kaon.update}/{kaon.update, kaon.workspace = 9223372036854775807 : i64}/' %s | not kaon-opt -kaon-group-buckets 2>&1 | FileCheck %s --check-prefix=LARGE

// BYTES: error: max-workspace-bytes must not be negative, but got -1
// LARGE: error: 'func.func' op expects kaon.workspace of at most 2^48 bytes for all matrices in flight, but got 9223372036854775807 for each of 1
// PLAN: error: 'func.func' op expects kaon.workspace; kaon-plan-memory comes first
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @f "w" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @f parameters [0] concurrent 1
  }
}

}
