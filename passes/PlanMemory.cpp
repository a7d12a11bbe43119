//===-- PlanMemory.cpp - where every value lives --------------------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Remarks.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Outliner.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/Support/MathExtras.h"

namespace kaon {
#define GEN_PASS_DEF_PLANMEMORYPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

/// Workspace of a program, in units of the bytes of its largest bucket.
static constexpr int64_t maxWorkspaceFactor = 3;

//===----------------------------------------------------------------------===//
// Planning
//===----------------------------------------------------------------------===//

namespace {

/// Plans the memory of one update.
class Planner {
public:
  Planner(func::FuncOp update, Outliner &outliner)
      : update(update), outliner(outliner), targets(getUpdateTargets(update)),
        layout(WorkspaceLayout::get(update)),
        terminator(update.getBody().front().getTerminator()) {}

  void plan();

private:
  /// A piece of workspace, and when it is in use.
  struct Buffer {
    int64_t bytes, begin, end, offset = 0;
  };

  Value insertCopy(Value value);
  void reportCopy(Value value, BlockArgument argument, StringRef reason);
  void copyWhatIsNotComputed();
  void placeResults();
  bool canReplaceInPlace(Value value, BlockArgument argument);
  int64_t getLastUse(Value value) const;
  OpOperand *findReusable(OpResult result) const;
  void assignBuffers();
  void assignOffsets();
  void annotate();
  void reportMoves();

  func::FuncOp update;
  Outliner &outliner;
  SmallVector<UpdateTarget> targets;
  WorkspaceLayout layout;
  Operation *terminator;
  // Maps below are looked up only, never iterated.
  DenseMap<Operation *, int64_t> position;
  DenseMap<Value, BufferAttr> inPlace;
  DenseMap<Value, unsigned> bufferOf;
  SmallVector<Buffer> buffers;
  int64_t workspace = 0;
};

} // namespace

Value Planner::insertCopy(Value value) {
  OpBuilder builder(terminator);
  Value copy = createCopy(builder, terminator->getLoc(), value);
  return outliner.outline(cast<KernelOp>(copy.getDefiningOp())).getResult(0);
}

void Planner::reportCopy(Value value, BlockArgument argument,
                         StringRef reason) {
  remark::missed(value.getLoc(), remark::RemarkOpts::name("Copy")
                                     .category("kaon-plan-memory")
                                     .function(update.getName()))
      << remark::add("new value of argument #{0} is copied: {1}",
                     argument.getArgNumber(), reason);
}

/// Whether a product in half precision stores or reads a value, for which its
/// rows must be aligned: the caller's need not be.
static bool needsAlignedRows(Value value) {
  auto isHalfProduct = [](Operation *op) {
    auto product = dyn_cast_or_null<MatmulOp>(op);
    return product && product.getLhs().getType().getElementTypeBitWidth() == 16;
  };
  Operation *producer = value.getDefiningOp();
  bool isStored =
      isHalfProduct(producer) && !cast<MatmulOp>(producer).getEpilogue();
  return isStored || llvm::any_of(value.getUsers(), isHalfProduct);
}

/// A result that is another argument, a view or a value returned before has to
/// be moved by a kernel of its own, and one whose rows must be aligned.
void Planner::copyWhatIsNotComputed() {
  for (auto [index, target] : llvm::enumerate(targets)) {
    OpOperand &returned = terminator->getOpOperand(index);
    Value value = returned.get();
    if (value == target.argument) {
      continue;
    }
    bool isRepeated =
        llvm::is_contained(terminator->getOperands().take_front(index), value);
    if (isRepeated || isa<BlockArgument>(value) ||
        isView(value.getDefiningOp()) || needsAlignedRows(value)) {
      if (needsAlignedRows(value)) {
        reportCopy(value, target.argument, "products need aligned rows");
      }
      returned.set(insertCopy(value));
    }
  }
}

/// Whether no op reads an argument after its new value is written over it.
bool Planner::canReplaceInPlace(Value value, BlockArgument argument) {
  Operation *producer = value.getDefiningOp();
  SmallVector<Value> aliases{argument};
  for (size_t i = 0; i < aliases.size(); ++i) {
    for (OpOperand &use : aliases[i].getUses()) {
      Operation *user = use.getOwner();
      if (isView(user)) {
        aliases.push_back(user->getResult(0));
      } else if (user == terminator || producer->isBeforeInBlock(user) ||
                 (user == producer &&
                  !mayOverwrite(use, cast<OpResult>(value)))) {
        return false;
      }
    }
  }
  return true;
}

void Planner::placeResults() {
  for (auto [index, target] : llvm::enumerate(targets)) {
    OpOperand &returned = terminator->getOpOperand(index);
    if (returned.get() == target.argument) {
      continue;
    }
    if (!canReplaceInPlace(returned.get(), target.argument)) {
      reportCopy(returned.get(), target.argument,
                 "its old value is read later");
      returned.set(insertCopy(returned.get()));
    }
    inPlace[returned.get()] = target.buffer;
  }
}

int64_t Planner::getLastUse(Value value) const {
  int64_t last = position.lookup(value.getDefiningOp());
  for (Operation *user : value.getUsers()) {
    last = std::max(last, isView(user) ? getLastUse(user->getResult(0))
                                       : position.lookup(user));
  }
  return last;
}

/// What the only result of a launch is while something holds that is the same
/// for all elements, or null.
static Value getKept(Operation *op) {
  auto launch = dyn_cast<LaunchOp>(op);
  func::FuncOp kernel = launch ? getKernel(launch) : func::FuncOp();
  std::optional<KeptArgument> kept =
      kernel ? findKeptArgument(kernel) : std::nullopt;
  return kept ? launch->getOperand(kept->argument.getArgNumber()) : Value();
}

/// An operand in the workspace that a result may be written over, because
/// nobody reads it afterwards: what the launch keeps, if it may, else the first
/// one. A buffer that another result has taken has a later end by now.
OpOperand *Planner::findReusable(OpResult result) const {
  Operation *op = result.getOwner();
  Value kept = getKept(op);
  OpOperand *found = nullptr;
  for (OpOperand &operand : op->getOpOperands()) {
    auto buffer = bufferOf.find(getViewed(operand.get()));
    if (buffer != bufferOf.end() &&
        buffers[buffer->second].end == position.lookup(op) &&
        mayOverwrite(operand, result) && (!found || operand.get() == kept)) {
      found = &operand;
    }
  }
  return found;
}

void Planner::assignBuffers() {
  for (Operation &op : update.getBody().front()) {
    if (isView(&op)) {
      continue;
    }
    for (OpResult result : op.getResults()) {
      if (!getMatrixType(result) || inPlace.contains(result)) {
        continue;
      }
      int64_t begin = position.lookup(&op), end = getLastUse(result);
      OpOperand *reusable = findReusable(result);
      if (reusable && end > begin) {
        unsigned index = bufferOf.lookup(getViewed(reusable->get()));
        buffers[index].end = end;
        bufferOf[result] = index;
        continue;
      }
      bufferOf[result] = buffers.size();
      int64_t bytes = llvm::alignTo(layout.getBytes(getMatrixType(result)),
                                    layout.alignment);
      buffers.push_back({bytes, begin, end});
    }
  }
}

/// Large buffers first, each at the lowest offset that is free while it is
/// used.
void Planner::assignOffsets() {
  auto order = llvm::to_vector(llvm::seq<unsigned>(0, buffers.size()));
  llvm::sort(order, [&](unsigned a, unsigned b) {
    return std::tuple(-buffers[a].bytes, a) < std::tuple(-buffers[b].bytes, b);
  });
  SmallVector<unsigned> placed; // by offset
  for (unsigned index : order) {
    Buffer &buffer = buffers[index];
    for (unsigned other : placed) {
      const Buffer &taken = buffers[other];
      bool meet = taken.begin <= buffer.end && buffer.begin <= taken.end;
      if (meet && buffer.offset + buffer.bytes > taken.offset &&
          buffer.offset < taken.offset + taken.bytes) {
        buffer.offset = taken.offset + taken.bytes;
      }
    }
    placed.insert(llvm::upper_bound(placed, index,
                                    [&](unsigned a, unsigned b) {
                                      return buffers[a].offset <
                                             buffers[b].offset;
                                    }),
                  index);
    workspace = std::max(workspace, buffer.offset + buffer.bytes);
  }
}

void Planner::annotate() {
  MLIRContext *context = update.getContext();
  OpBuilder builder(context);
  DenseMap<BlockArgument, BufferAttr> argumentBuffers;
  for (const UpdateTarget &target : targets) {
    argumentBuffers[target.argument] = target.buffer;
  }
  auto getBuffer = [&](Value value) {
    value = getViewed(value);
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      return argumentBuffers.lookup(argument);
    }
    if (BufferAttr buffer = inPlace.lookup(value)) {
      return buffer;
    }
    return BufferAttr::get(context, BufferKind::Workspace,
                           buffers[bufferOf.lookup(value)].offset);
  };
  for (Operation &op : update.getBody().front()) {
    SmallVector<Attribute> places;
    for (Value result : op.getResults()) {
      if (getMatrixType(result)) {
        places.push_back(getBuffer(result));
      }
    }
    if (!places.empty()) {
      op.setAttr(KaonDialect::getBuffersAttrName(),
                 builder.getArrayAttr(places));
    }
  }
  update->setAttr(KaonDialect::getWorkspaceAttrName(),
                  builder.getI64IntegerAttr(workspace));
}

/// Reports launches that move a matrix which they could leave where it is.
void Planner::reportMoves() {
  for (auto op : update.getOps<LaunchOp>()) {
    Value kept = getKept(op);
    if (!kept || isa<BlockArgument>(getViewed(kept)) ||
        findArgumentKeptInPlace(op)) {
      continue;
    }
    auto [rows, columns] = getLaunchSizes(op);
    remark::missed(op.getLoc(), remark::RemarkOpts::name("InPlace")
                                    .category("kaon-plan-memory")
                                    .function(update.getName()))
        << remark::add("{0} moves a {1}x{2} matrix even while it stays as it "
                       "is: its result lies elsewhere",
                       op.getKernel(), rows, columns);
  }
}

void Planner::plan() {
  copyWhatIsNotComputed();
  placeResults();
  for (auto [index, op] : llvm::enumerate(update.getBody().front())) {
    position[&op] = static_cast<int64_t>(index);
  }
  assignBuffers();
  assignOffsets();
  annotate();
  reportMoves();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {

struct PlanMemoryPass : kaon::impl::PlanMemoryPassBase<PlanMemoryPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<func::FuncOp> updates;
    for (auto function : module.getOps<func::FuncOp>()) {
      if (isUpdate(function)) {
        updates.push_back(function);
      }
    }
    Outliner outliner(module);
    for (func::FuncOp update : updates) {
      if (failed(checkIsScheduled(update))) {
        return signalPassFailure();
      }
      // A plan that is there already, say in an edited dump, is only checked.
      if (!update->hasAttr(KaonDialect::getWorkspaceAttrName())) {
        Planner(update, outliner).plan();
      }
      if (failed(checkBuffers(update))) {
        return signalPassFailure();
      }
    }
    SymbolTable symbols(module);
    for (auto program : module.getOps<ProgramOp>()) {
      limitConcurrency(program, symbols);
    }
  }

  static LogicalResult checkIsScheduled(func::FuncOp update) {
    for (Operation &op : update.getBody().front()) {
      bool computes = llvm::any_of(op.getResults(), getMatrixType);
      if (computes && !isa<LaunchOp, PackOp, MatmulOp, TransposeOp>(op)) {
        return op.emitOpError()
               << "has no memory of its own; kaon-fuse-kernels and "
                  "kaon-outline-kernels come first";
      }
      auto product = dyn_cast<MatmulOp>(op);
      if (product && !product.isPacked() && !getCudaTarget(update)) {
        return op.emitOpError()
               << "reads operands that are not packed; kaon-pack-operands "
                  "comes first";
      }
    }
    return success();
  }

  static int64_t getParameterBytes(BucketOp bucket, SymbolTable &symbols) {
    auto update = symbols.lookup<func::FuncOp>(bucket.getUpdate());
    return getMatrixBytes(cast<RankedTensorType>(update.getArgumentTypes()[0]));
  }

  static void limitConcurrency(ProgramOp program, SymbolTable &symbols) {
    int64_t largest = 0;
    for (PhaseOp phase : program.getPhases()) {
      for (BucketOp bucket : phase.getBuckets()) {
        int64_t members = bucket.getParameters().size();
        largest =
            std::max(largest, members * getParameterBytes(bucket, symbols));
      }
    }
    int64_t limit = maxWorkspaceFactor * largest;
    for (PhaseOp phase : program.getPhases()) {
      for (BucketOp bucket : phase.getBuckets()) {
        auto update = symbols.lookup<func::FuncOp>(bucket.getUpdate());
        int64_t slot = update
                           ->getAttrOfType<IntegerAttr>(
                               KaonDialect::getWorkspaceAttrName())
                           .getInt();
        if (slot == 0) {
          continue;
        }
        int64_t concurrent = balanceConcurrency(
            bucket.getParameters().size(),
            std::min<int64_t>(limit / slot, bucket.getConcurrent()));
        bucket.setConcurrent(concurrent);
        auto options = remark::RemarkOpts::name("Workspace")
                           .category("kaon-plan-memory")
                           .function(update.getName());
        if (concurrent * slot > limit) {
          remark::missed(program.getLoc(), options)
              << remark::add("one matrix needs {0} bytes of workspace, more "
                             "than the limit of {1}",
                             slot, limit);
        } else {
          remark::passed(program.getLoc(), options)
              << remark::add("phase {0}: {1} workspaces of {2} bytes",
                             phase.getResidue(), concurrent, slot);
        }
      }
    }
  }
};

} // namespace
