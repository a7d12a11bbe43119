//===-- Kernel.h - the exit dialect of CUDA ---------------------*- C++ -*-===//
//
// Ops that are constructs of C++ and calls of the device library. Printing is
// codegen/cuda/PrintKernel.h's.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KERNEL_H
#define KAON_DIALECT_KERNEL_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace kaon::kernel {
class ClassOp;
class EntryOp;
} // namespace kaon::kernel

#include "dialect/KernelDialect.h.inc"
#include "dialect/KernelEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/KernelAttrs.h.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/KernelTypes.h.inc"

#define GET_OP_CLASSES
#include "dialect/KernelOps.h.inc"

namespace kaon::kernel {

/// The name of the class's constant that says how many values are kept.
inline constexpr llvm::StringLiteral keptConstantName = "kept";

/// Whether a type is one that numbers are stored in.
bool isStorageType(mlir::Type type);

/// The type of arithmetic on numbers that are stored as `type`: f64 for f64,
/// else f32.
mlir::Type getArithmeticType(mlir::Type type);

} // namespace kaon::kernel

#endif // KAON_DIALECT_KERNEL_H
