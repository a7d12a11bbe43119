//===-- PrintKernel.h - kernels as CUDA C++ ---------------------*- C++ -*-===//
//
// The printer of the `kernel` dialect. It decides nothing: the same module
// gives the same bytes.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_PRINTKERNEL_H
#define KAON_CODEGEN_CUDA_PRINTKERNEL_H

#include "mlir/IR/BuiltinOps.h"

namespace kaon::cuda {

/// Reports what a module still needs of `kaon-prepare-kernel` to be printed.
mlir::LogicalResult verifyPrintable(mlir::ModuleOp module);

struct PrintOptions {
  /// Whether `#line` directives lead back to the user's Python.
  bool lines = true;
};

/// Prints a module of the `kernel` dialect; reports one that is not prepared.
mlir::LogicalResult printKernel(mlir::ModuleOp module, llvm::raw_ostream &os,
                                const PrintOptions &options = {});

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_PRINTKERNEL_H
