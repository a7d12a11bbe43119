// RUN: kaon-reduce %s --reduction-tree='traversal-mode=0 test=%S/Inputs/has_newton_schulz.sh' | FileCheck %s

// The reducer keeps what the script finds interesting and drops the rest.

// CHECK-NOT: @uninteresting
// CHECK: func.func @interesting
// CHECK: kaon.newton_schulz
// CHECK-NOT: @uninteresting
func.func @uninteresting(%x: tensor<4x6xf32>) -> tensor<4x1xf32> {
  %n = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
  return %n : tensor<4x1xf32>
}

func.func @interesting(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %o = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return %o : tensor<4x6xf32>
}

func.func @uninteresting_too(%x: tensor<4x6xf32>) -> tensor<4x1xf32> {
  %n = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
  return %n : tensor<4x1xf32>
}
