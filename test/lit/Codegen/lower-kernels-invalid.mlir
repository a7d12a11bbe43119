// RUN: kaon-opt %s -kaon-lower-kernels -split-input-file -verify-diagnostics

func.func private @f(%x: tensor<?x?xf64>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error@+1 {{expects f32 as the source of 'bf16', but got 'f64'}}
  %r = arith.truncf %x : tensor<?x?xf64> to tensor<?x?xbf16>
  return %r : tensor<?x?xbf16>
}

// -----

func.func private @f(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  // expected-error@+1 {{expects operands and results of type f32 or f64: 16-bit types are for memory only}}
  %r = arith.negf %x : tensor<?x?xbf16>
  return %r : tensor<?x?xbf16>
}

// -----

// expected-error@+1 {{expects the library kernel to be one of transpose, pack_rhs, matmul, pack_rhs_transposed, matmul_add, pack_lhs, matmul_symmetric, pack_lhs_transposed, matmul_symmetric_add, but got 'qr'}}
func.func private @qr_f32(tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = "qr"}

// -----

// expected-error@+1 {{expects elements of type f32 or f64, but got 'f16'}}
func.func private @matmul_f16(tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16> attributes {kaon.library = "matmul"}

// -----

// expected-error@+1 {{expects a matrix as first argument of a library kernel}}
func.func private @pack() attributes {kaon.library = "pack_lhs"}

// -----

// expected-error@+1 {{expects kaon.library to be the name of a library kernel, on the declaration of a function, but got 3 : i64}}
func.func private @pack(tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = 3}

// -----

func.func private @f(%x: tensor<1x?xf32>) -> tensor<1x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  // expected-error@+1 {{expects all elements of a constant inside a kernel to be equal, but got dense<}}
  %c = arith.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %d = tensor.cast %c : tensor<1x2xf32> to tensor<1x?xf32>
  %r = arith.addf %x, %d : tensor<1x?xf32>
  return %r : tensor<1x?xf32>
}

// -----

func.func private @f(%x: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %i0 = arith.constant 0 : index
  %d0 = tensor.dim %x, %i0 : tensor<?x?xf32>
  // expected-error@+1 {{expects numbers: inside a kernel, sizes are for tensor.splat only}}
  %n = arith.index_cast %d0 : index to i64
  %f = arith.sitofp %n : i64 to f32
  %u = tensor.splat %f[%d0, %d0] : tensor<?x?xf32>
  %r = arith.addf %x, %u : tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
