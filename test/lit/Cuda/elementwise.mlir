// RUN: kaon-translate --kaon-to-cuda --line-directives=false %s | FileCheck %s --match-full-lines --strict-whitespace

// An elementwise kernel, whole: scalars and 1x1 operands become fields, which
// the constructor computes once per thread; half precision is read and stored
// as f32.

//      CHECK:#include "Elementwise.cuh"
// CHECK-EMPTY:
// CHECK-NEXT:using namespace kaon::device;
// CHECK-EMPTY:
// CHECK-NEXT:namespace {
// CHECK-EMPTY:
// CHECK-NEXT:class Function {
// CHECK-NEXT:public:
// CHECK-NEXT:  using List = Operands<Operand<bf16, Access::read>, Operand<f16, Access::read>,
// CHECK-NEXT:                        Operand<double, Access::uniform>,
// CHECK-NEXT:                        Operand<float, Access::none>,
// CHECK-NEXT:                        Operand<bf16, Access::write>>;
// CHECK-EMPTY:
// CHECK-NEXT:  KAON_DEVICE Function(const double *scalars, const Matrix<5> &matrix) {
// CHECK-NEXT:    lr = toFloatRn(scalars[0]);
// CHECK-NEXT:    double norm = loadScalar<double>(matrix, 2);
// CHECK-NEXT:    uniform = toFloatRn(divRn(scalars[1], norm));
// CHECK-NEXT:  }
// CHECK-EMPTY:
// CHECK-NEXT:  KAON_DEVICE void operator()(Element<List> &element) const {
// CHECK-NEXT:    float w = get<0>(element);
// CHECK-NEXT:    float g = get<1>(element);
// CHECK-NEXT:    float product = mulRn(lr, mulRn(uniform, g));
// CHECK-NEXT:    float large = w > 1.0f || !(g >= product) ? 0.1f : product;
// CHECK-NEXT:    get<4>(element) = subRn(w, large);
// CHECK-NEXT:  }
// CHECK-EMPTY:
// CHECK-NEXT:private:
// CHECK-NEXT:  float lr;
// CHECK-NEXT:  float uniform;
// CHECK-NEXT:};
// CHECK-EMPTY:
// CHECK-NEXT:} // namespace
// CHECK-EMPTY:
// CHECK-NEXT:KAON_KERNEL(256, 2)
// CHECK-NEXT:kernel_a(const Matrix<5> *matrices, const Block *blocks,
// CHECK-NEXT:         const double *scalars) {
// CHECK-NEXT:  runElementwise<Function>(matrices, blocks, scalars);
// CHECK-NEXT:}
//  CHECK-NOT:{{.}}
func.func private @kernel_a(
    %w: tensor<?x?xbf16> loc("w"("a.py":1:1)), %g: tensor<?x?xf16> loc("g"("a.py":1:1)),
    %norm: tensor<1x1xf64> loc("norm"("a.py":1:1)), %unused: tensor<?x?xf32>,
    %lr: f64 loc("lr"("a.py":1:1)), %s: f64) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %g32 = arith.extf %g : tensor<?x?xf16> to tensor<?x?xf32>
  %lr32 = arith.truncf %lr : f64 to f32
  %lrs = tensor.splat %lr32[%rows, %cols] : tensor<?x?xf32>
  %ss = tensor.splat %s : tensor<1x1xf64>
  %q = arith.divf %ss, %norm : tensor<1x1xf64>
  %q32 = arith.truncf %q : tensor<1x1xf64> to tensor<1x1xf32>
  %qs = kaon.broadcast %q32 : tensor<1x1xf32> to tensor<?x?xf32>
  %u = arith.mulf %qs, %g32 : tensor<?x?xf32>
  %step = arith.mulf %lrs, %u : tensor<?x?xf32>
  %one = arith.constant 1.0 : f32
  %ones = tensor.splat %one[%rows, %cols] : tensor<?x?xf32>
  %tenth = arith.constant 0.1 : f32
  %tenths = tensor.splat %tenth[%rows, %cols] : tensor<?x?xf32>
  %isLarge = arith.cmpf ogt, %w32, %ones : tensor<?x?xf32>
  %isLess = arith.cmpf ult, %g32, %step : tensor<?x?xf32>
  %either = arith.ori %isLarge, %isLess : tensor<?x?xi1>
  %clipped = arith.select %either, %tenths, %step : tensor<?x?xi1>, tensor<?x?xf32> loc("large"("a.py":2:1))
  %w1 = arith.subf %w32, %clipped : tensor<?x?xf32>
  %r = arith.truncf %w1 : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r : tensor<?x?xbf16>
}
