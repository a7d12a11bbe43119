//===-- Kaon.h - the kaon dialect -------------------------------*- C++ -*-===//
//
// Everything that users of the dialect include: ops, attributes, interfaces,
// registration and the helpers that know what an update function looks like.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAON_H
#define KAON_DIALECT_KAON_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include <array>

namespace kaon {
class BucketOp;
class ParameterOp;
class PhaseOp;

/// Bytes moved by an op that reads every tensor operand once and writes every
/// tensor result once; 64-bit and 32-bit host scalars count as nothing.
int64_t getMovedBytes(mlir::Operation *op);
} // namespace kaon

#include "dialect/KaonDialect.h.inc"
#include "dialect/KaonEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/KaonAttrs.h.inc"
#include "dialect/KaonInterfaces.h.inc"

#define GET_OP_CLASSES
#include "dialect/KaonOps.h.inc"

namespace kaon {

/// Registers this dialect and every upstream dialect that Kaon's IR uses at
/// some stage.
void registerAllDialects(mlir::DialectRegistry &registry);

/// The shape that reducing `shape` along `along` leaves.
llvm::SmallVector<int64_t, 2> getReducedShape(llvm::ArrayRef<int64_t> shape,
                                              Along along);

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

/// Whether `function` carries `kaon.update`.
bool isUpdate(mlir::func::FuncOp function);

/// The schedule of a function that is an outlined kernel, else none.
std::optional<Schedule> getKernelSchedule(mlir::func::FuncOp function);

/// The role of an argument, if it has one.
std::optional<Role> getArgumentRole(mlir::func::FuncOp function,
                                    unsigned index);

/// The user's name of an argument, empty if it has none.
llvm::StringRef getArgumentName(mlir::func::FuncOp function, unsigned index);

/// Indices of the arguments with a given role, in order.
llvm::SmallVector<unsigned> getArgumentsWithRole(mlir::func::FuncOp function,
                                                 Role role);

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

/// What executing something costs.
struct Cost {
  int64_t flops = 0;
  int64_t bytes = 0;

  Cost &operator+=(const Cost &other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
};

/// Cost of one op, nested ones included: what its CostModelOpInterface says, or
/// for elementwise upstream ops on tensors one operation per element. Both
/// regions of `kaon.every` are an alternative, of which the dearer counts.
Cost estimateCost(mlir::Operation *op);

/// Cost of a function's body.
Cost estimateCost(mlir::func::FuncOp function);

} // namespace kaon

#endif // KAON_DIALECT_KAON_H
