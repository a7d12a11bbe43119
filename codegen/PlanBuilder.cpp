//===-- PlanBuilder.cpp - from a planned module to a step plan ------------===//
//
// Parameters, phases and buckets of a program. SequenceBuilder.cpp translates
// the updates.
//
//===----------------------------------------------------------------------===//

#include "codegen/PlanBuilder.h"

#include "codegen/SequenceBuilder.h"
#include "dialect/Kaon.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace kaon;

namespace {
class PlanBuilder {
public:
  explicit PlanBuilder(ModuleOp module) : module(module), symbols(module) {}

  FailureOr<runtime::StepPlan> build();

private:
  LogicalResult addParameter(ParameterOp op);
  LogicalResult addPhase(PhaseOp op);
  FailureOr<runtime::Bucket> getBucket(BucketOp op);
  FailureOr<runtime::BucketGroup> getGroup(GroupOp op);
  FailureOr<int32_t> getSequence(BucketOp op);

  ModuleOp module;
  SymbolTable symbols;
  runtime::StepPlan plan;
  llvm::StringMap<int32_t> sequences;
  SmallVector<bool> isSetNamed;
};
} // namespace

LogicalResult PlanBuilder::addParameter(ParameterOp op) {
  auto update = symbols.lookup<func::FuncOp>(op.getUpdateAt(0).getValue());
  SmallVector<unsigned> params, grads;
  if (update) {
    params = getArgumentsWithRole(update, Role::Param);
    grads = getArgumentsWithRole(update, Role::Grad);
  }
  if (params.size() != 1 || grads.size() != 1) {
    return op.emitOpError()
           << "expects an update with one parameter and one gradient, but "
           << op.getUpdateAt(0).getValue() << " is none";
  }

  runtime::ParameterPlan parameter;
  parameter.name = op.getName().str();
  FailureOr<runtime::Operand> type =
      convertMatrixType(update.getArgument(params[0]).getType());
  FailureOr<runtime::Operand> gradType =
      convertMatrixType(update.getArgument(grads[0]).getType());
  if (failed(type) || failed(gradType)) {
    return op.emitOpError()
           << "expects matrices of known size, but '" << update.getName()
           << "' has " << update.getFunctionType();
  }
  parameter.rows = type->rows;
  parameter.cols = type->cols;
  parameter.paramType = type->type;
  parameter.gradType = gradType->type;
  for (unsigned index : getArgumentsWithRole(update, Role::State)) {
    FailureOr<runtime::Operand> stateType =
        convertMatrixType(update.getArgument(index).getType());
    if (failed(stateType)) {
      return op.emitOpError()
             << "expects states of known size, but argument #" << index
             << " of '" << update.getName() << "' has type "
             << update.getArgument(index).getType();
    }
    parameter.states.push_back({getArgumentName(update, index).str(),
                                stateType->rows, stateType->cols,
                                stateType->type});
  }

  runtime::ScalarSet set;
  for (unsigned index : getArgumentsWithRole(update, Role::Scalar)) {
    set.names.push_back(getArgumentName(update, index).str());
  }
  auto setIndex = static_cast<size_t>(op.getScalars());
  if (setIndex >= plan.scalarSets.size()) {
    plan.scalarSets.resize(setIndex + 1);
    isSetNamed.resize(setIndex + 1, false);
  }
  if (isSetNamed[setIndex] && plan.scalarSets[setIndex] != set) {
    return op.emitOpError() << "expects the scalar set " << setIndex
                            << " to have one list of names, but another update "
                               "that uses it has other scalars than '"
                            << update.getName() << "'";
  }
  isSetNamed[setIndex] = true;
  plan.scalarSets[setIndex] = std::move(set);
  parameter.scalarSet = static_cast<int32_t>(setIndex);
  plan.parameters.push_back(std::move(parameter));
  return success();
}

FailureOr<int32_t> PlanBuilder::getSequence(BucketOp op) {
  auto [found, isNew] = sequences.try_emplace(
      op.getUpdate(), static_cast<int32_t>(plan.sequences.size()));
  if (isNew) {
    auto update = symbols.lookup<func::FuncOp>(op.getUpdate());
    if (!update || !isUpdate(update)) {
      return op.emitOpError()
             << "expects an update, but '" << op.getUpdate() << "' is none";
    }
    FailureOr<runtime::Sequence> sequence =
        SequenceBuilder(update, plan).build();
    if (failed(sequence)) {
      return failure();
    }
    plan.sequences.push_back(std::move(*sequence));
  }
  return found->second;
}

FailureOr<runtime::Bucket> PlanBuilder::getBucket(BucketOp op) {
  FailureOr<int32_t> sequence = getSequence(op);
  if (failed(sequence)) {
    return failure();
  }
  runtime::Bucket bucket;
  bucket.sequence = *sequence;
  for (int64_t member : op.getParameters()) {
    bucket.members.push_back(static_cast<int32_t>(member));
  }
  bucket.concurrent = static_cast<int32_t>(op.getConcurrent());
  return bucket;
}

/// Workspaces of buckets that run in lock-step follow each other.
FailureOr<runtime::BucketGroup> PlanBuilder::getGroup(GroupOp op) {
  runtime::BucketGroup group;
  int64_t offset = 0;
  for (BucketOp bucketOp : op.getBuckets()) {
    FailureOr<runtime::Bucket> bucket = getBucket(bucketOp);
    if (failed(bucket)) {
      return failure();
    }
    bucket->workspaceOffset = offset;
    offset += plan.slotBytes(*bucket);
    group.buckets.push_back(std::move(*bucket));
  }
  SmallVector<int32_t> next(group.buckets.size(), 0);
  for (DenseI64ArrayAttr participants : op.getParticipants()) {
    std::vector<runtime::LaunchPart> &parts = group.launches.emplace_back();
    for (int64_t bucket : participants.asArrayRef()) {
      parts.push_back({static_cast<int32_t>(bucket), next[bucket]++});
    }
  }
  return group;
}

LogicalResult PlanBuilder::addPhase(PhaseOp op) {
  runtime::PhasePlan &phase = plan.phases[op.getResidue()];
  for (Operation &child : op.getBody().front()) {
    if (auto group = dyn_cast<GroupOp>(child)) {
      FailureOr<runtime::BucketGroup> added = getGroup(group);
      if (failed(added)) {
        return failure();
      }
      phase.push_back(std::move(*added));
      continue;
    }
    FailureOr<runtime::Bucket> bucket = getBucket(cast<BucketOp>(child));
    if (failed(bucket)) {
      return failure();
    }
    phase.push_back(plan.alone(std::move(*bucket)));
  }
  return success();
}

FailureOr<runtime::StepPlan> PlanBuilder::build() {
  auto programs = llvm::to_vector(module.getOps<ProgramOp>());
  if (programs.size() != 1) {
    return module.emitOpError()
           << "expects one kaon.program to make a step plan of, but got "
           << programs.size();
  }
  ProgramOp program = programs.front();
  if (getCudaTarget(module)) {
    plan.target = runtime::Target::Cuda;
  }
  for (ParameterOp parameter : program.getParameters()) {
    if (failed(addParameter(parameter))) {
      return failure();
    }
  }
  if (program.getPhases().empty() && !plan.parameters.empty()) {
    return program.emitOpError() << "expects phases with buckets, but has "
                                    "none; kaon-bucket comes first";
  }
  plan.phases.resize(program.getNumPhases());
  for (PhaseOp phase : program.getPhases()) {
    if (failed(addPhase(phase))) {
      return failure();
    }
  }
  plan.workspaceBytes = plan.requiredWorkspaceBytes();
  runtime::Status status = plan.validate();
  if (!status.ok()) {
    return program.emitOpError()
           << "makes a step plan that is not valid: " << status.message();
  }
  return std::move(plan);
}

FailureOr<runtime::StepPlan> kaon::buildStepPlan(ModuleOp module) {
  return PlanBuilder(module).build();
}
