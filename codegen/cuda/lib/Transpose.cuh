//===-- Transpose.cuh - matrices turned through shared memory -------------===//
//
// A block turns 32 rows and 128 columns of the source, tile by tile: a tile is
// read by rows into shared memory and written by columns, so that both sides
// are accessed along memory. Blocks are numbered along the source's rows.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_TRANSPOSE
#define KAON_CODEGEN_CUDA_LIB_TRANSPOSE

#include "Matrices.cuh"
#include "Primitives.cuh"

namespace kaon::device {

constexpr int transposeThreads = 256;

/// Rows and columns of a tile, and columns of a block, whose rows are a tile's.
constexpr int transposeTile = 32;
constexpr int transposeColumns = 4 * transposeTile;

/// Elements of a tile's row in shared memory; the padding spreads a column over
/// the banks.
constexpr int transposePitch = transposeTile + 1;

/// Shared memory of a launch: two tiles, which take turns.
template <typename T>
constexpr int transposeSharedBytes =
    2 * transposeTile * transposePitch * static_cast<int>(sizeof(T));

/// Calls `visit(row, column)` for the thread's positions within a tile that lie
/// in the first `rows` rows and `columns` columns; lanes differ in the column.
template <typename Visit>
KAON_DEVICE void forEachOfTile(i64 rows, i64 columns, Visit visit) {
  int column = static_cast<int>(threadIndex()) % transposeTile;
  int firstRow = static_cast<int>(threadIndex()) / transposeTile;
#pragma unroll
  for (int i = 0; i < transposeTile; i += transposeThreads / transposeTile) {
    if (firstRow + i < rows && column < columns) {
      visit(firstRow + i, column);
    }
  }
}

/// Stores the transpose of part `first` of operand 0 in operand 1. `rows` and
/// `columns` are those of operand 0.
template <typename T>
KAON_DEVICE void runTranspose(const Matrix<2> *matrices, const Block *blocks) {
  Block block = blocks[blockIndex()];
  Matrix<2> matrix = matrices[block.matrix];
  u32 partsOfRow = static_cast<u32>((matrix.columns + transposeColumns - 1) /
                                    transposeColumns);
  i64 firstRow = i64(block.first / partsOfRow) * transposeTile;
  i64 firstColumn = i64(block.first % partsOfRow) * transposeColumns;
  i64 end = firstColumn + transposeColumns;
  end = end < matrix.columns ? end : matrix.columns;
  i64 rows = matrix.rows - firstRow;
  i64 sourcePitch = matrix.strides[0], resultPitch = matrix.strides[1];
  auto *source = asGlobal(static_cast<const T *>(matrix.bases[0])) +
                 firstRow * sourcePitch;
  auto *result = asGlobal(static_cast<T *>(matrix.bases[1])) + firstRow;
  auto *tile = reinterpret_cast<T *>(sharedMemory());
  auto *nextTile = tile + transposeTile * transposePitch;

  for (i64 first = firstColumn; first < end; first += transposeTile) {
    i64 columns = end - first;
    forEachOfTile(rows, columns, [&](int row, int column) {
      tile[row * transposePitch + column] =
          source[row * sourcePitch + first + column];
    });
    // Also keeps the tile after the next one from overwriting this one.
    blockBarrier();
    forEachOfTile(columns, rows, [&](int row, int column) {
      result[(first + row) * resultPitch + column] =
          tile[column * transposePitch + row];
    });
    T *current = tile;
    tile = nextTile;
    nextTile = current;
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_TRANSPOSE
