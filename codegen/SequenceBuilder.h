//===-- SequenceBuilder.h - the launches of an update -----------*- C++ -*-===//
//
// Turns one planned update into a sequence of a step plan.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_SEQUENCEBUILDER_H
#define KAON_CODEGEN_SEQUENCEBUILDER_H

#include "codegen/LaunchPlan.h"
#include "codegen/ScalarBuilder.h"
#include "dialect/Kaon.h"

namespace kaon {

/// The place of a matrix in a plan, without where it lies: its sizes and
/// element type. Fails for what has no place.
mlir::FailureOr<runtime::Operand> convertMatrixType(mlir::Type type);

/// Walks one update once. Host scalars become instructions of the scalar
/// program, launches, packs, products and transpositions become launches, and
/// views of other values become nothing.
class SequenceBuilder {
public:
  /// Kernels are added to `plan`.
  SequenceBuilder(mlir::func::FuncOp update, runtime::StepPlan &plan)
      : update(update), plan(plan), layout(WorkspaceLayout::get(update)),
        scalars(sequence.program) {}

  /// Emits an error at the op that has no place in a plan.
  mlir::FailureOr<runtime::Sequence> build();

private:
  mlir::LogicalResult defineArguments();
  mlir::LogicalResult defineResults(mlir::Operation *op);
  mlir::LogicalResult translate(mlir::Operation *op);
  mlir::LogicalResult translateLaunch(LaunchOp op);
  mlir::LogicalResult translatePack(PackOp op);
  mlir::LogicalResult translateProduct(MatmulOp op);
  mlir::LogicalResult translateTranspose(TransposeOp op);
  mlir::LogicalResult addLaunch(mlir::Operation *op, mlir::ValueRange inputs,
                                llvm::ArrayRef<int32_t> registers,
                                int64_t flops);
  mlir::FailureOr<LaunchPlan> planLaunch(mlir::Operation *op, int64_t flops);
  int32_t getKernel(const runtime::KernelPlan &kernel);
  bool isCuda() const { return plan.target == runtime::Target::Cuda; }

  mlir::func::FuncOp update;
  runtime::StepPlan &plan;
  WorkspaceLayout layout;
  runtime::Sequence sequence;
  ScalarBuilder scalars;
  llvm::DenseMap<mlir::Value, runtime::Operand> places; // looked up only
};

} // namespace kaon

#endif // KAON_CODEGEN_SEQUENCEBUILDER_H
