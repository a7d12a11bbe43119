//===-- WarpgroupPtx.cuh - the primitives of sm_90a on a GPU --------------===//
//
// See Primitives.cuh. WarpgroupHost.cuh defines the same names in the same
// order. Compilers for other architectures refuse the assembly where it is
// used.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_WARPGROUPPTX
#define KAON_CODEGEN_CUDA_LIB_WARPGROUPPTX

#include "PrimitivesPtx.cuh"
#include "WarpgroupTypes.cuh"

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Barriers in shared memory
//===----------------------------------------------------------------------===//

/// Makes a barrier, each phase of which `arrivals` threads end.
KAON_DEVICE void barrierInit(SharedBarrier *barrier, u32 arrivals) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(barrier)),
      "r"(arrivals)
      : "memory");
}

/// Shows the barriers that this thread made to copies. A barrier of the block
/// shows them to its threads.
KAON_DEVICE void barrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n"
               "fence.proxy.async.shared::cta;" ::
                   : "memory");
}

/// Arrives, and announces copies of `bytes` for the phase.
KAON_DEVICE void barrierExpect(SharedBarrier *barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   sharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

/// Arrives. What the thread did before comes before what waiting threads do.
KAON_DEVICE void barrierArrive(SharedBarrier *barrier) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sharedAddress(barrier))
      : "memory");
}

/// Waits until the present or the last phase, whichever has this parity, has
/// ended. The phase before the first one counts as ended.
KAON_DEVICE void barrierWait(SharedBarrier *barrier, u32 parity) {
  u32 hasEnded = 0;
  while (hasEnded == 0) {
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(hasEnded)
                 : "r"(sharedAddress(barrier)), "r"(parity)
                 : "memory");
  }
}

//===----------------------------------------------------------------------===//
// Copies of boxes
//===----------------------------------------------------------------------===//

/// Lets this thread use a map that the host has written to global memory.
KAON_DEVICE void tensorMapAcquire(const TensorMap *map) {
  asm volatile(
      "fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map)
      : "memory");
}

/// Starts to load a map.
KAON_DEVICE void tensorMapPrefetch(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Starts to copy the box of a map whose first element is at (row, column) into
/// shared memory, aligned to 128 bytes. Elements outside of the matrix become
/// zero. All bytes of the box count for the present phase of `barrier`.
KAON_DEVICE void copyBox(void *shared, const TensorMap *map, i32 column,
                         i32 row, SharedBarrier *barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          sharedAddress(shared)),
      "l"(map), "r"(column), "r"(row), "r"(sharedAddress(barrier))
      : "memory");
}

//===----------------------------------------------------------------------===//
// Products of warpgroups
//===----------------------------------------------------------------------===//

/// Comes between uses of sums by the thread and multiplyAsync.
KAON_DEVICE void productFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// The 64 registers of a thread's sums, as operands and by their numbers.
#define KAON_SUMS_OF_BLOCK(i)                                                  \
  "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define KAON_SUMS_OF_BLOCKS(i)                                                 \
  KAON_SUMS_OF_BLOCK(i), KAON_SUMS_OF_BLOCK(i + 1), KAON_SUMS_OF_BLOCK(i + 2), \
      KAON_SUMS_OF_BLOCK(i + 3)
#define KAON_SUMS                                                              \
  KAON_SUMS_OF_BLOCKS(0), KAON_SUMS_OF_BLOCKS(4), KAON_SUMS_OF_BLOCKS(8),      \
      KAON_SUMS_OF_BLOCKS(12)
#define KAON_SUM_REGISTERS                                                     \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                    \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"           \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"           \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define KAON_WGMMA(type)                                                       \
  asm volatile("{\n"                                                           \
               ".reg .pred accumulates;\n"                                     \
               "setp.eq.u32 accumulates, 0, 0;\n"                              \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type    \
               " " KAON_SUM_REGISTERS ", %64, %65, accumulates, 1, 1, %66, "   \
               "%67;\n"                                                        \
               "}"                                                             \
               : KAON_SUMS                                                     \
               : "l"(a), "l"(b), "n"(transposedA ? 1 : 0),                     \
                 "n"(transposedB ? 1 : 0)                                      \
               : "memory")

/// Starts sums += A * B for A of 64x16 and B of 16x128 in shared memory, which
/// descriptors describe: with k contiguous, or transposed with the extent
/// contiguous. The first argument tells the type of elements. All four warps
/// call it. Until a wait no thread touches `sums`.
template <bool transposedA, bool transposedB>
KAON_DEVICE void multiplyAsync(bf16, WarpgroupSums &sums, u64 a, u64 b) {
  KAON_WGMMA("bf16");
}
template <bool transposedA, bool transposedB>
KAON_DEVICE void multiplyAsync(f16, WarpgroupSums &sums, u64 a, u64 b) {
  KAON_WGMMA("f16");
}

/// Closes the group of the products that this thread started since the last
/// one.
KAON_DEVICE void productCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most the `pending` newest groups of this thread are open.
template <int pending> KAON_DEVICE void productWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Waits for all groups. That `sums` are operands keeps the compiler from
/// reading them earlier.
KAON_DEVICE void productWaitAll(WarpgroupSums &sums) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : KAON_SUMS::"memory");
}

#undef KAON_WGMMA
#undef KAON_SUM_REGISTERS
#undef KAON_SUMS
#undef KAON_SUMS_OF_BLOCKS
#undef KAON_SUMS_OF_BLOCK

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_WARPGROUPPTX
