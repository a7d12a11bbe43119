// RUN: kaon-opt %s -split-input-file -verify-diagnostics -allow-unregistered-dialect -kaon-verify-program

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %other = arith.constant 3 : i64
  // expected-error @below {{'kaon.every' op expects the step of its update, argument #2}}
  %r = kaon.every %other period 2 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}

// -----

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  // expected-error @below {{'tensor.collapse_shape' op cannot be part of an update}}
  %flat = tensor.collapse_shape %w [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
  return %w : tensor<4x6xf32>
}

// -----

func.func @f(%w: tensor<4x6xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xbf16> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xbf16> attributes {kaon.update} {
  // expected-error @below {{'arith.subf' op expects the compute type of its update, 'f32', but got 'bf16'}}
  %w1 = arith.subf %w, %g : tensor<4x6xbf16>
  return %w1 : tensor<4x6xbf16>
}

// -----

// expected-error @below {{'func.func' op expects a parameter with elements, but got 0x6}}
func.func @f(%w: tensor<0x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<0x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<0x6xf32> attributes {kaon.update} {
  return %w : tensor<0x6xf32>
}

// -----

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @step {
  // expected-note @below {{by this matrix}}
  kaon.parameter @f "w" scalars 0 phase 0
  // expected-error @below {{'kaon.parameter' op expects a name of its own, but "w" is taken}}
  kaon.parameter @f "w" scalars 0 phase 0
}

// -----

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %lr: f64 {kaon.role = #kaon.role<scalar>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
func.func @h(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @step {
  // expected-note @below {{for this matrix}}
  kaon.parameter @f "a" scalars 0 phase 0
  // expected-error @below {{'kaon.parameter' op reads 0 scalars from set 0, which has 1}}
  kaon.parameter @h "b" scalars 0 phase 0
}

// -----

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  // expected-error @below {{'test.op' op cannot be part of an update; expects ops of kaon, arith and math, and tensor.splat}}
  "test.op"() : () -> ()
  return %w : tensor<4x6xf32>
}
