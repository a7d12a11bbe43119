//===-- Passes.h - passes of CPU code generation ----------------*- C++ -*-===//

#ifndef KAON_CODEGEN_CPU_PASSES_H
#define KAON_CODEGEN_CPU_PASSES_H

#include "mlir/Pass/Pass.h"

namespace kaon::cpu {

#define GEN_PASS_DECL
#include "codegen/cpu/Passes.h.inc"

/// Registers `kaon-lower-kernels` and the pipeline `kaon-kernels-to-llvm`,
/// which goes on to the llvm dialect. Call it once per process.
void registerCpuPasses();

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_PASSES_H
