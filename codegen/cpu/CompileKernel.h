//===-- CompileKernel.h - from kernels to object files ----------*- C++ -*-===//
//
// Lowers generated kernels to LLVM IR and compiles them to one relocatable
// object file. Equal inputs give equal bytes.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_COMPILEKERNEL_H
#define KAON_CODEGEN_CPU_COMPILEKERNEL_H

#include "codegen/cpu/CpuTarget.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

#include <optional>

namespace kaon::cpu {

struct CompileOptions {
  /// 0 to 3, as in `-O3`.
  unsigned optLevel = 3;
  /// Also return the optimized LLVM IR, the assembly.
  bool keepLLVMIR = false, keepAssembly = false;
};

struct CompiledKernel {
  std::string name;
  /// A relocatable object file.
  std::string object;
  double seconds = 0;
  std::optional<std::string> llvmIR, assembly;
};

/// Adds the passes that take a generated kernel (func, scf, arith, math, vector
/// and llvm operations) to the llvm dialect.
void addLowerToLLVMPasses(mlir::OpPassManager &pm);

/// Compiles the single kernel of `module`, which is consumed: an outlined
/// kernel, or the declaration of a library kernel. Problems are reported as
/// diagnostics.
mlir::FailureOr<CompiledKernel>
compileKernel(mlir::ModuleOp module, const CpuTarget &target,
              const CompileOptions &options = {});

/// Registers what translation to LLVM IR needs; for every context that
/// compiles.
void registerCpuTranslations(mlir::DialectRegistry &registry);

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_COMPILEKERNEL_H
