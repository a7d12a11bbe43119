//===-- KaonBuffers.cpp - where values live -------------------------------===//
//
// What planned IR means: which ops share or overwrite memory, and a symbolic
// execution that tells whether the buffers of an update are right.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "dialect/RowPasses.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Support/MathExtras.h"

#include <limits>

using namespace mlir;
using namespace kaon;

static bool isMatrix(Value value) {
  return isa<RankedTensorType>(value.getType());
}

//===----------------------------------------------------------------------===//
// Layout of the workspace
//===----------------------------------------------------------------------===//

static bool isHalf(RankedTensorType type) {
  return type.getElementTypeBitWidth() == 16;
}

WorkspaceLayout WorkspaceLayout::get(Operation *op) {
  if (getCudaTarget(op)) {
    // What a GPU loads in one go, and the pieces that products copy rows in.
    return {/*alignment=*/256, /*halfPitchUnit=*/8};
  }
  // One cache line.
  return {/*alignment=*/64, /*halfPitchUnit=*/1};
}

int64_t WorkspaceLayout::getPitch(RankedTensorType type) const {
  int64_t columns = type.getDimSize(1);
  return isHalf(type) ? llvm::alignTo(columns, halfPitchUnit) : columns;
}

int64_t WorkspaceLayout::getBytes(RankedTensorType type) const {
  return type.getDimSize(0) * getPitch(type) *
         (type.getElementTypeBitWidth() / 8);
}

//===----------------------------------------------------------------------===//
// Memory of single ops
//===----------------------------------------------------------------------===//

bool kaon::isView(Operation *op) {
  auto transpose = dyn_cast_or_null<TransposeOp>(op);
  return transpose && transpose.isView();
}

Value kaon::getViewed(Value value) {
  while (isView(value.getDefiningOp())) {
    value = cast<TransposeOp>(value.getDefiningOp()).getInput();
  }
  return value;
}

/// Whether a launch loads each element of an operand before it stores that of a
/// result.
static bool loadsBeforeItStores(LaunchOp op, unsigned operand,
                                unsigned result) {
  // Kernels of the CPU look for themselves what lies where.
  func::FuncOp kernel = getCudaTarget(op) ? getKernel(op) : func::FuncOp();
  if (!kernel || getKernelSchedule(kernel) != Schedule::Rows) {
    return true;
  }
  RowPasses passes(kernel, RowPasses::Mode::Keep);
  return !passes.isKeepable() || passes.mayStoreOver(result, operand);
}

bool kaon::mayOverwrite(OpOperand &operand, OpResult result) {
  Operation *op = operand.getOwner();
  if (operand.get().getType() != result.getType()) {
    return false;
  }
  bool elementByElement = false;
  if (auto launch = dyn_cast<LaunchOp>(op)) {
    elementByElement = loadsBeforeItStores(launch, operand.getOperandNumber(),
                                           result.getResultNumber());
  } else if (auto product = dyn_cast<MatmulOp>(op)) {
    elementByElement =
        operand.get() ==
        (product.getEpilogue() ? product.getParam() : product.getAddend());
  }
  // Another operand in the same memory is read in another order.
  return elementByElement &&
         llvm::count_if(op->getOperands(), [&](Value other) {
           return getViewed(other) == getViewed(operand.get());
         }) == 1;
}

/// Whether all that a value of a kernel is made of are host scalars, numbers
/// and single elements.
static bool isMadeOfSingles(Value value) {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 8> seen;
  while (!pending.empty()) {
    Value next = pending.pop_back_val();
    Operation *op = next.getDefiningOp();
    if (op && !isa<tensor::DimOp>(op) && seen.insert(op).second) {
      llvm::append_range(pending, op->getOperands());
    }
    auto type = dyn_cast<RankedTensorType>(next.getType());
    if (!op && type && (!type.hasStaticShape() || type.getNumElements() != 1)) {
      return false;
    }
  }
  return true;
}

std::optional<KeptArgument> kaon::findKeptArgument(func::FuncOp kernel) {
  if (getKernelSchedule(kernel) != Schedule::Elementwise ||
      kernel.getNumResults() != 1) {
    return std::nullopt;
  }
  Operation *terminator = kernel.getBody().front().getTerminator();
  auto select = terminator->getOperand(0).getDefiningOp<arith::SelectOp>();
  auto argument =
      select ? dyn_cast<BlockArgument>(select.getTrueValue()) : BlockArgument();
  if (!argument || !isMadeOfSingles(select.getCondition())) {
    return std::nullopt;
  }
  return KeptArgument{argument, select.getCondition()};
}

BufferAttr kaon::getBuffer(Value value) {
  auto result = dyn_cast<OpResult>(value);
  auto buffers = result ? result.getOwner()->getAttrOfType<ArrayAttr>(
                              KaonDialect::getBuffersAttrName())
                        : ArrayAttr();
  if (!buffers || result.getResultNumber() >= buffers.size()) {
    return {};
  }
  return dyn_cast<BufferAttr>(buffers[result.getResultNumber()]);
}

std::optional<KeptArgument> kaon::findArgumentKeptInPlace(LaunchOp op) {
  func::FuncOp kernel = getKernel(op);
  std::optional<KeptArgument> kept =
      kernel ? findKeptArgument(kernel) : std::nullopt;
  if (!kept) {
    return std::nullopt;
  }
  Value operand = op->getOperand(kept->argument.getArgNumber());
  BufferAttr buffer = getBuffer(op->getResult(0));
  bool isInPlace = buffer && buffer == getBuffer(operand) &&
                   operand.getType() == op->getResult(0).getType();
  return isInPlace ? kept : std::nullopt;
}

SmallVector<UpdateTarget> kaon::getUpdateTargets(func::FuncOp update) {
  MLIRContext *context = update.getContext();
  SmallVector<UpdateTarget> targets;
  for (unsigned index : getArgumentsWithRole(update, Role::Param)) {
    targets.push_back({update.getArgument(index),
                       BufferAttr::get(context, BufferKind::Param, 0)});
  }
  for (auto [state, index] :
       llvm::enumerate(getArgumentsWithRole(update, Role::State))) {
    targets.push_back({update.getArgument(index),
                       BufferAttr::get(context, BufferKind::State,
                                       static_cast<int64_t>(state))});
  }
  return targets;
}

/// Planned ops read and write memory that others read and write too: they may
/// not be merged, dropped or moved. Without buffers they are functions of their
/// operands.
static void
addPlannedEffects(Operation *op,
                  SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  if (op->hasAttr(KaonDialect::getBuffersAttrName())) {
    effects.emplace_back(MemoryEffects::Read::get());
    effects.emplace_back(MemoryEffects::Write::get());
  }
}

void TransposeOp::getEffects(
    SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  addPlannedEffects(*this, effects);
}

void MatmulOp::getEffects(
    SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  addPlannedEffects(*this, effects);
}

void PackOp::getEffects(
    SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  addPlannedEffects(*this, effects);
}

void LaunchOp::getEffects(
    SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  addPlannedEffects(*this, effects);
}

//===----------------------------------------------------------------------===//
// Checking
//===----------------------------------------------------------------------===//

namespace {

/// Executes a planned update on memory that holds values by name.
class BufferChecker {
public:
  BufferChecker(func::FuncOp update, int64_t workspace)
      : update(update), layout(WorkspaceLayout::get(update)),
        workspace(workspace), targets(getUpdateTargets(update)) {}

  LogicalResult check();

private:
  struct Place {
    BufferKind kind;
    int64_t begin, end;

    bool meets(const Place &other) const {
      return kind == other.kind && begin < other.end && other.begin < end;
    }
    bool operator==(const Place &other) const {
      return kind == other.kind && begin == other.begin && end == other.end;
    }
  };
  struct Entry {
    Place place;
    Value value;
  };

  Place getPlace(BufferAttr buffer, Value value) const {
    int64_t offset = buffer.getOffset(), size = 1, end;
    if (buffer.getKind() == BufferKind::Workspace) {
      size = layout.getBytes(cast<RankedTensorType>(value.getType()));
    }
    // An end that no number says is beyond every workspace.
    if (llvm::AddOverflow(offset, size, end)) {
      end = std::numeric_limits<int64_t>::max();
    }
    return {buffer.getKind(), offset, end};
  }

  const Entry *find(Value value) const {
    const auto *entry = llvm::find_if(memory, [&](const Entry &entry) {
      return entry.value == getViewed(value);
    });
    return entry == memory.end() ? nullptr : &*entry;
  }
  bool isGradient(Value value) const {
    auto argument = dyn_cast<BlockArgument>(getViewed(value));
    return argument &&
           getArgumentRole(update, argument.getArgNumber()) == Role::Grad;
  }
  LogicalResult execute(Operation *op);
  LogicalResult checkFits(OpResult result, BufferAttr buffer) const;
  LogicalResult checkRows(MatmulOp product, BufferAttr result) const;

  func::FuncOp update;
  WorkspaceLayout layout;
  int64_t workspace;
  SmallVector<UpdateTarget> targets;
  SmallVector<Entry> memory;
};

} // namespace

/// Verifies that a result fits into the memory it is written to.
LogicalResult BufferChecker::checkFits(OpResult result,
                                       BufferAttr buffer) const {
  Operation *op = result.getOwner();
  if (buffer.getKind() == BufferKind::Workspace) {
    Place place = getPlace(buffer, result);
    // An offset that is near the largest number would wrap around.
    if (place.begin % layout.alignment != 0 || place.end < place.begin ||
        place.end > workspace) {
      return op->emitOpError()
             << "writes result #" << result.getResultNumber() << " to bytes ["
             << place.begin << ", " << place.end << "), which are not aligned "
             << "to " << layout.alignment << " or not within the workspace of "
             << workspace << " bytes";
    }
    return success();
  }
  const auto *target = llvm::find_if(targets, [&](const UpdateTarget &target) {
    return target.buffer == buffer;
  });
  if (target == targets.end()) {
    return op->emitOpError()
           << "refers to state " << buffer.getOffset() << " of an update with "
           << targets.size() - 1 << " states";
  }
  if (target->argument.getType() != result.getType()) {
    return op->emitOpError()
           << "writes result #" << result.getResultNumber() << " of type "
           << result.getType() << " over argument #"
           << target->argument.getArgNumber() << " of type "
           << target->argument.getType();
  }
  return success();
}

/// Verifies that a product in half precision finds rows that it can copy in
/// whole pieces: the caller's matrices may start anywhere.
LogicalResult BufferChecker::checkRows(MatmulOp product,
                                       BufferAttr result) const {
  auto isInWorkspace = [&](Value value) {
    const Entry *entry = find(value);
    return entry && entry->place.kind == BufferKind::Workspace;
  };
  for (OpOperand &operand : product->getOpOperands()) {
    bool isRead = llvm::is_contained(
        {product.getLhs(), product.getRhs(), product.getAddend()},
        operand.get());
    if (isRead && !isInWorkspace(operand.get())) {
      return product.emitOpError()
             << "expects operand #" << operand.getOperandNumber()
             << " in the workspace, where rows are aligned";
    }
  }
  if (!product.getEpilogue() && result.getKind() != BufferKind::Workspace) {
    return product.emitOpError()
           << "expects its result in the workspace, where rows are aligned";
  }
  return success();
}

LogicalResult BufferChecker::execute(Operation *op) {
  for (OpOperand &operand : op->getOpOperands()) {
    if (isMatrix(operand.get()) && !isGradient(operand.get()) &&
        !find(operand.get())) {
      return op->emitOpError()
             << "reads operand #" << operand.getOperandNumber()
             << " after its memory was overwritten";
    }
  }
  if (llvm::none_of(op->getResults(), isMatrix)) {
    return success();
  }
  auto buffers =
      op->getAttrOfType<ArrayAttr>(KaonDialect::getBuffersAttrName());
  if (!buffers) {
    return op->emitOpError() << "has no " << KaonDialect::getBuffersAttrName()
                             << "; kaon-plan-memory comes first";
  }
  if (isView(op)) {
    const Entry *viewed = find(op->getOperand(0));
    if (!viewed || !(viewed->place == getPlace(cast<BufferAttr>(buffers[0]),
                                               op->getResult(0)))) {
      return op->emitOpError() << "is a view, but not of its operand's memory";
    }
    return success();
  }

  auto product = dyn_cast<MatmulOp>(op);
  if (product && isHalf(product.getLhs().getType()) &&
      failed(checkRows(product, cast<BufferAttr>(buffers[0])))) {
    return failure();
  }

  SmallVector<Entry> written;
  for (auto [result, attribute] : llvm::zip_equal(op->getResults(), buffers)) {
    auto buffer = cast<BufferAttr>(attribute);
    if (failed(checkFits(result, buffer))) {
      return failure();
    }
    Entry entry{getPlace(buffer, result), result};
    for (OpOperand &operand : op->getOpOperands()) {
      const Entry *read =
          isMatrix(operand.get()) ? find(operand.get()) : nullptr;
      if (read && read->place.meets(entry.place) &&
          !(read->place == entry.place && mayOverwrite(operand, result))) {
        return op->emitOpError()
               << "overwrites its operand #" << operand.getOperandNumber()
               << " while it still reads it";
      }
    }
    for (const Entry &other : written) {
      if (other.place.meets(entry.place)) {
        return op->emitOpError() << "writes two results to the same memory";
      }
    }
    written.push_back(entry);
  }
  for (const Entry &entry : written) {
    llvm::erase_if(
        memory, [&](const Entry &old) { return old.place.meets(entry.place); });
  }
  memory.append(written);
  return success();
}

LogicalResult BufferChecker::check() {
  for (const UpdateTarget &target : targets) {
    memory.push_back(
        {getPlace(target.buffer, target.argument), target.argument});
  }
  for (Operation &op : update.getBody().front()) {
    if (failed(execute(&op))) {
      return failure();
    }
  }
  Operation *terminator = update.getBody().front().getTerminator();
  for (auto [index, target] : llvm::enumerate(targets)) {
    const Entry *entry = find(terminator->getOperand(index));
    if (!entry || !(entry->place == getPlace(target.buffer, target.argument))) {
      return terminator->emitOpError()
             << "returns value #" << index << ", which is not where argument #"
             << target.argument.getArgNumber() << " lives";
    }
  }
  return success();
}

LogicalResult kaon::checkBuffers(func::FuncOp update) {
  auto workspace =
      update->getAttrOfType<IntegerAttr>(KaonDialect::getWorkspaceAttrName());
  if (!workspace) {
    return update.emitOpError()
           << "has no " << KaonDialect::getWorkspaceAttrName()
           << "; kaon-plan-memory comes first";
  }
  return BufferChecker(update, workspace.getInt()).check();
}
