// Kernels that test/cuda/GeneratedTest.cpp runs as kaon-translate prints them.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// A step of Adam without bias correction, of a gradient that is divided by its
// norm.
func.func private @kernel_adam(
    %w: tensor<?x?xbf16>, %g: tensor<?x?xf16>, %m: tensor<?x?xf32>, %v: tensor<?x?xf32>, %norm: tensor<1x1xf64>,
    %beta1: f64, %beta2: f64, %lr: f64, %epsilon: f64)
    -> (tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %g32 = arith.extf %g : tensor<?x?xf16> to tensor<?x?xf32>
  %norm32 = arith.truncf %norm : tensor<1x1xf64> to tensor<1x1xf32>
  %norms = kaon.broadcast %norm32 : tensor<1x1xf32> to tensor<?x?xf32>
  %unit = arith.divf %g32, %norms : tensor<?x?xf32>
  %beta1_32 = arith.truncf %beta1 : f64 to f32
  %beta1s = tensor.splat %beta1_32[%rows, %cols] : tensor<?x?xf32>
  %beta2_32 = arith.truncf %beta2 : f64 to f32
  %beta2s = tensor.splat %beta2_32[%rows, %cols] : tensor<?x?xf32>
  %lr32 = arith.truncf %lr : f64 to f32
  %lrs = tensor.splat %lr32[%rows, %cols] : tensor<?x?xf32>
  %epsilon32 = arith.truncf %epsilon : f64 to f32
  %epsilons = tensor.splat %epsilon32[%rows, %cols] : tensor<?x?xf32>
  %m_old = arith.mulf %beta1s, %m : tensor<?x?xf32>
  %m1 = arith.addf %m_old, %unit : tensor<?x?xf32>
  %v_old = arith.mulf %beta2s, %v : tensor<?x?xf32>
  %square = arith.mulf %unit, %unit : tensor<?x?xf32>
  %v1 = arith.addf %v_old, %square : tensor<?x?xf32>
  %root = math.sqrt %v1 : tensor<?x?xf32>
  %bounded = arith.maximumf %root, %epsilons : tensor<?x?xf32>
  %ratio = arith.divf %m1, %bounded : tensor<?x?xf32>
  %change = arith.mulf %lrs, %ratio : tensor<?x?xf32>
  %next = arith.subf %w32, %change : tensor<?x?xf32>
  %w1 = arith.truncf %next : tensor<?x?xf32> to tensor<?x?xbf16>
  return %w1, %m1, %v1 : tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x?xf32>
}

// A row step by the Euclidean norm, with a rate per row.
func.func private @kernel_rows(
    %w: tensor<?x?xbf16>, %g: tensor<?x?xbf16>, %m: tensor<?x?xf32>, %rate: tensor<?x1xf32>, %mu: f64)
    -> (tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %g32 = arith.extf %g : tensor<?x?xbf16> to tensor<?x?xf32>
  %mu32 = arith.truncf %mu : f64 to f32
  %mus = tensor.splat %mu32[%rows, %cols] : tensor<?x?xf32>
  %old = arith.mulf %mus, %m : tensor<?x?xf32>
  %m1 = arith.addf %old, %g32 : tensor<?x?xf32>
  %wide = arith.extf %m1 : tensor<?x?xf32> to tensor<?x?xf64>
  %square = arith.mulf %wide, %wide : tensor<?x?xf64>
  %sum = kaon.reduce sum %square along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %norm = math.sqrt %sum : tensor<?x1xf64>
  %norms = kaon.broadcast %norm : tensor<?x1xf64> to tensor<?x?xf64>
  %unit = arith.divf %wide, %norms : tensor<?x?xf64>
  %unit32 = arith.truncf %unit : tensor<?x?xf64> to tensor<?x?xf32>
  %rates = kaon.broadcast %rate : tensor<?x1xf32> to tensor<?x?xf32>
  %change = arith.mulf %unit32, %rates : tensor<?x?xf32>
  %next = arith.subf %w32, %change : tensor<?x?xf32>
  %w1 = arith.truncf %next : tensor<?x?xf32> to tensor<?x?xbf16>
  return %w1, %m1, %norm : tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>
}

// Columns divided by their Euclidean norms after rows have been scaled.
func.func private @kernel_columns(%x: tensor<?x?xf32>, %factor: tensor<?x1xf32>)
    -> (tensor<?x?xf32>, tensor<1x?xf32>) attributes {kaon.kernel = #kaon.schedule<columns>} {
  %factors = kaon.broadcast %factor : tensor<?x1xf32> to tensor<?x?xf32>
  %scaled = arith.mulf %x, %factors : tensor<?x?xf32>
  %square = arith.mulf %scaled, %scaled : tensor<?x?xf32>
  %sum = kaon.reduce sum %square along column : tensor<?x?xf32> -> tensor<1x?xf32>
  %norm = math.sqrt %sum : tensor<1x?xf32>
  %norms = kaon.broadcast %norm : tensor<1x?xf32> to tensor<?x?xf32>
  %unit = arith.divf %scaled, %norms : tensor<?x?xf32>
  return %unit, %norm : tensor<?x?xf32>, tensor<1x?xf32>
}

// What the last product of an iteration makes of the parameter.
func.func private @kernel_apply(%o: tensor<?x?xbf16>, %w: tensor<?x?xf32>, %step: f64, %keep: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %o, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %o, %c1 : tensor<?x?xbf16>
  %o32 = arith.extf %o : tensor<?x?xbf16> to tensor<?x?xf32>
  %step32 = arith.truncf %step : f64 to f32
  %steps = tensor.splat %step32[%rows, %cols] : tensor<?x?xf32>
  %keep32 = arith.truncf %keep : f64 to f32
  %keeps = tensor.splat %keep32[%rows, %cols] : tensor<?x?xf32>
  %change = arith.mulf %steps, %o32 : tensor<?x?xf32>
  %kept = arith.mulf %keeps, %w : tensor<?x?xf32>
  %w1 = arith.subf %kept, %change : tensor<?x?xf32>
  return %w1 : tensor<?x?xf32>
}

// One launch of everything; of rows that fit into registers, that do not, and
// that do not fit on the chip.
func.func @launches(
    %w: tensor<3x40xbf16>, %g: tensor<3x40xf16>, %m: tensor<3x40xf32>, %norm: tensor<1x1xf64>,
    %w0: tensor<4x200xbf16>, %m0: tensor<4x200xf32>, %rate: tensor<4x1xf32>, %w1: tensor<4x600xbf16>, %m1: tensor<4x600xf32>,
    %w2: tensor<4x17000xbf16>, %m2: tensor<4x17000xf32>, %w3: tensor<4x70000xbf16>, %m3: tensor<4x70000xf32>,
    %x: tensor<40x70xbf16>, %p: tensor<40x70xf32>, %s: f64) -> tensor<40x70xf32> {
  %adam:3 = kaon.launch @kernel_adam ins(%w, %g, %m, %m, %norm
      : tensor<3x40xbf16>, tensor<3x40xf16>, tensor<3x40xf32>, tensor<3x40xf32>, tensor<1x1xf64>)
      scalars(%s, %s, %s, %s : f64, f64, f64, f64) -> tensor<3x40xbf16>, tensor<3x40xf32>, tensor<3x40xf32>
  %r0:3 = kaon.launch @kernel_rows ins(%w0, %w0, %m0, %rate
      : tensor<4x200xbf16>, tensor<4x200xbf16>, tensor<4x200xf32>, tensor<4x1xf32>) scalars(%s : f64)
      -> tensor<4x200xbf16>, tensor<4x200xf32>, tensor<4x1xf64>
  %r1:3 = kaon.launch @kernel_rows ins(%w1, %w1, %m1, %rate
      : tensor<4x600xbf16>, tensor<4x600xbf16>, tensor<4x600xf32>, tensor<4x1xf32>) scalars(%s : f64)
      -> tensor<4x600xbf16>, tensor<4x600xf32>, tensor<4x1xf64>
  %r2:3 = kaon.launch @kernel_rows ins(%w2, %w2, %m2, %rate
      : tensor<4x17000xbf16>, tensor<4x17000xbf16>, tensor<4x17000xf32>, tensor<4x1xf32>) scalars(%s : f64)
      -> tensor<4x17000xbf16>, tensor<4x17000xf32>, tensor<4x1xf64>
  %r3:3 = kaon.launch @kernel_rows ins(%w3, %w3, %m3, %rate
      : tensor<4x70000xbf16>, tensor<4x70000xbf16>, tensor<4x70000xf32>, tensor<4x1xf32>) scalars(%s : f64)
      -> tensor<4x70000xbf16>, tensor<4x70000xf32>, tensor<4x1xf64>
  %columns:2 = kaon.launch @kernel_columns ins(%m0, %rate : tensor<4x200xf32>, tensor<4x1xf32>)
      -> tensor<4x200xf32>, tensor<1x200xf32>
  %a = kaon.matmul %x, %x transpose_b symmetric : (tensor<40x70xbf16>, tensor<40x70xbf16>) -> tensor<40x40xbf16>
  %b = kaon.matmul %a, %a symmetric alpha %s beta %s %a
      : (tensor<40x40xbf16>, tensor<40x40xbf16>, tensor<40x40xbf16>) -> tensor<40x40xbf16>
  %p1 = kaon.matmul %b, %x beta %s %x epilogue @kernel_apply(%p : tensor<40x70xf32>) scalars(%s, %s)
      : (tensor<40x40xbf16>, tensor<40x70xbf16>, tensor<40x70xbf16>) -> tensor<40x70xf32>
  return %p1 : tensor<40x70xf32>
}

}
