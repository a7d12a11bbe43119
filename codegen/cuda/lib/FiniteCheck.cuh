//===-- FiniteCheck.cuh - whether all elements are finite -----------------===//
//
// Gradients are checked before anything changes. The blocks are those of an
// elementwise kernel (Elementwise.cuh).
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_FINITECHECK
#define KAON_CODEGEN_CUDA_LIB_FINITECHECK

#include "Elementwise.cuh"

namespace kaon::device {

KAON_DEVICE bool isFinite(float x) {
  constexpr u32 exponent = 0x7f800000;
  return (bitsOf(x) & exponent) != exponent;
}
KAON_DEVICE bool isFinite(double x) {
  constexpr u64 exponent = 0x7ff0000000000000;
  return (bitsOf(x) & exponent) != exponent;
}

/// Sets bit 0 of `flags[matrix]` if an element of the block's chunk is infinite
/// or NaN. The host clears the flags before.
template <typename T>
KAON_DEVICE void runFiniteCheck(const Matrix<1> *matrices, const Block *blocks,
                                u32 *flags) {
  using List = Operands<Operand<T, Access::read>>;
  Block block = blocks[blockIndex()];
  Matrix<1> matrix = matrices[block.matrix];
  bool finite = true;
  forEachGroupOfChunk<List>(
      matrix, block.first, [&](void *const(&pointers)[1], i64 start, int size) {
        // Elements past the end are zero.
        typename List::Group group;
        List::load(pointers, start, size, group);
#pragma unroll
        for (int i = 0; i < groupSize; ++i) {
          finite = finite && isFinite(get<0>(group)[i]);
        }
      });
  if (!finite) {
    atomicOr(&flags[block.matrix], 1);
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_FINITECHECK
