// RUN: kaon-opt %s --kaon-gram-newton-schulz --split-input-file | FileCheck %s
// RUN: kaon-opt %s --kaon-gram-newton-schulz=min-size=8 --split-input-file | FileCheck %s --check-prefix=SMALL

// Long matrices are iterated on the Gram matrix of their shorter side, which
// is computed anew before errors of 16 bits grow: every second step for bf16.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @wide
// CHECK: kaon.newton_schulz {{.*}} gram restarts [2, 4]
func.func @wide(%x: tensor<512x2048xf32>) -> tensor<512x2048xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
  return %y : tensor<512x2048xf32>
}

// A steep first step makes a segment of its own.
// CHECK-LABEL: func.func @tall
// CHECK: kaon.newton_schulz {{.*}} gram restarts [1, 3]
func.func @tall(%x: tensor<2048x512xf32>) -> tensor<2048x512xf32> {
  %y = kaon.newton_schulz %x coefficients [8.205, -22.9, 16.46, 4.066, -2.861, 0.5184, 3.91, -2.823, 0.525, 3.286, -2.415, 0.4853, 2.278, -1.62, 0.3985]
      normalize max epsilon 0.0 scale 1.0 : tensor<2048x512xf32>
  return %y : tensor<2048x512xf32>
}

// In square matrices there is nothing to save.
// CHECK-LABEL: func.func @square
// CHECK-NOT: gram
func.func @square(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x512xf32>
  return %y : tensor<512x512xf32>
}

// Nor without squares of the Gram matrix, nor with a single step.
// CHECK-LABEL: func.func @cubic
// CHECK-NOT: gram
func.func @cubic(%x: tensor<512x2048xf32>) -> (tensor<512x2048xf32>, tensor<512x2048xf32>) {
  %y = kaon.newton_schulz %x coefficients [3.0, -2.0, 0.0, 2.5, -1.5, 0.0, 1.5, -0.5, 0.0]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
  %z = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
  return %y, %z : tensor<512x2048xf32>, tensor<512x2048xf32>
}

// What is small is bound by launches.
// CHECK-LABEL: func.func @small
// CHECK-NOT: gram
// SMALL-LABEL: func.func @small
// SMALL: kaon.newton_schulz {{.*}} gram restarts [2]
func.func @small(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<8x64xf32>
  return %y : tensor<8x64xf32>
}

// A form that is written down is left alone.
// CHECK-LABEL: func.func @chosen
// CHECK: gram restarts [1]
func.func @chosen(%x: tensor<512x2048xf32>) -> tensor<512x2048xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 gram restarts [1] : tensor<512x2048xf32>
  return %y : tensor<512x2048xf32>
}

}

// -----

// f16 has more bits: segments are longer.

module attributes {kaon.cuda = #kaon.cuda_target<half = f16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @wide
// CHECK: kaon.newton_schulz {{.*}} gram restarts [3]
func.func @wide(%x: tensor<512x2048xf32>) -> tensor<512x2048xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
  return %y : tensor<512x2048xf32>
}

}

// -----

// The CPU computes in f32, and its schedule is its own.

// CHECK-LABEL: func.func @cpu
// CHECK-NOT: gram
func.func @cpu(%x: tensor<512x2048xf32>) -> tensor<512x2048xf32> {
  %y = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
  return %y : tensor<512x2048xf32>
}
