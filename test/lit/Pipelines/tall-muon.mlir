// RUN: kaon-opt %s -kaon-cpu-pipeline=max-concurrent-bytes=100 | FileCheck %s

// A tall matrix is iterated on its short side, without a transpose.
// CHECK-LABEL: func.func @tall.1
// CHECK-NOT: kaon.transpose {{.*}}96x48
// CHECK: kaon.matmul {{.*}} symmetric packed sizes [48, 48, 96]
// CHECK: kaon.matmul {{.*}} symmetric packed sizes [48, 48, 48]
// CHECK: kaon.matmul {{.*}} packed sizes [96, 48, 48]
// CHECK: kaon.matmul {{.*}} symmetric packed sizes [48, 48, 96]
// CHECK: kaon.matmul {{.*}} symmetric packed sizes [48, 48, 48]
// CHECK: kaon.matmul {{.*}} packed sizes [96, 48, 48]
// CHECK-NOT: kaon.matmul

// Its phase offset moves the refresh from the steps 1, 4, ... to 2, 5, ...
// CHECK: kaon.phase 1 {
// CHECK-NEXT: kaon.bucket @tall.0
// CHECK: kaon.phase 2 {
// CHECK-NEXT: kaon.bucket @tall.1
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>} {
  func.func @tall(%w: tensor<96x48xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                 %g: tensor<96x48xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                 %m: tensor<96x48xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64},
                 %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                 %mu: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "momentum"},
                 %wd: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "weight_decay"},
                 %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
      -> (tensor<96x48xf32>, tensor<96x48xf32>) attributes {kaon.update} {
    %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<96x48xf32>
    %o = kaon.every %step period 3 phase 1 -> tensor<96x48xf32> {
      %a = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
          normalize max epsilon 1.0e-7 scale 1.0 : tensor<96x48xf32>
      kaon.yield %a : tensor<96x48xf32>
    } else {
      %b = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : tensor<96x48xf32>
      kaon.yield %b : tensor<96x48xf32>
    }
    %scale = arith.constant 1.96 : f64
    %s = arith.mulf %lr, %scale : f64
    %d = arith.mulf %lr, %wd : f64
    %w1 = kaon.apply decoupled %w, %o step_size %s decay %d : tensor<96x48xf32>
    return %w1, %m1 : tensor<96x48xf32>, tensor<96x48xf32>
  }
  kaon.program @step {
    kaon.parameter @tall "a" scalars 0 phase 1
  }
}
