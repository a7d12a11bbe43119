//===-- Passes.h - passes of CUDA code generation ---------------*- C++ -*-===//

#ifndef KAON_CODEGEN_CUDA_PASSES_H
#define KAON_CODEGEN_CUDA_PASSES_H

#include "mlir/Pass/Pass.h"

namespace kaon::cuda {

/// What a function of the `rows` schedule says of its kernel: threads of a
/// block, groups of columns whose kept values are in registers, and whether
/// rows are read again by every pass.
inline constexpr llvm::StringLiteral threadsAttrName = "kernel.threads";
inline constexpr llvm::StringLiteral registerGroupsAttrName =
    "kernel.register_groups";
inline constexpr llvm::StringLiteral streamingAttrName = "kernel.streaming";

/// What a function of the `elementwise` schedule says of a kernel whose result
/// lies over the argument that it keeps (findKeptArgument).
inline constexpr llvm::StringLiteral inPlaceAttrName = "kernel.in_place";

#define GEN_PASS_DECL
#include "codegen/cuda/Passes.h.inc"

/// Registers `kaon-lower-to-kernel` and `kaon-prepare-kernel`. Call it once per
/// process.
void registerCudaPasses();

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_PASSES_H
