//===-- LibraryKernels.h - pack, matmul and transpose kernels ---*- C++ -*-===//
//
// The kernels that are the same in every program: packing of matrix operands,
// the packed register-tile product, and transposition.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_LIBRARYKERNELS_H
#define KAON_CODEGEN_CPU_LIBRARYKERNELS_H

#include "codegen/cpu/CpuTarget.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace kaon::cpu {

/// Builds a pack kernel: buffers {source, packed}, sizes {extent, k}, items =
/// slivers of the extent. With `transposed` the source holds the transpose of
/// the operand. Layout: PackedLayout.h.
void buildPackKernel(mlir::ModuleOp module, llvm::StringRef name,
                     const TileParameters &tile, mlir::FloatType element,
                     bool lhs, bool transposed);

/// Builds a product D = alpha * A * B [+ beta * C]: buffers {packed A, packed
/// B, [C,] D}, scalars {alpha, beta}, sizes {m, n, k}, items = block x block
/// tiles of D. D may be C.
///
/// Per element the sum over k runs in blocks of kc; within a block it is one
/// chain of fused multiply-adds from zero in ascending k, and the blocks are
/// added in order: D = alpha*s0 + (beta*C), then D = alpha*s1 + D, ... each one
/// fma. Hence the result depends on kc only, not on the register tile.
///
/// A `symmetric` product computes the register tiles that touch the lower
/// triangle and stores the strict lower triangle mirrored, so that D is exactly
/// symmetric; C is then taken to be symmetric.
void buildMatmulKernel(mlir::ModuleOp module, llvm::StringRef name,
                       const TileParameters &tile, mlir::FloatType element,
                       bool symmetric, bool add);

/// Builds a transposition: buffers {source, result}, sizes {rows, cols} of the
/// source, items = blocks of KAON_TRANSPOSE_BLOCK source rows.
void buildTransposeKernel(mlir::ModuleOp module, llvm::StringRef name,
                          mlir::FloatType element);

/// Builds the library kernel that the declaration `source` names in its
/// attribute `kaon.library`; the element is that of its first argument.
mlir::LogicalResult buildLibraryKernel(mlir::ModuleOp module,
                                       llvm::StringRef name,
                                       mlir::func::FuncOp source,
                                       const TileParameters &tile);

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_LIBRARYKERNELS_H
