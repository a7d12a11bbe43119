// RUN: kaon-opt %s --split-input-file --verify-diagnostics --kaon-lower-to-kernel

// What cannot become a CUDA kernel, at the place where it stands.

func.func private @k(%x: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error @below {{cannot be computed inside a CUDA kernel: expects kaon.reduce, kaon.broadcast, tensor.splat, constants and arithmetic on numbers and truth values}}
  %0 = math.sin %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

func.func private @k(%x: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error @below {{cannot be computed inside a CUDA kernel}}
  %0 = arith.remf %x, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

func.func private @k(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error @below {{expects operands and results of type f32 or f64: 16-bit types are for memory only}}
  %0 = arith.addf %x, %x : tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}

// -----

func.func private @k(%x: tensor<?x?xf64>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error @below {{expects f32 as the source of 'bf16', but got 'f64'}}
  %0 = arith.truncf %x : tensor<?x?xf64> to tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}

// -----

func.func private @k(%x: tensor<1x2xf32>) -> tensor<1x2xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error @below {{expects all elements of a constant inside a kernel to be equal, but got}}
  %c = arith.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %0 = arith.addf %x, %c : tensor<1x2xf32>
  return %0 : tensor<1x2xf32>
}

// -----

// expected-error @below {{expects the result of a kernel with kernel.in_place to be a select between an argument and something else, by what is the same for all elements}}
func.func private @k(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>, kernel.in_place} {
  %larger = arith.cmpf ogt, %x, %y : tensor<?x?xf32>
  %0 = arith.select %larger, %x, %y : tensor<?x?xi1>, tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// expected-error @below {{expects kernel.threads on a kernel of rows}}
func.func private @k(%x: tensor<?x?xf32>) -> tensor<?x1xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %0 = kaon.reduce sum %x along row : tensor<?x?xf32> -> tensor<?x1xf32>
  return %0 : tensor<?x1xf32>
}

// -----

func.func private @k(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  // expected-error @below {{expects operands of bf16 or f16 on CUDA, but got 'f32'}}
  %0 = kaon.matmul %a, %b : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// expected-error @below {{expects a module with one kernel, but got 0}}
module {
}
