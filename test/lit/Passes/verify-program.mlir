// RUN: kaon-opt %s -kaon-verify-program | FileCheck %s

// Storage types are widened on entry and narrowed before the end.
// CHECK-LABEL: func.func @sgd
func.func @sgd(%w: tensor<4x6xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf16> {kaon.role = #kaon.role<grad>},
               %lr: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x6xbf16> attributes {kaon.update} {
  %w32 = arith.extf %w : tensor<4x6xbf16> to tensor<4x6xf32>
  %g32 = arith.extf %g : tensor<4x6xf16> to tensor<4x6xf32>
  %t = arith.sitofp %step : i64 to f64
  %s = math.sqrt %t : f64
  %w1 = kaon.apply decoupled %w32, %g32 step_size %lr decay %s : tensor<4x6xf32>
  %narrow = arith.truncf %w1 : tensor<4x6xf32> to tensor<4x6xbf16>
  return %narrow : tensor<4x6xbf16>
}
kaon.program @step {
  kaon.parameter @sgd "a" scalars 0 phase 0
  kaon.parameter @sgd "b" scalars 1 phase 0
}
