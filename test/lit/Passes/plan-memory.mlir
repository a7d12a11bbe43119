// RUN: kaon-opt %s -split-input-file -kaon-pack-operands -kaon-outline-kernels -kaon-plan-memory | FileCheck %s

// New values go in place: nothing reads the old ones afterwards.
// CHECK-LABEL: func.func @in_place
// CHECK-SAME: kaon.workspace = 0 : i64
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<param, 0>]}
func.func @in_place(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                    %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
                    %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %r:2 = kaon.kernel elementwise ins(%w, %g, %m : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x6xf32>, %c: tensor<4x6xf32>):
    %m1 = arith.addf %b, %c : tensor<4x6xf32>
    %w1 = arith.subf %a, %m1 : tensor<4x6xf32>
    kaon.yield %m1, %w1 : tensor<4x6xf32>, tensor<4x6xf32>
  } -> tensor<4x6xf32>, tensor<4x6xf32>
  return %r#1, %r#0 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A later kernel reads the old state: the new one is copied at the end.
// CHECK-LABEL: func.func @old_value_is_read_later
// CHECK-SAME: kaon.workspace = 128 : i64
// CHECK: %[[M1:.*]] = kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 0>]}
// CHECK: %[[W1:.*]] = kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<param, 0>]}
// CHECK: %[[COPY:.*]] = kaon.launch {{.*}} ins(%[[M1]] : {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>]}
// CHECK: return %[[W1]], %[[COPY]]
func.func @old_value_is_read_later(
    %w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
    %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
    %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %m1 = kaon.kernel elementwise ins(%m, %g : tensor<4x6xf32>, tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x6xf32>):
    %x = arith.addf %a, %b : tensor<4x6xf32>
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  %w1 = kaon.kernel elementwise ins(%w, %m : tensor<4x6xf32>, tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x6xf32>):
    %x = arith.subf %a, %b : tensor<4x6xf32>
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// Two states change places, by way of the workspace.
// CHECK-LABEL: func.func @swap
// CHECK-SAME: %{{.*}}: tensor<4x6xf32> {{.*}}, %{{.*}}: tensor<4x6xf32> {{.*}}, %[[A:.*]]: tensor<4x6xf32> {{.*}}, %[[B:.*]]: tensor<4x6xf32>
// CHECK-NEXT: %[[T:.*]] = kaon.launch {{.*}} ins(%[[B]] : {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 0>]}
// CHECK-NEXT: %[[B1:.*]] = kaon.launch {{.*}} ins(%[[A]] : {{.*}} {kaon.buffers = [#kaon.buffer<state, 1>]}
// CHECK-NEXT: %[[A1:.*]] = kaon.launch {{.*}} ins(%[[T]] : {{.*}} {kaon.buffers = [#kaon.buffer<state, 0>]}
// CHECK-NEXT: return %{{.*}}, %[[A1]], %[[B1]]
func.func @swap(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                %a: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %b: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  return %w, %b, %a : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// Lives that do not meet share memory, and a chain of kernels works in place;
// the view of a vector is the vector.
// CHECK-LABEL: func.func @sharing
// CHECK-SAME: kaon.workspace = 192 : i64
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 0>, #kaon.buffer<workspace, 128>]}
// CHECK: kaon.transpose {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 128>]}
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 128>]}
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<workspace, 0>]}
// CHECK: kaon.launch {{.*}} {kaon.buffers = [#kaon.buffer<param, 0>]}
func.func @sharing(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %r:2 = kaon.kernel rows ins(%g : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %x = math.absf %a : tensor<4x6xf32>
    %n = kaon.reduce sum %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %x, %n : tensor<4x6xf32>, tensor<4x1xf32>
  } -> tensor<4x6xf32>, tensor<4x1xf32>
  %t = kaon.transpose %r#1 : tensor<4x1xf32> -> tensor<1x4xf32>
  %u = kaon.kernel elementwise ins(%t : tensor<1x4xf32>) {
  ^bb0(%a: tensor<1x4xf32>):
    %x = math.sqrt %a : tensor<1x4xf32>
    kaon.yield %x : tensor<1x4xf32>
  } -> tensor<1x4xf32>
  %v = kaon.kernel elementwise ins(%r#0 : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %x = math.exp %a : tensor<4x6xf32>
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  %q = kaon.transpose %u : tensor<1x4xf32> -> tensor<4x1xf32>
  %w1 = kaon.kernel rows ins(%v, %q : tensor<4x6xf32>, tensor<4x1xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x1xf32>):
    %p = kaon.broadcast %b : tensor<4x1xf32> to tensor<4x6xf32>
    %x = arith.mulf %a, %p : tensor<4x6xf32>
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

// -----

// A product writes over its addend if that is not read again, be it in the
// workspace or the parameter.
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 128, mr = 4, nr = 8, kc = 256, block = 8>} {
  // CHECK-LABEL: func.func @products
  // CHECK: %[[A:.*]] = kaon.matmul {{.*}} symmetric packed sizes [8, 8, 16] {kaon.buffers = [#kaon.buffer<workspace, [[AT:[0-9]+]]>]}
  // CHECK: kaon.matmul {{.*}} symmetric packed sizes [8, 8, 8] {{.*}} %[[A]] {kaon.buffers = [#kaon.buffer<workspace, [[AT]]>]}
  // CHECK: kaon.matmul {{.*}} packed sizes [8, 16, 8] {{.*}} {kaon.buffers = [#kaon.buffer<param, 0>]}
  func.func @products(%w: tensor<8x16xf32> {kaon.role = #kaon.role<param>}, %g: tensor<8x16xf32> {kaon.role = #kaon.role<grad>},
                      %s: f64 {kaon.role = #kaon.role<scalar>},
                      %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<8x16xf32> attributes {kaon.update} {
    %a = kaon.matmul %g, %g transpose_b symmetric : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
    %b = kaon.matmul %a, %a symmetric beta %s %a : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %w1 = kaon.matmul %b, %g beta %s %w : (tensor<8x8xf32>, tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    return %w1 : tensor<8x16xf32>
  }
}

// -----

// Workspaces of one bucket fit into three times the bytes of the largest one:
// here 3 * 4 * 96 bytes, and a matrix needs 512.
func.func @bounded(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %r:4 = kaon.kernel elementwise ins(%g : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    kaon.yield %a, %a, %a, %a : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  } -> tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
  %w1 = kaon.kernel elementwise ins(%r#0, %r#1, %r#2, %r#3 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x6xf32>, %c: tensor<4x6xf32>, %d: tensor<4x6xf32>):
    %x = arith.addf %a, %b : tensor<4x6xf32>
    %y = arith.addf %c, %d : tensor<4x6xf32>
    %z = arith.addf %x, %y : tensor<4x6xf32>
    kaon.yield %z : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}
// CHECK-LABEL: func.func @bounded
// CHECK-SAME: kaon.workspace = 512 : i64
// CHECK-LABEL: kaon.program
// CHECK: kaon.bucket @bounded parameters [0, 1, 2, 3] concurrent 2
kaon.program @step {
  kaon.parameter @bounded "0" scalars 0 phase 0
  kaon.parameter @bounded "1" scalars 0 phase 0
  kaon.parameter @bounded "2" scalars 0 phase 0
  kaon.parameter @bounded "3" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @bounded parameters [0, 1, 2, 3] concurrent 4
  }
}
