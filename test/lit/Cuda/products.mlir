// RUN: split-file %s %t
// RUN: kaon-translate --kaon-to-cuda %t/store.mlir | FileCheck %s --check-prefix=STORE
// RUN: kaon-translate --kaon-to-cuda --line-directives=false %t/apply.mlir | FileCheck %s --check-prefix=APPLY
// RUN: kaon-translate --kaon-to-cuda %t/warpgroups.mlir | FileCheck %s --check-prefix=WARPGROUPS
// RUN: kaon-translate --kaon-to-cuda %t/transpose.mlir | FileCheck %s --check-prefix=TRANSPOSE

// Which dimension of an operand is contiguous follows from whether it is
// transposed.
// STORE:      #include "Gemm.cuh"
// STORE:      namespace {
// STORE-EMPTY:
// STORE-NEXT: using Loop = TileProduct<f16, Contiguous::extent, Contiguous::extent>;
// STORE-NEXT: using Epilogue = StoreTile<f16, true, Addend::matrix>;
// STORE-EMPTY:
// STORE-NEXT: } // namespace
// STORE-EMPTY:
// STORE-NEXT: KAON_KERNEL(256, 2)
// STORE-NEXT: product(const ProductList list, const double *scalars) {
// STORE-NEXT:   runGemm<Loop, Epilogue>(list, scalars);
// STORE-NEXT: }

// The target says which main loop products have whose operands are in the
// workspace; a warp more copies for it. Others have the one of all.
// WARPGROUPS:      // matmul_bf16.cu
// WARPGROUPS:      using Loop = TileProduct<bf16, Contiguous::depth, Contiguous::extent>;
// WARPGROUPS:      // matmul_wgmma_bf16.cu
// WARPGROUPS:      #include "Gemm.cuh"
// WARPGROUPS-NEXT: #include "WarpgroupProduct.cuh"
// WARPGROUPS:      using Loop = WarpgroupProduct<bf16, Contiguous::depth, Contiguous::extent>;
// WARPGROUPS-NEXT: using Epilogue = StoreTile<bf16, false, Addend::none>;
// WARPGROUPS:      KAON_KERNEL(288, 2)
// WARPGROUPS-NEXT: matmul_wgmma_bf16(const ProductList list, const double *scalars) {
// WARPGROUPS-NEXT:   runGemm<Loop, Epilogue>(list, scalars);

// An epilogue is handed the product before it is rounded, and narrows nothing
// itself: that is the store's.
// APPLY:      class Update {
// APPLY-NEXT: public:
// APPLY-NEXT:   KAON_DEVICE Update(const double *scalars) {
// APPLY-NEXT:     scalar0 = toFloatRn(scalars[0]);
// APPLY-NEXT:   }
// APPLY-EMPTY:
// APPLY-NEXT:   KAON_DEVICE float operator()(float parameter, float product) const {
// APPLY-NEXT:     return subRn(parameter, mulRn(scalar0, product));
// APPLY-NEXT:   }
// APPLY-EMPTY:
// APPLY-NEXT: private:
// APPLY-NEXT:   float scalar0;
// APPLY-NEXT: };
// APPLY-EMPTY:
// APPLY-NEXT: using Loop = TileProduct<bf16, Contiguous::depth, Contiguous::depth>;
// APPLY-NEXT: using Epilogue = ApplyTile<bf16, bf16, Addend::none, Update>;

// TRANSPOSE:      #include "Transpose.cuh"
// TRANSPOSE-NOT:  namespace {
// TRANSPOSE:      KAON_KERNEL(256, 4)
// TRANSPOSE-NEXT: turn(const Matrix<2> *matrices, const Block *blocks, const double *) {
// TRANSPOSE-NEXT:   runTranspose<double>(matrices, blocks);
// TRANSPOSE-NEXT: }

//--- store.mlir
func.func private @product(%a: tensor<?x?xf16>, %b: tensor<?x?xf16>, %alpha: f64, %beta: f64,
                           %c: tensor<?x?xf16>) -> tensor<?x?xf16> {
  %0 = kaon.matmul %a, %b transpose_a symmetric alpha %alpha beta %beta %c
      : (tensor<?x?xf16>, tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  return %0 : tensor<?x?xf16>
}
//--- warpgroups.mlir
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 232448, main_loop = wgmma>} {
  func.func @update(%x: tensor<40x40xbf16>) -> tensor<40x40xbf16> {
    %0 = kaon.matmul %x, %x {kaon.buffers = [#kaon.buffer<workspace, 0>]}
        : (tensor<40x40xbf16>, tensor<40x40xbf16>) -> tensor<40x40xbf16>
    %1 = kaon.matmul %0, %0 {kaon.buffers = [#kaon.buffer<workspace, 4096>]}
        : (tensor<40x40xbf16>, tensor<40x40xbf16>) -> tensor<40x40xbf16>
    return %1 : tensor<40x40xbf16>
  }
}
//--- apply.mlir
func.func private @product(%a: tensor<?x?xbf16>, %b: tensor<?x?xbf16>, %w: tensor<?x?xbf16>,
                           %s: f64) -> tensor<?x?xbf16> {
  %0 = kaon.matmul %a, %b transpose_b epilogue @update(%w : tensor<?x?xbf16>) scalars(%s)
      : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @update(%p: tensor<?x?xbf16>, %w: tensor<?x?xbf16>, %s: f64) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = tensor.dim %w, %c0 : tensor<?x?xbf16>
  %cols = tensor.dim %w, %c1 : tensor<?x?xbf16>
  %p32 = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  %w32 = arith.extf %w : tensor<?x?xbf16> to tensor<?x?xf32>
  %s32 = arith.truncf %s : f64 to f32
  %ss = tensor.splat %s32[%rows, %cols] : tensor<?x?xf32>
  %step = arith.mulf %ss, %p32 : tensor<?x?xf32>
  %w1 = arith.subf %w32, %step : tensor<?x?xf32>
  %r = arith.truncf %w1 : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r : tensor<?x?xbf16>
}
//--- transpose.mlir
func.func private @turn(%a: tensor<?x?xf64>) -> tensor<?x?xf64> {
  %0 = kaon.transpose %a : tensor<?x?xf64> -> tensor<?x?xf64>
  return %0 : tensor<?x?xf64>
}
