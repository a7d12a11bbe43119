// RUN: kaon-opt %s -kaon-cpu-pipeline | FileCheck %s

// AdamW is one kernel, in place, whatever the shape: one pass over memory.
// CHECK-LABEL: func.func @adamw
// CHECK-SAME: kaon.workspace = 0 : i64
// CHECK: kaon.launch @[[$ADAMW:kernel_[0-9a-f]+]] {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<state, 1>, #kaon.buffer<param, 0>]}
// CHECK-NOT: kaon.launch
// CHECK: return
// CHECK-LABEL: func.func @adamw_bias
// CHECK-SAME: kaon.workspace = 0 : i64
// CHECK: kaon.launch
// CHECK-NOT: kaon.launch
// CHECK: return
// CHECK: kaon.bucket @adamw parameters [0, 2] concurrent 2
// CHECK-NEXT: kaon.bucket @adamw_bias parameters [1] concurrent 1
// CHECK: func.func private @[[$ADAMW]]({{.*}}) {{.*}} attributes {kaon.kernel = #kaon.schedule<elementwise>}
module {
  func.func @adamw(%w: tensor<48x96xf32> {kaon.role = #kaon.role<param>}, %g: tensor<48x96xf32> {kaon.role = #kaon.role<grad>},
                   %m: tensor<48x96xf32> {kaon.role = #kaon.role<state>}, %v: tensor<48x96xf32> {kaon.role = #kaon.role<state>},
                   %lr: f64 {kaon.role = #kaon.role<scalar>}, %b1: f64 {kaon.role = #kaon.role<scalar>},
                   %b2: f64 {kaon.role = #kaon.role<scalar>}, %eps: f64 {kaon.role = #kaon.role<scalar>},
                   %wd: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
      -> (tensor<48x96xf32>, tensor<48x96xf32>, tensor<48x96xf32>) attributes {kaon.update} {
    %one = arith.constant 1.0 : f64
    %t = arith.sitofp %step : i64 to f64
    %p1 = math.powf %b1, %t : f64
    %c1 = arith.subf %one, %p1 : f64
    %p2 = math.powf %b2, %t : f64
    %c2 = arith.subf %one, %p2 : f64
    %r2 = math.sqrt %c2 : f64
    %q, %m1 = kaon.momentum lerp %g, %m, %b1 : tensor<48x96xf32>
    %gg = arith.mulf %g, %g : tensor<48x96xf32>
    %q2, %v1 = kaon.momentum lerp %gg, %v, %b2 : tensor<48x96xf32>
    %root = math.sqrt %v1 : tensor<48x96xf32>
    %r32 = arith.truncf %r2 : f64 to f32
    %rs = tensor.splat %r32 : tensor<48x96xf32>
    %d = arith.divf %root, %rs : tensor<48x96xf32>
    %e32 = arith.truncf %eps : f64 to f32
    %es = tensor.splat %e32 : tensor<48x96xf32>
    %de = arith.addf %d, %es : tensor<48x96xf32>
    %u = arith.divf %m1, %de : tensor<48x96xf32>
    %s = arith.divf %lr, %c1 : f64
    %decay = arith.mulf %lr, %wd : f64
    %w1 = kaon.apply decoupled %w, %u step_size %s decay %decay : tensor<48x96xf32>
    return %w1, %m1, %v1 : tensor<48x96xf32>, tensor<48x96xf32>, tensor<48x96xf32>
  }
  // A bias in bf16, its gradient too: widened and narrowed on the way.
  func.func @adamw_bias(%w: tensor<1x96xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<1x96xbf16> {kaon.role = #kaon.role<grad>},
                        %m: tensor<1x96xf32> {kaon.role = #kaon.role<state>},
                        %lr: f64 {kaon.role = #kaon.role<scalar>}, %b1: f64 {kaon.role = #kaon.role<scalar>},
                        %step: i64 {kaon.role = #kaon.role<step>})
      -> (tensor<1x96xbf16>, tensor<1x96xf32>) attributes {kaon.update} {
    %w32 = arith.extf %w : tensor<1x96xbf16> to tensor<1x96xf32>
    %g32 = arith.extf %g : tensor<1x96xbf16> to tensor<1x96xf32>
    %u, %m1 = kaon.momentum lerp %g32, %m, %b1 : tensor<1x96xf32>
    %w1 = kaon.apply decoupled %w32, %u step_size %lr decay %lr : tensor<1x96xf32>
    %n = arith.truncf %w1 : tensor<1x96xf32> to tensor<1x96xbf16>
    return %n, %m1 : tensor<1x96xbf16>, tensor<1x96xf32>
  }
  kaon.program @step {
    kaon.parameter @adamw "a" scalars 0 phase 0
    kaon.parameter @adamw_bias "b" scalars 1 phase 0
    kaon.parameter @adamw "c" scalars 0 phase 0
  }
}
