// RUN: kaon-translate --kaon-to-cuda %s | FileCheck %s

// Statements belong to lines of the user's: the innermost call, the first of
// several places. A directive is printed where the preprocessor would count to
// another line, and the text that is nobody's belongs to itself again.

func.func private @kernel_e(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.negf %x : tensor<?x?xf32> loc(callsite("a"("with \22 and \\.py":7:3) at "b.py":1:1))
  %1 = arith.mulf %0, %0 : tensor<?x?xf32> loc(fused["c.py":4:1, "c.py":9:1])
  %2 = arith.addf %1, %y : tensor<?x?xf32> loc("c.py":5:1)
  %3 = arith.subf %1, %y : tensor<?x?xf32> loc(unknown)
  return %1, %2, %3 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>
}

// CHECK:      operator()(Element<List> &element) const {
// CHECK-NEXT: #line 7 "{{.*}}lines.mlir"
// CHECK-NEXT:   float element1 = get<1>(element);
// CHECK-NEXT: #line 7 "with \" and \\.py"
// CHECK-NEXT:   float value = -get<0>(element);
// CHECK-NEXT: #line 4 "c.py"
// CHECK-NEXT:   float product = mulRn(value, value);
// CHECK-NEXT: #line 4 "c.py"
// CHECK-NEXT:   get<2>(element) = product;
// CHECK-NEXT:   get<3>(element) = addRn(product, element1);
// CHECK-NEXT: #line 28 "kernel_e.cu"
// CHECK-NEXT:   get<4>(element) = subRn(product, element1);
// CHECK-NEXT:   }
// CHECK-NOT:  #line
