//===-- ColumnKernels.cuh - column kernels as a compiler would emit them --===//
//
// Normalisation by columns with a state per column, and the sums of columns.
// NVRTC compiles this text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "Columns.cuh"

namespace kernels {

using namespace kaon::device;

/// Divides x / rowNorm by the root of a running average of its columns' mean
/// squares. Operands: x, row norms (one per row), averages (one per column),
/// result (the same memory as x), next averages (the same memory as the
/// averages), largest quotients (one per column).
template <typename T> class NormalizeColumns {
public:
  using List0 = Operands<
      Operand<T, Access::read>, Operand<float, Access::read, Extent::rows>,
      Operand<float, Access::uniform>, Operand<T, Access::none>,
      Operand<float, Access::uniform>, Operand<float, Access::uniform>>;
  using Reductions0 = Reductions<Sum, Max<float>>;
  using List1 = Operands<
      Operand<T, Access::read>, Operand<float, Access::read, Extent::rows>,
      Operand<float, Access::uniform>, Operand<T, Access::write>,
      Operand<float, Access::uniform>, Operand<float, Access::uniform>>;
  using Reductions1 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>, Pass<List1, Reductions1>>;

  KAON_DEVICE NormalizeColumns(const double *scalars, const Matrix<6> &matrix,
                               i64 column)
      : keep(toFloatRn(scalars[0])), add(toFloatRn(scalars[1])),
        average(loadOfColumn<float>(matrix, 2, column)), largest(0), root(0) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element,
                        Contributions<Reductions0> &contributions) {
    float quotient = divRn(get<0>(element), get<1>(element));
    double wide = quotient;
    get<0>(contributions) = mulRn(wide, wide);
    get<1>(contributions) = quotient;
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    average =
        addRn(mulRn(keep, average), mulRn(add, toFloatRn(get<0>(results))));
    largest = get<1>(results);
    root = sqrtRn(average);
  }
  KAON_DEVICE void pass(Index<1>, Element<List1> &element,
                        Contributions<Reductions1> &) {
    get<3>(element) = divRn(divRn(get<0>(element), get<1>(element)), root);
  }
  KAON_DEVICE void finish(const Matrix<6> &matrix, i64 column) const {
    storeOfColumn<float>(matrix, 4, column, average);
    storeOfColumn<float>(matrix, 5, column, largest);
  }

private:
  float keep, add, average, largest, root;
};

/// One pass without reductions: x plus an offset per column. Operands: x,
/// offsets, result.
class AddColumnOffsets {
public:
  using List0 =
      Operands<Operand<float, Access::read>, Operand<float, Access::uniform>,
               Operand<float, Access::write>>;
  using Reductions0 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>>;

  KAON_DEVICE AddColumnOffsets(const double *, const Matrix<3> &matrix,
                               i64 column)
      : offset(loadOfColumn<float>(matrix, 1, column)) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element,
                        Contributions<Reductions0> &) {
    get<2>(element) = addRn(get<0>(element), offset);
  }
  KAON_DEVICE void finish(const Matrix<3> &, i64) const {}

private:
  float offset;
};

} // namespace kernels

KAON_KERNEL(256, 2)
normalize_columns_f32(const kernels::Matrix<6> *matrices,
                      const kernels::Block *blocks, const double *scalars) {
  kernels::runColumns<kernels::NormalizeColumns<float>>(matrices, blocks,
                                                        scalars);
}
KAON_KERNEL(256, 2)
normalize_columns_bf16(const kernels::Matrix<6> *matrices,
                       const kernels::Block *blocks, const double *scalars) {
  kernels::runColumns<kernels::NormalizeColumns<kernels::bf16>>(
      matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
add_column_offsets(const kernels::Matrix<3> *matrices,
                   const kernels::Block *blocks, const double *scalars) {
  kernels::runColumns<kernels::AddColumnOffsets>(matrices, blocks, scalars);
}
