//===-- Columns.cuh - kernels that need whole columns ---------------------===//
//
// A block has 32 columns and eight lanes, which share their rows: lane i takes
// rows i, i + 8, i + 16 and so on, in one or more passes (Passes.cuh). The 32
// threads of a lane are a warp and have neighbouring columns, so that a warp
// accesses neighbouring elements. Later passes read memory again. A reduction
// adds up the rows of a lane in order, then the lanes in order, so that its
// bits depend on the number of rows alone.
//
// The generated step is a class, made once per column by every lane. Besides
// what Passes.cuh says it has
//
//   // Loads what all rows of the column share.
//   KAON_DEVICE Step(const double *scalars, const Matrix<count> &matrix,
//                    i64 column);
//   // One row in pass 0.
//   KAON_DEVICE void pass(Index<0>, Element<List0> &element,
//                         Contributions<Reductions0> &contributions);
//   // Called by one lane when all have ended the column: stores what the
//   // column has one value of.
//   KAON_DEVICE void finish(const Matrix<count> &matrix, i64 column) const;
//
// Operands with one value per row are in the element: Extent::rows.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_COLUMNS
#define KAON_CODEGEN_CUDA_LIB_COLUMNS

#include "Passes.cuh"

namespace kaon::device {

/// Columns of a block, and lanes that share the rows of each.
constexpr int columnsOfBlock = warpSize;
constexpr int rowLanes = 8;
constexpr int columnThreads = columnsOfBlock * rowLanes;

/// Rows of a lane that are loaded before the first of them is stored: enough
/// accesses in flight to use the bandwidth of memory.
constexpr int rowsInFlight = 4;

/// Shared memory of one reduction: a value of each lane of each column.
constexpr int reduceColumnsBytes =
    columnThreads * static_cast<int>(sizeof(double));

/// Shared memory of a launch whose passes have `reductions` in all.
constexpr int columnSharedBytes(int reductions) {
  return reductions * reduceColumnsBytes;
}

/// Where operand number i has its value at (row, column).
template <typename Kind, int i, int count>
KAON_DEVICE auto *elementAddress(const Matrix<count> &matrix, i64 row,
                                 i64 column) {
  auto *values = asGlobal(static_cast<typename Kind::Type *>(matrix.bases[i]));
  return values + row * matrix.strides[i] + (Kind::perRow ? 0 : column);
}

template <typename List>
KAON_DEVICE void loadElement(const Matrix<List::count> &matrix, i64 row,
                             i64 column, Element<List> &element) {
  List::forEach([&](auto index, auto operand) {
    constexpr int i = decltype(index)::value;
    if constexpr (decltype(operand)::loaded) {
      get<i>(element) =
          widen(*elementAddress<decltype(operand), i>(matrix, row, column));
    }
  });
}

template <typename List>
KAON_DEVICE void storeElement(const Matrix<List::count> &matrix, i64 row,
                              i64 column, const Element<List> &element) {
  List::forEach([&](auto index, auto operand) {
    constexpr int i = decltype(index)::value;
    if constexpr (decltype(operand)::stored) {
      *elementAddress<decltype(operand), i>(matrix, row, column) =
          narrow<typename decltype(operand)::Type>(get<i>(element));
    }
  });
}

/// Loads the elements of `count` rows of a lane, calls `function(element)` for
/// each in order, and stores them.
template <typename List, int count, typename Function>
KAON_DEVICE void transformRows(const Matrix<List::count> &matrix, i64 firstRow,
                               i64 column, Function function) {
  Element<List> elements[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    loadElement<List>(matrix, firstRow + i * rowLanes, column, elements[i]);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    function(elements[i]);
    storeElement<List>(matrix, firstRow + i * rowLanes, column, elements[i]);
  }
}

/// What the lanes' values of every reduction combine to, column by column, for
/// every lane. `shared` has room for one reduction after the other.
template <typename Reductions>
KAON_DEVICE void reduceLanes(typename Reductions::Values &values,
                             char *shared) {
  auto slots = [&](auto index, auto combiner) {
    using Value = typename decltype(combiner)::Value;
    static_assert(columnThreads * sizeof(Value) <= reduceColumnsBytes,
                  "a value of each thread has room");
    return reinterpret_cast<Value *>(shared + decltype(index)::value *
                                                  reduceColumnsBytes);
  };
  Reductions::forEach([&](auto index, auto combiner) {
    slots(index, combiner)[threadIndex()] = get<decltype(index)::value>(values);
  });
  blockBarrier();
  Reductions::forEach([&](auto index, auto combiner) {
    auto *ofColumn = slots(index, combiner) + threadIndex() % columnsOfBlock;
    auto total = ofColumn[0];
#pragma unroll
    for (int lane = 1; lane < rowLanes; ++lane) {
      total =
          decltype(combiner)::combine(total, ofColumn[lane * columnsOfBlock]);
    }
    get<decltype(index)::value>(values) = total;
  });
}

/// Runs Step over the columns of `blocks[block]`, at most columnsOfBlock, with
/// columnThreads threads and columnSharedBytes of shared memory.
template <typename Step>
KAON_DEVICE void runColumns(const MatrixOf<Step> *matrices, const Block *blocks,
                            const double *scalars) {
  Block block = blocks[blockIndex()];
  MatrixOf<Step> matrix = matrices[block.matrix];
  u32 position = threadIndex() % columnsOfBlock;
  bool isColumn = position < block.count;
  // A thread beside the columns only takes part in barriers: it stands in the
  // first column, of which it visits no row.
  i64 column = i64(block.first) + (isColumn ? position : 0);
  i64 rows = isColumn ? matrix.rows : 0;
  Step step(scalars + matrix.firstScalar, matrix, column);
  char *partials = sharedMemory();
  Step::Passes::forEach([&](auto index, auto pass) {
    using List = typename decltype(pass)::List;
    using Reductions = typename decltype(pass)::Reductions;
    typename Reductions::Values totals;
    Reductions::clear(totals);
    auto visit = [&](Element<List> &element) {
      Contributions<Reductions> contributions;
      step.pass(index, element, contributions);
      Reductions::combine(totals, contributions);
    };
    i64 row = threadIndex() / columnsOfBlock;
    for (; row + (rowsInFlight - 1) * rowLanes < rows;
         row += rowsInFlight * rowLanes) {
      transformRows<List, rowsInFlight>(matrix, row, column, visit);
    }
    for (; row < rows; row += rowLanes) {
      transformRows<List, 1>(matrix, row, column, visit);
    }
    if constexpr (Reductions::count > 0) {
      reduceLanes<Reductions>(totals, partials);
      partials += Reductions::count * reduceColumnsBytes;
    }
    handOver<Reductions>(step, index, totals);
  });
  // All lanes have read what the column has one value of.
  blockBarrier();
  if (isColumn && threadIndex() < columnsOfBlock) {
    step.finish(matrix, column);
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_COLUMNS
