//===-- Vector.cuh - groups of elements in memory and in registers --------===//
//
// Memory is read and written in groups of eight elements: one access of 16
// bytes for half precision, two for f32. A group that is not aligned to 16
// bytes, or not whole, is accessed element by element.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_VECTOR
#define KAON_CODEGEN_CUDA_LIB_VECTOR

#include "Primitives.cuh"

namespace kaon::device {

constexpr int groupSize = 8;

KAON_DEVICE float toFloat(float x) { return x; }

/// The nearest value of the storage type T.
template <typename T> KAON_DEVICE T narrow(float x);
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

/// Elements from `pointer` to the next address that is aligned to 16 bytes.
template <typename T> KAON_DEVICE int elementsToAlignment(const T *pointer) {
  return static_cast<int>(-reinterpret_cast<u64>(pointer) % sizeof(Words4) /
                          sizeof(T));
}

/// Half a group of f32, which is one access.
KAON_DEVICE void loadHalf(const float *pointer, float *values) {
  Words4 words = loadWords(pointer);
#pragma unroll
  for (int i = 0; i < groupSize / 2; ++i) {
    values[i] = floatOf(words.word[i]);
  }
}
KAON_DEVICE void storeHalf(float *pointer, const float *values) {
  Words4 words;
#pragma unroll
  for (int i = 0; i < groupSize / 2; ++i) {
    words.word[i] = bitsOf(values[i]);
  }
  storeWords(pointer, words);
}

/// A whole group at an address aligned to 16 bytes.
template <typename T>
KAON_DEVICE void loadAligned(const T *pointer, float (&values)[groupSize]) {
  static_assert(sizeof(T) == 2, "f32 has its own overload");
  Words4 words = loadWords(pointer);
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    u32 half = words.word[i / 2] >> (16 * (i % 2));
    values[i] = toFloat(T{static_cast<u16>(half)});
  }
}
KAON_DEVICE void loadAligned(const float *pointer, float (&values)[groupSize]) {
  loadHalf(pointer, values);
  loadHalf(pointer + groupSize / 2, values + groupSize / 2);
}

template <typename T>
KAON_DEVICE void storeAligned(T *pointer, const float (&values)[groupSize]) {
  static_assert(sizeof(T) == 2, "f32 has its own overload");
  Words4 words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words.word[i] = packPair(narrow<T>(values[2 * i]).bits,
                             narrow<T>(values[2 * i + 1]).bits);
  }
  storeWords(pointer, words);
}
KAON_DEVICE void storeAligned(float *pointer,
                              const float (&values)[groupSize]) {
  storeHalf(pointer, values);
  storeHalf(pointer + groupSize / 2, values + groupSize / 2);
}

/// The first `count` elements of a group at any address; the other values
/// become zero.
template <typename T>
KAON_DEVICE void loadGroup(const T *pointer, int count,
                           float (&values)[groupSize]) {
  if (count == groupSize && isAligned(pointer)) {
    loadAligned(pointer, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    values[i] = i < count ? toFloat(pointer[i]) : 0.0f;
  }
}

template <typename T>
KAON_DEVICE void storeGroup(T *pointer, int count,
                            const float (&values)[groupSize]) {
  if (count == groupSize && isAligned(pointer)) {
    storeAligned(pointer, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    if (i < count) {
      pointer[i] = narrow<T>(values[i]);
    }
  }
}

//===----------------------------------------------------------------------===//
// Operands of generated functions
//===----------------------------------------------------------------------===//

enum class Access { read, write, update };

/// One tensor that a kernel works on: its storage type and what is done to it.
template <typename T, Access access> struct Operand {
  using Type = T;
  static constexpr bool loaded = access != Access::write;
  static constexpr bool stored = access != Access::read;
};

/// The tensors of a kernel, in the order of its function's values.
template <typename... List> struct Operands {
  static constexpr int count = sizeof...(List);

  /// Calls `function(operand, index)` for every operand in order.
  template <typename Function>
  KAON_DEVICE static void forEach(Function &&function) {
    int index = 0;
    (function(List{}, index++), ...);
  }

  /// Loads elements [start, start + size) of every operand that is read.
  KAON_DEVICE static void load(void *const (&bases)[count], i64 start, int size,
                               float (&values)[count][groupSize]) {
    forEach([&](auto operand, int index) {
      using T = typename decltype(operand)::Type;
      if constexpr (operand.loaded) {
        loadGroup(asGlobal(static_cast<const T *>(bases[index])) + start, size,
                  values[index]);
      }
    });
  }

  /// Stores elements [start, start + size) of every operand that is written.
  KAON_DEVICE static void store(void *const (&bases)[count], i64 start,
                                int size,
                                const float (&values)[count][groupSize]) {
    forEach([&](auto operand, int index) {
      using T = typename decltype(operand)::Type;
      if constexpr (operand.stored) {
        storeGroup(asGlobal(static_cast<T *>(bases[index])) + start, size,
                   values[index]);
      }
    });
  }

  /// Loads elements [start, start + size), at most a group, calls
  /// `function(i, element)` with the values of every element of the group, and
  /// stores what it makes of the first `size`.
  template <typename Function>
  KAON_DEVICE static void transform(void *const (&bases)[count], i64 start,
                                    int size, Function function) {
    float values[count][groupSize];
    load(bases, start, size, values);
#pragma unroll
    for (int i = 0; i < groupSize; ++i) {
      float element[count];
#pragma unroll
      for (int operand = 0; operand < count; ++operand) {
        element[operand] = values[operand][i];
      }
      function(i, element);
#pragma unroll
      for (int operand = 0; operand < count; ++operand) {
        values[operand][i] = element[operand];
      }
    }
    store(bases, start, size, values);
  }

  /// Elements before the first one at which accesses of the narrowest operand
  /// are aligned: operands that lie alike are then all aligned.
  KAON_DEVICE static int alignmentHead(void *const (&bases)[count]) {
    int head = 0, narrowest = sizeof(Words4);
    forEach([&](auto operand, int index) {
      using T = typename decltype(operand)::Type;
      if (static_cast<int>(sizeof(T)) < narrowest) {
        narrowest = sizeof(T);
        head = elementsToAlignment(static_cast<const T *>(bases[index]));
      }
    });
    return head;
  }
};

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_VECTOR
