//===-- Reduce.cuh - sums over warps and blocks, in a fixed order ---------===//
//
// The order of a sum depends on the number of threads alone, so results repeat
// bit by bit. Lanes are added as a butterfly (16, 8, 4, 2, 1 apart), then the
// warps' sums as another one.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_REDUCE
#define KAON_CODEGEN_CUDA_LIB_REDUCE

#include "Primitives.cuh"

namespace kaon::device {

/// shuffleXor of any number.
KAON_DEVICE float exchangeXor(float value, int mask) {
  return floatOf(shuffleXor(bitsOf(value), mask));
}

KAON_DEVICE double exchangeXor(double value, int mask) {
  u64 bits = bitsOf(value);
  u64 low = shuffleXor(static_cast<u32>(bits), mask);
  u64 high = shuffleXor(static_cast<u32>(bits >> 32), mask);
  return doubleOf(low | high << 32);
}

//===----------------------------------------------------------------------===//
// Ways to combine values, of type Value
//===----------------------------------------------------------------------===//

struct Sum {
  using Value = double;
  KAON_DEVICE static Value identity() { return 0; }
  KAON_DEVICE static Value combine(Value a, Value b) { return addRn(a, b); }
};

/// The larger value; NaN if either is, and +0 is larger than -0.
template <typename T> struct Max {
  using Value = T;
  KAON_DEVICE static T identity() { return -T(floatOf(0x7f800000)); }
  KAON_DEVICE static T combine(T a, T b) { return maximum(a, b); }
};

/// The smaller value, likewise.
template <typename T> struct Min {
  using Value = T;
  KAON_DEVICE static T identity() { return T(floatOf(0x7f800000)); }
  KAON_DEVICE static T combine(T a, T b) { return minimum(a, b); }
};

//===----------------------------------------------------------------------===//
// Warps and blocks
//===----------------------------------------------------------------------===//

/// What all lanes combine to; every lane gets the same bits, because combining
/// is commutative.
template <typename Combiner>
KAON_DEVICE typename Combiner::Value
reduceWarp(typename Combiner::Value value) {
#pragma unroll
  for (int mask = warpSize / 2; mask > 0; mask /= 2) {
    value = Combiner::combine(value, exchangeXor(value, mask));
  }
  return value;
}

/// Shared memory of one reduction over a block.
constexpr int reduceBlockBytes = warpSize * static_cast<int>(sizeof(double));

/// First half of a reduction over a block, which ends with a barrier: combines
/// the lanes of every warp in `value` and leaves it in `shared`.
template <typename Combiner, int threads>
KAON_DEVICE void beginReduceBlock(typename Combiner::Value &value,
                                  typename Combiner::Value *shared) {
  static_assert(threads % warpSize == 0 && threads <= warpSize * warpSize,
                "a block is at most 32 whole warps");
  value = reduceWarp<Combiner>(value);
  if (threads > warpSize && threadIndex() % warpSize == 0) {
    shared[threadIndex() / warpSize] = value;
  }
}

/// Second half, after the barrier: `value` becomes what all threads of the
/// block combine to, in every thread. `shared` may be used again after the
/// block's next barrier.
template <typename Combiner, int threads>
KAON_DEVICE void endReduceBlock(typename Combiner::Value &value,
                                const typename Combiner::Value *shared) {
  if constexpr (threads > warpSize) {
    int lane = static_cast<int>(threadIndex()) % warpSize;
    value = lane < threads / warpSize ? shared[lane] : Combiner::identity();
    value = reduceWarp<Combiner>(value);
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_REDUCE
