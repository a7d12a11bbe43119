//===-- WarpgroupProduct.cuh - one output tile by warpgroups --------------===//
//
// The main loop for sm_90a. A warp of its own has boxes of A and B copied into
// a ring of stages; two warpgroups of four warps multiply them, 64x128 sums
// each. Two barriers per stage keep them apart: `full` ends a phase when all
// bytes of a stage have arrived, `empty` when all warps are done with it.
//
// Two blocks share a multiprocessor, so that one multiplies while the other is
// at its epilogue. Then each quarter of it holds up to five of their 18 warps,
// and a thread has 96 registers: 64 for its sums, and enough for an epilogue
// that handles one group of blocks after the other. Nothing is gained by giving
// registers of the copying warp to the others (`setmaxnreg`): that takes a
// copying warpgroup, and hands out hardly more than its three idle warps cost.
//
// Steps along k come in the order of TileProduct. Rows, columns and k that lie
// outside of an operand are copied as zero.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_WARPGROUPPRODUCT
#define KAON_CODEGEN_CUDA_LIB_WARPGROUPPRODUCT

#include "WarpTile.cuh"

namespace kaon::device {

/// Rows and columns of the boxes that operands are copied in, whichever
/// dimension is contiguous: 64 elements are the 128 bytes of a swizzled row.
constexpr int boxSize = 64;
constexpr int boxRowBytes = boxSize * 2;
constexpr int boxBytes = boxSize * boxRowBytes;

/// `tileSize` by `boxSize` elements of an operand in shared memory: two boxes,
/// the second of which is further along the extent.
template <Contiguous contiguous> struct OperandBoxes {
  static constexpr bool isTransposed = contiguous == Contiguous::extent;
  static constexpr int count = tileSize / boxSize;
  static constexpr int bytes = count * boxBytes;

  /// Starts the copies of the strip at (`extent`, `depth`).
  KAON_DEVICE static void copy(char *shared, const TensorMap *map, int extent,
                               int depth, SharedBarrier *full) {
#pragma unroll
    for (int box = 0; box < count; ++box) {
      int along = extent + box * boxSize;
      copyBox(shared + box * boxBytes, map, isTransposed ? along : depth,
              isTransposed ? depth : along, full);
    }
  }

  /// Describes what starts with the box at `shared`: eight rows after each
  /// other, the next eight behind them. Boxes that are further along the extent
  /// are what a transposed matrix goes on with; otherwise they are rows.
  KAON_DEVICE static u64 descriptor(const char *shared) {
    return matrixDescriptor(sharedAddress(shared), isTransposed ? boxBytes : 16,
                            8 * boxRowBytes);
  }

  /// Bytes from the first k of a box to another.
  static constexpr u32 depthBytes(int depth) {
    return static_cast<u32>(depth * (isTransposed ? boxRowBytes : 2));
  }
};

/// A stage of the ring, and the parity of the phases that its barriers are in
/// when a round is full.
template <int stages> struct RingPosition {
  int stage = 0;
  u32 parity = 0;

  KAON_DEVICE void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Products of operands with elements of T, A and B stored as given. The
/// product's `a` and `b` are addresses of tensor maps, whose boxes have
/// `boxSize` rows and columns.
template <typename T, Contiguous contiguousA, Contiguous contiguousB>
struct WarpgroupProduct {
  using BoxesA = OperandBoxes<contiguousA>;
  using BoxesB = OperandBoxes<contiguousB>;
  /// What a warp computes: 16x128 elements.
  using Sums = WarpTile<1, 4>;
  static constexpr int threads = productThreads + warpSize;
  static constexpr int numStages = 3;
  static constexpr int stageBytes = BoxesA::bytes + BoxesB::bytes;
  static constexpr int barriersOffset = numStages * stageBytes;
  static constexpr int sharedBytes =
      barriersOffset + 2 * numStages * static_cast<int>(sizeof(SharedBarrier));
  using Position = RingPosition<numStages>;

  KAON_DEVICE static SharedBarrier *full(char *shared, int stage) {
    return reinterpret_cast<SharedBarrier *>(shared + barriersOffset) + stage;
  }
  KAON_DEVICE static SharedBarrier *empty(char *shared, int stage) {
    return full(shared, numStages + stage);
  }

  /// Computes the tile; true for threads that hold sums then. Afterwards none
  /// of those uses `shared` any more.
  KAON_DEVICE static bool run(Sums &result, const Product &product, Tile tile,
                              char *shared) {
    int thread = static_cast<int>(threadIndex());
    if (thread == productThreads) {
      makeBarriers(shared);
    }
    blockBarrier();
    int steps = divideUp(product.k, boxSize);
    if (thread >= productThreads) {
      if (thread == productThreads) {
        fetch(product, tile, steps, shared);
      }
      return false;
    }
    multiply(result, steps, shared);
    groupBarrier<productThreads>();
    return true;
  }

private:
  KAON_DEVICE static void makeBarriers(char *shared) {
#pragma unroll
    for (int stage = 0; stage < numStages; ++stage) {
      barrierInit(full(shared, stage), 1);
      barrierInit(empty(shared, stage), productThreads / warpSize);
    }
    barrierInitFence();
  }

  /// What the copying thread does.
  KAON_DEVICE static void fetch(const Product &product, Tile tile, int steps,
                                char *shared) {
    const auto *a = static_cast<const TensorMap *>(product.a);
    const auto *b = static_cast<const TensorMap *>(product.b);
    tensorMapAcquire(a);
    tensorMapAcquire(b);
    tensorMapPrefetch(a);
    tensorMapPrefetch(b);
    Position at;
    for (int step = 0; step < steps; ++step) {
      char *stage = shared + at.stage * stageBytes;
      SharedBarrier *arrival = full(shared, at.stage);
      // In the first round the phase before the first has ended.
      barrierWait(empty(shared, at.stage), at.parity ^ 1);
      barrierExpect(arrival, stageBytes);
      BoxesA::copy(stage, a, tile.row * tileSize, step * boxSize, arrival);
      BoxesB::copy(stage + BoxesA::bytes, b, tile.column * tileSize,
                   step * boxSize, arrival);
      at.advance();
    }
  }

  /// What the others do. The products of a step are in flight while those of
  /// the next one are started.
  KAON_DEVICE static void multiply(Sums &result, int steps, char *shared) {
    result.clear();
    bool releases = threadIndex() % warpSize == 0;
    Position at;
    int previous = 0;
    for (int step = 0; step < steps; ++step) {
      barrierWait(full(shared, at.stage), at.parity);
      productFence();
      multiplyStage(result, shared + at.stage * stageBytes);
      productCommit();
      productWait<1>();
      // Nothing reads the stage of the step before any more.
      if (step > 0 && releases) {
        barrierArrive(empty(shared, previous));
      }
      previous = at.stage;
      at.advance();
    }
    productWaitAll(result.sums[0]);
  }

  /// Starts the products of one stage.
  KAON_DEVICE static void multiplyStage(Sums &result, const char *stage) {
    constexpr int warpgroupThreads = 4 * warpSize;
    int warpgroup = static_cast<int>(threadIndex()) / warpgroupThreads;
    u64 a = BoxesA::descriptor(stage + warpgroup * boxBytes);
    u64 b = BoxesB::descriptor(stage + BoxesA::bytes);
#pragma unroll
    for (int depth = 0; depth < boxSize; depth += 16) {
      multiplyAsync<BoxesA::isTransposed, BoxesB::isTransposed>(
          T(), result.sums[0], advanceDescriptor(a, BoxesA::depthBytes(depth)),
          advanceDescriptor(b, BoxesB::depthBytes(depth)));
    }
  }
};

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_WARPGROUPPRODUCT
