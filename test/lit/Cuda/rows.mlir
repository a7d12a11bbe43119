// RUN: split-file %s %t
// RUN: kaon-translate --kaon-to-cuda --line-directives=false %t/resident.mlir | FileCheck %s --check-prefixes=CHECK,RESIDENT
// RUN: kaon-translate --kaon-to-cuda --line-directives=false %t/streaming.mlir | FileCheck %s --check-prefixes=CHECK,STREAMING

// A row step, by its Euclidean norm. On chip, the first pass stores the momentum
// and keeps it, and the second reads what only it needs. Streaming, the second
// reads and computes again, and stores both.

// CHECK: #include "Rows.cuh"
// RESIDENT:      using List0 = Operands<Operand<bf16, Access::none>,
// RESIDENT-NEXT:                        Operand<bf16, Access::read>,
// RESIDENT-NEXT:                        Operand<float, Access::read>,
// RESIDENT-NEXT:                        Operand<float, Access::uniform>,
// RESIDENT-NEXT:                        Operand<bf16, Access::none>,
// RESIDENT-NEXT:                        Operand<float, Access::write>,
// RESIDENT-NEXT:                        Operand<double, Access::uniform>>;
// STREAMING:      using List0 = Operands<Operand<bf16, Access::none>,
// STREAMING-NEXT:                        Operand<bf16, Access::read>,
// STREAMING-NEXT:                        Operand<float, Access::read>,
// STREAMING-NEXT:                        Operand<float, Access::uniform>,
// STREAMING-NEXT:                        Operand<bf16, Access::none>,
// STREAMING-NEXT:                        Operand<float, Access::none>,
// STREAMING-NEXT:                        Operand<double, Access::uniform>>;
// CHECK-NEXT: using Reductions0 = Reductions<Sum>;
// RESIDENT:      using List1 = Operands<Operand<bf16, Access::read>,
// RESIDENT-NEXT:                        Operand<bf16, Access::none>,
// RESIDENT-NEXT:                        Operand<float, Access::none>,
// RESIDENT-NEXT:                        Operand<float, Access::uniform>,
// RESIDENT-NEXT:                        Operand<bf16, Access::write>,
// RESIDENT-NEXT:                        Operand<float, Access::none>,
// RESIDENT-NEXT:                        Operand<double, Access::uniform>>;
// STREAMING:      using List1 = Operands<Operand<bf16, Access::read>,
// STREAMING-NEXT:                        Operand<bf16, Access::read>,
// STREAMING-NEXT:                        Operand<float, Access::read>,
// STREAMING-NEXT:                        Operand<float, Access::uniform>,
// STREAMING-NEXT:                        Operand<bf16, Access::write>,
// STREAMING-NEXT:                        Operand<float, Access::write>,
// STREAMING-NEXT:                        Operand<double, Access::uniform>>;
// CHECK-NEXT: using Reductions1 = Reductions<>;
// CHECK-NEXT: using Passes = PassList<Pass<List0, Reductions0>, Pass<List1, Reductions1>>;
// RESIDENT-NEXT:  static constexpr int kept = 1;
// STREAMING-NEXT: static constexpr int kept = 0;

// CHECK:      KAON_DEVICE Step(const double *scalars, const Matrix<7> &matrix, i64 row) {
// CHECK-NEXT:   scale = loadOfRow<float>(matrix, 3, row);
// CHECK-NEXT:   mu = toFloatRn(scalars[0]);
// CHECK-NEXT: }

// CHECK:          KAON_DEVICE void pass(Index<0>, Element<List0> &element,
// RESIDENT-SAME:  Kept<kept> &onChip,
// STREAMING-SAME: Kept<kept> &,
// CHECK-NEXT:     Contributions<Reductions0> &contributions) {
// CHECK-NEXT:       float g = get<1>(element);
// CHECK-NEXT:       float m = addRn(mulRn(mu, get<2>(element)), g);
// CHECK-NEXT:       double wide = double(m);
// CHECK-NEXT:       get<0>(contributions) = mulRn(wide, wide);
// RESIDENT-NEXT:    get<5>(element) = m;
// RESIDENT-NEXT:    get<0>(onChip) = m;
// CHECK-NEXT:     }

// CHECK:      KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results) {
// CHECK-NEXT:   norm = sqrtRn(get<0>(results));
// CHECK-NEXT:   ofRow = divRn(1.0, norm);
// CHECK-NEXT: }

// RESIDENT:       KAON_DEVICE void pass(Index<1>, Element<List1> &element, Kept<kept> &onChip,
// RESIDENT-NEXT:                        Contributions<Reductions1> &) {
// RESIDENT-NEXT:    float w = get<0>(element);
// RESIDENT-NEXT:    float m = get<0>(onChip);
// RESIDENT-NEXT:    float product = mulRn(toFloatRn(mulRn(double(m), ofRow)), scale);
// STREAMING:      KAON_DEVICE void pass(Index<1>, Element<List1> &element, Kept<kept> &,
// STREAMING-NEXT:                       Contributions<Reductions1> &) {
// STREAMING-NEXT:   float w = get<0>(element);
// STREAMING-NEXT:   float g = get<1>(element);
// STREAMING-NEXT:   float m = addRn(mulRn(mu, get<2>(element)), g);
// STREAMING-NEXT:   float product = mulRn(toFloatRn(mulRn(double(m), ofRow)), scale);
// CHECK-NEXT:       get<4>(element) = subRn(w, product);
// STREAMING-NEXT:   get<5>(element) = m;
// CHECK-NEXT:     }

// CHECK:      KAON_DEVICE void finish(const Matrix<7> &matrix, i64 row) const {
// CHECK-NEXT:   storeOfRow<double>(matrix, 6, row, norm);
// CHECK-NEXT: }

// RESIDENT:  KAON_KERNEL(256, 2)
// RESIDENT:  runRows<Step, 256, 4>(matrices, blocks, scalars);
// STREAMING: KAON_KERNEL(512, 1)
// STREAMING: runRows<Step, 512, 1>(matrices, blocks, scalars);

//--- resident.mlir
func.func private @kernel_b(
    %w: tensor<?x?xbf16> loc("w"("a.py":1:1)), %g: tensor<?x?xbf16> loc("g"("a.py":1:1)),
    %m: tensor<?x?xf32> loc("m"("a.py":1:1)), %scale: tensor<?x1xf32> loc("scale"("a.py":1:1)),
    %mu: f64 loc("mu"("a.py":1:1))) -> (tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>)
    attributes {kaon.kernel = #kaon.schedule<rows>, kernel.threads = 256, kernel.register_groups = 4} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %one = arith.constant 1.0 : f64
  %ones = tensor.splat %one[%rows] : tensor<?x1xf64>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %g32 = arith.extf %g : tensor<?x?xbf16> to tensor<?x?xf32>
  %mu32 = arith.truncf %mu : f64 to f32
  %mus = tensor.splat %mu32[%rows, %cols] : tensor<?x?xf32>
  %old = arith.mulf %mus, %m : tensor<?x?xf32> loc("m"("a.py":2:1))
  %m1 = arith.addf %old, %g32 : tensor<?x?xf32> loc("m"("a.py":2:1))
  %wide = arith.extf %m1 : tensor<?x?xf32> to tensor<?x?xf64>
  %square = arith.mulf %wide, %wide : tensor<?x?xf64>
  %sum = kaon.reduce sum %square along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %norm = math.sqrt %sum : tensor<?x1xf64> loc("norm"("a.py":3:1))
  %inverse = arith.divf %ones, %norm : tensor<?x1xf64>
  %inverses = kaon.broadcast %inverse : tensor<?x1xf64> to tensor<?x?xf64>
  %u = arith.mulf %wide, %inverses : tensor<?x?xf64>
  %u32 = arith.truncf %u : tensor<?x?xf64> to tensor<?x?xf32>
  %scales = kaon.broadcast %scale : tensor<?x1xf32> to tensor<?x?xf32>
  %step = arith.mulf %u32, %scales : tensor<?x?xf32>
  %w1 = arith.subf %w32, %step : tensor<?x?xf32>
  %r = arith.truncf %w1 : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r, %m1, %norm : tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>
}

//--- streaming.mlir
func.func private @kernel_b(
    %w: tensor<?x?xbf16> loc("w"("a.py":1:1)), %g: tensor<?x?xbf16> loc("g"("a.py":1:1)),
    %m: tensor<?x?xf32> loc("m"("a.py":1:1)), %scale: tensor<?x1xf32> loc("scale"("a.py":1:1)),
    %mu: f64 loc("mu"("a.py":1:1))) -> (tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>)
    attributes {kaon.kernel = #kaon.schedule<rows>, kernel.threads = 512, kernel.register_groups = 1, kernel.streaming} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %one = arith.constant 1.0 : f64
  %ones = tensor.splat %one[%rows] : tensor<?x1xf64>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %g32 = arith.extf %g : tensor<?x?xbf16> to tensor<?x?xf32>
  %mu32 = arith.truncf %mu : f64 to f32
  %mus = tensor.splat %mu32[%rows, %cols] : tensor<?x?xf32>
  %old = arith.mulf %mus, %m : tensor<?x?xf32> loc("m"("a.py":2:1))
  %m1 = arith.addf %old, %g32 : tensor<?x?xf32> loc("m"("a.py":2:1))
  %wide = arith.extf %m1 : tensor<?x?xf32> to tensor<?x?xf64>
  %square = arith.mulf %wide, %wide : tensor<?x?xf64>
  %sum = kaon.reduce sum %square along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %norm = math.sqrt %sum : tensor<?x1xf64> loc("norm"("a.py":3:1))
  %inverse = arith.divf %ones, %norm : tensor<?x1xf64>
  %inverses = kaon.broadcast %inverse : tensor<?x1xf64> to tensor<?x?xf64>
  %u = arith.mulf %wide, %inverses : tensor<?x?xf64>
  %u32 = arith.truncf %u : tensor<?x?xf64> to tensor<?x?xf32>
  %scales = kaon.broadcast %scale : tensor<?x1xf32> to tensor<?x?xf32>
  %step = arith.mulf %u32, %scales : tensor<?x?xf32>
  %w1 = arith.subf %w32, %step : tensor<?x?xf32>
  %r = arith.truncf %w1 : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r, %m1, %norm : tensor<?x?xbf16>, tensor<?x?xf32>, tensor<?x1xf64>
}
