// w = w - rate * m with m = mu * m + g. Operands: w, g, m, then w, m. Scalars:
// rate, mu.
#include "Elementwise.cuh"
using namespace kaon::device;
class Momentum {
public:
  using List =
      Operands<Operand<float, Access::read>, Operand<float, Access::read>,
               Operand<float, Access::read>, Operand<float, Access::write>,
               Operand<float, Access::write>>;
  KAON_DEVICE Momentum(const double *scalars, const Matrix<5> &)
      : rate(toFloatRn(scalars[0])), mu(toFloatRn(scalars[1])) {}
  KAON_DEVICE void operator()(Element<List> &element) const {
    float m = addRn(mulRn(mu, get<2>(element)), get<1>(element));
    get<4>(element) = m;
    get<3>(element) = subRn(get<0>(element), mulRn(rate, m));
  }

private:
  float rate, mu;
};
KAON_KERNEL(256, 2)
momentum(const Matrix<5> *matrices, const Block *blocks,
         const double *scalars) {
  runElementwise<Momentum>(matrices, blocks, scalars);
}
