// RUN: kaon-translate --kaon-to-cuda --line-directives=false %s | FileCheck %s

// Names of the user's that C++, its macros, the device library or other values
// have taken, and some that are not ASCII.

// CHECK:      KAON_DEVICE Function(const double *scalars, const Matrix<7> &) {
// CHECK-NEXT:   float1 = toFloatRn(scalars[0]);
// CHECK-NEXT: }
// CHECK:      operator()(Element<List> &element) const {
// CHECK-NEXT:   float new1 = get<0>(element);
// CHECK-NEXT:   float NAN_ = get<1>(element);
// CHECK-NEXT:   float element1 = get<2>(element);
// CHECK-NEXT:   float private_1 = get<3>(element);
// CHECK-NEXT:   float cebbx = get<4>(element);
// CHECK-NEXT:   float addRn1 = get<5>(element);
// CHECK:      private:
// CHECK-NEXT:   float float1;
func.func private @kernel_d(
    %a: tensor<?x?xf32> loc("new"("a.py":1:1)), %b: tensor<?x?xf32> loc("NAN"("a.py":1:1)),
    %c: tensor<?x?xf32> loc("element"("a.py":1:1)), %d: tensor<?x?xf32> loc("__private_1"("a.py":1:1)),
    %e: tensor<?x?xf32> loc("\CE\BBx"("a.py":1:1)), %f: tensor<?x?xf32> loc("addRn"("a.py":1:1)),
    %s: f64 loc("float"("a.py":1:1))) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %a, %c0 : tensor<?x?xf32>
  %cols = tensor.dim %a, %c1 : tensor<?x?xf32>
  %s32 = arith.truncf %s : f64 to f32
  %ss = tensor.splat %s32[%rows, %cols] : tensor<?x?xf32>
  %0 = arith.addf %a, %b : tensor<?x?xf32>
  %1 = arith.addf %0, %c : tensor<?x?xf32>
  %2 = arith.addf %1, %d : tensor<?x?xf32>
  %3 = arith.addf %2, %e : tensor<?x?xf32>
  %4 = arith.addf %3, %f : tensor<?x?xf32>
  %5 = arith.addf %4, %ss : tensor<?x?xf32>
  return %5 : tensor<?x?xf32>
}
