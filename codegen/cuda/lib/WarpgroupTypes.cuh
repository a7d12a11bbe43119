//===-- WarpgroupTypes.cuh - what the primitives of sm_90a work on --------===//
//
// Shared by WarpgroupPtx.cuh and WarpgroupHost.cuh. Layouts are those of the
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_WARPGROUPTYPES
#define KAON_CODEGEN_CUDA_LIB_WARPGROUPTYPES

#include "Prelude.cuh"

namespace kaon::device {

/// A barrier in shared memory (`mbarrier`). It counts phases from 0. A phase
/// ends when as many threads have arrived as barrierInit said, and all bytes
/// that were announced for it have been copied.
struct alignas(8) SharedBarrier {
  u64 state;
};

/// Describes a matrix in global memory to copyBox (`CUtensorMap`). The driver
/// makes it; its content is opaque.
struct alignas(128) TensorMap {
  u64 words[16];
};

/// A 64x128 tile of sums over the 128 threads of a warpgroup: blocks of 64x8,
/// of which each warp has 16x8 in the layout of multiplyAdd.
using WarpgroupSums = float[16][4];

/// How a matrix descriptor says that 16-byte units are swizzled: bits 4 to 6 of
/// every address are flipped where bits 7 to 9 are set, which is the order that
/// CU_TENSOR_MAP_SWIZZLE_128B copies to.
constexpr u64 swizzle128Bytes = 1;

/// The descriptor of a matrix with swizzle128Bytes at `address` in shared
/// memory. Bits 0-13 hold the address, 16-29 the leading and 32-45 the stride
/// byte offset, all in units of 16 bytes; 62-63 the swizzle; 49-51, the base
/// offset, are 0 for tiles that are aligned to 1024 bytes.
///
/// Where k is contiguous, eight rows of 128 bytes follow each other, and the
/// next eight are `strideBytes` further; the leading offset is not used. Where
/// the extent is contiguous, eight k of 64 elements follow each other, the next
/// eight k are `strideBytes` further, and the next 64 elements `leadingBytes`.
constexpr u64 matrixDescriptor(u32 address, u32 leadingBytes, u32 strideBytes) {
  return static_cast<u64>(address >> 4) |
         static_cast<u64>(leadingBytes >> 4) << 16 |
         static_cast<u64>(strideBytes >> 4) << 32 | swizzle128Bytes << 62;
}

/// The descriptor of the same matrix `bytes` further on.
constexpr u64 advanceDescriptor(u64 descriptor, u32 bytes) {
  return descriptor + (bytes >> 4);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_WARPGROUPTYPES
