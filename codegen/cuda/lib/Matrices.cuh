//===-- Matrices.cuh - the tables of kernels over matrices ----------------===//
//
// A launch of an elementwise, row, column or transposing kernel covers many
// matrices. Each has an entry in one table, which says where its operands lie,
// and block b of the launch works on the part that entry b of another table
// names.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_MATRICES
#define KAON_CODEGEN_CUDA_LIB_MATRICES

#include "Prelude.cuh"

namespace kaon::device {

/// The operands of a kernel for one matrix of `rows` by `columns` elements, in
/// the order of the kernel's function: inputs, then results.
template <int count> struct Matrix {
  void *bases[count];
  /// Elements from a row to the next; 0 for an operand with a single row, which
  /// all rows share.
  i64 strides[count];
  i64 rows, columns;
  /// Position of the matrix's first scalar in the launch's scalars.
  i64 firstScalar;
};

/// What a block does of matrix `matrix`:
///   elementwise  chunk `first` of its elements (Elementwise.cuh)
///   rows         rows [first, first + count)
///   columns      columns [first, first + count)
///   transpose    part `first` of it (Transpose.cuh)
struct Block {
  u32 matrix;
  u32 first;
  u32 count;
};

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_MATRICES
