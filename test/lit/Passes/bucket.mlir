// RUN: kaon-opt %s -kaon-bucket=max-concurrent-bytes=4096 | FileCheck %s
// RUN: kaon-opt %s -kaon-bucket=max-concurrent-bytes=4096 -remarks-filter=kaon-bucket -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK

func.func @small(%w: tensor<16x16xf32> {kaon.role = #kaon.role<param>}, %g: tensor<16x16xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<16x16xf32> attributes {kaon.update} {
  return %w : tensor<16x16xf32>
}
func.func @row(%w: tensor<16x128xf32> {kaon.role = #kaon.role<param>}, %g: tensor<16x128xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<16x128xf32> attributes {kaon.update} {
  return %w : tensor<16x128xf32>
}
func.func @refresh(%w: tensor<16x128xf32> {kaon.role = #kaon.role<param>}, %g: tensor<16x128xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<16x128xf32> attributes {kaon.update} {
  return %g : tensor<16x128xf32>
}

// Small matrices run together as far as the bytes allow, in rounds of equal size,
// large ones alone; a matrix with a phase offset is in another bucket than its like.
// CHECK: kaon.program @step period 2
// CHECK: kaon.phase 0 {
// CHECK-NEXT: kaon.bucket @small parameters [0, 2, 4, 5, 6] concurrent 3
// CHECK-NEXT: kaon.bucket @refresh parameters [1] concurrent 1
// CHECK-NEXT: kaon.bucket @row parameters [3, 7] concurrent 1
// CHECK-NEXT: }
// CHECK-NEXT: kaon.phase 1 {
// CHECK-NEXT: kaon.bucket @small parameters [0, 2, 4, 5, 6] concurrent 3
// CHECK-NEXT: kaon.bucket @row parameters [1] concurrent 1
// CHECK-NEXT: kaon.bucket @refresh parameters [3, 7] concurrent 1
// CHECK-NEXT: }
// REMARK: [Passed] Bucket | Category:kaon-bucket | Function=small | Remark="phase 0: 5 matrices of 1024 bytes, 3 at once"
// REMARK: [Passed] Bucket | Category:kaon-bucket | Function=refresh | Remark="phase 0: 1 matrices of 8192 bytes, 1 at once"
kaon.program @step period 2 {
  kaon.parameter @small "0" scalars 0 phase 0
  kaon.parameter [@refresh, @row] "1" scalars 0 phase 0
  kaon.parameter @small "2" scalars 0 phase 1
  kaon.parameter [@refresh, @row] "3" scalars 0 phase 1
  kaon.parameter @small "4" scalars 0 phase 0
  kaon.parameter @small "5" scalars 0 phase 0
  kaon.parameter @small "6" scalars 0 phase 0
  kaon.parameter [@refresh, @row] "7" scalars 0 phase 1
}
