//===-- EmitCuda.h - kernels as CUDA C++ text -------------------*- C++ -*-===//
//
// From a scheduled module to the kernels that it launches, and from a kernel's
// IR to the text that NVRTC compiles.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_EMITCUDA_H
#define KAON_CODEGEN_CUDA_EMITCUDA_H

#include "codegen/cuda/PrintKernel.h"
#include "mlir/IR/BuiltinOps.h"

#include <string>
#include <vector>

namespace kaon::cuda {

/// A kernel as IR: a module of its own, as `kaon-lower-to-kernel` takes it.
struct KernelModule {
  /// The name of its entry, and in a plan.
  std::string name;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

/// Every kernel that the updates of a module planned for CUDA launch, once
/// each, in the order of their first launches.
mlir::FailureOr<std::vector<KernelModule>>
collectKernels(mlir::ModuleOp module);

/// Lowers, prepares and prints the kernel of a module, which is changed.
mlir::LogicalResult emitCuda(mlir::ModuleOp module, llvm::raw_ostream &os,
                             const PrintOptions &options = {});

/// Registers the translation `--kaon-to-cuda`, of a module planned for CUDA or
/// of one kernel. Call it once per process.
void registerCudaTranslation();

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_EMITCUDA_H
