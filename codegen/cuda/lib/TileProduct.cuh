//===-- TileProduct.cuh - one output tile on the tensor cores -------------===//
//
// A block of eight warps multiplies a strip of A with a strip of B in steps of
// 32 along k: three stages of shared memory are filled by copies in the
// background, read as matrices and multiplied with f32 accumulation. The order
// of k is the same for every tile, so an element of a symmetric result has the
// same bits on both sides of the diagonal.
//
// Rows, columns and k that lie outside of an operand count as zero; copies do
// not read them.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_TILEPRODUCT
#define KAON_CODEGEN_CUDA_LIB_TILEPRODUCT

#include "WarpTile.cuh"

namespace kaon::device {

constexpr int stepDepth = 32;
constexpr int numStages = 3;

/// A strip of an operand in shared memory: `tileSize` along the extent and
/// `stepDepth` along k, stored the way the operand is.
template <Contiguous contiguous> struct OperandTile {
  static constexpr int rows =
      contiguous == Contiguous::depth ? tileSize : stepDepth;
  static constexpr int copiesPerRow =
      (contiguous == Contiguous::depth ? stepDepth : tileSize) / copySize;
  static constexpr int numCopies = rows * copiesPerRow;
  static constexpr int bytes = numCopies * static_cast<int>(sizeof(Words4));

  /// Byte offset of 16 bytes. Their order within a row depends on the row, so
  /// that the eight rows of a matrix lie in different banks.
  KAON_DEVICE static int offset(int row, int copy) {
    int swizzle = contiguous == Contiguous::depth ? row / 2 % 4 : row % 8;
    return (row * copiesPerRow + (copy ^ swizzle)) *
           static_cast<int>(sizeof(Words4));
  }

  /// Starts the copies of this thread. The strip begins at element
  /// (`extent`, `depth`) of an operand with `extents` by `depths` elements.
  template <typename T>
  KAON_DEVICE static void copy(char *shared, const T *operand, i64 pitch,
                               int extent, int extents, int depth, int depths) {
    constexpr bool alongDepth = contiguous == Contiguous::depth;
    int firstRow = alongDepth ? extent : depth;
    int firstColumn = alongDepth ? depth : extent;
    int lastRow = alongDepth ? extents : depths;
    int lastColumn = alongDepth ? depths : extents;
#pragma unroll
    for (int i = 0; i < numCopies / productThreads; ++i) {
      int index = i * productThreads + static_cast<int>(threadIndex());
      int row = index / copiesPerRow, copy = index % copiesPerRow;
      int globalRow = firstRow + row, column = firstColumn + copy * copySize;
      int valid = globalRow < lastRow ? lastColumn - column : 0;
      valid = valid < 0 ? 0 : valid > copySize ? copySize : valid;
      const T *source =
          valid > 0 ? operand + globalRow * pitch + column : operand;
      copyAsync(shared + offset(row, copy), source,
                static_cast<u32>(valid) * sizeof(T));
    }
  }

  /// Loads the 16x16 block at (`extent`, `depth`) as four matrices in the order
  /// (0, 0), (8, 0), (0, 8), (8, 8), each with pairs along k.
  KAON_DEVICE static void load(u32 (&fragment)[4], const char *shared,
                               int extent, int depth) {
    int lane = static_cast<int>(threadIndex()) % warpSize;
    if constexpr (contiguous == Contiguous::depth) {
      int row = extent + lane % 16, copy = depth / copySize + lane / 16;
      loadMatrices(fragment, shared + offset(row, copy));
    } else {
      int row = depth + lane % 8 + lane / 16 * 8;
      int copy = extent / copySize + lane / 8 % 2;
      loadMatricesTransposed(fragment, shared + offset(row, copy));
    }
  }
};

/// Products of operands with elements of T, A and B stored as given.
template <typename T, Contiguous contiguousA, Contiguous contiguousB>
struct TileProduct {
  using TileA = OperandTile<contiguousA>;
  using TileB = OperandTile<contiguousB>;
  /// What a warp computes: 64x32 elements.
  using Sums = WarpTile<4, 1>;
  static constexpr int stageBytes = TileA::bytes + TileB::bytes;
  static constexpr int sharedBytes = numStages * stageBytes;
  static constexpr int threads = productThreads;

  /// Adds `stepDepth` of k from one stage.
  KAON_DEVICE static void multiply(Sums &result, const char *stageA,
                                   const char *stageB) {
#pragma unroll
    for (int depth = 0; depth < stepDepth; depth += 16) {
      u32 b[Sums::columnBlocks][2];
#pragma unroll
      for (int j = 0; j < Sums::columnBlocks; j += 2) {
        u32 fragment[4];
        TileB::load(fragment, stageB, Sums::firstColumn() + j * 8, depth);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          b[j + side][0] = fragment[side];
          b[j + side][1] = fragment[side + 2];
        }
      }
#pragma unroll
      for (int i = 0; i < Sums::rows / 16; ++i) {
        u32 a[4];
        TileA::load(a, stageA, Sums::firstRow() + i * 16, depth);
#pragma unroll
        for (int j = 0; j < Sums::columnBlocks; ++j) {
          multiplyAdd<T>(result.sums[i][j], a, b[j]);
        }
      }
    }
  }

  /// Computes the tile; true for all threads, which all hold sums then.
  /// Afterwards no thread uses `shared` any more.
  KAON_DEVICE static bool run(Sums &result, const Product &product, Tile tile,
                              char *shared) {
    // Read once: the loop's barriers would make every use read memory again.
    const T *a = static_cast<const T *>(product.a);
    const T *b = static_cast<const T *>(product.b);
    i64 pitchA = product.pitchA, pitchB = product.pitchB;
    int m = product.m, n = product.n, k = product.k;
    int steps = divideUp(k, stepDepth);

    auto fetch = [&](int step) {
      if (step < steps) {
        char *stage = shared + step % numStages * stageBytes;
        TileA::copy(stage, a, pitchA, tile.row * tileSize, m, step * stepDepth,
                    k);
        TileB::copy(stage + TileA::bytes, b, pitchB, tile.column * tileSize, n,
                    step * stepDepth, k);
      }
      // Also a step without copies is a group: waits count groups.
      copyAsyncCommit();
    };

    result.clear();
#pragma unroll
    for (int step = 0; step < numStages - 1; ++step) {
      fetch(step);
    }
    for (int step = 0; step < steps; ++step) {
      copyAsyncWait<numStages - 2>();
      // All copies of this step have arrived, and all threads are done with the
      // stage that the next fetch overwrites.
      blockBarrier();
      fetch(step + numStages - 1);
      const char *stage = shared + step % numStages * stageBytes;
      multiply(result, stage, stage + TileA::bytes);
    }
    copyAsyncWait<0>();
    blockBarrier();
    return true;
  }
};

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_TILEPRODUCT
