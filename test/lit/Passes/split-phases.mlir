// RUN: kaon-opt %s -split-input-file -kaon-split-phases | FileCheck %s

// Residues that decide alike share a function; branches not taken are gone, and
// so is what only they used.
// CHECK-LABEL: func.func @sgd.0
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32>
// CHECK-NEXT: arith.subf %[[W]], %[[G]]
// CHECK-NEXT: return
// CHECK-LABEL: func.func @sgd.1
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32>
// CHECK-NEXT: %[[T:.*]] = arith.addf %[[G]], %[[G]]
// CHECK-NEXT: arith.subf %[[W]], %[[T]]
// CHECK-NEXT: return
// CHECK-NOT: func.func
// CHECK-LABEL: kaon.program @step period 3
// CHECK-NEXT: kaon.parameter [@sgd.0, @sgd.1, @sgd.0] "a" scalars 0 phase 0
// CHECK-NEXT: kaon.parameter [@sgd.0, @sgd.1, @sgd.0] "b" scalars 0 phase 2
func.func @sgd(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %twice = arith.addf %g, %g : tensor<4x6xf32>
  %u = kaon.every %step period 3 phase 1 -> tensor<4x6xf32> {
    kaon.yield %twice : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  %w1 = arith.subf %w, %u : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @sgd "a" scalars 0 phase 0
  kaon.parameter @sgd "b" scalars 0 phase 5
}

// -----

// Two periods: the update's residues are those of their least common multiple.
// An update without phases keeps its name, in a program of any period.
// CHECK-LABEL: func.func @both.0
// CHECK-LABEL: func.func @both.1
// CHECK-LABEL: func.func @both.2
// CHECK-LABEL: func.func @both.3
// CHECK-LABEL: func.func @plain(
// CHECK-LABEL: kaon.program @step period 6
// CHECK-NEXT: kaon.parameter [@both.0, @both.1, @both.2, @both.3, @both.2, @both.1] "a" scalars 0 phase 0
// CHECK-NEXT: kaon.parameter @plain "b" scalars 0 phase 0
func.func @both(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 2 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  %b = kaon.every %step period 3 phase 0 -> tensor<4x6xf32> {
    kaon.yield %a : tensor<4x6xf32>
  } else {
    %n = arith.negf %a : tensor<4x6xf32>
    kaon.yield %n : tensor<4x6xf32>
  }
  return %b : tensor<4x6xf32>
}
func.func @plain(%w: tensor<2x2xf32> {kaon.role = #kaon.role<param>}, %g: tensor<2x2xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<2x2xf32> attributes {kaon.update} {
  %w1 = arith.subf %w, %g : tensor<2x2xf32>
  return %w1 : tensor<2x2xf32>
}
kaon.program @step {
  kaon.parameter @both "a" scalars 0 phase 0
  kaon.parameter @plain "b" scalars 0 phase 6
}

// -----

// What a nested `every` would do in a branch that is not taken tells no
// functions apart: residues 1, 2 and 3 are one.
// CHECK-LABEL: func.func @nested.0
// CHECK-LABEL: func.func @nested.1
// CHECK-LABEL: func.func @nested.2
// CHECK-NOT: func.func @nested.3
// CHECK-LABEL: kaon.program @step period 4
// CHECK-NEXT: kaon.parameter [@nested.0, @nested.1, @nested.2, @nested.1]
func.func @nested(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 2 phase 0 -> tensor<4x6xf32> {
    %b = kaon.every %step period 4 phase 0 -> tensor<4x6xf32> {
      kaon.yield %w : tensor<4x6xf32>
    } else {
      kaon.yield %g : tensor<4x6xf32>
    }
    kaon.yield %b : tensor<4x6xf32>
  } else {
    %n = arith.negf %g : tensor<4x6xf32>
    kaon.yield %n : tensor<4x6xf32>
  }
  return %a : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @nested "a" scalars 0 phase 0
}

// -----

// A period of one is no phase at all.
// CHECK-LABEL: func.func @always(
// CHECK-SAME: %{{.*}}: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32>
// CHECK-NEXT: return %[[G]]
// CHECK-LABEL: kaon.program @step {
// CHECK-NEXT: kaon.parameter @always "a" scalars 0 phase 0
func.func @always(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 1 phase 0 -> tensor<4x6xf32> {
    kaon.yield %g : tensor<4x6xf32>
  } else {
    kaon.yield %w : tensor<4x6xf32>
  }
  return %a : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @always "a" scalars 0 phase 0
}
