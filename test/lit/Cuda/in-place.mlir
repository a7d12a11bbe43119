// RUN: kaon-translate --kaon-to-cuda --line-directives=false %s | FileCheck %s --match-full-lines --strict-whitespace

// A kernel whose result lies over the argument that it keeps while a number is
// one: blocks look at the number first.

//      CHECK:class Function {
// CHECK-NEXT:public:
// CHECK-NEXT:  using List = Operands<Operand<bf16, Access::read>,
// CHECK-NEXT:                        Operand<float, Access::read>,
// CHECK-NEXT:                        Operand<double, Access::uniform>,
// CHECK-NEXT:                        Operand<bf16, Access::write>>;
// CHECK-EMPTY:
// CHECK-NEXT:  KAON_DEVICE Function(const double *, const Matrix<4> &matrix) {
// CHECK-NEXT:    rescue = loadScalar<double>(matrix, 2);
// CHECK-NEXT:    uniform = rescue == 1.0;
// CHECK-NEXT:  }
// CHECK-EMPTY:
// CHECK-NEXT:  KAON_DEVICE void operator()(Element<List> &element) const {
// CHECK-NEXT:    float scaled = toFloatRn(mulRn(double(get<1>(element)), rescue));
// CHECK-NEXT:    float rounded = toFloat(narrow<bf16>(scaled));
// CHECK-NEXT:    get<3>(element) = uniform ? get<0>(element) : rounded;
// CHECK-NEXT:  }
// CHECK-EMPTY:
// CHECK-NEXT:  KAON_DEVICE bool keeps() const {
// CHECK-NEXT:    return uniform;
// CHECK-NEXT:  }
// CHECK-EMPTY:
// CHECK-NEXT:private:
// CHECK-NEXT:  double rescue;
// CHECK-NEXT:  bool uniform;
// CHECK-NEXT:};
//      CHECK:  runElementwiseInPlace<Function>(matrices, blocks, scalars);
func.func private @kernel_rescue_in_place(
    %h: tensor<?x?xbf16>, %u: tensor<?x?xf32>, %rescue: tensor<1x1xf64> loc("rescue"("a.py":1:1))) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>, kernel.in_place} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %h, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %h, %c1 : tensor<?x?xbf16>
  %one = arith.constant 1.0 : f64
  %ones = tensor.splat %one[%rows, %cols] : tensor<?x?xf64>
  %factors = kaon.broadcast %rescue : tensor<1x1xf64> to tensor<?x?xf64>
  %kept = arith.cmpf oeq, %factors, %ones : tensor<?x?xf64>
  %wide = arith.extf %u : tensor<?x?xf32> to tensor<?x?xf64>
  %product = arith.mulf %wide, %factors : tensor<?x?xf64>
  %scaled = arith.truncf %product : tensor<?x?xf64> to tensor<?x?xf32> loc("scaled"("a.py":1:1))
  %rounded = arith.truncf %scaled : tensor<?x?xf32> to tensor<?x?xbf16>
  %0 = arith.select %kept, %h, %rounded : tensor<?x?xi1>, tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
