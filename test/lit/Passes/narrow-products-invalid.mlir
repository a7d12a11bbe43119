// RUN: kaon-opt %s --split-input-file --kaon-narrow-products --verify-diagnostics

// expected-error @below {{can only be narrowed for a known GPU, but the module has no kaon.cuda}}
func.func @u(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  return %w : tensor<4x4xf32>
}

// -----

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func @u(%w: tensor<4x4xf64> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf64> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf64> attributes {kaon.update} {
  // expected-error @below {{expects operands of f32 to take the product of in 'bf16', but got 'f64'}}
  %y = kaon.matmul %g, %w : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  return %y : tensor<4x4xf64>
}

}

// -----

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func @u(%w: tensor<4x8xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x8xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x8xf32> attributes {kaon.update} {
  %p = kaon.pack lhs %w : tensor<4x8xf32> -> tensor<1x32xf32>
  %q = kaon.pack rhs %g transpose : tensor<4x8xf32> -> tensor<1x64xf32>
  // expected-error @below {{expects operands that are not packed, which only products of the CPU read}}
  %y = kaon.matmul %p, %q packed sizes [4, 4, 8] : (tensor<1x32xf32>, tensor<1x64xf32>) -> tensor<4x4xf32>
  return %w : tensor<4x8xf32>
}

}
