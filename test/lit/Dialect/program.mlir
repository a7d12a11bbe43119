// RUN: kaon-opt %s --split-input-file --verify-roundtrip | FileCheck %s
// RUN: kaon-opt %s --split-input-file --mlir-print-op-generic | kaon-opt --split-input-file | FileCheck %s

// Programs, kernels, and the attributes of functions, modules and ops.

// CHECK: #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>} {

// CHECK-LABEL: func.func @muon
// CHECK-SAME: tensor<4x6xf32> {kaon.name = "w", kaon.role = #kaon.role<param>}
// CHECK-SAME: tensor<4x6xbf16> {kaon.name = "g", kaon.role = #kaon.role<grad>}
// CHECK-SAME: tensor<4x6xf32> {kaon.init = 0.000000e+00 : f64, kaon.name = "m", kaon.role = #kaon.role<state>}
// CHECK-SAME: tensor<4x1xf32> {kaon.role = #kaon.role<state>}
// CHECK-SAME: f64 {kaon.name = "lr", kaon.role = #kaon.role<scalar>}
// CHECK-SAME: i64 {kaon.role = #kaon.role<step>}
// CHECK-SAME: attributes {kaon.update, kaon.workspace = 4096 : i64}
func.func @muon(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                %g: tensor<4x6xbf16> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64},
                %v: tensor<4x1xf32> {kaon.role = #kaon.role<state>},
                %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update, kaon.workspace = 4096 : i64} {
  // CHECK: %[[R:.*]]:2 = kaon.kernel rows ins(%{{.*}}, %{{.*}} : tensor<4x6xf32>, tensor<4x6xbf16>) scalars(%{{.*}} : f64)
  // CHECK-SAME: attributes {kaon.buffers = [#kaon.buffer<workspace, 4096>, #kaon.buffer<state, 1>]} {
  // CHECK: ^bb0(%[[A:.*]]: tensor<4x6xf32>, %[[B:.*]]: tensor<4x6xbf16>, %[[S:.*]]: f64):
  // CHECK:   %[[N:.*]] = kaon.reduce max %[[A]] along row
  // CHECK:   kaon.yield %[[A]], %[[N]] : tensor<4x6xf32>, tensor<4x1xf32>
  // CHECK: } -> tensor<4x6xf32>, tensor<4x1xf32>
  %r:2 = kaon.kernel rows ins(%w, %g : tensor<4x6xf32>, tensor<4x6xbf16>) scalars(%lr : f64)
      attributes {kaon.buffers = [#kaon.buffer<workspace, 4096>, #kaon.buffer<state, 1>]} {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x6xbf16>, %s: f64):
    %n = kaon.reduce max %a along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %a, %n : tensor<4x6xf32>, tensor<4x1xf32>
  } -> tensor<4x6xf32>, tensor<4x1xf32>
  // CHECK: kaon.kernel elementwise scalars(%{{.*}} : f64) {
  %fill = kaon.kernel elementwise scalars(%lr : f64) {
  ^bb0(%s: f64):
    %t = arith.truncf %s : f64 to f32
    %x = tensor.splat %t : tensor<4x6xf32>
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  // CHECK: kaon.kernel columns ins(%{{.*}} : tensor<4x6xf32>) {
  %columns = kaon.kernel columns ins(%w : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %n = kaon.reduce sum %a along column : tensor<4x6xf32> -> tensor<1x6xf32>
    kaon.yield %n : tensor<1x6xf32>
  } -> tensor<1x6xf32>
  // CHECK: %[[P:.*]] = kaon.pack lhs %{{.*}} : tensor<4x6xf32> -> tensor<1x96xf32>
  %p = kaon.pack lhs %w : tensor<4x6xf32> -> tensor<1x96xf32>
  // CHECK: %[[Q:.*]] = kaon.pack rhs %{{.*}} transpose {kaon.buffers = [#kaon.buffer<param, 0>]} : tensor<4x6xf32> -> tensor<1x256xf32>
  %q = kaon.pack rhs %w transpose {kaon.buffers = [#kaon.buffer<param, 0>]} : tensor<4x6xf32> -> tensor<1x256xf32>
  // CHECK: kaon.launch @kernel_x ins(%{{.*}}, %[[V:.*]] : tensor<4x6xf32>, tensor<4x1xf32>) scalars(%{{.*}} : f64) -> tensor<4x6xf32>
  %l = kaon.launch @kernel_x ins(%r#0, %v : tensor<4x6xf32>, tensor<4x1xf32>) scalars(%lr : f64) -> tensor<4x6xf32>
  // CHECK: kaon.launch @fill scalars(%{{.*}} : f64) -> tensor<4x6xf32>
  %f = kaon.launch @fill scalars(%lr : f64) -> tensor<4x6xf32>
  return %l, %f, %r#1 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>
}

// CHECK-LABEL: func.func private @kernel_x
// CHECK-SAME: attributes {kaon.kernel = #kaon.schedule<rows>}
func.func private @kernel_x(%a: tensor<?x?xf32>, %v: tensor<?x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %b = kaon.broadcast %v : tensor<?x1xf32> to tensor<?x?xf32>
  %c = arith.addf %a, %b : tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}

func.func private @fill(%s: f64) -> tensor<4x6xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %t = arith.truncf %s : f64 to f32
  %x = tensor.splat %t : tensor<4x6xf32>
  return %x : tensor<4x6xf32>
}

// CHECK-LABEL: kaon.program @unsplit {
// CHECK-NEXT:    kaon.parameter @muon "blocks.0.attn.weight" scalars 0 phase 2
kaon.program @unsplit {
  kaon.parameter @muon "blocks.0.attn.weight" scalars 0 phase 2
}

// CHECK-LABEL: kaon.program @split period 2 {
// CHECK-NEXT:    kaon.parameter [@muon, @muon.1] "a" scalars 1 phase 0
// CHECK-NEXT:    kaon.parameter [@muon, @muon.1] "b" scalars 1 phase 1
// CHECK-NEXT:    kaon.parameter @muon "c" scalars 0 phase 0
// CHECK-NEXT:    kaon.phase 0 {
// CHECK-NEXT:      kaon.bucket @muon parameters [0, 2] concurrent 2
// CHECK-NEXT:      kaon.bucket @muon.1 parameters [1] concurrent 1
// CHECK-NEXT:    }
// CHECK-NEXT:    kaon.phase 1 {
// CHECK-NEXT:      kaon.group launches {{\[}}[0, 1], [1]] {
// CHECK-NEXT:        kaon.bucket @muon.1 parameters [0] concurrent 1
// CHECK-NEXT:        kaon.bucket @muon parameters [1, 2] concurrent 2
// CHECK-NEXT:      }
// CHECK-NEXT:    }
kaon.program @split period 2 {
  kaon.parameter [@muon, @muon.1] "a" scalars 1 phase 0
  kaon.parameter [@muon, @muon.1] "b" scalars 1 phase 1
  kaon.parameter [@muon] "c" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @muon parameters [0, 2] concurrent 2
    kaon.bucket @muon.1 parameters [1] concurrent 1
  }
  kaon.phase 1 {
    kaon.group launches [[0, 1], [1]] {
      kaon.bucket @muon.1 parameters [0] concurrent 1
      kaon.bucket @muon parameters [1, 2] concurrent 2
    }
  }
}

func.func @muon.1(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
                  %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
}

// -----

// A program without matrices, and attributes that stand alone.

// CHECK: module attributes {test.all = [#kaon.momentum_form<lerp>, #kaon.along<all>, #kaon.normalize_mode<add>, #kaon.reduce_kind<min>,
// CHECK-SAME: #kaon.apply_form<cautious>, #kaon.role<step>, #kaon.schedule<columns>, #kaon.pack_side<rhs>]}
module attributes {test.all = [#kaon.momentum_form<lerp>, #kaon.along<all>, #kaon.normalize_mode<add>, #kaon.reduce_kind<min>,
                               #kaon.apply_form<cautious>, #kaon.role<step>, #kaon.schedule<columns>, #kaon.pack_side<rhs>]} {
  // CHECK: kaon.program @empty {
  kaon.program @empty {
  }
}

// -----

// CHECK: #kaon.cuda_target<half = bf16, shared_bytes = 232448, main_loop = wgmma>
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 232448, main_loop = wgmma>} {
}

// -----

// CHECK: #kaon.cuda_target<half = f16, shared_bytes = 232448>
module attributes {kaon.cuda = #kaon.cuda_target<half = f16, shared_bytes = 232448>} {
}
