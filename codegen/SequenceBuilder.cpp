//===-- SequenceBuilder.cpp - the launches of an update -------------------===//

#include "codegen/SequenceBuilder.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;

static bool isMatrix(Value value) {
  return isa<RankedTensorType>(value.getType());
}

FailureOr<runtime::Operand> kaon::convertMatrixType(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || tensor.getRank() != 2 || !tensor.hasStaticShape()) {
    return failure();
  }
  // Types have the runtime's keywords.
  std::string keyword;
  llvm::raw_string_ostream(keyword) << tensor.getElementType();
  std::optional<runtime::ElementType> element =
      runtime::parseElementType(keyword);
  if (!element) {
    return failure();
  }
  runtime::Operand place;
  place.rows = tensor.getDimSize(0);
  place.cols = tensor.getDimSize(1);
  place.type = *element;
  return place;
}

LogicalResult SequenceBuilder::defineArguments() {
  int32_t numStates = 0, numScalars = 0;
  for (BlockArgument argument : update.getArguments()) {
    std::optional<Role> role = getArgumentRole(update, argument.getArgNumber());
    if (!role) {
      return update.emitOpError()
             << "expects a role for argument #" << argument.getArgNumber()
             << ", but it has none";
    }
    if (role == Role::Scalar) {
      scalars.defineArgument(argument, numScalars++);
      continue;
    }
    if (role == Role::Step) {
      scalars.defineStep(argument);
      continue;
    }
    FailureOr<runtime::Operand> place = convertMatrixType(argument.getType());
    if (failed(place)) {
      return update.emitOpError()
             << "expects argument #" << argument.getArgNumber()
             << " to be a matrix of f16, bf16, f32 or f64 of known size, but "
                "got "
             << argument.getType();
    }
    place->kind = role == Role::Param  ? runtime::BufferKind::Param
                  : role == Role::Grad ? runtime::BufferKind::Grad
                                       : runtime::BufferKind::State;
    if (role == Role::State) {
      place->index = numStates++;
    }
    places[argument] = *place;
  }
  return success();
}

/// Notes where the results of `op` live.
LogicalResult SequenceBuilder::defineResults(Operation *op) {
  auto buffers =
      op->getAttrOfType<ArrayAttr>(KaonDialect::getBuffersAttrName());
  if (!buffers || buffers.size() != op->getNumResults()) {
    return op->emitOpError() << "expects " << op->getNumResults() << " "
                             << KaonDialect::getBuffersAttrName()
                             << ", but got " << (buffers ? buffers.size() : 0)
                             << "; kaon-plan-memory comes first";
  }
  for (auto [result, attribute] : llvm::zip_equal(op->getResults(), buffers)) {
    auto buffer = dyn_cast<BufferAttr>(attribute);
    FailureOr<runtime::Operand> place = convertMatrixType(result.getType());
    if (!buffer || failed(place)) {
      return op->emitOpError()
             << "expects result #" << cast<OpResult>(result).getResultNumber()
             << " to be a matrix of known size in a known buffer, but got "
             << result.getType() << " in " << attribute;
    }
    switch (buffer.getKind()) {
    case BufferKind::Workspace:
      place->kind = runtime::BufferKind::Workspace;
      place->offset = buffer.getOffset();
      place->pitch = layout.getPitch(cast<RankedTensorType>(result.getType()));
      break;
    case BufferKind::State:
      place->kind = runtime::BufferKind::State;
      place->index = static_cast<int32_t>(buffer.getOffset());
      break;
    case BufferKind::Param:
      place->kind = runtime::BufferKind::Param;
      break;
    }
    places[result] = *place;
  }
  return success();
}

int32_t SequenceBuilder::getKernel(const runtime::KernelPlan &kernel) {
  auto found = llvm::find(plan.kernels, kernel);
  if (found == plan.kernels.end()) {
    plan.kernels.push_back(kernel);
    return static_cast<int32_t>(plan.kernels.size()) - 1;
  }
  return static_cast<int32_t>(found - plan.kernels.begin());
}

FailureOr<LaunchPlan> SequenceBuilder::planLaunch(Operation *op,
                                                  int64_t flops) {
  return isCuda() ? cuda::planLaunch(op, flops) : cpu::planLaunch(op, flops);
}

LogicalResult SequenceBuilder::addLaunch(Operation *op, ValueRange inputs,
                                         ArrayRef<int32_t> registers,
                                         int64_t flops) {
  FailureOr<LaunchPlan> planned = planLaunch(op, flops);
  if (failed(planned) || failed(defineResults(op))) {
    return failure();
  }
  runtime::Launch launch;
  launch.numInputs = static_cast<int32_t>(inputs.size());
  for (Value input : inputs) {
    launch.operands.push_back(places.lookup(input));
  }
  for (Value result : op->getResults()) {
    launch.operands.push_back(places.lookup(result));
  }
  launch.scalars.assign(registers.begin(), registers.end());
  launch.sizes.assign(planned->sizes.begin(), planned->sizes.end());
  launch.items = planned->items;
  launch.grain = planned->grain;
  launch.flops = planned->work.flops;
  launch.bytes = planned->work.bytes;
  launch.sharedBytes = planned->sharedBytes;
  auto product = dyn_cast<MatmulOp>(op);
  launch.hasFactor = product && product.getFactor();
  planned->kernel.signature = runtime::Signature::of(launch);
  launch.kernel = getKernel(planned->kernel);
  sequence.launches.push_back(std::move(launch));
  return success();
}

LogicalResult SequenceBuilder::translateLaunch(LaunchOp op) {
  func::FuncOp kernel = kaon::getKernel(op);
  if (!kernel || !getKernelSchedule(kernel)) {
    return op.emitOpError() << "expects an outlined kernel, but '"
                            << op.getKernel() << "' is none";
  }
  SmallVector<int32_t> registers = llvm::map_to_vector(
      op.getScalars(), [&](Value value) { return scalars.lookup(value); });
  return addLaunch(op, op.getInputs(), registers,
                   countKernelFlops(kernel, getLaunchSizes(op)));
}

LogicalResult SequenceBuilder::translatePack(PackOp op) {
  return addLaunch(op, op.getInput(), {}, /*flops=*/0);
}

LogicalResult SequenceBuilder::translateProduct(MatmulOp op) {
  SmallVector<Value, 4> inputs{op.getLhs(), op.getRhs()};
  SmallVector<int32_t> registers{op.getAlpha() ? scalars.lookup(op.getAlpha())
                                               : scalars.getConstant(1.0)};
  if (op.getAddend()) {
    inputs.push_back(op.getAddend());
    registers.push_back(scalars.lookup(op.getBeta()));
  } else if (!isCuda()) {
    registers.push_back(scalars.getConstant(0.0));
  }
  if (op.getFactor()) {
    inputs.push_back(op.getFactor());
  }
  for (Value scalar : op.getScalars()) {
    registers.push_back(scalars.lookup(scalar));
  }
  return addLaunch(op, inputs, registers, countProductFlops(op));
}

LogicalResult SequenceBuilder::translateTranspose(TransposeOp op) {
  if (!op.isView()) {
    return addLaunch(op, op.getInput(), {}, /*flops=*/0);
  }
  runtime::Operand place = places.lookup(op.getInput());
  std::swap(place.rows, place.cols);
  if (place.kind == runtime::BufferKind::Workspace) {
    place.pitch = layout.getPitch(op.getResult().getType());
  }
  places[op.getResult()] = place;
  return success();
}

LogicalResult SequenceBuilder::translate(Operation *op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](LaunchOp launch) { return translateLaunch(launch); })
      .Case([&](PackOp pack) { return translatePack(pack); })
      .Case([&](MatmulOp product) { return translateProduct(product); })
      .Case(
          [&](TransposeOp transpose) { return translateTranspose(transpose); })
      .Case([&](func::ReturnOp) { return success(); })
      .Default([&](Operation *) -> LogicalResult {
        bool isHostScalar = op->getNumResults() == 1 &&
                            !isMatrix(op->getResult(0)) &&
                            op->getNumRegions() == 0 &&
                            llvm::none_of(op->getOperands(), isMatrix);
        if (!isHostScalar) {
          return op->emitOpError() << "has no place in a step plan: expects "
                                      "launches, packs, packed products, "
                                      "transpositions and host scalars";
        }
        return scalars.translate(op);
      });
}

FailureOr<runtime::Sequence> SequenceBuilder::build() {
  sequence.name = update.getName().str();
  auto workspace =
      update->getAttrOfType<IntegerAttr>(KaonDialect::getWorkspaceAttrName());
  if (!workspace || !update.getBody().hasOneBlock()) {
    return update.emitOpError()
           << "expects one block and " << KaonDialect::getWorkspaceAttrName()
           << "; kaon-plan-memory comes first";
  }
  sequence.workspaceBytes = llvm::alignTo(workspace.getInt(), layout.alignment);
  if (failed(defineArguments())) {
    return failure();
  }
  for (Operation &op : update.getBody().front()) {
    if (failed(translate(&op))) {
      return failure();
    }
  }
  // Whoever edits a planned module by hand may not be right about memory.
  if (failed(checkBuffers(update))) {
    return failure();
  }
  return std::move(sequence);
}
