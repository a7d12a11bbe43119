//===-- Vector.cuh - groups of elements in memory and in registers --------===//
//
// Memory is read and written in groups of eight elements: one access of 16
// bytes for half precision, two for f32, four for f64. A group that is not
// aligned to 16 bytes, or not whole, is accessed element by element.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_VECTOR
#define KAON_CODEGEN_CUDA_LIB_VECTOR

#include "Primitives.cuh"

namespace kaon::device {

constexpr int groupSize = 8;

KAON_DEVICE float toFloat(float x) { return x; }

/// An element as arithmetic takes it.
template <typename T> KAON_DEVICE float widen(T x) { return toFloat(x); }
KAON_DEVICE double widen(double x) { return x; }

/// The nearest value of the storage type T.
template <typename T> KAON_DEVICE T narrow(ValueOf<T> x);
template <> KAON_DEVICE double narrow<double>(double x) { return x; }
template <> KAON_DEVICE float narrow<float>(float x) { return x; }
template <> KAON_DEVICE bf16 narrow<bf16>(float x) { return toBf16Rn(x); }
template <> KAON_DEVICE f16 narrow<f16>(float x) { return toF16Rn(x); }

KAON_DEVICE u32 packPair(u16 low, u16 high) {
  return static_cast<u32>(low) | static_cast<u32>(high) << 16;
}

constexpr int divideUp(int a, int b) { return (a + b - 1) / b; }

template <typename T> KAON_DEVICE bool isAligned(const T *pointer) {
  return reinterpret_cast<u64>(pointer) % sizeof(Words4) == 0;
}

/// Whether two elements at `pointer` are one access.
template <typename T> KAON_DEVICE bool isPairAligned(const T *pointer) {
  return reinterpret_cast<u64>(pointer) % (2 * sizeof(T)) == 0;
}

/// Elements from `pointer` to the next address that is aligned to 16 bytes.
template <typename T> KAON_DEVICE int elementsToAlignment(const T *pointer) {
  return static_cast<int>(-reinterpret_cast<u64>(pointer) % sizeof(Words4) /
                          sizeof(T));
}

//===----------------------------------------------------------------------===//
// Accesses of two elements
//===----------------------------------------------------------------------===//

/// Two neighbouring elements, aligned to the size of both.
template <typename T>
KAON_DEVICE void loadPair(const T *pointer, float (&values)[2]) {
  static_assert(sizeof(T) == 2, "f32 has its own overload");
  u32 word = loadWord(pointer);
  values[0] = toFloat(T{static_cast<u16>(word)});
  values[1] = toFloat(T{static_cast<u16>(word >> 16)});
}
KAON_DEVICE void loadPair(const float *pointer, float (&values)[2]) {
  Words2 words = loadWords2(pointer);
  values[0] = floatOf(words.word[0]);
  values[1] = floatOf(words.word[1]);
}

template <typename T>
KAON_DEVICE void storePair(T *pointer, float left, float right) {
  static_assert(sizeof(T) == 2, "f32 has its own overload");
  storeWord(pointer, packPair(narrow<T>(left).bits, narrow<T>(right).bits));
}
KAON_DEVICE void storePair(float *pointer, float left, float right) {
  storeWords2(pointer, {{bitsOf(left), bitsOf(right)}});
}

//===----------------------------------------------------------------------===//
// Accesses of 16 bytes
//===----------------------------------------------------------------------===//

/// Elements of T that one access moves.
template <typename T>
constexpr int accessSize = static_cast<int>(sizeof(Words4) / sizeof(T));

template <typename T>
KAON_DEVICE void loadAccess(const T *pointer, float *values) {
  static_assert(sizeof(T) == 2, "wider types have their own overloads");
  Words4 words = loadWords4(pointer);
#pragma unroll
  for (int i = 0; i < accessSize<T>; ++i) {
    u32 half = words.word[i / 2] >> (16 * (i % 2));
    values[i] = toFloat(T{static_cast<u16>(half)});
  }
}
KAON_DEVICE void loadAccess(const float *pointer, float *values) {
  Words4 words = loadWords4(pointer);
#pragma unroll
  for (int i = 0; i < accessSize<float>; ++i) {
    values[i] = floatOf(words.word[i]);
  }
}
KAON_DEVICE void loadAccess(const double *pointer, double *values) {
  Words4 words = loadWords4(pointer);
#pragma unroll
  for (int i = 0; i < accessSize<double>; ++i) {
    u64 low = words.word[2 * i], high = words.word[2 * i + 1];
    values[i] = doubleOf(low | high << 32);
  }
}

template <typename T>
KAON_DEVICE void storeAccess(T *pointer, const float *values) {
  static_assert(sizeof(T) == 2, "wider types have their own overloads");
  Words4 words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words.word[i] = packPair(narrow<T>(values[2 * i]).bits,
                             narrow<T>(values[2 * i + 1]).bits);
  }
  storeWords4(pointer, words);
}
KAON_DEVICE void storeAccess(float *pointer, const float *values) {
  Words4 words;
#pragma unroll
  for (int i = 0; i < accessSize<float>; ++i) {
    words.word[i] = bitsOf(values[i]);
  }
  storeWords4(pointer, words);
}
KAON_DEVICE void storeAccess(double *pointer, const double *values) {
  Words4 words;
#pragma unroll
  for (int i = 0; i < accessSize<double>; ++i) {
    u64 bits = bitsOf(values[i]);
    words.word[2 * i] = static_cast<u32>(bits);
    words.word[2 * i + 1] = static_cast<u32>(bits >> 32);
  }
  storeWords4(pointer, words);
}

//===----------------------------------------------------------------------===//
// Groups
//===----------------------------------------------------------------------===//

/// The first `count` elements of a group at any address; the other values
/// become zero.
template <typename T>
KAON_DEVICE void loadGroup(const T *pointer, int count,
                           ValueOf<T> (&values)[groupSize]) {
  if (count == groupSize && isAligned(pointer)) {
#pragma unroll
    for (int i = 0; i < groupSize; i += accessSize<T>) {
      loadAccess(pointer + i, values + i);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    values[i] = i < count ? widen(pointer[i]) : 0;
  }
}

template <typename T>
KAON_DEVICE void storeGroup(T *pointer, int count,
                            const ValueOf<T> (&values)[groupSize]) {
  if (count == groupSize && isAligned(pointer)) {
#pragma unroll
    for (int i = 0; i < groupSize; i += accessSize<T>) {
      storeAccess(pointer + i, values + i);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    if (i < count) {
      pointer[i] = narrow<T>(values[i]);
    }
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_VECTOR
