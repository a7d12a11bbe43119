//===-- RowKernels.cuh - row kernels as a compiler would emit them --------===//
//
// The row step of Periodic Row-wise Muon for short, middle and long rows, and
// streaming; a softmax, which needs three passes; the sum of squares of every
// row. NVRTC compiles this text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "Rows.cuh"

namespace kernels {

using namespace kaon::device;

/// What all forms of the row step share: momentum, normalisation by the row's
/// Euclidean norm, decay and step.
class RowStepBase {
public:
  KAON_DEVICE explicit RowStepBase(const double *scalars)
      : momentum(toFloatRn(scalars[0])),
        oneMinusMomentum(toFloatRn(scalars[1])), keep(toFloatRn(scalars[2])),
        step(toFloatRn(scalars[3])), reciprocal(0) {}

protected:
  KAON_DEVICE float average(float state, float gradient) const {
    return addRn(mulRn(momentum, state), mulRn(oneMinusMomentum, gradient));
  }
  KAON_DEVICE static double square(float x) {
    double wide = x;
    return mulRn(wide, wide);
  }
  KAON_DEVICE void setNorm(double squares) {
    reciprocal = squares > 0 ? divRn(1.0, sqrtRn(squares)) : 0.0;
  }
  KAON_DEVICE float stepped(float parameter, float state) const {
    float direction = toFloatRn(mulRn(static_cast<double>(state), reciprocal));
    return subRn(mulRn(keep, parameter), mulRn(step, direction));
  }

private:
  float momentum, oneMinusMomentum, keep, step;
  double reciprocal;
};

/// The row step with a row on chip. Operands: gradient, state, parameter.
template <typename Parameter, typename Gradient>
class RowStep : public RowStepBase {
public:
  static constexpr int kept = 1;
  using List0 =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::update>,
               Operand<Parameter, Access::none>>;
  using Reductions0 = Reductions<Sum>;
  using List1 =
      Operands<Operand<Gradient, Access::none>, Operand<float, Access::none>,
               Operand<Parameter, Access::update>>;
  using Reductions1 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>, Pass<List1, Reductions1>>;

  KAON_DEVICE RowStep(const double *scalars, const Matrix<3> &, i64)
      : RowStepBase(scalars) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &kept_,
                        Contributions<Reductions0> &contributions) {
    float state = average(get<1>(element), get<0>(element));
    get<1>(element) = state;
    get<0>(kept_) = state;
    get<0>(contributions) = square(state);
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    setNorm(get<0>(results));
  }
  KAON_DEVICE void pass(Index<1>, Element<List1> &element, Kept<kept> &kept_,
                        Contributions<Reductions1> &) {
    get<2>(element) = stepped(get<2>(element), get<0>(kept_));
  }
  KAON_DEVICE void finish(const Matrix<3> &, i64) const {}
};

/// The same that keeps nothing: the second pass computes the state again and
/// stores it.
template <typename Parameter, typename Gradient>
class StreamingRowStep : public RowStepBase {
public:
  static constexpr int kept = 0;
  using List0 =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::read>,
               Operand<Parameter, Access::none>>;
  using Reductions0 = Reductions<Sum>;
  using List1 =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::update>,
               Operand<Parameter, Access::update>>;
  using Reductions1 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>, Pass<List1, Reductions1>>;

  KAON_DEVICE StreamingRowStep(const double *scalars, const Matrix<3> &, i64)
      : RowStepBase(scalars) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &,
                        Contributions<Reductions0> &contributions) {
    get<0>(contributions) = square(average(get<1>(element), get<0>(element)));
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    setNorm(get<0>(results));
  }
  KAON_DEVICE void pass(Index<1>, Element<List1> &element, Kept<kept> &,
                        Contributions<Reductions1> &) {
    float state = average(get<1>(element), get<0>(element));
    get<1>(element) = state;
    get<2>(element) = stepped(get<2>(element), state);
  }
  KAON_DEVICE void finish(const Matrix<3> &, i64) const {}
};

/// Three passes with two kept values: x + bias, shifted by the row's largest
/// value and scaled by the range, divided by the sum of that, plus an offset
/// per row, whose next value is the sum. Operands: x, bias (one per column),
/// offset (one per row), result, next offset (the same memory as the offset),
/// smallest value (one per row).
class Shares {
public:
  static constexpr int kept = 2;
  using List0 =
      Operands<Operand<bf16, Access::read>, Operand<float, Access::read>,
               Operand<float, Access::uniform>, Operand<float, Access::none>,
               Operand<float, Access::uniform>,
               Operand<float, Access::uniform>>;
  using Reductions0 = Reductions<Max<float>, Min<float>>;
  using List1 =
      Operands<Operand<bf16, Access::none>, Operand<float, Access::none>,
               Operand<float, Access::uniform>, Operand<float, Access::none>,
               Operand<float, Access::uniform>,
               Operand<float, Access::uniform>>;
  using Reductions1 = Reductions<Sum>;
  using List2 =
      Operands<Operand<bf16, Access::none>, Operand<float, Access::none>,
               Operand<float, Access::uniform>, Operand<float, Access::write>,
               Operand<float, Access::uniform>,
               Operand<float, Access::uniform>>;
  using Reductions2 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>, Pass<List1, Reductions1>,
                          Pass<List2, Reductions2>>;

  KAON_DEVICE Shares(const double *, const Matrix<6> &matrix, i64 row)
      : offset(loadOfRow<float>(matrix, 2, row)), smallest(0), range(0),
        sum(0) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &kept_,
                        Contributions<Reductions0> &contributions) {
    float x = addRn(get<0>(element), get<1>(element));
    get<0>(kept_) = x;
    get<1>(kept_) = mulRn(x, 0.5f);
    get<0>(contributions) = x;
    get<1>(contributions) = x;
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    smallest = get<1>(results);
    range = addRn(subRn(get<0>(results), smallest), 1.0f);
  }
  KAON_DEVICE void pass(Index<1>, Element<List1> &, Kept<kept> &kept_,
                        Contributions<Reductions1> &contributions) {
    float share = divRn(subRn(get<0>(kept_), smallest), range);
    get<0>(kept_) = share;
    get<0>(contributions) = share;
  }
  KAON_DEVICE void reduced(Index<1>, const Results<Reductions1> &results) {
    sum = toFloatRn(get<0>(results));
  }
  KAON_DEVICE void pass(Index<2>, Element<List2> &element, Kept<kept> &kept_,
                        Contributions<Reductions2> &) {
    float share = addRn(divRn(get<0>(kept_), addRn(sum, 1.0f)), offset);
    get<3>(element) = addRn(share, get<1>(kept_));
  }
  KAON_DEVICE void finish(const Matrix<6> &matrix, i64 row) const {
    storeOfRow<float>(matrix, 4, row, sum);
    storeOfRow<float>(matrix, 5, row, smallest);
  }

private:
  float offset, smallest, range, sum;
};

/// The sum of squares of every row in f64. Operands: x, sums.
template <typename T> class SumOfSquares {
public:
  static constexpr int kept = 0;
  using List0 =
      Operands<Operand<T, Access::read>, Operand<double, Access::uniform>>;
  using Reductions0 = Reductions<Sum>;
  using Passes = PassList<Pass<List0, Reductions0>>;

  KAON_DEVICE SumOfSquares(const double *, const Matrix<2> &, i64) : sum(0) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &,
                        Contributions<Reductions0> &contributions) {
    double wide = get<0>(element);
    get<0>(contributions) = mulRn(wide, wide);
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    sum = get<0>(results);
  }
  KAON_DEVICE void finish(const Matrix<2> &matrix, i64 row) const {
    storeOfRow<double>(matrix, 1, row, sum);
  }

private:
  double sum;
};

/// The square root of a row's sum. Operands: x in f64, roots in f32.
class RootOfSum {
public:
  static constexpr int kept = 0;
  using List0 =
      Operands<Operand<double, Access::read>, Operand<float, Access::uniform>>;
  using Reductions0 = Reductions<Sum>;
  using Passes = PassList<Pass<List0, Reductions0>>;

  KAON_DEVICE RootOfSum(const double *, const Matrix<2> &, i64) : root(0) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &,
                        Contributions<Reductions0> &contributions) {
    get<0>(contributions) = get<0>(element);
  }
  KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
    root = toFloatRn(sqrtRn(get<0>(results)));
  }
  KAON_DEVICE void finish(const Matrix<2> &matrix, i64 row) const {
    storeOfRow<float>(matrix, 1, row, root);
  }

private:
  float root;
};

/// One pass without reductions: x plus an offset per row, in place. Operands:
/// x, offsets, result.
class AddOffsets {
public:
  static constexpr int kept = 0;
  using List0 =
      Operands<Operand<f16, Access::read>, Operand<double, Access::uniform>,
               Operand<f16, Access::write>>;
  using Reductions0 = Reductions<>;
  using Passes = PassList<Pass<List0, Reductions0>>;

  KAON_DEVICE AddOffsets(const double *, const Matrix<3> &matrix, i64 row)
      : offset(toFloatRn(loadOfRow<double>(matrix, 1, row))) {}

  KAON_DEVICE void pass(Index<0>, Element<List0> &element, Kept<kept> &,
                        Contributions<Reductions0> &) {
    get<2>(element) = addRn(get<0>(element), offset);
  }
  KAON_DEVICE void finish(const Matrix<3> &, i64) const {}

private:
  float offset;
};

} // namespace kernels

/// Up to 1024 columns in registers.
KAON_KERNEL(32, 16)
row_step_f32_bf16_t32(const kernels::Matrix<3> *matrices,
                      const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RowStep<float, bf16>, 32, 4>(matrices, blocks, scalars);
}
/// Up to 4096 columns in registers.
KAON_KERNEL(128, 4)
row_step_f32_bf16_t128(const kernels::Matrix<3> *matrices,
                       const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RowStep<float, bf16>, 128, 4>(matrices, blocks, scalars);
}
/// Up to 8192 columns in registers.
KAON_KERNEL(256, 2)
row_step_f32_bf16_t256(const kernels::Matrix<3> *matrices,
                       const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RowStep<float, bf16>, 256, 4>(matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
row_step_bf16_bf16_t256(const kernels::Matrix<3> *matrices,
                        const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RowStep<bf16, bf16>, 256, 4>(matrices, blocks, scalars);
}
/// Up to 65536 columns, 16384 of them in registers.
KAON_KERNEL(512, 1)
row_step_f32_f32_t512(const kernels::Matrix<3> *matrices,
                      const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RowStep<float, float>, 512, 4>(matrices, blocks, scalars);
}
/// Any number of columns.
KAON_KERNEL(512, 1)
row_step_f32_f32_t512_streaming(const kernels::Matrix<3> *matrices,
                                const kernels::Block *blocks,
                                const double *scalars) {
  using namespace kernels;
  runRows<StreamingRowStep<float, float>, 512, 1>(matrices, blocks, scalars);
}
KAON_KERNEL(32, 16)
shares_t32(const kernels::Matrix<6> *matrices, const kernels::Block *blocks,
           const double *scalars) {
  using namespace kernels;
  runRows<Shares, 32, 1>(matrices, blocks, scalars);
}
KAON_KERNEL(128, 4)
shares_t128(const kernels::Matrix<6> *matrices, const kernels::Block *blocks,
            const double *scalars) {
  using namespace kernels;
  runRows<Shares, 128, 2>(matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
sum_of_squares_bf16_t256(const kernels::Matrix<2> *matrices,
                         const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<SumOfSquares<bf16>, 256, 1>(matrices, blocks, scalars);
}
KAON_KERNEL(1024, 1)
root_of_sum_t1024(const kernels::Matrix<2> *matrices,
                  const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<RootOfSum, 1024, 1>(matrices, blocks, scalars);
}
KAON_KERNEL(128, 4)
add_offsets_t128(const kernels::Matrix<3> *matrices,
                 const kernels::Block *blocks, const double *scalars) {
  using namespace kernels;
  runRows<AddOffsets, 128, 1>(matrices, blocks, scalars);
}
