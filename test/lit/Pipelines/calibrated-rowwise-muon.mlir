// RUN: kaon-opt %s -kaon-cpu-pipeline | FileCheck %s

// A row step reads the refresh's length from a state and leaves it alone: still
// one kernel in place.
// CHECK-LABEL: func.func @calibrated.0
// CHECK-SAME: kaon.workspace = 0 : i64
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<param, 0>]}
// CHECK-NOT: kaon.launch
// CHECK: return %{{.*}}, %{{.*}}, %arg3

// A refresh measures the length: its first kernel also sums the squares of the
// row step, its last one the products with the orthogonalized matrix, and one
// small kernel divides the sums. Nothing of the row step is stored but its norms.
// CHECK-LABEL: func.func @calibrated.1
// CHECK: %[[F:.*]]:4 = kaon.launch {{.*}} -> tensor<48x96xf32>, tensor<48x1xf64>, tensor<48x1xf64>, tensor<48x1xf64>
// CHECK: kaon.launch {{.*}} -> tensor<1x1xf64>
// CHECK: kaon.launch {{.*}} -> tensor<48x96xf32>
// CHECK-NOT: kaon.launch
// CHECK-COUNT-3: kaon.matmul
// CHECK: %[[L:.*]]:2 = kaon.launch {{.*}} -> tensor<48x1xf64>, tensor<48x96xf32>
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<state, 1>]} -> tensor<1x1xf32>
// CHECK-NOT: kaon.launch
// CHECK: return %[[L]]#1, %[[F]]#0
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>} {
  func.func @calibrated(%w: tensor<48x96xf32> {kaon.role = #kaon.role<param>}, %g: tensor<48x96xf32> {kaon.role = #kaon.role<grad>},
                        %m: tensor<48x96xf32> {kaon.role = #kaon.role<state>}, %c: tensor<1x1xf32> {kaon.role = #kaon.role<state>},
                        %lr: f64 {kaon.role = #kaon.role<scalar>}, %mu: f64 {kaon.role = #kaon.role<scalar>},
                        %step: i64 {kaon.role = #kaon.role<step>})
      -> (tensor<48x96xf32>, tensor<48x96xf32>, tensor<1x1xf32>) attributes {kaon.update} {
    %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<48x96xf32>
    %q = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : tensor<48x96xf32>
    %o, %c1 = kaon.every %step period 3 phase 1 -> tensor<48x96xf32>, tensor<1x1xf32> {
      %a = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315]
          normalize max epsilon 1.0e-7 scale 1.0 : tensor<48x96xf32>
      %qo = arith.mulf %q, %a : tensor<48x96xf32>
      %qq = arith.mulf %q, %q : tensor<48x96xf32>
      %above = kaon.reduce sum %qo along all : tensor<48x96xf32> -> tensor<1x1xf32>
      %below = kaon.reduce sum %qq along all : tensor<48x96xf32> -> tensor<1x1xf32>
      %zero = arith.constant dense<0.0> : tensor<1x1xf32>
      %one = arith.constant dense<1.0> : tensor<1x1xf32>
      %positive = arith.cmpf ogt, %below, %zero : tensor<1x1xf32>
      %ratio = arith.divf %above, %below : tensor<1x1xf32>
      %new = arith.select %positive, %ratio, %one : tensor<1x1xi1>, tensor<1x1xf32>
      kaon.yield %a, %new : tensor<48x96xf32>, tensor<1x1xf32>
    } else {
      %repeated = kaon.broadcast %c : tensor<1x1xf32> to tensor<48x96xf32>
      %b = arith.mulf %repeated, %q : tensor<48x96xf32>
      kaon.yield %b, %c : tensor<48x96xf32>, tensor<1x1xf32>
    }
    %w1 = kaon.apply decoupled %w, %o step_size %lr decay %lr : tensor<48x96xf32>
    return %w1, %m1, %c1 : tensor<48x96xf32>, tensor<48x96xf32>, tensor<1x1xf32>
  }
  kaon.program @step {
    kaon.parameter @calibrated "w" scalars 0 phase 0
  }
}
