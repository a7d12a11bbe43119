//===-- FusedKernels.h - elementwise, row and column kernels ----*- C++ -*-===//
//
// Code for outlined kernels: functions on shape-erased tensors that carry
// `kaon.kernel`.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_FUSEDKERNELS_H
#define KAON_CODEGEN_CPU_FUSEDKERNELS_H

#include "dialect/Kaon.h"

namespace kaon::cpu {

/// Builds the kernel `name` that executes `source`.
///
/// The body becomes loops over vectors with explicit, masked tails. Each
/// reduction ends one pass over the row (or the block of columns); a later pass
/// computes anew, from operands that are in cache by then, what it needs of an
/// earlier one. Results are stored in the last pass, each vector after all
/// loads of the same place: hence any result may overwrite any operand of the
/// same shape. A result from which a later pass can go on without one of the
/// operands is stored as soon as it is known, unless the kernel finds it in the
/// memory of an operand that is still to be read.
///
/// A sum along a row is kept in 16 lanes of f64, column c in lane c mod 16, and
/// the lanes are added as a fixed tree; a sum along a column runs in f64 over
/// ascending rows. Neither depends on the processor.
mlir::LogicalResult buildFusedKernel(mlir::ModuleOp module,
                                     llvm::StringRef name,
                                     mlir::func::FuncOp source,
                                     Schedule schedule);

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_FUSEDKERNELS_H
