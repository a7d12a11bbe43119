// RUN: kaon-translate --kaon-to-cuda --line-directives=false %s | FileCheck %s

// All comparisons. Of the ones of C++ only `!=` holds where an operand is NaN:
// the unordered ones are the opposites of their opposites.

// CHECK: get<2>(element) = x == y ? 1.0f : 0.0f;
// CHECK: get<3>(element) = x > y ? 1.0f : 0.0f;
// CHECK: get<4>(element) = x >= y ? 1.0f : 0.0f;
// CHECK: get<5>(element) = x < y ? 1.0f : 0.0f;
// CHECK: get<6>(element) = x <= y ? 1.0f : 0.0f;
// CHECK: get<7>(element) = x < y || x > y ? 1.0f : 0.0f;
// CHECK: get<8>(element) = x == x && y == y ? 1.0f : 0.0f;
// CHECK: get<9>(element) = !(x < y || x > y) ? 1.0f : 0.0f;
// CHECK: get<10>(element) = !(x <= y) ? 1.0f : 0.0f;
// CHECK: get<11>(element) = !(x < y) ? 1.0f : 0.0f;
// CHECK: get<12>(element) = !(x >= y) ? 1.0f : 0.0f;
// CHECK: get<13>(element) = !(x > y) ? 1.0f : 0.0f;
// CHECK: get<14>(element) = x != y ? 1.0f : 0.0f;
// CHECK: get<15>(element) = x != x || y != y ? 1.0f : 0.0f;
// CHECK: get<16>(element) = true ? 1.0f : 0.0f;
// CHECK: get<17>(element) = false ? 1.0f : 0.0f;
func.func private @kernel_f(%x: tensor<?x?xf32> loc("x"("a.py":1:1)), %y: tensor<?x?xf32> loc("y"("a.py":1:1)))
    -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %x, %c0 : tensor<?x?xf32>
  %cols = tensor.dim %x, %c1 : tensor<?x?xf32>
  %zero = arith.constant 0.0 : f32
  %zeros = tensor.splat %zero[%rows, %cols] : tensor<?x?xf32>
  %one = arith.constant 1.0 : f32
  %ones = tensor.splat %one[%rows, %cols] : tensor<?x?xf32>
  %p0 = arith.cmpf oeq, %x, %y : tensor<?x?xf32>
  %r0 = arith.select %p0, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p1 = arith.cmpf ogt, %x, %y : tensor<?x?xf32>
  %r1 = arith.select %p1, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p2 = arith.cmpf oge, %x, %y : tensor<?x?xf32>
  %r2 = arith.select %p2, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p3 = arith.cmpf olt, %x, %y : tensor<?x?xf32>
  %r3 = arith.select %p3, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p4 = arith.cmpf ole, %x, %y : tensor<?x?xf32>
  %r4 = arith.select %p4, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p5 = arith.cmpf one, %x, %y : tensor<?x?xf32>
  %r5 = arith.select %p5, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p6 = arith.cmpf ord, %x, %y : tensor<?x?xf32>
  %r6 = arith.select %p6, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p7 = arith.cmpf ueq, %x, %y : tensor<?x?xf32>
  %r7 = arith.select %p7, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p8 = arith.cmpf ugt, %x, %y : tensor<?x?xf32>
  %r8 = arith.select %p8, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p9 = arith.cmpf uge, %x, %y : tensor<?x?xf32>
  %r9 = arith.select %p9, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p10 = arith.cmpf ult, %x, %y : tensor<?x?xf32>
  %r10 = arith.select %p10, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p11 = arith.cmpf ule, %x, %y : tensor<?x?xf32>
  %r11 = arith.select %p11, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p12 = arith.cmpf une, %x, %y : tensor<?x?xf32>
  %r12 = arith.select %p12, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p13 = arith.cmpf uno, %x, %y : tensor<?x?xf32>
  %r13 = arith.select %p13, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p14 = arith.cmpf true, %x, %y : tensor<?x?xf32>
  %r14 = arith.select %p14, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  %p15 = arith.cmpf false, %x, %y : tensor<?x?xf32>
  %r15 = arith.select %p15, %ones, %zeros : tensor<?x?xi1>, tensor<?x?xf32>
  return %r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15
      : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>,
        tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>
}
