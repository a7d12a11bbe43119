//===-- Operands.cuh - what generated functions compute with --------------===//
//
// A generated class lists what it does with the operands of its matrices, in
// their order:
//
//   using List = Operands<Operand<float, Access::update>,
//                         Operand<bf16, Access::read>>;
//
// and is called with the values of one element at a time, which have the type
// that arithmetic on them is done in:
//
//   float gradient = get<1>(element);
//   get<0>(element) = ...;
//
// Values that do not change from element to element (Access::uniform, or one
// per row or column) the class loads and stores itself.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_OPERANDS
#define KAON_CODEGEN_CUDA_LIB_OPERANDS

#include "Matrices.cuh"
#include "Vector.cuh"

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Values of several types
//===----------------------------------------------------------------------===//

/// Holds no value.
struct Absent {};

template <int index, typename T> struct Slot {
  T value;
};
template <int index> struct Slot<index, Absent> {};

/// One value of each type, numbered from `first`.
template <int first, typename... Types> struct Slots {};
template <int first, typename T, typename... Rest>
struct Slots<first, T, Rest...> : Slot<first, T>, Slots<first + 1, Rest...> {};

/// Value number `index`.
template <int index, typename T> KAON_DEVICE T &get(Slot<index, T> &slot) {
  return slot.value;
}
template <int index, typename T>
KAON_DEVICE const T &get(const Slot<index, T> &slot) {
  return slot.value;
}

/// Calls `function(Index<i>, T)` for every type of a list in order.
template <int index, typename T, typename... Rest, typename Function>
KAON_DEVICE void forEachType(Function &function) {
  function(Index<index>(), T());
  if constexpr (sizeof...(Rest) > 0) {
    forEachType<index + 1, Rest...>(function);
  }
}

//===----------------------------------------------------------------------===//
// Lists of operands
//===----------------------------------------------------------------------===//

/// What is done with an operand, element by element; nothing for `none` and
/// `uniform`.
enum class Access { none, uniform, read, write, update };

/// Whether an operand has a value per element, or one per row (Columns.cuh).
enum class Extent { matrix, rows };

/// One operand: its storage type and what is done with it.
template <typename T, Access access, Extent extent = Extent::matrix>
struct Operand {
  using Type = T;
  static constexpr bool loaded =
      access == Access::read || access == Access::update;
  static constexpr bool stored =
      access == Access::write || access == Access::update;
  static constexpr bool perRow = extent == Extent::rows;
  static_assert(!(perRow && stored), "a value per row is read only");
};

/// What an element holds of an operand: one value of type T if there is one.
template <typename T, bool present> struct SlotType {
  using Type = T;
};
template <typename T> struct SlotType<T, false> {
  using Type = Absent;
};

/// The operands of a kernel, in the order of its matrices' bases.
template <typename... List> struct Operands {
  static constexpr int count = sizeof...(List);

  /// The values of one element, and of a group of them.
  using Element =
      Slots<0, typename SlotType<ValueOf<typename List::Type>,
                                 List::loaded || List::stored>::Type...>;
  using Group =
      Slots<0, typename SlotType<ValueOf<typename List::Type>[groupSize],
                                 List::loaded || List::stored>::Type...>;

  /// Calls `function(Index<i>, operand)` for every operand in order.
  template <typename Function>
  KAON_DEVICE static void forEach(Function function) {
    forEachType<0, List...>(function);
  }

  /// Loads elements [start, start + size) of every operand that is read.
  KAON_DEVICE static void load(void *const (&bases)[count], i64 start, int size,
                               Group &group) {
    forEach([&](auto index, auto operand) {
      using T = typename decltype(operand)::Type;
      constexpr int i = decltype(index)::value;
      if constexpr (decltype(operand)::loaded) {
        loadGroup(asGlobal(static_cast<const T *>(bases[i])) + start, size,
                  get<i>(group));
      }
    });
  }

  /// Stores elements [start, start + size) of every operand that is written.
  KAON_DEVICE static void store(void *const (&bases)[count], i64 start,
                                int size, const Group &group) {
    forEach([&](auto index, auto operand) {
      using T = typename decltype(operand)::Type;
      constexpr int i = decltype(index)::value;
      if constexpr (decltype(operand)::stored) {
        storeGroup(asGlobal(static_cast<T *>(bases[i])) + start, size,
                   get<i>(group));
      }
    });
  }

  /// Loads elements [start, start + size), at most a group, calls
  /// `function(i, element)` for every element of the group, and stores what it
  /// makes of the first `size`. The others start as zero.
  template <typename Function>
  KAON_DEVICE static void transform(void *const (&bases)[count], i64 start,
                                    int size, Function function) {
    Group group;
    load(bases, start, size, group);
#pragma unroll
    for (int i = 0; i < groupSize; ++i) {
      Element element;
      forEach([&](auto index, auto operand) {
        constexpr int at = decltype(index)::value;
        if constexpr (decltype(operand)::loaded) {
          get<at>(element) = get<at>(group)[i];
        }
      });
      function(i, element);
      forEach([&](auto index, auto operand) {
        constexpr int at = decltype(index)::value;
        if constexpr (decltype(operand)::stored) {
          get<at>(group)[i] = get<at>(element);
        }
      });
    }
    store(bases, start, size, group);
  }

  /// Where row `row` of every operand starts.
  KAON_DEVICE static void rowPointers(const Matrix<count> &matrix, i64 row,
                                      void *(&pointers)[count]) {
    forEach([&](auto index, auto operand) {
      using T = typename decltype(operand)::Type;
      constexpr int i = decltype(index)::value;
      if constexpr (decltype(operand)::loaded || decltype(operand)::stored) {
        pointers[i] =
            static_cast<T *>(matrix.bases[i]) + row * matrix.strides[i];
      }
    });
  }

  /// Whether the rows of every operand follow each other.
  KAON_DEVICE static bool isSequence(const Matrix<count> &matrix) {
    bool result = true;
    forEach([&](auto index, auto operand) {
      if constexpr (decltype(operand)::loaded || decltype(operand)::stored) {
        result =
            result && matrix.strides[decltype(index)::value] == matrix.columns;
      }
    });
    return result || matrix.rows == 1;
  }

  /// Elements before the first one at which accesses of the narrowest operand
  /// are aligned: operands that lie alike are then all aligned.
  KAON_DEVICE static int alignmentHead(void *const (&bases)[count]) {
    int head = 0, narrowest = sizeof(Words4);
    forEach([&](auto index, auto operand) {
      using T = typename decltype(operand)::Type;
      using Kind = decltype(operand);
      if ((Kind::loaded || Kind::stored) &&
          static_cast<int>(sizeof(T)) < narrowest) {
        narrowest = sizeof(T);
        head = elementsToAlignment(
            static_cast<const T *>(bases[decltype(index)::value]));
      }
    });
    return head;
  }
};

/// The values that a generated function gets of an element.
template <typename List> using Element = typename List::Element;

//===----------------------------------------------------------------------===//
// Values that do not change from element to element
//===----------------------------------------------------------------------===//

/// The only value of operand `operand`.
template <typename T, int count>
KAON_DEVICE ValueOf<T> loadScalar(const Matrix<count> &matrix, int operand) {
  return widen(*asGlobal(static_cast<const T *>(matrix.bases[operand])));
}

/// The value of row `row`.
template <typename T, int count>
KAON_DEVICE ValueOf<T> loadOfRow(const Matrix<count> &matrix, int operand,
                                 i64 row) {
  auto *values = asGlobal(static_cast<const T *>(matrix.bases[operand]));
  return widen(values[row * matrix.strides[operand]]);
}
template <typename T, int count>
KAON_DEVICE void storeOfRow(const Matrix<count> &matrix, int operand, i64 row,
                            ValueOf<T> value) {
  auto *values = asGlobal(static_cast<T *>(matrix.bases[operand]));
  values[row * matrix.strides[operand]] = narrow<T>(value);
}

/// The value of column `column`.
template <typename T, int count>
KAON_DEVICE ValueOf<T> loadOfColumn(const Matrix<count> &matrix, int operand,
                                    i64 column) {
  return widen(asGlobal(static_cast<const T *>(matrix.bases[operand]))[column]);
}
template <typename T, int count>
KAON_DEVICE void storeOfColumn(const Matrix<count> &matrix, int operand,
                               i64 column, ValueOf<T> value) {
  asGlobal(static_cast<T *>(matrix.bases[operand]))[column] = narrow<T>(value);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_OPERANDS
