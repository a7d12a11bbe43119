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
class GroupOp;
class ParameterOp;
class PhaseOp;

} // namespace kaon

#include "dialect/KaonDialect.h.inc"
#include "dialect/KaonEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/KaonAttrs.h.inc"

#define GET_OP_CLASSES
#include "dialect/KaonOps.h.inc"

namespace kaon {

/// Registers this dialect and every upstream dialect that Kaon's IR uses at
/// some stage.
void registerAllDialects(mlir::DialectRegistry &registry);

/// The shape that reducing `shape` along `along` leaves.
llvm::SmallVector<int64_t, 2> getReducedShape(llvm::ArrayRef<int64_t> shape,
                                              Along along);

/// Elements that a matrix may have at most: more than any memory holds, and few
/// enough that bytes and operations of a product never overflow.
inline constexpr int64_t maxMatrixElements = int64_t(1) << 40;

/// Whether a matrix has no more elements than that, as far as its sizes are
/// known.
bool hasBoundedSize(mlir::RankedTensorType type);

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

/// Shared memory that a block may have where nothing else is known: that of
/// sm_80.
inline constexpr int64_t defaultSharedBytes = 163 << 10;

/// The `kaon.cuda` of the module that an op is in, or is; null if it has none.
CudaTargetAttr getCudaTarget(mlir::Operation *op);

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

/// Whether `function` carries `kaon.update`.
bool isUpdate(mlir::func::FuncOp function);

/// The schedule of a function that is an outlined kernel, else none.
std::optional<Schedule> getKernelSchedule(mlir::func::FuncOp function);

/// The function that a launch runs; null if there is none.
mlir::func::FuncOp getKernel(LaunchOp op);

/// Largest sizes among the matrices of a launch: what its kernel runs over.
std::array<int64_t, 2> getLaunchSizes(LaunchOp op);

/// The role of an argument, if it has one.
std::optional<Role> getArgumentRole(mlir::func::FuncOp function,
                                    unsigned index);

/// The user's name of an argument, empty if it has none.
llvm::StringRef getArgumentName(mlir::func::FuncOp function, unsigned index);

/// Indices of the arguments with a given role, in order.
llvm::SmallVector<unsigned> getArgumentsWithRole(mlir::func::FuncOp function,
                                                 Role role);

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Bytes of a matrix of static shape, stored without gaps.
int64_t getMatrixBytes(mlir::RankedTensorType type);

/// How matrices lie in the workspace, which depends on the module's target.
struct WorkspaceLayout {
  /// Buffers start at multiples of this many bytes.
  int64_t alignment;
  /// Rows of 16-bit elements start at multiples of this many elements.
  int64_t halfPitchUnit;

  /// The layout of the module that an op is in.
  static WorkspaceLayout get(mlir::Operation *op);

  /// Elements from one row to the next.
  int64_t getPitch(mlir::RankedTensorType type) const;

  /// Bytes of a matrix of static shape.
  int64_t getBytes(mlir::RankedTensorType type) const;
};

/// Whether an op's result shares its operand's memory.
bool isView(mlir::Operation *op);

/// The value whose memory a value shares; itself if it is no view.
mlir::Value getViewed(mlir::Value value);

/// Whether an op may write a result over one of its operands, because it has
/// read each element before it writes it: a launch over an operand of the
/// result's type, a product over its addend, its epilogue over the parameter,
/// if no other operand lies there. On CUDA, a kernel that walks over a row
/// several times stores what it knows early: no later walk may load from there.
bool mayOverwrite(mlir::OpOperand &operand, mlir::OpResult result);

/// Where a result of a planned op lives; null for other values.
BufferAttr getBuffer(mlir::Value value);

/// An argument that the only result of an elementwise kernel equals while a
/// condition holds, which is the same for all elements.
struct KeptArgument {
  mlir::BlockArgument argument;
  mlir::Value condition;
};

/// The argument that a kernel keeps: its result is a select by a condition that
/// no matrix with more than one element takes part in, and the argument is what
/// it selects first. None if the kernel is not like that.
std::optional<KeptArgument> findKeptArgument(mlir::func::FuncOp kernel);

/// The same for a planned launch whose result lies over what its kernel keeps,
/// so that nothing is to be done while the condition holds.
std::optional<KeptArgument> findArgumentKeptInPlace(LaunchOp op);

/// An argument that an update replaces, and where it lives.
struct UpdateTarget {
  mlir::BlockArgument argument;
  BufferAttr buffer;
};

/// The parameter and the states, in the order in which an update returns them.
llvm::SmallVector<UpdateTarget> getUpdateTargets(mlir::func::FuncOp update);

/// Executes an update symbolically: every result fits into the memory that
/// `kaon.buffers` names, every operand is still in the memory it was written to
/// when it is read, and what is returned is where the update's targets live.
mlir::LogicalResult checkBuffers(mlir::func::FuncOp update);

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

/// Bytes moved by an op that reads every matrix among its operands once and
/// writes every matrix result once; unknown shapes count as nothing.
int64_t getMovedBytes(mlir::Operation *op);

/// Floating-point operations of a kernel whose shapes are erased, run over a
/// matrix of `sizes`. An addition, multiplication, division, root or comparison
/// is one, a fused multiply-add is two, a conversion is none.
int64_t countKernelFlops(mlir::func::FuncOp kernel,
                         llvm::ArrayRef<int64_t> sizes);

/// Floating-point operations of a product, its scaling, its sum and its
/// epilogue. A symmetric result counts the elements on and below the diagonal
/// only.
int64_t countProductFlops(MatmulOp product);

} // namespace kaon

#endif // KAON_DIALECT_KAON_H
