// RUN: kaon-translate --kaon-to-cuda --line-directives=false %s | FileCheck %s

// A kernel of columns: one thread per column. What has one value per row is an
// operand of every element; what has one per column is a field.

func.func private @kernel_c(
    %x: tensor<?x?xf32> loc("x"("a.py":1:1)), %r: tensor<?x1xbf16> loc("r"("a.py":1:1)),
    %c: tensor<1x?xf32> loc("c"("a.py":1:1))) -> (tensor<?x?xf32>, tensor<1x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<columns>} {
  %r32 = arith.extf %r : tensor<?x1xbf16> to tensor<?x1xf32>
  %rs = kaon.broadcast %r32 : tensor<?x1xf32> to tensor<?x?xf32>
  %p = arith.mulf %x, %rs : tensor<?x?xf32>
  %largest = kaon.reduce max %p along column : tensor<?x?xf32> -> tensor<1x?xf32>
  %cs = arith.mulf %c, %largest : tensor<1x?xf32>
  %b = kaon.broadcast %cs : tensor<1x?xf32> to tensor<?x?xf32>
  %y = arith.addf %p, %b : tensor<?x?xf32>
  return %y, %largest : tensor<?x?xf32>, tensor<1x?xf32>
}

// CHECK:      #include "Columns.cuh"
// CHECK:      using List0 = Operands<Operand<float, Access::read>,
// CHECK-NEXT:                        Operand<bf16, Access::read, Extent::rows>,
// CHECK-NEXT:                        Operand<float, Access::uniform>,
// CHECK-NEXT:                        Operand<float, Access::none>,
// CHECK-NEXT:                        Operand<float, Access::uniform>>;
// CHECK-NEXT: using Reductions0 = Reductions<Max<float>>;
// CHECK-NOT:  kept
// CHECK:      KAON_DEVICE Step(const double *, const Matrix<5> &matrix, i64 column) {
// CHECK-NEXT:   c = loadOfColumn<float>(matrix, 2, column);
// CHECK-NEXT: }
// CHECK:      KAON_DEVICE void pass(Index<0>, Element<List0> &element,
// CHECK-NEXT:                       Contributions<Reductions0> &contributions) {
// CHECK-NEXT:   float x = get<0>(element);
// CHECK-NEXT:   float r = get<1>(element);
// CHECK-NEXT:   get<0>(contributions) = mulRn(x, r);
// CHECK-NEXT: }
// CHECK:      KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
// CHECK-NEXT:   max = get<0>(results);
// CHECK-NEXT:   ofColumn = mulRn(c, max);
// CHECK-NEXT: }
// CHECK:      KAON_DEVICE void pass(Index<1>, Element<List1> &element,
// CHECK-NEXT:                       Contributions<Reductions1> &) {
// CHECK-NEXT:   float x = get<0>(element);
// CHECK-NEXT:   float r = get<1>(element);
// CHECK-NEXT:   get<3>(element) = addRn(mulRn(x, r), ofColumn);
// CHECK-NEXT: }
// CHECK:      KAON_DEVICE void finish(const Matrix<5> &matrix, i64 column) const {
// CHECK-NEXT:   storeOfColumn<float>(matrix, 4, column, max);
// CHECK-NEXT: }
// CHECK:      KAON_KERNEL(256, 2)
// CHECK-NEXT: kernel_c(
// CHECK:      runColumns<Step>(matrices, blocks, scalars);
