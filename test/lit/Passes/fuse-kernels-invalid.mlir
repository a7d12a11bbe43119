// RUN: kaon-opt %s -split-input-file -verify-diagnostics -kaon-fuse-kernels

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  // expected-error @below {{'kaon.norm' op cannot be part of a kernel; kaon-expand-updates and kaon-split-phases come first}}
  %n = kaon.norm %g along row : tensor<4x6xf32> -> tensor<4x1xf32>
  %b = kaon.broadcast %n : tensor<4x1xf32> to tensor<4x6xf32>
  return %b : tensor<4x6xf32>
}

// -----

func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  // expected-error @below {{'kaon.every' op cannot be part of a kernel; kaon-expand-updates and kaon-split-phases come first}}
  %r = kaon.every %step period 2 phase 0 -> tensor<4x6xf32> {
    kaon.yield %w : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}
