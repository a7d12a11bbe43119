//===-- ElementwiseKernels.cuh - updates as a compiler would emit them ----===//
//
// AdamW and a momentum update, for several ways to store a parameter, a scaling
// by a number in device memory, and the functions that are not rounded
// correctly. NVRTC compiles this text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "Elementwise.cuh"

namespace kernels {

using namespace kaon::device;

/// Operands: parameter, gradient, first and second moment.
template <typename Parameter, typename Gradient> class AdamW {
public:
  using List =
      Operands<Operand<Parameter, Access::update>,
               Operand<Gradient, Access::read>, Operand<float, Access::update>,
               Operand<float, Access::update>>;

  KAON_DEVICE AdamW(const double *scalars, const Matrix<List::count> &)
      : beta1(toFloatRn(scalars[0])), oneMinusBeta1(toFloatRn(scalars[1])),
        beta2(toFloatRn(scalars[2])), oneMinusBeta2(toFloatRn(scalars[3])),
        correction2(toFloatRn(scalars[4])), epsilon(toFloatRn(scalars[5])),
        step(toFloatRn(scalars[6])), keep(toFloatRn(scalars[7])) {}

  KAON_DEVICE void operator()(Element<List> &element) const {
    float gradient = get<1>(element);
    float first =
        addRn(mulRn(beta1, get<2>(element)), mulRn(oneMinusBeta1, gradient));
    float second = addRn(mulRn(beta2, get<3>(element)),
                         mulRn(oneMinusBeta2, mulRn(gradient, gradient)));
    float root = addRn(mulRn(sqrtRn(second), correction2), epsilon);
    get<0>(element) =
        subRn(mulRn(keep, get<0>(element)), mulRn(step, divRn(first, root)));
    get<2>(element) = first;
    get<3>(element) = second;
  }

private:
  float beta1, oneMinusBeta1, beta2, oneMinusBeta2, correction2, epsilon, step,
      keep;
};

/// Nesterov momentum and the cast before a product. Operands: gradient,
/// momentum, new momentum (the same memory), result.
template <typename Gradient, typename Result> class Momentum {
public:
  using List =
      Operands<Operand<Gradient, Access::read>, Operand<float, Access::read>,
               Operand<float, Access::write>, Operand<Result, Access::write>>;

  KAON_DEVICE Momentum(const double *scalars, const Matrix<List::count> &)
      : momentum(toFloatRn(scalars[0])) {}

  KAON_DEVICE void operator()(Element<List> &element) const {
    float next = addRn(mulRn(momentum, get<1>(element)), get<0>(element));
    get<2>(element) = next;
    get<3>(element) = addRn(get<0>(element), mulRn(momentum, next));
  }

private:
  float momentum;
};

/// Operands: matrix, a number, the matrix times the number in f64 and in f32.
class Scale {
public:
  using List =
      Operands<Operand<float, Access::read>, Operand<double, Access::uniform>,
               Operand<double, Access::write>, Operand<float, Access::write>>;

  KAON_DEVICE Scale(const double *, const Matrix<List::count> &matrix)
      : factor(loadScalar<double>(matrix, 1)) {}

  KAON_DEVICE void operator()(Element<List> &element) const {
    get<2>(element) = mulRn(factor, static_cast<double>(get<0>(element)));
    get<3>(element) = toFloatRn(get<2>(element));
  }

private:
  double factor;
};

/// Operands: a matrix and results in f32 and f64.
class Functions {
public:
  using List =
      Operands<Operand<float, Access::read>, Operand<float, Access::write>,
               Operand<double, Access::write>>;

  KAON_DEVICE Functions(const double *, const Matrix<List::count> &) {}

  KAON_DEVICE void operator()(Element<List> &element) const {
    float x = get<0>(element), size = absolute(x);
    double wide = size;
    get<1>(element) =
        copySign(addRn(power(size, 0.25f),
                       logarithm(addRn(exponential(-size), roundDown(size)))),
                 x);
    get<2>(element) =
        maximum(addRn(power(wide, 0.25),
                      logarithm(addRn(exponential(-wide), roundDown(wide)))),
                minimum(wide, 0.5));
  }
};

} // namespace kernels

KAON_KERNEL(256, 2)
adamw_f32_f32(const kernels::Matrix<4> *matrices, const kernels::Block *blocks,
              const double *scalars) {
  kernels::runElementwise<kernels::AdamW<float, float>>(matrices, blocks,
                                                        scalars);
}
KAON_KERNEL(256, 2)
adamw_f32_bf16(const kernels::Matrix<4> *matrices, const kernels::Block *blocks,
               const double *scalars) {
  kernels::runElementwise<kernels::AdamW<float, kernels::bf16>>(
      matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
adamw_f16_f16(const kernels::Matrix<4> *matrices, const kernels::Block *blocks,
              const double *scalars) {
  kernels::runElementwise<kernels::AdamW<kernels::f16, kernels::f16>>(
      matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
momentum_bf16_bf16(const kernels::Matrix<4> *matrices,
                   const kernels::Block *blocks, const double *scalars) {
  kernels::runElementwise<kernels::Momentum<kernels::bf16, kernels::bf16>>(
      matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
scale_f32_f64(const kernels::Matrix<4> *matrices, const kernels::Block *blocks,
              const double *scalars) {
  kernels::runElementwise<kernels::Scale>(matrices, blocks, scalars);
}
KAON_KERNEL(256, 2)
functions_f32_f64(const kernels::Matrix<3> *matrices,
                  const kernels::Block *blocks, const double *scalars) {
  kernels::runElementwise<kernels::Functions>(matrices, blocks, scalars);
}
