//===-- Prelude.cuh - names that every other file builds on ---------------===//
//
// The device library is the hand-written part of the generated CUDA kernels.
// It includes nothing but itself and is written in the C++17 that both NVRTC
// and a host compiler take, so the text that runs on a GPU is also the text
// that the tests run on a CPU (test/cuda/shim).
//
// Kernels pass tables in device memory; the host writes them with the structs
// declared here, so every struct of a table has the same layout on both sides.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_PRELUDE
#define KAON_CODEGEN_CUDA_LIB_PRELUDE

namespace kaon::device {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 &&
                  sizeof(void *) == 8,
              "tables assume an LP64 or LLP64 host");

/// Half precision as stored; arithmetic is done in f32.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

/// What one access of 8 and one of 16 bytes moves.
struct alignas(8) Words2 {
  u32 word[2];
};
struct alignas(16) Words4 {
  u32 word[4];
};

constexpr int warpSize = 32;

/// A number as a type, which tells overloads apart.
template <int number> struct Index {
  static constexpr int value = number;
};

/// What arithmetic on stored elements is done in: f64 for f64, else f32.
template <typename T> struct ArithmeticType {
  using Type = float;
};
template <> struct ArithmeticType<double> {
  using Type = double;
};
template <typename T> using ValueOf = typename ArithmeticType<T>::Type;

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_PRELUDE
