//===-- WarpgroupHost.cuh - the primitives of sm_90a on a CPU -------------===//
//
// See Primitives.cuh. WarpgroupPtx.cuh defines the same names in the same
// order. Everything here takes part in what happens in the background, so all
// of it is asked of the machine (test/cuda/shim).
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_WARPGROUPHOST
#define KAON_CODEGEN_CUDA_LIB_WARPGROUPHOST

#include "PrimitivesHost.cuh"
#include "WarpgroupTypes.cuh"

namespace kaon::machine {

void barrierInit(void *barrier, uint32_t arrivals);
void barrierInitFence();
void barrierExpect(void *barrier, uint32_t bytes);
void barrierArrive(void *barrier);
void barrierWait(void *barrier, uint32_t parity);

void tensorMapAcquire(const void *map);
void copyBox(void *shared, const void *map, int32_t column, int32_t row,
             void *barrier);

/// What one lane reads for its sums of one product: two rows of A, eight apart,
/// and 32 columns of B, two of each block of eight.
constexpr int laneRows = 2, laneColumns = 32, productDepth = 16;
struct LaneOperands {
  uint16_t a[laneRows][productDepth];
  uint16_t b[productDepth][laneColumns];
};

/// A product of a warpgroup: descriptors, whether they are of transposed
/// matrices, and a function that adds the product of one lane to its sums.
struct WarpgroupProduct {
  uint64_t a, b;
  bool transposedA, transposedB;
  void (*multiply)(float *sums, const LaneOperands &operands);
};

void productFence();
void multiplyAsync(float *sums, const WarpgroupProduct &product);
void productCommit();
void productWait(int pending);

} // namespace kaon::machine

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Barriers in shared memory
//===----------------------------------------------------------------------===//

KAON_DEVICE void barrierInit(SharedBarrier *barrier, u32 arrivals) {
  machine::barrierInit(barrier, arrivals);
}

KAON_DEVICE void barrierInitFence() { machine::barrierInitFence(); }

KAON_DEVICE void barrierExpect(SharedBarrier *barrier, u32 bytes) {
  machine::barrierExpect(barrier, bytes);
}

KAON_DEVICE void barrierArrive(SharedBarrier *barrier) {
  machine::barrierArrive(barrier);
}

KAON_DEVICE void barrierWait(SharedBarrier *barrier, u32 parity) {
  machine::barrierWait(barrier, parity);
}

//===----------------------------------------------------------------------===//
// Copies of boxes
//===----------------------------------------------------------------------===//

KAON_DEVICE void tensorMapAcquire(const TensorMap *map) {
  machine::tensorMapAcquire(map);
}

KAON_DEVICE void tensorMapPrefetch(const TensorMap *map) { prefetch(map); }

KAON_DEVICE void copyBox(void *shared, const TensorMap *map, i32 column,
                         i32 row, SharedBarrier *barrier) {
  machine::copyBox(shared, map, column, row, barrier);
}

//===----------------------------------------------------------------------===//
// Products of warpgroups
//===----------------------------------------------------------------------===//

KAON_DEVICE void productFence() { machine::productFence(); }

/// Sums in the order of k with fused operations, as multiplyAdd does.
template <typename T>
KAON_DEVICE void multiplyLane(float *sums,
                              const machine::LaneOperands &operands) {
  for (int k = 0; k < machine::productDepth; ++k) {
    for (int row = 0; row < machine::laneRows; ++row) {
      float left = toFloat(T{operands.a[row][k]});
      for (int column = 0; column < machine::laneColumns; ++column) {
        float &sum = sums[column / 2 * 4 + 2 * row + column % 2];
        sum = fmaRn(left, toFloat(T{operands.b[k][column]}), sum);
      }
    }
  }
}

template <bool transposedA, bool transposedB, typename T>
KAON_DEVICE void multiplyAsync(T, WarpgroupSums &sums, u64 a, u64 b) {
  machine::multiplyAsync(&sums[0][0],
                         {a, b, transposedA, transposedB, multiplyLane<T>});
}

KAON_DEVICE void productCommit() { machine::productCommit(); }

template <int pending> KAON_DEVICE void productWait() {
  machine::productWait(pending);
}

KAON_DEVICE void productWaitAll(WarpgroupSums &) { machine::productWait(0); }

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_WARPGROUPHOST
