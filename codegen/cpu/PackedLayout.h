//===-- PackedLayout.h - layout of packed matrix operands -------*- C++ -*-===//
//
// The layout that `pack` kernels write and `matmul` kernels read, and the names
// of these library kernels. Header-only and free of LLVM, so that passes, the
// plan builder and code generation agree by construction.
//
// An operand op(X) with `dim` rows (left) or columns (right) and depth `k` is
// cut along `dim` into slivers of `tile` (mr for the left, nr for the right
// operand) and along k into blocks of `kc`. Block by block, sliver by sliver:
//
//   left:   [k block][sliver][k / 4][tile][4]   copies of 4 consecutive k
//   right:  [k block][sliver][k][tile]
//
// Slivers are padded with zeros to `tile`, the depth to a multiple of 4, so
// that the register tile needs no special case at any edge.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_PACKEDLAYOUT_H
#define KAON_CODEGEN_CPU_PACKEDLAYOUT_H

#include "runtime/KernelAbi.h"
#include "runtime/Math.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kaon::cpu {

/// Depth of one step of the register tile; packed depths are multiples of it.
inline constexpr int64_t packedDepthUnit = KAON_PACKED_DEPTH_UNIT;

using runtime::ceilDiv;
using runtime::roundUp;

/// Columns of the register tile for an element of `elementBits` when it is `nr`
/// for 32-bit elements.
constexpr int64_t tileColumns(int64_t nr, int64_t elementBits) {
  return nr * 32 / elementBits;
}

/// Number of slivers of an operand: the work items of its pack kernel.
constexpr int64_t packedSlivers(int64_t dim, int64_t tile) {
  return ceilDiv(dim, tile);
}

/// Work items of a matmul kernel: block x block tiles of the m x n result, row
/// by row; a symmetric result counts those on or below the diagonal only.
constexpr int64_t matmulItems(int64_t m, int64_t n, int64_t block,
                              bool symmetric) {
  int64_t rows = ceilDiv(m, block);
  return symmetric ? rows * (rows + 1) / 2 : rows * ceilDiv(n, block);
}

/// Name of the library kernel that packs an operand, without its element:
/// `pack_lhs`, `pack_rhs_transposed`, ... `transposed` means that the source
/// holds the transpose of the operand.
inline std::string packKernelName(bool lhs, bool transposed) {
  std::string name = lhs ? "pack_lhs" : "pack_rhs";
  return transposed ? name + "_transposed" : name;
}

/// Name of a block matmul kernel, without its element: `matmul`,
/// `matmul_symmetric_add`, ... `add` means that a beta * C term is added.
inline std::string matmulKernelName(bool symmetric, bool add) {
  std::string name = symmetric ? "matmul_symmetric" : "matmul";
  return add ? name + "_add" : name;
}

/// Name of the kernel that transposes a matrix, without its element.
inline constexpr std::string_view transposeKernelName = "transpose";

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_PACKEDLAYOUT_H
