//===-- PrimitivesPtx.cuh - the primitives on a GPU -----------------------===//
//
// See Primitives.cuh. PrimitivesHost.cuh defines the same names in the same
// order.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_PRIMITIVESPTX
#define KAON_CODEGEN_CUDA_LIB_PRIMITIVESPTX

#include "Prelude.cuh"

#define KAON_DEVICE __device__ __forceinline__
#define KAON_KERNEL(threads, blocksPerProcessor)                               \
  extern "C" __global__ void __launch_bounds__(threads, blocksPerProcessor)

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Position and memory of a thread
//===----------------------------------------------------------------------===//

KAON_DEVICE u32 threadIndex() { return threadIdx.x; }
KAON_DEVICE u32 blockIndex() { return blockIdx.x; }

/// The block's dynamic shared memory, aligned to 1024 bytes: swizzled tiles
/// start at multiples of that.
KAON_DEVICE char *sharedMemory() {
  extern __shared__ __align__(1024) char kaonSharedMemory[];
  return kaonSharedMemory;
}

/// Where `pointer` lies in shared memory.
KAON_DEVICE u32 sharedAddress(const void *pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// `pointer`, which comes out of a table and points to global memory. Without
/// this the compiler would have to use accesses that work in any memory.
template <typename T> KAON_DEVICE T *asGlobal(T *pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

/// One access of 4, 8 or 16 bytes to an address aligned to as many.
KAON_DEVICE u32 loadWord(const void *pointer) {
  return *static_cast<const u32 *>(pointer);
}
KAON_DEVICE void storeWord(void *pointer, u32 word) {
  *static_cast<u32 *>(pointer) = word;
}
KAON_DEVICE Words2 loadWords2(const void *pointer) {
  uint2 words = *static_cast<const uint2 *>(pointer);
  return {{words.x, words.y}};
}
KAON_DEVICE void storeWords2(void *pointer, const Words2 &words) {
  *static_cast<uint2 *>(pointer) = make_uint2(words.word[0], words.word[1]);
}
KAON_DEVICE Words4 loadWords4(const void *pointer) {
  uint4 words = *static_cast<const uint4 *>(pointer);
  return {{words.x, words.y, words.z, words.w}};
}
KAON_DEVICE void storeWords4(void *pointer, const Words4 &words) {
  *static_cast<uint4 *>(pointer) =
      make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
}

/// Starts to bring the cache line of an address in global memory into the L2
/// cache.
KAON_DEVICE void prefetch(const void *pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

//===----------------------------------------------------------------------===//
// Synchronisation and exchange
//===----------------------------------------------------------------------===//

/// Waits for every thread of the block and orders its memory accesses.
KAON_DEVICE void blockBarrier() { __syncthreads(); }

/// The same for the first `threads` threads of the block, all of which come.
template <int threads> KAON_DEVICE void groupBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

/// The value of the lane whose number differs by `mask`. All lanes take part.
KAON_DEVICE u32 shuffleXor(u32 value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// *pointer |= bits, whoever else does so at the same time.
KAON_DEVICE void atomicOr(u32 *pointer, u32 bits) { ::atomicOr(pointer, bits); }

//===----------------------------------------------------------------------===//
// Arithmetic, rounded to nearest even
//===----------------------------------------------------------------------===//

KAON_DEVICE u32 bitsOf(float x) { return __float_as_uint(x); }
KAON_DEVICE u64 bitsOf(double x) {
  return static_cast<u64>(__double_as_longlong(x));
}
KAON_DEVICE float floatOf(u32 bits) { return __uint_as_float(bits); }
KAON_DEVICE double doubleOf(u64 bits) {
  return __longlong_as_double(static_cast<i64>(bits));
}

KAON_DEVICE float addRn(float a, float b) { return __fadd_rn(a, b); }
KAON_DEVICE float subRn(float a, float b) { return __fsub_rn(a, b); }
KAON_DEVICE float mulRn(float a, float b) { return __fmul_rn(a, b); }
KAON_DEVICE float divRn(float a, float b) { return __fdiv_rn(a, b); }
KAON_DEVICE float sqrtRn(float x) { return __fsqrt_rn(x); }
/// a * b + c, rounded once.
KAON_DEVICE float fmaRn(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}

KAON_DEVICE double addRn(double a, double b) { return __dadd_rn(a, b); }
KAON_DEVICE double subRn(double a, double b) { return __dsub_rn(a, b); }
KAON_DEVICE double mulRn(double a, double b) { return __dmul_rn(a, b); }
KAON_DEVICE double divRn(double a, double b) { return __ddiv_rn(a, b); }
KAON_DEVICE double sqrtRn(double x) { return __dsqrt_rn(x); }
KAON_DEVICE double fmaRn(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

KAON_DEVICE float toFloatRn(double x) { return __double2float_rn(x); }

/// The larger and the smaller of two numbers; NaN if either is. +0 is larger
/// than -0.
KAON_DEVICE float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
KAON_DEVICE float minimum(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
KAON_DEVICE double maximum(double a, double b) {
  // There is no such instruction for f64. The sum of two numbers of which one
  // is NaN is NaN.
  if (a != a || b != b) {
    return __dadd_rn(a, b);
  }
  return a == b ? (__double_as_longlong(a) < 0 ? b : a) : a > b ? a : b;
}
KAON_DEVICE double minimum(double a, double b) { return -maximum(-a, -b); }

/// Exact for every number, NaN included.
KAON_DEVICE float absolute(float x) { return ::fabsf(x); }
KAON_DEVICE double absolute(double x) { return ::fabs(x); }
KAON_DEVICE float copySign(float x, float sign) { return ::copysignf(x, sign); }
KAON_DEVICE double copySign(double x, double sign) {
  return ::copysign(x, sign);
}
KAON_DEVICE float roundDown(float x) { return ::floorf(x); }
KAON_DEVICE double roundDown(double x) { return ::floor(x); }

/// Not rounded correctly: a GPU and a host differ in the last bits.
KAON_DEVICE float exponential(float x) { return ::expf(x); }
KAON_DEVICE double exponential(double x) { return ::exp(x); }
KAON_DEVICE float logarithm(float x) { return ::logf(x); }
KAON_DEVICE double logarithm(double x) { return ::log(x); }
KAON_DEVICE float power(float x, float y) { return ::powf(x, y); }
KAON_DEVICE double power(double x, double y) { return ::pow(x, y); }

/// Subnormals are kept, what is too large becomes infinite, and every NaN
/// becomes the one with all of its lower bits set.
KAON_DEVICE bf16 toBf16Rn(float x) {
  bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
KAON_DEVICE f16 toF16Rn(float x) {
  f16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
KAON_DEVICE float toFloat(bf16 x) {
  return __uint_as_float(static_cast<u32>(x.bits) << 16);
}
KAON_DEVICE float toFloat(f16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}

//===----------------------------------------------------------------------===//
// Tensor cores
//===----------------------------------------------------------------------===//

/// Loads four 8x8 matrices of 16-bit elements. Lane l gives the address of row
/// l % 8 of matrix l / 8, aligned to 16 bytes; it receives from each matrix the
/// elements (l / 4, 2 * (l % 4)) and the one to its right.
KAON_DEVICE void loadMatrices(u32 (&fragment)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]),
                 "=r"(fragment[3])
               : "r"(sharedAddress(row))
               : "memory");
}

/// The same with every matrix transposed: the lane receives the elements
/// (2 * (l % 4), l / 4) and the one below.
KAON_DEVICE void loadMatricesTransposed(u32 (&fragment)[4], const void *row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]),
        "=r"(fragment[3])
      : "r"(sharedAddress(row))
      : "memory");
}

/// sum += A * B for A of 16x16, B of 16x8 and a sum of 16x8 in f32. With
/// g = lane / 4 and t = 2 * (lane % 4): sum holds (g, t), (g, t+1), (g+8, t),
/// (g+8, t+1); a holds the pairs at (g, t), (g+8, t), (g, t+8), (g+8, t+8); b
/// the pairs down column g at rows t and t+8.
template <typename T>
KAON_DEVICE void multiplyAdd(float (&sum)[4], const u32 (&a)[4],
                             const u32 (&b)[2]);
template <>
KAON_DEVICE void multiplyAdd<bf16>(float (&sum)[4], const u32 (&a)[4],
                                   const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                 "r"(b[1]));
}
template <>
KAON_DEVICE void multiplyAdd<f16>(float (&sum)[4], const u32 (&a)[4],
                                  const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                 "r"(b[1]));
}

//===----------------------------------------------------------------------===//
// Copies that run in the background
//===----------------------------------------------------------------------===//

/// Starts to copy 16 bytes into shared memory, both addresses aligned to 16
/// bytes. Only the first `validBytes` are read, the others become zero.
KAON_DEVICE void copyAsync(void *shared, const void *global, u32 validBytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   sharedAddress(shared)),
               "l"(global), "r"(validBytes)
               : "memory");
}

/// Closes the group of the copies that this thread started since the last one.
KAON_DEVICE void copyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most the `pending` newest groups of this thread are open. A
/// barrier makes what has arrived visible to other threads.
template <int pending> KAON_DEVICE void copyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_PRIMITIVESPTX
