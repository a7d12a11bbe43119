//===-- Columns.cuh - kernels that need whole columns ---------------------===//
//
// Every thread owns a column and makes one or more passes over its rows
// (Passes.cuh). Later passes read memory again; reductions add up the rows in
// order. Neighbouring threads have neighbouring columns, so that a warp
// accesses neighbouring elements.
//
// The generated step is a class, made once per column. Besides what Passes.cuh
// says it has
//
//   // Loads what all rows of the column share.
//   KAON_DEVICE Step(const double *scalars, const Matrix<count> &matrix,
//                    i64 column);
//   // One row in pass 0.
//   KAON_DEVICE void pass(Index<0>, Element<List0> &element,
//                         Contributions<Reductions0> &contributions);
//   // Stores what the column has one value of.
//   KAON_DEVICE void finish(const Matrix<count> &matrix, i64 column) const;
//
// Operands with one value per row are in the element: Extent::rows.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_COLUMNS
#define KAON_CODEGEN_CUDA_LIB_COLUMNS

#include "Passes.cuh"

namespace kaon::device {

/// Rows that are loaded before the first of them is stored: enough accesses in
/// flight to use the bandwidth of memory.
constexpr int rowsInFlight = 4;

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

/// Loads the elements of `count` rows, calls `function(element)` for each in
/// order, and stores them.
template <typename List, int count, typename Function>
KAON_DEVICE void transformRows(const Matrix<List::count> &matrix, i64 firstRow,
                               i64 column, Function function) {
  Element<List> elements[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    loadElement<List>(matrix, firstRow + i, column, elements[i]);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    function(elements[i]);
    storeElement<List>(matrix, firstRow + i, column, elements[i]);
  }
}

/// Runs Step over the columns of `blocks[block]`, at most as many as the block
/// has threads.
template <typename Step>
KAON_DEVICE void runColumns(const MatrixOf<Step> *matrices, const Block *blocks,
                            const double *scalars) {
  Block block = blocks[blockIndex()];
  if (threadIndex() >= block.count) {
    return;
  }
  MatrixOf<Step> matrix = matrices[block.matrix];
  i64 column = i64(block.first) + threadIndex();
  Step step(scalars + matrix.firstScalar, matrix, column);
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
    i64 row = 0;
    for (; row + rowsInFlight <= matrix.rows; row += rowsInFlight) {
      transformRows<List, rowsInFlight>(matrix, row, column, visit);
    }
    for (; row < matrix.rows; ++row) {
      transformRows<List, 1>(matrix, row, column, visit);
    }
    handOver<Reductions>(step, index, totals);
  });
  step.finish(matrix, column);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_COLUMNS
