// RUN: kaon-opt %s --split-input-file --verify-diagnostics --allow-unregistered-dialect

// What the verifiers of kernels refuse, and in which words.

// Shapes of kernels.
func.func @f(%x: tensor<4x6xf32>, %y: tensor<3x6xf32>) {
  // expected-error @below {{expects matrices of one shape, its rows, its columns or 1x1, but got 4x6 and 3x6}}
  %r = kaon.kernel rows ins(%x, %y : tensor<4x6xf32>, tensor<3x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<3x6xf32>):
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>, %y: tensor<4x1xf32>) {
  // expected-error @below {{expects elementwise operands of shape 4x6 or 1x1, but #1 is 4x1}}
  %r = kaon.kernel elementwise ins(%x, %y : tensor<4x6xf32>, tensor<4x1xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: tensor<4x1xf32>):
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects results of the rows schedule to span all of 4x6, but #0 is 1x6}}
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %b = arith.constant dense<0.0> : tensor<1x6xf32>
    kaon.yield %b : tensor<1x6xf32>
  } -> tensor<1x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects results of the elementwise schedule to span all of 4x6, but #0 is 1x1}}
  %r = kaon.kernel elementwise ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %b = arith.constant dense<0.0> : tensor<1x1xf32>
    kaon.yield %b : tensor<1x1xf32>
  } -> tensor<1x1xf32>
  return
}

// -----

// Bodies of kernels.
func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects block arguments #0 to be 'tensor<4x6xf32>', but got 'tensor<4x6xf64>'}}
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf64>):
    %b = arith.constant dense<0.0> : tensor<4x6xf32>
    kaon.yield %b : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects 1 block arguments, but got 2}}
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>, %b: f64):
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{expects 1 yielded values, but got 0}}
    kaon.yield
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects a body that ends in kaon.yield}}
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    "test.end"() : () -> ()
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %r = kaon.kernel elementwise ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{along row cannot be part of a kernel with the elementwise schedule}}
    %n = kaon.reduce sum %a along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{along column cannot be part of a kernel with the rows schedule}}
    %n = kaon.reduce sum %a along column : tensor<4x6xf32> -> tensor<1x6xf32>
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %r = kaon.kernel columns ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{along all cannot be part of a kernel with the columns schedule}}
    %n = kaon.reduce sum %a along all : tensor<4x6xf32> -> tensor<1x1xf32>
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{'kaon.norm' op cannot be part of a kernel}}
    %n = kaon.norm %a along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %a : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  // expected-note @below {{required by region isolation constraints}}
  %r = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{using value defined outside the region}}
    %b = arith.addf %a, %x : tensor<4x6xf32>
    kaon.yield %b : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}

// -----

// pack.
func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{expects a result of 'f32', but got 'f64'}}
  %p = kaon.pack lhs %x : tensor<4x6xf32> -> tensor<1x96xf64>
  return
}

// -----

func.func @f(%x: tensor<?x6xf32>) {
  // expected-error @below {{expects an operand of known sizes and at most 1099511627776 elements, but got ?x6}}
  %p = kaon.pack lhs %x : tensor<?x6xf32> -> tensor<1x96xf32>
  return
}

// -----

func.func @f(%x: tensor<20x6xf32>) {
  // expected-error @below {{expects slivers with room for 20 vectors of length 6, but got 1x96}}
  %p = kaon.pack lhs %x : tensor<20x6xf32> -> tensor<1x96xf32>
  return
}

// -----

func.func @f(%x: tensor<20x6xf32>) {
  // expected-error @below {{expects slivers with room for 6 vectors of length 20, but got 1x96}}
  %p = kaon.pack lhs %x transpose : tensor<20x6xf32> -> tensor<1x96xf32>
  return
}

// -----

func.func @f(%x: tensor<20x6xf32>) {
  // expected-error @below {{expects slivers with room for 20 vectors of length 6, but got 21x96}}
  %p = kaon.pack rhs %x transpose : tensor<20x6xf32> -> tensor<21x96xf32>
  return
}

// -----

// launch.

func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x1xf32>, %s: f64) {
  // expected-error @below {{refers to @nothing, which is not a function}}
  %r = kaon.launch @nothing ins(%x : tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

// expected-note @below {{the function has no kaon.kernel}}
func.func private @kernel(tensor<?x?xf32>) -> tensor<?x?xf32>

func.func @f(%x: tensor<4x6xf32>) {
  // expected-error @below {{refers to @kernel, which is not a kernel}}
  %r = kaon.launch @kernel ins(%x : tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func private @kernel(%a: tensor<?x?xf32>, %v: tensor<?x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %a : tensor<?x?xf32>
}

func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x1xf32>, %s: f64) {
  // expected-error @below {{expects 3 operands as @kernel has, but got 2}}
  %r = kaon.launch @kernel ins(%x, %v : tensor<4x6xf32>, tensor<4x1xf32>) -> tensor<4x6xf32>
  return
}

// -----

func.func private @kernel(%a: tensor<?x?xf32>, %v: tensor<?x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %a : tensor<?x?xf32>
}

func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x1xf32>, %s: f64) {
  // expected-error @below {{expects operands #1 to match 'tensor<?x1xf32>' of @kernel, but got 'tensor<4x6xf32>'}}
  %r = kaon.launch @kernel ins(%x, %x : tensor<4x6xf32>, tensor<4x6xf32>) scalars(%s : f64) -> tensor<4x6xf32>
  return
}

// -----

func.func private @kernel(%a: tensor<?x?xf32>, %v: tensor<?x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %a : tensor<?x?xf32>
}

func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x1xf32>, %s: f64) {
  // expected-error @below {{expects operands #1 to match 'tensor<?x1xf32>' of @kernel, but got 'f64'}}
  %r = kaon.launch @kernel ins(%x : tensor<4x6xf32>) scalars(%s, %s : f64, f64) -> tensor<4x6xf32>
  return
}

// -----

func.func private @kernel(%a: tensor<?x?xf32>, %v: tensor<?x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %a : tensor<?x?xf32>
}

func.func @f(%x: tensor<4x6xf32>, %v: tensor<4x1xf32>, %s: f64) {
  // expected-error @below {{expects results #0 to match 'tensor<?x?xf32>' of @kernel, but got 'tensor<4x6xf64>'}}
  %r = kaon.launch @kernel ins(%x, %v : tensor<4x6xf32>, tensor<4x1xf32>) scalars(%s : f64) -> tensor<4x6xf64>
  return
}

// -----

func.func @f(%x: tensor<4x6xf32>) {
  %y = kaon.kernel elementwise ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    // expected-error @below {{'test.op' op cannot be part of a kernel}}
    %b = "test.op"(%a) ({}) : (tensor<4x6xf32>) -> tensor<4x6xf32>
    kaon.yield %b : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return
}
