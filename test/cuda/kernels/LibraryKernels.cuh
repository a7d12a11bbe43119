//===-- LibraryKernels.cuh - kernels that are the library's own -----------===//
//
// Transposes and finite checks for every way to store elements. NVRTC compiles
// this text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "FiniteCheck.cuh"
#include "Transpose.cuh"

KAON_KERNEL(256, 4)
transpose_f32(const kaon::device::Matrix<2> *matrices,
              const kaon::device::Block *blocks, const double *) {
  kaon::device::runTranspose<float>(matrices, blocks);
}
KAON_KERNEL(256, 4)
transpose_f64(const kaon::device::Matrix<2> *matrices,
              const kaon::device::Block *blocks, const double *) {
  kaon::device::runTranspose<double>(matrices, blocks);
}
KAON_KERNEL(256, 4)
transpose_bf16(const kaon::device::Matrix<2> *matrices,
               const kaon::device::Block *blocks, const double *) {
  kaon::device::runTranspose<kaon::device::bf16>(matrices, blocks);
}
KAON_KERNEL(256, 4)
transpose_f16(const kaon::device::Matrix<2> *matrices,
              const kaon::device::Block *blocks, const double *) {
  kaon::device::runTranspose<kaon::device::f16>(matrices, blocks);
}
KAON_KERNEL(256, 2)
check_finite_f32(const kaon::device::Matrix<1> *matrices,
                 const kaon::device::Block *blocks, kaon::device::u32 *flags) {
  kaon::device::runFiniteCheck<float>(matrices, blocks, flags);
}
KAON_KERNEL(256, 2)
check_finite_f64(const kaon::device::Matrix<1> *matrices,
                 const kaon::device::Block *blocks, kaon::device::u32 *flags) {
  kaon::device::runFiniteCheck<double>(matrices, blocks, flags);
}
KAON_KERNEL(256, 2)
check_finite_bf16(const kaon::device::Matrix<1> *matrices,
                  const kaon::device::Block *blocks, kaon::device::u32 *flags) {
  kaon::device::runFiniteCheck<kaon::device::bf16>(matrices, blocks, flags);
}
KAON_KERNEL(256, 2)
check_finite_f16(const kaon::device::Matrix<1> *matrices,
                 const kaon::device::Block *blocks, kaon::device::u32 *flags) {
  kaon::device::runFiniteCheck<kaon::device::f16>(matrices, blocks, flags);
}
