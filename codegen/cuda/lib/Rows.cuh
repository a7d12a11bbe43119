//===-- Rows.cuh - steps that need a whole row before they can finish -----===//
//
// A block keeps one row on chip between two passes over it: the first reads
// gradient and states and leaves one value per column, whose contributions are
// summed in f64; the second uses that sum and the values to write the
// parameter. Nothing is read from memory twice.
//
// Of the groups of columns that a thread owns, the first few stay in registers
// and the others in shared memory, which holds rows of 65536 columns at 1024
// threads. The order of the sum is fixed by the number of threads: columns of a
// group, groups of a thread, then reduceBlock. Addresses play no part in it.
//
// The generated step is a class, made once per row from the scalars:
//
//   struct Step {
//     using First = Operands<...>;   // of the first pass
//     using Second = Operands<...>;  // of the second pass
//     KAON_DEVICE explicit Step(const float *scalars);
//     KAON_DEVICE float first(float (&values)[First::count]) const;
//     KAON_DEVICE double contribution(float kept) const;
//     KAON_DEVICE void reduced(double sum);
//     KAON_DEVICE void second(float (&values)[Second::count], float kept)
//         const;
//   };
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_ROWS
#define KAON_CODEGEN_CUDA_LIB_ROWS

#include "Reduce.cuh"
#include "Vector.cuh"

namespace kaon::device {

/// A matrix of every operand, all of one shape; strides are in elements.
template <int firstCount, int secondCount> struct RowMatrix {
  void *first[firstCount];
  void *second[secondCount];
  i64 firstStride[firstCount];
  i64 secondStride[secondCount];
  i64 columns;
  /// Position of the matrix's first scalar in the launch's scalars.
  i64 firstScalar;
};

template <typename Step>
using RowMatrixOf = RowMatrix<Step::First::count, Step::Second::count>;

/// Rows [firstRow, firstRow + rows) of matrix `matrix`.
struct RowBlock {
  u32 matrix;
  u32 firstRow;
  u32 rows;
};

/// The values that a thread keeps of its row: those of its group number i are
/// in registers for i < registerGroups and in shared memory above.
template <int threads, int registerGroups> class KeptValues {
public:
  KAON_DEVICE explicit KeptValues(char *shared) : shared(shared) {}

  /// Calls `compute(group, values)` for the positions in the row of all groups
  /// of the thread in order, and keeps the values that it leaves.
  template <typename Compute>
  KAON_DEVICE void fill(int groups, Compute compute) {
    int thread = static_cast<int>(threadIndex());
#pragma unroll
    for (int i = 0; i < registerGroups; ++i) {
      int group = i * threads + thread;
      if (group < groups) {
        compute(group, inRegisters[i]);
      }
    }
    for (int group = registerGroups * threads + thread; group < groups;
         group += threads) {
      float values[groupSize];
      compute(group, values);
      storeShared(group, values);
    }
  }

  /// Calls `use(group, values)` with the kept values, in the same order.
  template <typename Use> KAON_DEVICE void forEach(int groups, Use use) const {
    int thread = static_cast<int>(threadIndex());
#pragma unroll
    for (int i = 0; i < registerGroups; ++i) {
      int group = i * threads + thread;
      if (group < groups) {
        use(group, inRegisters[i]);
      }
    }
    for (int group = registerGroups * threads + thread; group < groups;
         group += threads) {
      float values[groupSize];
      loadShared(group, values);
      use(group, values);
    }
  }

private:
  /// Half a group, 16 bytes. Neighbouring threads are 16 bytes apart, so that
  /// their accesses meet different banks.
  KAON_DEVICE float *halfGroup(int group, int half) const {
    int spilled = group - registerGroups * threads;
    int slot = (spilled / threads * 2 + half) * threads + spilled % threads;
    return reinterpret_cast<float *>(shared) + slot * 4;
  }
  KAON_DEVICE void loadShared(int group, float (&values)[groupSize]) const {
    loadHalf(halfGroup(group, 0), values);
    loadHalf(halfGroup(group, 1), values + groupSize / 2);
  }
  KAON_DEVICE void storeShared(int group,
                               const float (&values)[groupSize]) const {
    storeHalf(halfGroup(group, 0), values);
    storeHalf(halfGroup(group, 1), values + groupSize / 2);
  }

  float inRegisters[registerGroups][groupSize];
  char *shared;
};

/// Shared memory that rows of `columns` columns need.
constexpr int rowSharedBytes(int columns, int threads, int registerGroups) {
  int groupsOfThread = divideUp(divideUp(columns, groupSize), threads);
  int spilled =
      groupsOfThread > registerGroups ? groupsOfThread - registerGroups : 0;
  return reduceBlockBytes<double> +
         spilled * threads * groupSize * static_cast<int>(sizeof(float));
}

/// Elements of group `group` in a row.
KAON_DEVICE int groupWidth(int columns, int group) {
  int rest = columns - group * groupSize;
  return rest < groupSize ? rest : groupSize;
}

/// Pointers to row `row` of every operand of a list.
template <typename... List, int count>
KAON_DEVICE void
rowPointers(Operands<List...> operands, void *const (&bases)[count],
            const i64 (&strides)[count], i64 row, void *(&pointers)[count]) {
  operands.forEach([&](auto operand, int index) {
    using T = typename decltype(operand)::Type;
    pointers[index] = static_cast<T *>(bases[index]) + row * strides[index];
  });
}

/// Runs Step over the rows of `blocks[block]`, with `threads` threads and
/// rowSharedBytes of shared memory for the widest matrix of the launch.
template <typename Step, int threads, int registerGroups>
KAON_DEVICE void runRows(const RowMatrixOf<Step> *matrices,
                         const RowBlock *blocks, const float *scalars) {
  RowBlock block = blocks[blockIndex()];
  // In memory rather than in registers: rows need it once each.
  const RowMatrixOf<Step> &matrix = matrices[block.matrix];
  int columns = static_cast<int>(matrix.columns);
  int groups = divideUp(columns, groupSize);
  char *shared = sharedMemory();
  auto *partialSums = reinterpret_cast<double *>(shared);
  KeptValues<threads, registerGroups> kept(shared + reduceBlockBytes<double>);

  for (u32 row = block.firstRow; row < block.firstRow + block.rows; ++row) {
    void *first[Step::First::count], *second[Step::Second::count];
    rowPointers(typename Step::First(), matrix.first, matrix.firstStride, row,
                first);
    rowPointers(typename Step::Second(), matrix.second, matrix.secondStride,
                row, second);

    Step step(scalars + matrix.firstScalar);
    double sum = 0;
    kept.fill(groups, [&](int group, float (&values)[groupSize]) {
      int width = groupWidth(columns, group);
      Step::First::transform(first, group * groupSize, width,
                             [&](int i, float (&element)[Step::First::count]) {
                               values[i] = step.first(element);
                               if (i < width) {
                                 sum = addRn(sum, step.contribution(values[i]));
                               }
                             });
    });
    step.reduced(reduceBlock<Sum, threads>(sum, partialSums));
    kept.forEach(groups, [&](int group, const float (&values)[groupSize]) {
      Step::Second::transform(
          second, group * groupSize, groupWidth(columns, group),
          [&](int i, float (&element)[Step::Second::count]) {
            step.second(element, values[i]);
          });
    });
    // The next row writes the partial sums that this one may still be reading.
    blockBarrier();
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ROWS
