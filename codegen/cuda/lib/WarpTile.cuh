//===-- WarpTile.cuh - the part of an output tile that a warp holds -------===//
//
// Main loops leave the sums of a tile in registers, and epilogues take them
// from there. Both kinds of tensor core instruction spread 16x8 sums over a
// warp in the same way, so one class serves every main loop.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_WARPTILE
#define KAON_CODEGEN_CUDA_LIB_WARPTILE

#include "TileScheduler.cuh"

namespace kaon::device {

/// Threads that hold sums, the first ones of a block.
constexpr int productThreads = 256;

/// Elements that one access of 16 bytes moves.
constexpr int copySize = 8;

/// The dimension of an operand that is contiguous in memory: the product's k,
/// or the rows of A or columns of B.
enum class Contiguous { depth, extent };

/// 16 * rowBlocks by 32 * columnGroups elements, as blocks of 16x8 in the
/// accumulator layout of multiplyAdd. Warps are numbered along rows of tiles.
template <int rowBlocks, int columnGroups> struct WarpTile {
  /// Blocks of a group: what is visited together.
  static constexpr int columnBlocks = 4;
  static constexpr int rows = rowBlocks * 16;
  static constexpr int columns = columnGroups * columnBlocks * 8;
  static constexpr int warpsPerRow = tileSize / columns;
  static_assert(tileSize / rows * warpsPerRow * warpSize == productThreads);

  float sums[rowBlocks][columnGroups * columnBlocks][4];

  KAON_DEVICE static int warp() {
    return static_cast<int>(threadIndex()) / warpSize;
  }
  KAON_DEVICE static int firstRow() { return warp() / warpsPerRow * rows; }
  KAON_DEVICE static int firstColumn() {
    return warp() % warpsPerRow * columns;
  }

  KAON_DEVICE void clear() {
    forEachPair([](int, int, float &left, float &right) { left = right = 0; });
  }

  /// Calls `visit(row, column, left, right)` for all pairs of neighbouring
  /// elements that this thread holds; positions are within the tile.
  template <typename Visit> KAON_DEVICE void forEachPair(Visit visit) {
    forEachRow([&](int row, int column, auto elementOf) {
#pragma unroll
      for (int j = 0; j < columnBlocks; ++j) {
        visit(row, column + j * 8, elementOf(j, 0), elementOf(j, 1));
      }
    });
  }

  /// Calls `visit(row, column, elementOf)` for all rows of which this thread
  /// holds elements, group by group: elementOf(j, side), for every block j of
  /// the group and both sides, is the one in column `column + j * 8 + side`.
  template <typename Visit> KAON_DEVICE void forEachRow(Visit visit) {
    int lane = static_cast<int>(threadIndex()) % warpSize;
    int row = firstRow() + lane / 4, column = firstColumn() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < rowBlocks; ++i) {
#pragma unroll
      for (int group = 0; group < columnGroups; ++group) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int block = group * columnBlocks;
          visit(row + i * 16 + half * 8, column + block * 8,
                [&](int j, int side) -> float & {
                  return sums[i][block + j][2 * half + side];
                });
        }
      }
    }
  }
};

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_WARPTILE
