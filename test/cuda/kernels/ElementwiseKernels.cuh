//===-- ElementwiseKernels.cuh - updates as a compiler would emit them ----===//
//
// AdamW, a momentum update with and without the norm of its result, for several
// ways to store a parameter. NVRTC compiles this text for every architecture,
// the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "Norms.cuh"

namespace kernels {

using namespace kaon::device;

/// Values: parameter, gradient, first and second moment.
template <typename Parameter, typename Gradient> class AdamW {
public:
  using List =
      Operands<Operand<Parameter, Access::update>,
               Operand<Gradient, Access::read>, Operand<float, Access::update>,
               Operand<float, Access::update>>;

  KAON_DEVICE explicit AdamW(const float *scalars)
      : beta1(scalars[0]), oneMinusBeta1(scalars[1]), beta2(scalars[2]),
        oneMinusBeta2(scalars[3]), correction2(scalars[4]), epsilon(scalars[5]),
        step(scalars[6]), keep(scalars[7]) {}

  KAON_DEVICE void operator()(float (&values)[List::count]) const {
    float gradient = values[1];
    float first =
        addRn(mulRn(beta1, values[2]), mulRn(oneMinusBeta1, gradient));
    float second = addRn(mulRn(beta2, values[3]),
                         mulRn(oneMinusBeta2, mulRn(gradient, gradient)));
    float root = addRn(mulRn(sqrtRn(second), correction2), epsilon);
    values[0] = subRn(mulRn(keep, values[0]), mulRn(step, divRn(first, root)));
    values[2] = first;
    values[3] = second;
  }

private:
  float beta1, oneMinusBeta1, beta2, oneMinusBeta2, correction2, epsilon, step,
      keep;
};

/// Nesterov momentum and the cast before a product. Values: gradient, momentum,
/// result.
template <typename Gradient, typename Result> class Momentum {
public:
  using List =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::update>,
               Operand<Result, Access::write>>;

  KAON_DEVICE explicit Momentum(const float *scalars) : momentum(scalars[0]) {}

  KAON_DEVICE void operator()(float (&values)[List::count]) const {
    values[1] = addRn(mulRn(momentum, values[1]), values[0]);
    values[2] = addRn(values[0], mulRn(momentum, values[1]));
  }

  /// Square of the result before it is rounded to its storage.
  KAON_DEVICE double contribution(const float (&values)[List::count]) const {
    double result = values[2];
    return mulRn(result, result);
  }

private:
  float momentum;
};

template <typename Function>
using TensorsOf = ElementwiseTensor<Function::List::count>;

} // namespace kernels

KAON_KERNEL(256, 2)
adamw_f32_f32(const kernels::TensorsOf<kernels::AdamW<float, float>> *tensors,
              const kernels::Chunk *chunks, const float *scalars) {
  kernels::runElementwise<kernels::AdamW<float, float>>(tensors, chunks,
                                                        scalars);
}
KAON_KERNEL(256, 2)
adamw_f32_bf16(
    const kernels::TensorsOf<kernels::AdamW<float, kernels::bf16>> *tensors,
    const kernels::Chunk *chunks, const float *scalars) {
  kernels::runElementwise<kernels::AdamW<float, kernels::bf16>>(tensors, chunks,
                                                                scalars);
}
KAON_KERNEL(256, 2)
adamw_f16_f16(
    const kernels::TensorsOf<kernels::AdamW<kernels::f16, kernels::f16>>
        *tensors,
    const kernels::Chunk *chunks, const float *scalars) {
  kernels::runElementwise<kernels::AdamW<kernels::f16, kernels::f16>>(
      tensors, chunks, scalars);
}
KAON_KERNEL(256, 2)
momentum_bf16_bf16(
    const kernels::TensorsOf<kernels::Momentum<kernels::bf16, kernels::bf16>>
        *tensors,
    const kernels::Chunk *chunks, const float *scalars) {
  kernels::runElementwise<kernels::Momentum<kernels::bf16, kernels::bf16>>(
      tensors, chunks, scalars);
}
KAON_KERNEL(256, 2)
momentum_sum_bf16_bf16(
    const kernels::TensorsOf<kernels::Momentum<kernels::bf16, kernels::bf16>>
        *tensors,
    const kernels::Chunk *chunks, const float *scalars, double *partials) {
  kernels::runElementwiseSum<kernels::Momentum<kernels::bf16, kernels::bf16>>(
      tensors, chunks, scalars, partials);
}
KAON_KERNEL(256, 2)
norm_reciprocals(const kernels::PartialSums *ranges, const double *partials,
                 const float *scalars, float *reciprocals) {
  kernels::runNormReciprocals(ranges, partials, scalars, reciprocals);
}
