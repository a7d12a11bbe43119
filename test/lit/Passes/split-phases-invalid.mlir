// RUN: kaon-opt %s -split-input-file -verify-diagnostics -kaon-split-phases=max-period=20

// expected-error @below {{periods [4, 7] of update 'sgd' need more kinds of steps than max-period (20)}}
func.func @sgd(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 4 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  %b = kaon.every %step period 7 phase 0 -> tensor<4x6xf32> {
    kaon.yield %a : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %b : tensor<4x6xf32>
}

// -----

func.func @four(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 4 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %a : tensor<4x6xf32>
}
func.func @seven(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %a = kaon.every %step period 7 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %a : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @four "a" scalars 0 phase 0
  // expected-error @below {{has a period of 7, with which the program needs 28 kinds of steps, more than max-period (20)}}
  kaon.parameter @seven "b" scalars 0 phase 0
}

// -----

func.func @shifted(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %one = arith.constant 1 : i64
  %next = arith.addi %step, %one : i64
  %a = kaon.every %step period 2 phase 0 -> tensor<4x6xf32> {
    // expected-error @below {{'kaon.every' op expects the step of its update, argument #2}}
    %b = kaon.every %next period 2 phase 0 -> tensor<4x6xf32> {
      kaon.yield %w : tensor<4x6xf32>
    } else {
      kaon.yield %g : tensor<4x6xf32>
    }
    kaon.yield %b : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %a : tensor<4x6xf32>
}
