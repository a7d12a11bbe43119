// RUN: kaon-opt %s --split-input-file --verify-diagnostics --allow-unregistered-dialect

// What the verifiers of update math refuse, and in which words.

// Types.
func.func @f(%x: tensor<4xf32>) {
  // expected-error @below {{operand #0 must be rank-2 tensor of f32 or f64, but got 'tensor<4xf32>'}}
  %n = kaon.norm %x along row : tensor<4xf32> -> tensor<4x1xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xbf16>) {
  // expected-error @below {{operand #0 must be rank-2 tensor of f32 or f64, but got 'tensor<4x6xbf16>'}}
  %n = kaon.normalize %x along row max epsilon 0.0 scale 1.0 : tensor<4x6xbf16>
  return
}

// -----

func.func @f(%x: tensor<4x6xi32>) {
  // expected-error @below {{operand #0 must be rank-2 tensor of bf16, f16, f32 or f64, but got 'tensor<4x6xi32>'}}
  %t = kaon.transpose %x : tensor<4x6xi32> -> tensor<6x4xi32>
  return
}

// -----

func.func @f(%x: tensor<*xf32>) {
  // expected-error @below {{invalid kind of type specified: expected builtin.tensor, but found 'tensor<*xf32>'}}
  %t = kaon.broadcast %x : tensor<*xf32> to tensor<6x4xf32>
  return
}

// -----

// Inferred types.
func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{inferred type(s) 'tensor<4x1xf32>' are incompatible with return type(s) of operation 'tensor<1x6xf32>'}}
  // expected-error @below {{failed to infer returned types}}
  %n = kaon.norm %x along row : tensor<4x6xf32> -> tensor<1x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{inferred type(s) 'tensor<1x1xf32>' are incompatible with return type(s) of operation 'tensor<1x1xf64>'}}
  // expected-error @below {{failed to infer returned types}}
  %n = kaon.reduce sum %x along all : tensor<4x6xf32> -> tensor<1x1xf64>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{inferred type(s) 'tensor<6x4xf32>' are incompatible with return type(s) of operation 'tensor<4x6xf32>'}}
  // expected-error @below {{failed to infer returned types}}
  %n = kaon.transpose %x : tensor<4x6xf32> -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%g: tensor<4x6xf32>, %m: tensor<6x4xf32>, %s: f64) {
  // expected-error @below {{failed to verify that all of {gradient, momentum, update, newMomentum} have same type}}
  %u:2 = "kaon.momentum"(%g, %m, %s) {form = #kaon.momentum_form<lerp>} : (tensor<4x6xf32>, tensor<6x4xf32>, f64) -> (tensor<4x6xf32>, tensor<4x6xf32>)
  return
}

// -----

// Keywords.
func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expected one of [row, column, all] for which elements are taken together, got: diagonal}}
  %n = kaon.norm %x along diagonal : tensor<4x6xf32> -> tensor<4x1xf32>
  return
}

// -----

func.func @f(%g: tensor<4x6xf32>, %m: tensor<4x6xf32>, %s: f64) {
  // expected-error @below {{expected one of [lerp, heavy_ball] for how a momentum accumulates, got: adam}}
  %u:2 = kaon.momentum adam %g, %m, %s : tensor<4x6xf32>
  return
}

// -----

// newton_schulz and normalize.
func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects 3 coefficients per step (a, b, c), but got 4}}
  %o = kaon.newton_schulz %x coefficients [1.0, 2.0, 3.0, 4.0] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects finite coefficients, but #1 is}}
  %o = kaon.newton_schulz %x coefficients [1.0, 0x7FF0000000000000, 3.0] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects a finite, non-negative epsilon, but got -1.0}}
  %o = kaon.newton_schulz %x coefficients [1.0, 2.0, 3.0] normalize max epsilon -1.0 scale 1.0 : tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects a finite, positive scale, but got 0.0}}
  %o = kaon.normalize %x along row max epsilon 0.0 scale 0.0 : tensor<4x6xf32>
  return
}

// -----

// broadcast.
func.func @f(%x: tensor<4x1xf32>) {
  // expected-error @below {{expects a result of 'f32', but got 'f64'}}
  %b = kaon.broadcast %x : tensor<4x1xf32> to tensor<4x6xf64>
  return
}

// -----

func.func @f(%x: tensor<3x1xf32>) {
  // expected-error @below {{expects dimension 0 of the operand to be 1 or that of the result, but got 3x1 and 4x6}}
  %b = kaon.broadcast %x : tensor<3x1xf32> to tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<1x?xf32>) {
  // expected-error @below {{expects dimension 1 of the operand to be 1 or that of the result, but got 1x? and 4x6}}
  %b = kaon.broadcast %x : tensor<1x?xf32> to tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects ascending restarts in [1, 2), but got 2 after 0}}
  %y = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0, 2.0, -1.5, 0.5] normalize max epsilon 0.0 scale 1.0 gram restarts [2] : tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects ascending restarts in [1, 3), but got 1 after 1}}
  %y = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0, 1.5, -0.5, 0.0, 1.5, -0.5, 0.0] normalize max epsilon 0.0 scale 1.0 gram restarts [1, 1] : tensor<4x6xf32>
  return
}

// -----

// matmul.
func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects a right operand of 'f32', but got 'f64'}}
  %d = kaon.matmul %a, %b transpose_b : (tensor<4x6xf32>, tensor<4x6xf64>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects a result of 'f32', but got 'f64'}}
  %d = kaon.matmul %a, %a transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf64>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects operands whose inner dimensions agree, but got 4x6 and 4x6}}
  %d = kaon.matmul %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects operands whose inner dimensions agree, but got 4x6 transposed and 4x6 transposed}}
  %d = kaon.matmul %a, %a transpose_a transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects a result of shape 6x6, but got 4x4}}
  %d = kaon.matmul %a, %a transpose_a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects a symmetric result to be square, but got 4x6}}
  %d = kaon.matmul %c, %a symmetric : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects beta and an addend together, but got beta only}}
  %d = "kaon.matmul"(%c, %c, %s) {operandSegmentSizes = array<i32: 1, 1, 0, 1, 0, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>, f64) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects beta and an addend together, but got an addend only}}
  %d = "kaon.matmul"(%c, %c, %c) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 1, 0, 0, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x6xf64>, %c: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects an addend of the result's type 'tensor<4x4xf32>', but got 'tensor<4x6xf32>'}}
  %d = kaon.matmul %c, %c beta %s %a : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // expected-error @below {{expects 3 positive sizes (m, n, k), but got [4, 6]}}
  %d = kaon.matmul %p, %q packed sizes [4, 6] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // expected-error @below {{expects 3 positive sizes (m, n, k), but got [4, 0, 6]}}
  %d = kaon.matmul %p, %q packed sizes [4, 0, 6] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // expected-error @below {{expects packed operands without transposition: kaon.pack transposes}}
  %d = kaon.matmul %p, %q transpose_b packed sizes [4, 4, 6] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // expected-error @below {{expects left slivers with room for 40 vectors of length 6, but got 1x96}}
  %d = kaon.matmul %p, %q packed sizes [40, 4, 6] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<40x4xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // expected-error @below {{expects right slivers with room for 400 vectors of length 6, but got 1x256}}
  %d = kaon.matmul %p, %q packed sizes [4, 400, 6] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x400xf32>
  return
}

// -----

func.func @f(%p: tensor<1x96xbf16>, %q: tensor<1x256xbf16>) {
  // expected-error @below {{expects packed operands of f32 or f64, but got 'bf16'}}
  %d = kaon.matmul %p, %q packed sizes [4, 4, 6] : (tensor<1x96xbf16>, tensor<1x256xbf16>) -> tensor<4x4xbf16>
  return
}

// -----

func.func @f(%a: tensor<4x6xbf16>) {
  // expected-error @below {{expects a result of 'bf16', but got 'f32'}}
  %d = kaon.matmul %a, %a transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xf32>
  return
}

// -----

// epilogues of products.

func.func @f(%c: tensor<4x4xbf16>, %s: f64) {
  // expected-error @below {{expects a parameter and scalars with an epilogue only}}
  %d = kaon.matmul %c, %c scalars(%s) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>) {
  // expected-error @below {{expects an epilogue to have a parameter}}
  %d = "kaon.matmul"(%c, %c) {epilogue = @e, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects the type of the result 'tensor<4x4xbf16>' for the parameter of the epilogue, but got 'tensor<4x4xf32>'}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return
}

// -----

func.func @f(%c: tensor<4x4xf32>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects operands of bf16 or f16 for a product with an epilogue, but got 'f32'}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects a product with an epilogue not to be symmetric: nothing mirrors the parameter}}
  %d = kaon.matmul %c, %c symmetric epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>, %s: f64) {
  // expected-error @below {{expects an addend of the product's type 'tensor<4x4xbf16>', but got 'tensor<4x4xf32>'}}
  %d = kaon.matmul %c, %c beta %s %w epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

// factors of products.

func.func @f(%c: tensor<4x4xf32>, %f: tensor<1x1xf32>) {
  // expected-error @below {{expects operands of bf16 or f16 for a product with a factor, but got 'f32'}}
  %d = kaon.matmul %c, %c factor %f : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>, %f: tensor<1x1xf64>) {
  // expected-error @below {{operand #2 must be tensor<1x1xf32>, but got 'tensor<1x1xf64>'}}
  %d = "kaon.matmul"(%c, %c, %f) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 1, 0, 0>} : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<1x1xf64>) -> tensor<4x4xbf16>
  return
}

// -----

func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{refers to @e, which is not a function}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

// expected-note @below {{the function has no kaon.kernel}}
func.func private @e(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xf32>
func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{refers to @e, which is not a kernel}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

func.func private @e(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %w : tensor<?x?xf32>
}
func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects an elementwise kernel as its epilogue, but @e has the schedule rows}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

func.func private @e(%w: tensor<?x?xf32>, %p: tensor<?x?xbf16>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %w : tensor<?x?xf32>
}
func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects operands of the epilogue #0 to match 'tensor<?x?xf32>' of @e, but got 'tensor<4x4xbf16>'}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

func.func private @e(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %p : tensor<?x?xbf16>
}
func.func @f(%c: tensor<4x4xbf16>, %w: tensor<4x4xf32>) {
  // expected-error @below {{expects results of the epilogue #0 to match 'tensor<?x?xbf16>' of @e, but got 'tensor<4x4xf32>'}}
  %d = kaon.matmul %c, %c epilogue @e(%w : tensor<4x4xf32>) : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// -----

// every.
func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{expects a period of at least 1, but got 0}}
  %r = kaon.every %step period 0 phase 0 -> tensor<4x6xf32> {
    kaon.yield %x : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{expects a phase in [0, 3), but got 3}}
  %r = kaon.every %step period 3 phase 3 -> tensor<4x6xf32> {
    kaon.yield %x : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{expects a phase in [0, 3), but got -1}}
  %r = kaon.every %step period 3 phase -1 -> tensor<4x6xf32> {
    kaon.yield %x : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{region branch point has 2 operands, but region successor needs 1 inputs}}
  %r = kaon.every %step period 3 phase 0 -> tensor<4x6xf32> {
    kaon.yield %x : tensor<4x6xf32>
  } else {
    // expected-note @below {{region branch point}}
    kaon.yield %x, %x : tensor<4x6xf32>, tensor<4x6xf32>
  }
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{successor operand type #0 'tensor<4x6xf32>' should match successor input type #0 'tensor<4x1xf32>'}}
  %r = kaon.every %step period 3 phase 0 -> tensor<4x1xf32> {
    // expected-note @below {{region branch point}}
    kaon.yield %x : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) {
  // expected-error @below {{expects regions without arguments, but got 1}}
  %r = "kaon.every"(%step) ({
  ^bb0(%y: f64):
    kaon.yield %x : tensor<4x6xf32>
  }, {
    kaon.yield %x : tensor<4x6xf32>
  }) {period = 2 : i64, phase = 0 : i64} : (i64) -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%step: i64, %x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // expected-error @below {{expects regions that end in kaon.yield}}
  %r = "kaon.every"(%step) ({
    "test.end"() : () -> ()
  }, {
    kaon.yield %x : tensor<4x6xf32>
  }) {period = 2 : i64, phase = 0 : i64} : (i64) -> tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects parent op to be one of 'kaon.every, kaon.kernel'}}
  kaon.yield %x : tensor<4x6xf32>
  return
}

// -----

// The product of the two sizes wraps.
func.func @f(%p: tensor<1x24xf32>, %q: tensor<1x24xf32>) {
  // expected-error @below {{expects left slivers with room for 1000000 vectors of length 4611686018427387904, but got 1x24}}
  %d = kaon.matmul %p, %q packed sizes [1000000, 1000000, 4611686018427387904] : (tensor<1x24xf32>, tensor<1x24xf32>) -> tensor<1000000x1000000xf32>
  return
}

// -----

func.func @f(%x: tensor<3000000x1xf32>) {
  // expected-error @below {{'kaon.matmul' op expects matrices of at most 1099511627776 elements, but got 3000000x3000000}}
  %d = kaon.matmul %x, %x transpose_b : (tensor<3000000x1xf32>, tensor<3000000x1xf32>) -> tensor<3000000x3000000xf32>
  return
}

// -----

func.func @f(%x: tensor<1x1xf32>) {
  // expected-error @below {{'kaon.broadcast' op expects matrices of at most 1099511627776 elements, but got 3000000x3000000}}
  %d = kaon.broadcast %x : tensor<1x1xf32> to tensor<3000000x3000000xf32>
  return
}
