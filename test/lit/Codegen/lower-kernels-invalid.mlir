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

// expected-error@+1 {{there is no library kernel called 'qr'}}
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
