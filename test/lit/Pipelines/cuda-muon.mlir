// RUN: kaon-opt %s --kaon-cuda-pipeline | FileCheck %s

// Muon for a GPU: one kernel makes the direction, rounds it to bf16 and sums its
// rows, one adds them up to the norm, one has nothing to do unless the norm is
// extreme, products stay in bf16 and divide by the norm, and the last one changes
// the parameter.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @muon
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<40x70xf32>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<40x70xbf16>
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<40x70xf32>
// CHECK: %[[U:.*]]:3 = kaon.launch @{{.*}} ins(%[[G]], %[[M]] : {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<workspace, {{[0-9]+}}>, #kaon.buffer<workspace, [[AT:[0-9]+]]>]} -> tensor<40x70xf32>, tensor<40x1xf64>, tensor<40x70xbf16>
// CHECK-NEXT: kaon.transpose %[[U]]#1
// CHECK: %[[N:.*]]:3 = kaon.launch @{{.*}} -> tensor<1x1xf64>, tensor<1x1xf32>, tensor<1x1xf32>
// CHECK-NEXT: %[[X:.*]] = kaon.launch @{{.*}} ins(%[[G]], %[[U]]#0, %[[N]]#0, %[[U]]#2 : {{.*}} {kaon.buffers = [#kaon.buffer<workspace, [[AT]]>]} -> tensor<40x70xbf16>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b symmetric factor %[[N]]#2
// CHECK-NEXT: %[[B:.*]] = kaon.matmul %[[A]], %[[A]] symmetric alpha %{{.*}} beta %{{.*}} %[[A]] {
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[B]], %[[X]] beta %{{.*}} %[[X]] factor %[[N]]#1
// CHECK-SAME: -> tensor<40x70xbf16>
// CHECK-NEXT: %[[C:.*]] = kaon.matmul %[[Y]], %[[Y]] transpose_b symmetric
// CHECK-NEXT: %[[D:.*]] = kaon.matmul %[[C]], %[[C]] symmetric
// CHECK-NEXT: %[[W1:.*]] = kaon.matmul %[[D]], %[[Y]] beta %{{.*}} %[[Y]] epilogue @{{.*}}(%[[W]] : tensor<40x70xf32>) scalars(
// CHECK-SAME: kaon.buffers = [#kaon.buffer<param, 0>]
// CHECK-NEXT: return %[[W1]], %[[U]]#0

// Both matrices at once.
// CHECK: kaon.bucket @muon parameters [0, 1] concurrent 2
func.func @muon(%w: tensor<40x70xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                %g: tensor<40x70xbf16> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                %m: tensor<40x70xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64},
                %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                %mu: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "mu"},
                %wd: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "wd"},
                %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> (tensor<40x70xf32>, tensor<40x70xf32>) attributes {kaon.update} {
  %g32 = arith.extf %g : tensor<40x70xbf16> to tensor<40x70xf32>
  %u, %m1 = kaon.momentum lerp %g32, %m, %mu nesterov : tensor<40x70xf32>
  %o = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
      normalize max epsilon 1.0e-7 scale 1.0 : tensor<40x70xf32>
  %decay = arith.mulf %lr, %wd : f64
  %w1 = kaon.apply decoupled %w, %o step_size %lr decay %decay : tensor<40x70xf32>
  return %w1, %m1 : tensor<40x70xf32>, tensor<40x70xf32>
}

kaon.program @step {
  kaon.parameter @muon "a" scalars 0 phase 0
  kaon.parameter @muon "b" scalars 0 phase 0
}

}
