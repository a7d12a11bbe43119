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

struct Sum {
  template <typename T> KAON_DEVICE static T identity() { return T(0); }
  template <typename T> KAON_DEVICE static T combine(T a, T b) {
    return addRn(a, b);
  }
};

/// The larger number; a NaN on either side wins.
struct Maximum {
  template <typename T> KAON_DEVICE static T identity() {
    return -T(floatOf(0x7f800000));
  }
  template <typename T> KAON_DEVICE static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

/// What all lanes combine to; every lane gets the same bits, because combining
/// is commutative.
template <typename Combiner, typename T> KAON_DEVICE T reduceWarp(T value) {
#pragma unroll
  for (int mask = warpSize / 2; mask > 0; mask /= 2) {
    value = Combiner::combine(value, exchangeXor(value, mask));
  }
  return value;
}

/// Shared memory that reduceBlock needs.
template <typename T> constexpr int reduceBlockBytes = warpSize * sizeof(T);

/// What all threads of the block combine to, for every thread. `shared` may be
/// used again after the block's next barrier.
template <typename Combiner, int threads, typename T>
KAON_DEVICE T reduceBlock(T value, T *shared) {
  static_assert(threads % warpSize == 0 && threads <= warpSize * warpSize,
                "a block is at most 32 whole warps");
  constexpr int warps = threads / warpSize;
  value = reduceWarp<Combiner>(value);
  if constexpr (warps == 1) {
    return value;
  }
  int lane = threadIndex() % warpSize, warp = threadIndex() / warpSize;
  if (lane == 0) {
    shared[warp] = value;
  }
  blockBarrier();
  value = lane < warps ? shared[lane] : Combiner::template identity<T>();
  return reduceWarp<Combiner>(value);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_REDUCE
