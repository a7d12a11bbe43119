//===-- Rows.cuh - kernels that need a whole row before they can finish ---===//
//
// A block makes one or more passes over a row (Passes.cuh). Between passes a
// row stays on chip: of every column, a step may keep some f32 values, so that
// nothing is read from memory twice. A step that keeps nothing streams: its
// later passes read memory again, and rows of any length fit.
//
// Of the groups of columns that a thread owns, the kept values of the first few
// stay in registers and the others in shared memory, which holds one value per
// column of rows of 65536 columns at 512 threads. The order of a reduction is
// fixed by the number of threads: columns of a group, groups of a thread, then
// lanes and warps (Reduce.cuh). Addresses play no part in it.
//
// The generated step is a class, made once per row by every thread. Besides
// what Passes.cuh says it has
//
//   static constexpr int kept = 1; // f32 values of a column between passes
//   // Loads what all columns of the row share.
//   KAON_DEVICE Step(const double *scalars, const Matrix<count> &matrix,
//                    i64 row);
//   // One column in pass 0. Columns past the row's end come as zeros, and what
//   // is made of them is dropped.
//   KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &kept,
//                         Contributions<Reductions0> &contributions);
//   // Called by one thread when all have ended the row: stores what the row
//   // has one value of.
//   KAON_DEVICE void finish(const Matrix<count> &matrix, i64 row) const;
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_ROWS
#define KAON_CODEGEN_CUDA_LIB_ROWS

#include "Passes.cuh"

namespace kaon::device {

//===----------------------------------------------------------------------===//
// Values that stay on chip
//===----------------------------------------------------------------------===//

/// What a step keeps of one column: get<i>(kept) of value number i.
template <int count> struct Kept {
  float values[count];
};
template <> struct Kept<0> {};

template <int index, int count> KAON_DEVICE float &get(Kept<count> &kept) {
  static_assert(index < count, "the step keeps fewer values");
  return kept.values[index];
}

/// The values that a thread keeps of its row, `kept` of each column: those of
/// its group number i are in registers for i < registerGroups and in shared
/// memory above.
template <int threads, int registerGroups, int kept> class KeptValues {
public:
  /// The values of a group.
  struct Group {
    float values[kept][groupSize];

    KAON_DEVICE void load(int column, Kept<kept> &values_) const {
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        values_.values[i] = values[i][column];
      }
    }
    KAON_DEVICE void store(int column, const Kept<kept> &values_) {
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        values[i][column] = values_.values[i];
      }
    }
  };

  KAON_DEVICE explicit KeptValues(char *shared) : shared(shared) {}

  /// Calls `visit(group, values)` for the positions in the row of all groups of
  /// the thread in order. `values` is what the last visit of the group left; in
  /// the first pass it is anything, and what the last pass leaves is dropped.
  template <bool first, bool last, typename Visit>
  KAON_DEVICE void forEachGroup(int groups, Visit visit) {
    int thread = static_cast<int>(threadIndex());
#pragma unroll
    for (int i = 0; i < registerGroups; ++i) {
      int group = i * threads + thread;
      if (group < groups) {
        visit(group, inRegisters[i]);
      }
    }
    for (int group = registerGroups * threads + thread; group < groups;
         group += threads) {
      Group values;
      if constexpr (!first) {
        loadShared(group, values);
      }
      visit(group, values);
      if constexpr (!last) {
        storeShared(group, values);
      }
    }
  }

private:
  static_assert(registerGroups > 0, "some groups are in registers");

  /// Half of a group's value number `index`, 16 bytes. Neighbouring threads are
  /// 16 bytes apart, so that their accesses meet different banks.
  KAON_DEVICE float *halfGroup(int group, int index, int half) const {
    int spilled = group - registerGroups * threads;
    int slot = ((spilled / threads * kept + index) * 2 + half) * threads +
               spilled % threads;
    return reinterpret_cast<float *>(shared) + slot * accessSize<float>;
  }
  KAON_DEVICE void loadShared(int group, Group &values) const {
#pragma unroll
    for (int i = 0; i < 2 * kept; ++i) {
      loadAccess(halfGroup(group, i / 2, i % 2),
                 values.values[i / 2] + i % 2 * accessSize<float>);
    }
  }
  KAON_DEVICE void storeShared(int group, const Group &values) const {
#pragma unroll
    for (int i = 0; i < 2 * kept; ++i) {
      storeAccess(halfGroup(group, i / 2, i % 2),
                  values.values[i / 2] + i % 2 * accessSize<float>);
    }
  }

  Group inRegisters[registerGroups];
  char *shared;
};

/// Nothing is kept.
template <int threads, int registerGroups>
class KeptValues<threads, registerGroups, 0> {
public:
  struct Group {
    KAON_DEVICE void load(int, Kept<0> &) const {}
    KAON_DEVICE void store(int, const Kept<0> &) {}
  };

  KAON_DEVICE explicit KeptValues(char *) {}

  template <bool first, bool last, typename Visit>
  KAON_DEVICE void forEachGroup(int groups, Visit visit) {
    for (int group = static_cast<int>(threadIndex()); group < groups;
         group += threads) {
      Group none;
      visit(group, none);
    }
  }
};

/// Shared memory that a launch needs whose widest rows have `columns` columns,
/// for steps that keep `kept` values and have `reductions` in all passes.
constexpr int rowSharedBytes(int columns, int threads, int registerGroups,
                             int kept, int reductions) {
  int groupsOfThread = divideUp(divideUp(columns, groupSize), threads);
  int spilled =
      groupsOfThread > registerGroups ? groupsOfThread - registerGroups : 0;
  return reductions * reduceBlockBytes +
         spilled * threads * kept * groupSize * static_cast<int>(sizeof(float));
}

//===----------------------------------------------------------------------===//
// The driver
//===----------------------------------------------------------------------===//

/// Elements of group `group` in a row.
KAON_DEVICE int groupWidth(int columns, int group) {
  int rest = columns - group * groupSize;
  return rest < groupSize ? rest : groupSize;
}

/// Starts to bring what the thread will load of row `row` into the L2 cache.
template <typename List, int threads>
KAON_DEVICE void prefetchRow(const Matrix<List::count> &matrix, i64 row) {
  constexpr int lineBytes = 128;
  void *pointers[List::count];
  List::rowPointers(matrix, row, pointers);
  int groups = divideUp(static_cast<int>(matrix.columns), groupSize);
  for (int group = static_cast<int>(threadIndex()); group < groups;
       group += threads) {
    List::forEach([&](auto index, auto operand) {
      using T = typename decltype(operand)::Type;
      constexpr int groupsOfLine =
          lineBytes / (groupSize * static_cast<int>(sizeof(T)));
      if constexpr (decltype(operand)::loaded) {
        if (group % groupsOfLine == 0) {
          auto *values =
              static_cast<const T *>(pointers[decltype(index)::value]);
          prefetch(values + i64(group) * groupSize);
        }
      }
    });
  }
}

/// What the threads' values of every reduction combine to, for every thread.
/// `shared` has room for one reduction after the other.
template <typename Reductions, int threads>
KAON_DEVICE void reduceBlock(typename Reductions::Values &values,
                             char *shared) {
  auto slot = [&](auto index, auto combiner) {
    using Value = typename decltype(combiner)::Value;
    return reinterpret_cast<Value *>(shared +
                                     decltype(index)::value * reduceBlockBytes);
  };
  Reductions::forEach([&](auto index, auto combiner) {
    beginReduceBlock<decltype(combiner), threads>(
        get<decltype(index)::value>(values), slot(index, combiner));
  });
  if constexpr (threads > warpSize) {
    blockBarrier();
  }
  Reductions::forEach([&](auto index, auto combiner) {
    endReduceBlock<decltype(combiner), threads>(
        get<decltype(index)::value>(values), slot(index, combiner));
  });
}

/// Runs Step over the rows of `blocks[block]`, with `threads` threads and
/// rowSharedBytes of shared memory for the widest matrix of the launch.
template <typename Step, int threads, int registerGroups>
KAON_DEVICE void runRows(const MatrixOf<Step> *matrices, const Block *blocks,
                         const double *scalars) {
  using Passes = typename Step::Passes;
  using KeptOfRow = KeptValues<threads, registerGroups, Step::kept>;
  Block block = blocks[blockIndex()];
  // In memory rather than in registers: rows need it once each.
  const MatrixOf<Step> &matrix = matrices[block.matrix];
  int columns = static_cast<int>(matrix.columns);
  int groups = divideUp(columns, groupSize);
  char *shared = sharedMemory();
  KeptOfRow kept(shared + Passes::numReductions * reduceBlockBytes);

  i64 endRow = i64(block.first) + block.count;
  for (i64 row = block.first; row < endRow; ++row) {
    // Memory works while earlier passes and barriers do not use it. Steps that
    // stream read again what is in the cache by then.
    if constexpr (Step::kept > 0) {
      Passes::forEach([&](auto index, auto pass) {
        if constexpr (decltype(index)::value > 0) {
          prefetchRow<typename decltype(pass)::List, threads>(matrix, row);
        }
      });
    }
    Step step(scalars + matrix.firstScalar, matrix, row);
    char *partials = shared;
    Passes::forEach([&](auto index, auto pass) {
      using List = typename decltype(pass)::List;
      using Reductions = typename decltype(pass)::Reductions;
      constexpr bool isFirst = decltype(index)::value == 0;
      constexpr bool isLast = decltype(index)::value == Passes::size - 1;
      if (isLast && row + 1 < endRow) {
        prefetchRow<typename Passes::First::List, threads>(matrix, row + 1);
      }
      void *pointers[List::count];
      List::rowPointers(matrix, row, pointers);
      typename Reductions::Values totals;
      Reductions::clear(totals);
      auto visit = [&](int group, typename KeptOfRow::Group &keptOfGroup) {
        int width = groupWidth(columns, group);
        List::transform(pointers, i64(group) * groupSize, width,
                        [&](int i, Element<List> &element) {
                          Kept<Step::kept> keptOfColumn;
                          if constexpr (!isFirst) {
                            keptOfGroup.load(i, keptOfColumn);
                          }
                          Contributions<Reductions> contributions;
                          step.pass(index, element, keptOfColumn,
                                    contributions);
                          keptOfGroup.store(i, keptOfColumn);
                          if (i < width) {
                            Reductions::combine(totals, contributions);
                          }
                        });
      };
      kept.template forEachGroup<isFirst, isLast>(groups, visit);
      if constexpr (Reductions::count > 0) {
        reduceBlock<Reductions, threads>(totals, partials);
        partials += Reductions::count * reduceBlockBytes;
      }
      handOver<Reductions>(step, index, totals);
    });
    // All threads have read what the row has one value of, and the partial
    // results that the next row overwrites.
    blockBarrier();
    if (threadIndex() == 0) {
      step.finish(matrix, row);
    }
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ROWS
