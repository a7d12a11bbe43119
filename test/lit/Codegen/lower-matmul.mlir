// RUN: kaon-opt %s -kaon-lower-kernels | FileCheck %s

module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>} {

// Loops over tiles, blocks of k, left slivers, right slivers, k: six rows of
// sixteen sums stay in registers, four steps of k per turn.
// CHECK-LABEL: func.func @matmul_f32
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.for
// CHECK: %[[SUMS:.*]]:6 = scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// CHECK-COUNT-24: math.fma
// CHECK-NEXT: scf.yield
// Whole tiles are stored from registers, others by way of memory.
// CHECK: scf.if
// CHECK: arith.mulf %{{.*}}, %[[SUMS]]#0 : vector<16xf32>
// CHECK: llvm.store
// CHECK: } else {
// CHECK: llvm.intr.masked.store
func.func private @matmul_f32(tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = "matmul"}

// Eight columns of f64; no register tile above the diagonal; the mirror image is
// transposed in registers.
// CHECK-LABEL: func.func @matmul_symmetric_add_f64
// CHECK: scf.while
// CHECK: %{{.*}}:6 = scf.for {{.*}} -> (vector<8xf64>
// CHECK-COUNT-24: math.fma
// CHECK: vector.shuffle %{{.*}} [0, 1, 4, 5] : vector<4xf64>, vector<4xf64>
func.func private @matmul_symmetric_add_f64(tensor<?x?xf64>, tensor<?x?xf64>, tensor<?x?xf64>) -> tensor<?x?xf64>
    attributes {kaon.library = "matmul_symmetric_add"}

// The left operand is copied in pieces of four along k.
// CHECK-LABEL: func.func @pack_lhs_f32
// CHECK-COUNT-6: llvm.load %{{.*}} -> vector<4xf32>
// CHECK-NOT: vector.shuffle
func.func private @pack_lhs_f32(tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = "pack_lhs"}

// A transposed right operand is transposed in registers, 8 x 8 at a time.
// CHECK-LABEL: func.func @pack_rhs_transposed_f32
// CHECK-COUNT-8: llvm.load %{{.*}} -> vector<8xf32>
// CHECK-COUNT-24: vector.shuffle
// CHECK-COUNT-8: llvm.store %{{.*}} : vector<8xf32>
func.func private @pack_rhs_transposed_f32(tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.library = "pack_rhs_transposed"}

// Bits are moved: bf16 is an integer.
// CHECK-LABEL: func.func @transpose_bf16
// CHECK: llvm.load %{{.*}} -> vector<16xi16>
// CHECK-NOT: bf16
func.func private @transpose_bf16(tensor<?x?xbf16>) -> tensor<?x?xbf16> attributes {kaon.library = "transpose"}

}
