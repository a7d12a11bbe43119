// RUN: kaon-opt %s -cse -canonicalize -kaon-plan-memory | FileCheck %s

// A planned op is right where it stands: the same kernel runs twice, because its
// first result is overwritten in between, and a store that nobody seems to read
// stays.
func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func private @binary(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %z = arith.addf %x, %y : tensor<?x?xf32>
  return %z : tensor<?x?xf32>
}
// CHECK-LABEL: func.func @recomputed
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32>
// CHECK: kaon.launch @unary ins(%[[G]]
// CHECK: %[[B:.*]] = kaon.launch @unary ins(%[[W]]
// CHECK: %[[C:.*]] = kaon.launch @binary ins(%[[W]], %[[B]]
// CHECK: %[[A:.*]] = kaon.launch @unary ins(%[[G]]
// CHECK: kaon.launch @binary ins(%[[A]], %[[C]]
func.func @recomputed(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 256 : i64} {
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  %b = kaon.launch @unary ins(%w : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  %c = kaon.launch @binary ins(%w, %b : tensor<4x6xf32>, tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 128>]} -> tensor<4x6xf32>
  %d = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  %w1 = kaon.launch @binary ins(%d, %c : tensor<4x6xf32>, tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<param, 0>]} -> tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}
