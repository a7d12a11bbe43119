// RUN: kaon-translate --kaon-to-cuda %s | FileCheck %s
// RUN: kaon-translate --kaon-to-cuda --kernel=transpose_bf16 %s | FileCheck %s --check-prefix=ONE
// RUN: not kaon-translate --kaon-to-cuda --kernel=missing %s 2>&1 | FileCheck %s --check-prefix=MISSING

// What kaon-translate prints: every kernel of a module planned for CUDA, in the
// order of their first launches, each once; or one by its name.

// CHECK: // kernel_a.cu
// CHECK: kernel_a(const Matrix<2> *matrices
// CHECK: // transpose_bf16.cu
// CHECK: transpose_bf16(const Matrix<2> *matrices
// CHECK-NOT: .cu
// ONE-NOT: kernel_a
// ONE: // transpose_bf16.cu
// ONE-NOT: kernel_a
// MISSING: error: expects a kernel of the module, but got 'missing'
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
  func.func private @kernel_a(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16>
      attributes {kaon.kernel = #kaon.schedule<elementwise>} {
    %0 = arith.extf %x : tensor<?x?xbf16> to tensor<?x?xf32>
    %1 = arith.negf %0 : tensor<?x?xf32>
    %2 = arith.truncf %1 : tensor<?x?xf32> to tensor<?x?xbf16>
    return %2 : tensor<?x?xbf16>
  }
  func.func @update(%x: tensor<4x6xbf16>) -> tensor<4x6xbf16> {
    %0 = kaon.launch @kernel_a ins(%x : tensor<4x6xbf16>) -> tensor<4x6xbf16>
    %1 = kaon.transpose %0 : tensor<4x6xbf16> -> tensor<6x4xbf16>
    %2 = kaon.transpose %1 : tensor<6x4xbf16> -> tensor<4x6xbf16>
    %3 = kaon.launch @kernel_a ins(%2 : tensor<4x6xbf16>) -> tensor<4x6xbf16>
    return %3 : tensor<4x6xbf16>
  }
}
