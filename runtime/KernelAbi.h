//===-- KernelAbi.h - what a compiled kernel looks like ---------*- C -*-===//
//
// The one interface between generated code and the runtime. Plain C, so that
// kernels may come from a JIT, from a shared object, or be written by hand.
//
// Work items. A launch covers the half-open range [begin, end) of items of one
// matrix; every item may run on any thread, in any order:
//
//   schedule      sizes               items
//   ------------  ------------------  ------------------------------------
//   elementwise   {rows, cols}        rows (of any reshape of the memory)
//   rows          {rows, cols}        rows
//   columns       {rows, cols}        columns
//   transpose     {rows, cols}        blocks of KAON_TRANSPOSE_BLOCK rows of
//                                     the source; sizes are the source's
//   pack          {extent, k}         slivers of mr (lhs) or nr (rhs) along
//                                     the extent
//   matmul        {m, n, k}           block x block tiles of the result, row
//                                     by row; symmetric: only the tiles on or
//                                     below the diagonal
//
// Buffers are the operands and then the results, in order. A result may be the
// same memory as an operand of the same shape: each element is read before it
// is written. A matmul takes packed A, packed B, [C,] D and the scalars
// {alpha, beta}.
//
// Numerics. The order of every sum is fixed by the shape alone, so that results
// do not depend on how items are divided among threads or calls.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_KERNELABI_H
#define KAON_RUNTIME_KERNELABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Rows of the source that one item of a transpose kernel handles.
#define KAON_TRANSPOSE_BLOCK 32

/// Depths of packed matrices are multiples of this.
#define KAON_PACKED_DEPTH_UNIT 4

/// Alignment, in bytes, of every workspace buffer.
#define KAON_BUFFER_ALIGNMENT 64

/// A matrix in memory: element (i, j) is at data[i * row_stride + j], counted
/// in elements.
typedef struct KaonBuffer {
  void *data;
  int64_t row_stride;
} KaonBuffer;

/// A kernel. It keeps nothing from one call to the next and needs no memory
/// besides its buffers and the stack.
typedef void (*KaonKernelFn)(const KaonBuffer *buffers, const double *scalars,
                             const int64_t *sizes, int64_t begin, int64_t end);

#ifdef __cplusplus
}
#endif

#endif // KAON_RUNTIME_KERNELABI_H
