//===-- Passes.td - passes of CPU code generation ------------*- tablegen -*-===//

#ifndef KAON_CODEGEN_CPU_PASSES_TD
#define KAON_CODEGEN_CPU_PASSES_TD

include "mlir/Pass/PassBase.td"

def LowerKernels : Pass<"kaon-lower-kernels", "::mlir::ModuleOp"> {
  let summary = "Generate the code of kernels";
  let description = [{
    Replaces every outlined kernel (`kaon.kernel`) and every declaration of a
    library kernel (`kaon.library`) by a function with the kernel ABI
    (runtime/KernelAbi.h): loops over vectors, in `scf`, `arith`, `math`, `vector`
    and `llvm` on plain pointers. Library kernels for products take the register
    tile from the module's `kaon.cpu`.

    ```mlir
    func.func private @scale(%x: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
        attributes {kaon.kernel = #kaon.schedule<elementwise>} { ... }
    // becomes
    func.func @scale(%buffers: !llvm.ptr, %scalars: !llvm.ptr, %sizes: !llvm.ptr,
                     %begin: i64, %end: i64) { ... }
    ```

    Numeric class: reassociating. Sums run in the order that
    `buildFusedKernel` and `buildMatmulKernel` define; everything else is bitwise.
  }];
  let dependentDialects = [
    "::mlir::LLVM::LLVMDialect", "::mlir::arith::ArithDialect", "::mlir::math::MathDialect",
    "::mlir::scf::SCFDialect", "::mlir::vector::VectorDialect"
  ];
}

#endif // KAON_CODEGEN_CPU_PASSES_TD
