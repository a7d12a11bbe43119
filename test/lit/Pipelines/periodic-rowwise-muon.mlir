// RUN: kaon-opt %s -kaon-cpu-pipeline | FileCheck %s
// RUN: kaon-opt %s -kaon-simplify-pipeline -kaon-schedule-pipeline | FileCheck %s

// A row step is one kernel of rows in one pass over memory: momentum, norm,
// decay and update, all in place.
// CHECK-LABEL: func.func @prm.0
// CHECK-SAME: kaon.workspace = 0 : i64
// CHECK: kaon.launch @[[$ROW:kernel_[0-9a-f]+]] {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<param, 0>]}
// CHECK-NOT: kaon.launch
// CHECK: return

// A refresh: momentum with the row sums of its square, their sum, the scaled
// matrix; three products per step, two of them symmetric; the update.
// CHECK-LABEL: func.func @prm.1
// CHECK: %[[M:.*]]:2 = kaon.launch @[[$MOMENTUM:kernel_[0-9a-f]+]] {{.*}} -> tensor<48x96xf32>, tensor<48x1xf64>
// CHECK-NEXT: %[[V:.*]] = kaon.transpose %[[M]]#1
// CHECK: %[[F:.*]] = kaon.launch @[[$NORM:kernel_[0-9a-f]+]] ins(%[[V]] : {{.*}} -> tensor<1x1xf64>
// CHECK-NEXT: %[[X:.*]] = kaon.launch @[[$SCALE:kernel_[0-9a-f]+]] ins(%{{.*}}, %[[M]]#0, %[[F]] :
// CHECK-NOT: kaon.launch
// CHECK: %[[A:.*]] = kaon.matmul {{.*}} symmetric packed sizes [48, 48, 96]
// CHECK-NOT: kaon.launch
// CHECK: %[[B:.*]] = kaon.matmul {{.*}} symmetric packed sizes [48, 48, 48] alpha %{{.*}} beta %{{.*}} %[[A]]
// CHECK-NOT: kaon.launch
// CHECK: %[[X1:.*]] = kaon.matmul {{.*}} packed sizes [48, 96, 48] beta %{{.*}} %[[X]]
// CHECK-NOT: kaon.launch
// CHECK: %[[A1:.*]] = kaon.matmul {{.*}} symmetric packed sizes [48, 48, 96]
// CHECK-NOT: kaon.launch
// CHECK: kaon.matmul {{.*}} symmetric packed sizes [48, 48, 48] alpha %{{.*}} beta %{{.*}} %[[A1]]
// CHECK-NOT: kaon.launch
// CHECK: %[[O:.*]] = kaon.matmul {{.*}} packed sizes [48, 96, 48] beta %{{.*}} %[[X1]]
// CHECK-NEXT: %[[W:.*]] = kaon.launch @[[$APPLY:kernel_[0-9a-f]+]] ins(%[[O]], %{{.*}} : {{.*}} {kaon.buffers = [#kaon.buffer<param, 0>]}
// CHECK-NEXT: return %[[W]], %[[M]]#0

// CHECK-LABEL: kaon.program @step period 3
// CHECK-NEXT: kaon.parameter [@prm.0, @prm.1, @prm.0] "a"
// CHECK: kaon.phase 0 {
// CHECK-NEXT: kaon.bucket @prm.0 parameters [0, 1] concurrent 2
// CHECK: kaon.phase 1 {
// CHECK-NEXT: kaon.bucket @prm.1 parameters [0, 1] concurrent 1
// CHECK: kaon.phase 2 {
// CHECK-NEXT: kaon.bucket @prm.0 parameters [0, 1] concurrent 2

// CHECK-DAG: func.func private @[[$ROW]]({{.*}} attributes {kaon.kernel = #kaon.schedule<rows>}
// CHECK-DAG: func.func private @[[$MOMENTUM]]({{.*}} attributes {kaon.kernel = #kaon.schedule<rows>}
// CHECK-DAG: func.func private @[[$NORM]]({{.*}} attributes {kaon.kernel = #kaon.schedule<rows>}
// CHECK-DAG: func.func private @[[$SCALE]]({{.*}} attributes {kaon.kernel = #kaon.schedule<elementwise>}
// CHECK-DAG: func.func private @[[$APPLY]]({{.*}} attributes {kaon.kernel = #kaon.schedule<elementwise>}
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>} {
  func.func @prm(%w: tensor<48x96xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                 %g: tensor<48x96xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                 %m: tensor<48x96xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64},
                 %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                 %mu: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "momentum"},
                 %wd: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "weight_decay"},
                 %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
      -> (tensor<48x96xf32>, tensor<48x96xf32>) attributes {kaon.update} {
    %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<48x96xf32>
    %o = kaon.every %step period 3 phase 1 -> tensor<48x96xf32> {
      %a = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
          normalize max epsilon 1.0e-7 scale 1.0 : tensor<48x96xf32>
      kaon.yield %a : tensor<48x96xf32>
    } else {
      %b = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : tensor<48x96xf32>
      kaon.yield %b : tensor<48x96xf32>
    }
    %scale = arith.constant 1.96 : f64
    %s = arith.mulf %lr, %scale : f64
    %d = arith.mulf %lr, %wd : f64
    %w1 = kaon.apply decoupled %w, %o step_size %s decay %d : tensor<48x96xf32>
    return %w1, %m1 : tensor<48x96xf32>, tensor<48x96xf32>
  }
  kaon.program @step {
    kaon.parameter @prm "a" scalars 0 phase 0
    kaon.parameter @prm "b" scalars 0 phase 0
  }
}
