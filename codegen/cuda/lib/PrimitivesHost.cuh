//===-- PrimitivesHost.cuh - the primitives on a CPU ----------------------===//
//
// See Primitives.cuh. PrimitivesPtx.cuh defines the same names in the same
// order. What a thread cannot do alone is asked of the machine that runs the
// kernel, whose functions are declared here and defined by test/cuda/shim.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_PRIMITIVESHOST
#define KAON_CODEGEN_CUDA_LIB_PRIMITIVESHOST

#include "Prelude.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>

#define KAON_DEVICE inline
#define KAON_KERNEL(threads, blocksPerProcessor) inline void

namespace kaon::machine {

/// Most words that a lane gives to and receives from a warp operation.
constexpr int maxWarpInput = 10, maxWarpOutput = 4;

using WarpInput = uint32_t[32][maxWarpInput];
using WarpOutput = uint32_t[32][maxWarpOutput];

uint32_t threadIndex();
uint32_t blockIndex();
char *sharedMemory();
/// Where `pointer` lies in shared memory.
uint32_t sharedAddress(const void *pointer);

/// Waits for the block; `line` tells one barrier from another.
void barrier(int line);
/// The same for the first `threads` threads of the block.
void groupBarrier(int threads, int line);

/// Gathers `input` of the 32 lanes, computes every lane's output once, and
/// gives each lane its own. All lanes must call with the same `name`.
void exchange(const char *name, const uint32_t *input, int inputWords,
              uint32_t *output, int outputWords,
              void (*compute)(const WarpInput &, WarpOutput &));

/// Faults unless `pointer` is aligned to `bytes`.
void checkAligned(const char *name, const void *pointer, uint32_t bytes);
/// The same, and counts one load or store of `bytes`.
void countAccess(const char *name, const void *pointer, uint32_t bytes);
/// One access to all of some words.
template <typename Words> Words load(const void *pointer) {
  countAccess("a load", pointer, sizeof(Words));
  Words words;
  std::memcpy(&words, pointer, sizeof words);
  return words;
}
template <typename Words> void store(void *pointer, const Words &words) {
  countAccess("a store", pointer, sizeof words);
  std::memcpy(pointer, &words, sizeof words);
}
/// Faults unless the 16 bytes at `pointer` are shared memory, and aligned.
void checkShared(const char *name, const void *pointer);

void copyAsync(void *shared, const void *global, uint32_t validBytes);
void copyAsyncCommit();
void copyAsyncWait(int pending);

} // namespace kaon::machine

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Position and memory of a thread
//===----------------------------------------------------------------------===//

KAON_DEVICE u32 threadIndex() { return machine::threadIndex(); }
KAON_DEVICE u32 blockIndex() { return machine::blockIndex(); }

KAON_DEVICE char *sharedMemory() { return machine::sharedMemory(); }

KAON_DEVICE u32 sharedAddress(const void *pointer) {
  return machine::sharedAddress(pointer);
}

template <typename T> KAON_DEVICE T *asGlobal(T *pointer) { return pointer; }

KAON_DEVICE u32 loadWord(const void *pointer) {
  return machine::load<u32>(pointer);
}
KAON_DEVICE void storeWord(void *pointer, u32 word) {
  machine::store(pointer, word);
}
KAON_DEVICE Words2 loadWords2(const void *pointer) {
  return machine::load<Words2>(pointer);
}
KAON_DEVICE void storeWords2(void *pointer, const Words2 &words) {
  machine::store(pointer, words);
}
KAON_DEVICE Words4 loadWords4(const void *pointer) {
  return machine::load<Words4>(pointer);
}
KAON_DEVICE void storeWords4(void *pointer, const Words4 &words) {
  machine::store(pointer, words);
}

KAON_DEVICE void prefetch(const void *pointer) {
  // Read, so that sanitizers see addresses that must not be.
  static_cast<void>(*static_cast<const volatile char *>(pointer));
}

//===----------------------------------------------------------------------===//
// Synchronisation and exchange
//===----------------------------------------------------------------------===//

KAON_DEVICE void blockBarrier(int line = __builtin_LINE()) {
  machine::barrier(line);
}

template <int threads>
KAON_DEVICE void groupBarrier(int line = __builtin_LINE()) {
  machine::groupBarrier(threads, line);
}

KAON_DEVICE u32 shuffleXor(u32 value, int mask) {
  u32 input[2] = {value, static_cast<u32>(mask)}, result;
  machine::exchange("shuffle", input, 2, &result, 1,
                    [](const machine::WarpInput &in, machine::WarpOutput &out) {
                      for (int lane = 0; lane < warpSize; ++lane) {
                        out[lane][0] = in[lane ^ in[lane][1]][0];
                      }
                    });
  return result;
}

KAON_DEVICE void atomicOr(u32 *pointer, u32 bits) {
  __atomic_fetch_or(pointer, bits, __ATOMIC_RELAXED);
}

//===----------------------------------------------------------------------===//
// Arithmetic, rounded to nearest even
//===----------------------------------------------------------------------===//

KAON_DEVICE u32 bitsOf(float x) {
  u32 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
KAON_DEVICE u64 bitsOf(double x) {
  u64 bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
KAON_DEVICE float floatOf(u32 bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
KAON_DEVICE double doubleOf(u64 bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

KAON_DEVICE float addRn(float a, float b) { return a + b; }
KAON_DEVICE float subRn(float a, float b) { return a - b; }
KAON_DEVICE float mulRn(float a, float b) { return a * b; }
KAON_DEVICE float divRn(float a, float b) { return a / b; }
KAON_DEVICE float sqrtRn(float x) { return std::sqrt(x); }
KAON_DEVICE float fmaRn(float a, float b, float c) { return std::fma(a, b, c); }

KAON_DEVICE double addRn(double a, double b) { return a + b; }
KAON_DEVICE double subRn(double a, double b) { return a - b; }
KAON_DEVICE double mulRn(double a, double b) { return a * b; }
KAON_DEVICE double divRn(double a, double b) { return a / b; }
KAON_DEVICE double sqrtRn(double x) { return std::sqrt(x); }
KAON_DEVICE double fmaRn(double a, double b, double c) {
  return std::fma(a, b, c);
}

KAON_DEVICE float toFloatRn(double x) { return static_cast<float>(x); }

/// The larger of two numbers of any type.
template <typename T> KAON_DEVICE T largerOf(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) {
    return a + b;
  }
  return a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}

KAON_DEVICE float maximum(float a, float b) { return largerOf(a, b); }
KAON_DEVICE float minimum(float a, float b) { return -largerOf(-a, -b); }
KAON_DEVICE double maximum(double a, double b) { return largerOf(a, b); }
KAON_DEVICE double minimum(double a, double b) { return -largerOf(-a, -b); }

KAON_DEVICE float absolute(float x) { return std::fabs(x); }
KAON_DEVICE double absolute(double x) { return std::fabs(x); }
KAON_DEVICE float copySign(float x, float sign) {
  return std::copysign(x, sign);
}
KAON_DEVICE double copySign(double x, double sign) {
  return std::copysign(x, sign);
}
KAON_DEVICE float roundDown(float x) { return std::floor(x); }
KAON_DEVICE double roundDown(double x) { return std::floor(x); }

KAON_DEVICE float exponential(float x) { return std::exp(x); }
KAON_DEVICE double exponential(double x) { return std::exp(x); }
KAON_DEVICE float logarithm(float x) { return std::log(x); }
KAON_DEVICE double logarithm(double x) { return std::log(x); }
KAON_DEVICE float power(float x, float y) { return std::pow(x, y); }
KAON_DEVICE double power(double x, double y) { return std::pow(x, y); }

/// `value` without its `dropped` lowest bits, rounded to nearest even.
KAON_DEVICE u32 shiftRightRn(u32 value, int dropped) {
  u32 kept = value >> dropped, rest = value & ((1u << dropped) - 1);
  u32 half = 1u << (dropped - 1);
  return kept + (rest > half || (rest == half && (kept & 1)));
}

KAON_DEVICE bf16 toBf16Rn(float x) {
  if (std::isnan(x)) {
    return {0x7fff};
  }
  return {static_cast<u16>(shiftRightRn(bitsOf(x), 16))};
}

KAON_DEVICE f16 toF16Rn(float x) {
  if (std::isnan(x)) {
    return {0x7fff};
  }
  u32 sign = bitsOf(x) >> 16 & 0x8000, magnitude = bitsOf(x) & 0x7fffffff;
  constexpr u32 smallestNormal = 0x38800000; // 2^-14
  constexpr u32 overflow = 0x47800000;       // 2^16
  if (magnitude >= overflow) {
    return {static_cast<u16>(sign | 0x7c00)};
  }
  if (magnitude >= smallestNormal) {
    // A carry out of the mantissa raises the exponent, up to infinity.
    return {static_cast<u16>(
        sign | shiftRightRn(magnitude - (u32(127 - 15) << 23), 13))};
  }
  // Subnormal: a multiple of 2^-24.
  float units = std::ldexp(floatOf(magnitude), 24);
  return {static_cast<u16>(sign | static_cast<u32>(std::nearbyint(units)))};
}

KAON_DEVICE float toFloat(bf16 x) { return floatOf(u32(x.bits) << 16); }

KAON_DEVICE float toFloat(f16 x) {
  u32 sign = u32(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31,
      mantissa = x.bits & 0x3ff;
  if (exponent == 31) {
    return floatOf(sign | 0x7f800000 | mantissa << 13);
  }
  if (exponent == 0) {
    float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return floatOf(sign | bitsOf(magnitude));
  }
  return floatOf(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

//===----------------------------------------------------------------------===//
// Tensor cores
//===----------------------------------------------------------------------===//

/// Half of a word: element `index` of the pair that it holds.
KAON_DEVICE u32 halfOf(u32 word, int index) {
  return word >> (16 * index) & 0xffff;
}

KAON_DEVICE void loadMatrices(u32 (&fragment)[4], const void *row) {
  machine::checkShared("loadMatrices", row);
  // The lane itself reads its row, so that a race detector sees who reads.
  u32 words[4];
  std::memcpy(words, row, sizeof words);
  machine::exchange("loadMatrices", words, 4, fragment, 4,
                    [](const machine::WarpInput &in, machine::WarpOutput &out) {
                      for (int lane = 0; lane < warpSize; ++lane) {
                        for (int matrix = 0; matrix < 4; ++matrix) {
                          out[lane][matrix] =
                              in[matrix * 8 + lane / 4][lane % 4];
                        }
                      }
                    });
}

KAON_DEVICE void loadMatricesTransposed(u32 (&fragment)[4], const void *row) {
  machine::checkShared("loadMatricesTransposed", row);
  u32 words[4];
  std::memcpy(words, row, sizeof words);
  machine::exchange("loadMatricesTransposed", words, 4, fragment, 4,
                    [](const machine::WarpInput &in, machine::WarpOutput &out) {
                      for (int lane = 0; lane < warpSize; ++lane) {
                        int column = lane / 4, above = lane % 4 * 2;
                        for (int matrix = 0; matrix < 4; ++matrix) {
                          const auto *rows = in + matrix * 8;
                          out[lane][matrix] =
                              halfOf(rows[above][column / 2], column % 2) |
                              halfOf(rows[above + 1][column / 2], column % 2)
                                  << 16;
                        }
                      }
                    });
}

/// Sums in the order of k with fused operations. The hardware's order within a
/// step of 16 is not specified, so a GPU agrees within a bound only.
template <typename T>
KAON_DEVICE void multiplyAdd(float (&sum)[4], const u32 (&a)[4],
                             const u32 (&b)[2]) {
  u32 input[10], output[4];
  std::memcpy(input, a, sizeof a);
  std::memcpy(input + 4, b, sizeof b);
  std::memcpy(input + 6, sum, sizeof sum);
  machine::exchange(
      "multiplyAdd", input, 10, output, 4,
      [](const machine::WarpInput &in, machine::WarpOutput &out) {
        auto element = [](u32 word, int index) {
          return toFloat(T{static_cast<u16>(halfOf(word, index))});
        };
        float left[16][16], right[16][8], total[16][8];
        for (int lane = 0; lane < warpSize; ++lane) {
          int group = lane / 4, pair = lane % 4 * 2;
          for (int index = 0; index < 2; ++index) {
            for (int r = 0; r < 4; ++r) {
              left[group + r % 2 * 8][pair + r / 2 * 8 + index] =
                  element(in[lane][r], index);
            }
            for (int r = 0; r < 2; ++r) {
              right[pair + r * 8 + index][group] =
                  element(in[lane][4 + r], index);
              total[group + r * 8][pair + index] =
                  floatOf(in[lane][6 + 2 * r + index]);
            }
          }
        }
        for (int row = 0; row < 16; ++row) {
          for (int k = 0; k < 16; ++k) {
            for (int column = 0; column < 8; ++column) {
              total[row][column] =
                  fmaRn(left[row][k], right[k][column], total[row][column]);
            }
          }
        }
        for (int lane = 0; lane < warpSize; ++lane) {
          for (int r = 0; r < 4; ++r) {
            out[lane][r] =
                bitsOf(total[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2]);
          }
        }
      });
  std::memcpy(sum, output, sizeof sum);
}

//===----------------------------------------------------------------------===//
// Copies that run in the background
//===----------------------------------------------------------------------===//

KAON_DEVICE void copyAsync(void *shared, const void *global, u32 validBytes) {
  machine::checkShared("copyAsync", shared);
  machine::checkAligned("copyAsync", global, sizeof(Words4));
  machine::copyAsync(shared, global, validBytes);
}

KAON_DEVICE void copyAsyncCommit() { machine::copyAsyncCommit(); }

template <int pending> KAON_DEVICE void copyAsyncWait() {
  machine::copyAsyncWait(pending);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_PRIMITIVESHOST
