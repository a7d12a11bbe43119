//===-- RowKernels.cuh - row steps as a compiler would emit them ----------===//
//
// The row step of Periodic Row-wise Muon for short, middle and long rows. NVRTC
// compiles this text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "Rows.cuh"

namespace kernels {

using namespace kaon::device;

/// Momentum, normalisation by the row's Euclidean norm, decay and step.
template <typename Parameter, typename Gradient> class RowStep {
public:
  /// Values: gradient, momentum.
  using First =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::update>>;
  /// Values: parameter.
  using Second = Operands<Operand<Parameter, Access::update>>;

  KAON_DEVICE explicit RowStep(const float *scalars)
      : momentum(scalars[0]), oneMinusMomentum(scalars[1]), keep(scalars[2]),
        step(scalars[3]), reciprocal(0) {}

  KAON_DEVICE float first(float (&values)[First::count]) const {
    values[1] =
        addRn(mulRn(momentum, values[1]), mulRn(oneMinusMomentum, values[0]));
    return values[1];
  }

  KAON_DEVICE double contribution(float kept) const {
    return mulRn(static_cast<double>(kept), static_cast<double>(kept));
  }

  KAON_DEVICE void reduced(double sum) {
    reciprocal = sum > 0 ? divRn(1.0, sqrtRn(sum)) : 0.0;
  }

  KAON_DEVICE void second(float (&values)[Second::count], float kept) const {
    float direction = toFloatRn(mulRn(static_cast<double>(kept), reciprocal));
    values[0] = subRn(mulRn(keep, values[0]), mulRn(step, direction));
  }

private:
  float momentum, oneMinusMomentum, keep, step;
  double reciprocal;
};

} // namespace kernels

/// Up to 1024 columns.
KAON_KERNEL(32, 16)
row_step_short_f32_bf16(
    const kernels::RowMatrixOf<kernels::RowStep<float, kernels::bf16>>
        *matrices,
    const kernels::RowBlock *blocks, const float *scalars) {
  kernels::runRows<kernels::RowStep<float, kernels::bf16>, 32, 4>(
      matrices, blocks, scalars);
}
/// Up to 8192 columns in registers.
KAON_KERNEL(256, 2)
row_step_f32_bf16(
    const kernels::RowMatrixOf<kernels::RowStep<float, kernels::bf16>>
        *matrices,
    const kernels::RowBlock *blocks, const float *scalars) {
  kernels::runRows<kernels::RowStep<float, kernels::bf16>, 256, 4>(
      matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
row_step_bf16_bf16(
    const kernels::RowMatrixOf<kernels::RowStep<kernels::bf16, kernels::bf16>>
        *matrices,
    const kernels::RowBlock *blocks, const float *scalars) {
  kernels::runRows<kernels::RowStep<kernels::bf16, kernels::bf16>, 256, 4>(
      matrices, blocks, scalars);
}
/// Up to 65536 columns, 16384 of them in registers.
KAON_KERNEL(1024, 1)
row_step_long_f32_f32(
    const kernels::RowMatrixOf<kernels::RowStep<float, float>> *matrices,
    const kernels::RowBlock *blocks, const float *scalars) {
  kernels::runRows<kernels::RowStep<float, float>, 1024, 2>(matrices, blocks,
                                                            scalars);
}
