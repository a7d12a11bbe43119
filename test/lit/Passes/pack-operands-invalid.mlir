// RUN: kaon-opt %s -verify-diagnostics -kaon-pack-operands

func.func @f(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // expected-error @below {{'kaon.matmul' op can only be packed for a known processor, but the module has no kaon.cpu}}
  %d = kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d : tensor<4x4xf32>
}
