// RUN: kaon-opt %s --split-input-file --verify-diagnostics --allow-unregistered-dialect

// What the verifiers of updates, kernel functions and attributes refuse, and in which words.

// Arguments of updates.
// expected-error @below {{argument #1 of an update expects a kaon.role}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32>,
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a grad after a step, but the order is param, grad, state, scalar, step}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %step: i64 {kaon.role = #kaon.role<step>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a second grad, but an update has one}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %h: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{is an update and expects a grad argument, but has none}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{is an update and expects a step argument, but has none}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{is an update and expects a param argument, but has none}}
func.func @u(%g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %g : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #1 expects a name of its own, but "w" is taken}}
func.func @u(%w: tensor<4x6xf32> {kaon.name = "w", kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.name = "w", kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a scalar and expects f64, but got 'f32'}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %lr: f32 {kaon.role = #kaon.role<scalar>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a step and expects i64, but got 'f64'}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: f64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #0 is a param and expects a matrix of known sizes, but got 'tensor<?x6xf32>'}}
func.func @u(%w: tensor<?x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<?x6xf32> attributes {kaon.update} {
  return %w : tensor<?x6xf32>
}

// -----

// expected-error @below {{argument #1 is a grad and expects a matrix of known sizes, but got 'tensor<4x6xi8>'}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xi8> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #1 is a gradient and expects the shape of the parameter, 4x6, but got 6x4}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<6x4xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a state and expects the shape of the parameter, 4x6, or one value per row, per column or in all, but got 6x4}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<6x4xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 is a state and expects the compute type 'f32', but got 'bf16'}}
func.func @u(%w: tensor<4x6xbf16> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xbf16> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xbf16> attributes {kaon.update} {
  return %w : tensor<4x6xbf16>
}

// -----

// expected-error @below {{argument #2 is a state and expects the compute type 'f64', but got 'f32'}}
func.func @u(%w: tensor<4x6xf64> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf64> attributes {kaon.update} {
  return %w : tensor<4x6xf64>
}

// -----

// Results of updates.
// expected-error @below {{is an update and expects 2 results, but got 1}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{is an update and expects results #1 to be 'tensor<4x6xf32>', but got 'i64'}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, i64) attributes {kaon.update} {
  return %w, %step : tensor<4x6xf32>, i64
}

// -----

// Attributes of arguments.
// expected-error @below {{argument #0 expects kaon.role to be a #kaon.role, but got "param"}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = "param"},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #0 expects kaon.name to be a string that is not empty, but got ""}}
func.func @u(%w: tensor<4x6xf32> {kaon.name = "", kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #0 has kaon.init, which only states have}}
func.func @u(%w: tensor<4x6xf32> {kaon.init = 0.0 : f64, kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #2 expects kaon.init to be an f64, but got 0.000000e+00 : f32}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.init = 0.0 : f32, kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  return %w, %m : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #0 has unknown attribute kaon.rule}}
func.func @u(%w: tensor<4x6xf32> {kaon.rule = 1, kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{argument #0 has kaon.role, which only arguments of an update can have}}
func.func private @f(f64 {kaon.role = #kaon.role<scalar>})

// -----

// Attributes of functions, modules and ops.
// expected-error @below {{has kaon.update, but is not a function}}
module attributes {kaon.update} {
}

// -----

// expected-error @below {{expects kaon.update to be a unit attribute, but got true}}
func.func private @f() attributes {kaon.update = true}

// -----

// expected-error @below {{has kaon.kernel, but is not a function}}
module attributes {kaon.kernel = #kaon.schedule<rows>} {
}

// -----

// expected-error @below {{expects kaon.kernel to be a #kaon.schedule, but got "rows"}}
func.func private @f() attributes {kaon.kernel = "rows"}

// -----

// expected-error @below {{has kaon.workspace, but is not an update}}
func.func private @f() attributes {kaon.workspace = 64 : i64}

// -----

// expected-error @below {{expects kaon.workspace to be a non-negative i64, but got -64}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = -64 : i64} {
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{has kaon.cpu, but is not a module}}
func.func private @f() attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>}

// -----

// expected-error @below {{expects kaon.cpu to be a #kaon.cpu_target, but got 1}}
module attributes {kaon.cpu = 1} {
}

// -----

// expected-error @below {{has kaon.cuda, but is not a module}}
func.func private @f() attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>}

// -----

// expected-error @below {{expects kaon.cuda to be a #kaon.cuda_target, but got 1}}
module attributes {kaon.cuda = 1} {
}

// -----

// expected-error @below {{expects one target, but has both kaon.cpu and kaon.cuda}}
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>,
                   kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
}

// -----

// expected-error @below {{expects shared_bytes of at least 232448 for main_loop = wgmma, but got 166912}}
module attributes {test.a = #kaon.cuda_target<half = bf16, shared_bytes = 166912, main_loop = wgmma>} {
}

// -----

// expected-error @below {{expects shared_bytes to be from 49152 to 1048576, but got 49151}}
module attributes {test.a = #kaon.cuda_target<half = f16, shared_bytes = 49151>} {
}

// -----

// expected-error @below {{has unknown attribute kaon.rule}}
module attributes {kaon.rule} {
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  // expected-error @below {{expects kaon.buffers to be an array of #kaon.buffer, but got [1]}}
  %x = arith.addf %w, %g {kaon.buffers = [1]} : tensor<4x6xf32>
  return %w, %x : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  // expected-error @below {{expects one buffer for each of the 1 results, but got 2}}
  %x = arith.addf %w, %g {kaon.buffers = [#kaon.buffer<param, 0>, #kaon.buffer<param, 0>]} : tensor<4x6xf32>
  return %w, %x : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// Kernel functions.
// expected-error @below {{is a kernel and expects matrices, then f64 scalars, but argument #1 is 'i64'}}
func.func @f(%x: tensor<?x?xf32>, %n: i64) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %x : tensor<?x?xf32>
}

// -----

// expected-error @below {{is a kernel and expects matrices, then f64 scalars, but argument #1 is 'tensor<?x?xf32>'}}
func.func @f(%s: f64, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %x : tensor<?x?xf32>
}

// -----

// expected-error @below {{is a kernel and expects matrices as results, but #0 is 'f64'}}
func.func @f(%s: f64) -> f64 attributes {kaon.kernel = #kaon.schedule<rows>} {
  return %s : f64
}

// -----

// expected-error @below {{is a kernel and expects 1 block, but has 0}}
func.func private @f(tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>}

// -----

func.func @f(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  // expected-error @below {{along column cannot be part of a kernel with the rows schedule}}
  %n = kaon.reduce sum %x along column : tensor<?x?xf32> -> tensor<1x?xf32>
  return %x : tensor<?x?xf32>
}

// -----

// expected-error @below {{expects elementwise operands of shape ?x? or 1x1, but #1 is ?x1}}
func.func @f(%x: tensor<?x?xf32>, %v: tensor<?x1xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xf32>
}

// -----

// Parameters of attributes.
// expected-error @below {{expects a non-negative offset, but got -1}}
module attributes {test.a = #kaon.buffer<workspace, -1>} {
}

// -----

// expected-error @below {{expects a non-negative index, but got -1}}
module attributes {test.a = #kaon.buffer<state, -1>} {
}

// -----

// expected-error @below {{expects index 0 of the only parameter, but got 2}}
module attributes {test.a = #kaon.buffer<param, 2>} {
}

// -----

// expected-error @below {{expects mr to be from 4 to 64, but got 0}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 512, mr = 0, nr = 32, kc = 256, block = 192>} {
}

// -----

// expected-error @below {{expects vector_bits to be 64, 128, 256 or 512, but got 100}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 100, mr = 6, nr = 16, kc = 256, block = 192>} {
}

// -----

// expected-error @below {{expects nr to be a multiple of the 16 f32 lanes of a vector, but got 24}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 512, mr = 6, nr = 24, kc = 256, block = 192>} {
}

// -----

// expected-error @below {{expects block to be a multiple of mr (12) and nr (32), but got 100}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 100>} {
}

// -----

// expected-error @below {{expects nr to be a multiple of 8 from 8 to 256, but got 4}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 128, mr = 4, nr = 4, kc = 256, block = 192>} {
}

// -----

// expected-error @below {{expects kc to be a multiple of 4 from 4 to 1048576, but got 6}}
module attributes {test.a = #kaon.cpu_target<vector_bits = 128, mr = 4, nr = 8, kc = 6, block = 192>} {
}

// -----

// Passes look at the body of every update.
// expected-error @below {{is an update and expects 1 block, but has 0}}
func.func private @u(tensor<4x6xf32> {kaon.role = #kaon.role<param>}, tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                     i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update}

// -----

// expected-error @below {{is an update and expects 1 block, but has 2}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  "test.branch"()[^bb1] : () -> ()
^bb1:
  return %w : tensor<4x6xf32>
}

// -----

// expected-error @below {{is an update and expects a body that ends in func.return}}
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  "test.end"() : () -> ()
}

// -----

// Bytes and operations of larger ones could not be counted.
// expected-error @below {{argument #0 expects matrices of at most 1099511627776 elements, but got 3037000500x3037000500}}
func.func @u(%w: tensor<3037000500x3037000500xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<3037000500x3037000500xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<3037000500x3037000500xf32> attributes {kaon.update} {
  return %w : tensor<3037000500x3037000500xf32>
}

// -----

// The number of elements would wrap to zero.
// expected-error @below {{argument #0 expects matrices of at most 1099511627776 elements, but got 4294967296x4294967296}}
func.func @u(%w: tensor<4294967296x4294967296xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4294967296x4294967296xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4294967296x4294967296xf32> attributes {kaon.update} {
  return %w : tensor<4294967296x4294967296xf32>
}
