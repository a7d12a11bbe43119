// w = w - rate * g. Operands: w, g, then w.
#include "Elementwise.cuh"
using namespace kaon::device;
class Descent {
public:
  using List =
      Operands<Operand<float, Access::read>, Operand<float, Access::read>,
               Operand<float, Access::write>>;
  KAON_DEVICE Descent(const double *scalars, const Matrix<3> &)
      : rate(toFloatRn(scalars[0])) {}
  KAON_DEVICE void operator()(Element<List> &element) const {
    get<2>(element) = subRn(get<0>(element), mulRn(rate, get<1>(element)));
  }

private:
  float rate;
};
KAON_KERNEL(256, 2)
descent(const Matrix<3> *matrices, const Block *blocks, const double *scalars) {
  runElementwise<Descent>(matrices, blocks, scalars);
}
