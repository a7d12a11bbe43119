//===-- FuseKernels.cpp - kernels of one pass over memory -----------------===//
//
// Three steps: reductions of the whole matrix become row reductions plus one
// over a vector; an analysis decides which values are stored, and in which
// kernel every value is computed; kernels are built.
//
// The analysis works on *stages*. A value's stage is the earliest one in which
// it can be computed, when products, transposes and reductions over another
// shape end a stage. Values that must be stored (*roots*: results, operands of
// products and transposes) are computed in their stage, by one kernel per shape
// and direction. Everything else is computed in the kernels that use it, from
// roots of earlier stages and arguments. Only if that costs more than storing
// it, it becomes a root too.
//
// Numeric class: reassociating (sums of the whole matrix), else bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/Remarks.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallSet.h"

namespace kaon {
#define GEN_PASS_DEF_FUSEKERNELSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

using Shape = std::array<int64_t, 2>;

static Shape getShape(Value matrix) {
  ArrayRef<int64_t> shape = getMatrixType(matrix).getShape();
  return {shape[0], shape[1]};
}

/// Whether memory can hold a matrix: it holds numbers, but no truth values,
/// which are found again where they are needed.
static bool isStorable(Value matrix) {
  return isa<FloatType>(getMatrixType(matrix).getElementType());
}

/// Whether a matrix of shape `a` is one over `b`, its rows, columns or a single
/// value.
static bool fitsInto(Shape a, Shape b) {
  return (a[0] == 1 || a[0] == b[0]) && (a[1] == 1 || a[1] == b[1]);
}

//===----------------------------------------------------------------------===//
// Classes of ops
//===----------------------------------------------------------------------===//

namespace {

enum class OpClass : uint8_t {
  Host,    // scalars only
  Fusible, // can be part of a kernel
  Barrier, // stands alone: reads and writes memory
  Return,
  Unsupported,
};

} // namespace

static OpClass classify(Operation *op) {
  if (isa<func::ReturnOp>(op)) {
    return OpClass::Return;
  }
  if (isa<MatmulOp, TransposeOp, PackOp, KernelOp, LaunchOp>(op)) {
    return OpClass::Barrier;
  }
  auto isScalar = [](Type type) { return !isa<ShapedType>(type); };
  if (op->getNumRegions() == 0 &&
      llvm::all_of(op->getOperandTypes(), isScalar) &&
      llvm::all_of(op->getResultTypes(), isScalar)) {
    return OpClass::Host;
  }
  if (op->getNumResults() == 1 && getMatrixType(op->getResult(0)) &&
      (isa<ReduceOp, BroadcastOp>(op) || isSplat(op->getResult(0)) ||
       isElementwise(op))) {
    return OpClass::Fusible;
  }
  return OpClass::Unsupported;
}

/// Numbers that a kernel's body holds itself; all others are passed as scalars,
/// so that they do not tell kernels apart.
static bool isWellKnown(double number) {
  return number == 0.0 || number == 1.0 || number == -1.0;
}

//===----------------------------------------------------------------------===//
// Reductions to a single value
//===----------------------------------------------------------------------===//

/// The op's value by reductions along rows alone, the second one along the
/// vector of the first one's results.
static Value reduceRows(ReduceOp op) {
  ImplicitLocOpBuilder b(op.getLoc(), op);
  Value input = op.getInput();
  auto type = getMatrixType(input);
  if (getShape(input) == Shape{1, 1}) {
    return input;
  }
  if (type.getDimSize(0) == 1) {
    return ReduceOp::create(b, op.getKind(), input, Along::Row);
  }
  Value rows = input;
  if (type.getDimSize(1) != 1) {
    // Partial sums keep the precision that the whole sum promises.
    if (op.getKind() == ReduceKind::Sum && !type.getElementType().isF64()) {
      rows = arith::ExtFOp::create(
          b, RankedTensorType::get(type.getShape(), b.getF64Type()), rows);
    }
    rows = ReduceOp::create(b, op.getKind(), rows, Along::Row);
  }
  Value result = ReduceOp::create(b, op.getKind(), TransposeOp::create(b, rows),
                                  Along::Row);
  return result.getType() == op.getType()
             ? result
             : arith::TruncFOp::create(b, op.getType(), result).getResult();
}

/// Whether a reduction reaches over several rows and has a single result: no
/// schedule has units of work that do that.
static bool needsTwoLevels(ReduceOp op) {
  return op.getAlong() == Along::All ||
         (op.getAlong() == Along::Column &&
          op.getInput().getType().getDimSize(1) == 1);
}

/// A copy of an argument, which is one more pass over it.
static Value copyArgument(OpBuilder &builder, Location loc,
                          BlockArgument argument, StringRef reason) {
  auto update = cast<func::FuncOp>(argument.getOwner()->getParentOp());
  remark::missed(loc, remark::RemarkOpts::name("Copy")
                          .category("kaon-fuse-kernels")
                          .function(update.getName()))
      << remark::add("argument #{0} is copied: {1}", argument.getArgNumber(),
                     reason);
  return createCopy(builder, loc, argument);
}

/// A transpose of a vector is a view of memory without gaps, which the caller's
/// parameter and gradient need not be: such a vector is copied first. A state
/// may be viewed, because the executor refuses one that has gaps where a launch
/// views it as a row.
static void materializeViewedArguments(func::FuncOp update) {
  for (TransposeOp transpose : update.getOps<TransposeOp>()) {
    auto argument = dyn_cast<BlockArgument>(transpose.getInput());
    if (!argument || !transpose.isView() ||
        getArgumentRole(update, argument.getArgNumber()) == Role::State) {
      continue;
    }
    OpBuilder builder(transpose);
    transpose.getInputMutable().assign(
        copyArgument(builder, transpose.getLoc(), argument,
                     "its transpose is a view of memory without gaps"));
  }
}

/// A product in half precision copies whole pieces of rows, which start at
/// multiples of 16 bytes in the workspace, but not in the caller's matrices: an
/// argument is copied first.
static void materializeMultipliedArguments(func::FuncOp update) {
  DenseMap<Value, Value> copies;
  for (MatmulOp product : update.getOps<MatmulOp>()) {
    if (product.getLhs().getType().getElementTypeBitWidth() != 16) {
      continue;
    }
    for (OpOperand &operand : product->getOpOperands()) {
      if (!getMatrixType(operand.get()) || !isa<BlockArgument>(operand.get()) ||
          operand.get() == product.getFactor()) {
        continue;
      }
      Value &copy = copies[operand.get()];
      if (!copy) {
        // The first product that reads it comes before all others.
        OpBuilder builder(product);
        copy = copyArgument(builder, product.getLoc(),
                            cast<BlockArgument>(operand.get()),
                            "products read rows that are aligned");
      }
      operand.set(copy);
    }
  }
}

//===----------------------------------------------------------------------===//
// Analysis
//===----------------------------------------------------------------------===//

namespace {

/// One kernel to be.
struct PlannedKernel {
  unsigned stage;
  Shape domain;
  /// The direction of its reductions; none if it has no reduction.
  std::optional<Along> direction;
  SmallVector<Value> roots;
  /// Whether no other root may join the first.
  bool isAlone = false;
};

/// Decides what is stored, and in which kernel each stored value is computed.
class FusionPlan {
public:
  /// `materialized` are values that are to be stored.
  FusionPlan(func::FuncOp update, ArrayRef<Value> materialized);

  /// Kernels, in order of stage.
  ArrayRef<PlannedKernel> getKernels() const { return kernels; }
  /// The stage of a product or transpose: what it reads is there before.
  unsigned getStage(Operation *barrier) const {
    return barrierStages.lookup(barrier);
  }
  unsigned getNumStages() const { return numStages; }
  /// Whether a root is a materialized matrix or something else.
  bool choosesMaterialized(Value root) const {
    auto select = root.getDefiningOp<arith::SelectOp>();
    return select && materialized.contains(select.getTrueValue());
  }
  /// Whether a kernel of a stage reads a value from memory, or computes it.
  bool isLoaded(Value value, unsigned stage) const;

private:
  /// What is known of a value that a kernel can compute.
  struct Node {
    unsigned stage = 0;
    /// Reductions on the way from what is stored to here.
    SmallVector<Operation *> rowReductions, columnReductions;
    /// The shape that reductions on the way run over.
    std::optional<Shape> pinned;
  };

  /// What computing a value in a kernel takes.
  struct Cone {
    size_t fullLoads = 0;
    bool hasReduction = false;
    /// Bytes of the arguments that it reads after they are overwritten.
    int64_t overwrittenBytes = 0;
  };

  Node &node(Value value) { return nodes.find(value)->second; }
  const Node &node(Value value) const { return nodes.find(value)->second; }
  bool isNode(Value value) const { return nodes.contains(value); }
  bool isRoot(Value value) const { return roots.contains(value); }
  bool keepsMaterialized(Value root) const;
  Shape getDomain(Value root) const {
    return node(root).pinned.value_or(getShape(root));
  }

  /// First stage whose kernels and products can read a value from memory.
  unsigned getLoadStage(Value value) const;

  void collectRoots(ArrayRef<Value> materialized);
  /// Each of these reports whether it made further roots; all start over then.
  bool assignStages();
  bool assignStage(Operation *op);
  void assignKernels();
  bool storeWhatShowsTheDomain();
  bool storeWhatIsDearToRecompute();
  Cone findCone(Value root, unsigned stage, Shape domain) const;
  bool store(Value value) { return roots.insert(value).second; }
  /// Stores a value for an op of a later kernel, whatever others do with it.
  bool loadFor(Operation *op, Value value) {
    if (!isStorable(value)) {
      return forReduced(value, [&](Value operand) {
        return loadFor(value.getDefiningOp(), operand);
      });
    }
    bool isNew = loadedBy.insert({op, value}).second;
    return store(value) || isNew;
  }
  /// Stores a value, and does not let the kernel that computes it use it.
  bool cut(Value value) {
    if (!isStorable(value)) {
      return forReduced(value, [&](Value operand) { return cut(operand); });
    }
    bool isNew = cuts.insert(value).second;
    return store(value) || isNew;
  }
  /// Does to the operands of an op that have reductions on their way what
  /// cannot be done to its result. Whether it made further roots.
  bool forReduced(Value value, function_ref<bool(Value)> store) {
    bool isNew = false;
    for (Value operand : value.getDefiningOp()->getOperands()) {
      if (isNode(operand) && node(operand).pinned) {
        isNew |= store(operand);
      }
    }
    return isNew;
  }

  func::FuncOp update;
  /// Ops that kernels can hold, in order.
  SmallVector<Operation *> ops;
  // Sets and maps below are looked up only, never iterated.
  DenseSet<Value> roots, cuts, materialized;
  DenseSet<std::pair<Operation *, Value>> loadedBy;
  DenseMap<Value, Node> nodes;
  DenseMap<Operation *, unsigned> barrierStages;
  DenseMap<Value, unsigned> kernelOf;
  DenseMap<Value, unsigned> overwrittenAt;
  SmallVector<PlannedKernel> kernels;
  unsigned numStages = 0;
};

} // namespace

FusionPlan::FusionPlan(func::FuncOp update, ArrayRef<Value> materialized)
    : update(update) {
  this->materialized.insert_range(materialized);
  for (Operation &op : update.getBody().front()) {
    if (classify(&op) == OpClass::Fusible) {
      ops.push_back(&op);
    }
  }
  collectRoots(materialized);
  // Every round but the last makes a value a root or a cut, or has one of its
  // uses load it, which stays so: there are at most two rounds per op and one
  // per operand; each is quadratic in the number of ops at worst.
  do {
    while (assignStages()) {
    }
    assignKernels();
  } while (storeWhatShowsTheDomain() || storeWhatIsDearToRecompute());
}

void FusionPlan::collectRoots(ArrayRef<Value> materialized) {
  auto storeIfComputed = [&](Value value) {
    Operation *producer = value.getDefiningOp();
    if (producer && classify(producer) == OpClass::Fusible) {
      store(value);
    }
  };
  llvm::for_each(materialized, storeIfComputed);
  for (Operation &op : update.getBody().front()) {
    OpClass kind = classify(&op);
    if (kind != OpClass::Barrier && kind != OpClass::Return) {
      continue;
    }
    llvm::for_each(op.getOperands(), storeIfComputed);
  }
}

unsigned FusionPlan::getLoadStage(Value value) const {
  if (isNode(value)) {
    return node(value).stage + 1;
  }
  Operation *producer = value.getDefiningOp();
  return producer && classify(producer) == OpClass::Barrier
             ? getStage(producer) + 1
             : 0;
}

bool FusionPlan::isLoaded(Value value, unsigned stage) const {
  return !isNode(value) || (isRoot(value) && node(value).stage < stage);
}

bool FusionPlan::assignStages() {
  nodes.clear();
  barrierStages.clear();
  numStages = 0;
  for (Operation &op : update.getBody().front()) {
    switch (classify(&op)) {
    case OpClass::Fusible:
      if (assignStage(&op)) {
        return true;
      }
      numStages = std::max(numStages, node(op.getResult(0)).stage + 1);
      break;
    case OpClass::Barrier: {
      unsigned stage = 0;
      for (Value operand : op.getOperands()) {
        stage = std::max(stage, getLoadStage(operand));
      }
      barrierStages[&op] = stage;
      numStages = std::max(numStages, stage + 1);
      break;
    }
    default:
      break;
    }
  }
  return false;
}

bool FusionPlan::assignStage(Operation *op) {
  Value result = op->getResult(0);
  Node found;
  for (Value operand : op->getOperands()) {
    bool sameStage = isNode(operand) && !cuts.contains(operand) &&
                     !loadedBy.contains({op, operand});
    found.stage = std::max(found.stage, sameStage ? node(operand).stage
                                                  : getLoadStage(operand));
  }

  // Operands that are computed in the same kernel, or again, bring their
  // reductions along.
  SmallVector<Value> computed;
  for (Value operand : op->getOperands()) {
    if (isNode(operand) && !cuts.contains(operand) &&
        !isLoaded(operand, found.stage)) {
      computed.push_back(operand);
    }
  }

  // Reductions on the way must run over the shape that the op runs over.
  auto reduce = dyn_cast<ReduceOp>(op);
  if (reduce) {
    found.pinned = getShape(reduce.getInput());
  }
  for (Value operand : computed) {
    std::optional<Shape> pinned = node(operand).pinned;
    if (!pinned) {
      continue;
    }
    bool fits =
        reduce ? pinned == found.pinned : fitsInto(getShape(result), *pinned);
    if (!fits) {
      return loadFor(op, operand);
    }
    if (found.pinned && pinned != found.pinned) {
      // Two different shapes meet: both sides end here.
      for (Value side : computed) {
        if (node(side).pinned) {
          cut(side);
        }
      }
      return true;
    }
    found.pinned = pinned;
  }

  llvm::SmallSetVector<Operation *, 4> rows, columns;
  for (Value operand : computed) {
    rows.insert_range(node(operand).rowReductions);
    columns.insert_range(node(operand).columnReductions);
  }
  if (reduce) {
    (reduce.getAlong() == Along::Row ? rows : columns).insert(op);
  }
  if (!rows.empty() && !columns.empty()) {
    // A kernel walks in one direction. Cutting at the reductions rather than at
    // the operands stores vectors instead of matrices.
    auto &earlier = reduce && reduce.getAlong() == Along::Row ? columns : rows;
    for (Operation *reduction : earlier) {
      cut(reduction->getResult(0));
    }
    return true;
  }
  found.rowReductions.assign(rows.begin(), rows.end());
  found.columnReductions.assign(columns.begin(), columns.end());
  nodes.insert({result, std::move(found)});
  return false;
}

/// Whether all elements of a matrix are made of host scalars and single
/// elements on the device, and therefore equal.
static bool isMadeOfSingles(Value value) {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 8> seen;
  while (!pending.empty()) {
    Value next = pending.pop_back_val();
    if (!getMatrixType(next) || isUniform(next) ||
        getShape(next) == Shape{1, 1}) {
      continue;
    }
    Operation *op = next.getDefiningOp();
    if (!op || !isElementwise(op)) {
      return false;
    }
    if (seen.insert(op).second) {
      llvm::append_range(pending, op->getOperands());
    }
  }
  return true;
}

/// Whether a root is a materialized matrix while something holds that is the
/// same for all elements. In a kernel of its own it has nothing to do then,
/// because it can lie over that matrix (findKeptArgument).
bool FusionPlan::keepsMaterialized(Value root) const {
  auto select = root.getDefiningOp<arith::SelectOp>();
  const Node &found = node(root);
  return choosesMaterialized(root) &&
         isLoaded(select.getTrueValue(), found.stage) &&
         found.rowReductions.empty() && found.columnReductions.empty() &&
         isMadeOfSingles(select.getCondition());
}

void FusionPlan::assignKernels() {
  kernels.clear();
  kernelOf.clear();
  auto findKernel = [&](unsigned stage, Shape domain,
                        std::optional<Along> direction) {
    return llvm::find_if(kernels, [&](const PlannedKernel &kernel) {
      return !kernel.isAlone && kernel.stage == stage &&
             kernel.domain == domain &&
             (!direction || kernel.direction == direction);
    });
  };
  auto assign = [&](Value root, std::optional<Along> direction) {
    unsigned stage = node(root).stage;
    Shape domain = getDomain(root);
    if (keepsMaterialized(root)) {
      kernels.push_back({stage, domain, direction, {root}, /*isAlone=*/true});
      return;
    }
    auto *kernel = findKernel(stage, domain, direction);
    if (kernel == kernels.end()) {
      kernels.push_back({stage, domain, direction, {}});
      kernel = std::prev(kernels.end());
    }
    kernel->roots.push_back(root);
  };
  // Values without a direction join a kernel that has one, so it comes first.
  for (bool directed : {true, false}) {
    for (Operation *op : ops) {
      Value value = op->getResult(0);
      if (!isRoot(value)) {
        continue;
      }
      const Node &found = node(value);
      bool hasRows = !found.rowReductions.empty(),
           hasColumns = !found.columnReductions.empty();
      if (directed == (hasRows || hasColumns)) {
        assign(value, hasRows      ? std::optional(Along::Row)
                      : hasColumns ? std::optional(Along::Column)
                                   : std::nullopt);
      }
    }
  }
  // Program order, whatever order directions were looked at in.
  auto isBefore = [](Value a, Value b) {
    return a.getDefiningOp()->isBeforeInBlock(b.getDefiningOp());
  };
  for (PlannedKernel &kernel : kernels) {
    llvm::sort(kernel.roots, isBefore);
  }
  llvm::sort(kernels, [&](const PlannedKernel &a, const PlannedKernel &b) {
    if (a.stage != b.stage || a.isAlone != b.isAlone) {
      // What stands alone first: it overwrites nothing that others read, but
      // they may overwrite what it reads.
      return std::pair(a.stage, !a.isAlone) < std::pair(b.stage, !b.isAlone);
    }
    return isBefore(a.roots.front(), b.roots.front());
  });
  for (auto [index, kernel] : llvm::enumerate(kernels)) {
    for (Value root : kernel.roots) {
      kernelOf[root] = index;
    }
  }

  // When each argument is overwritten, if its new value goes in place.
  overwrittenAt.clear();
  SmallVector<unsigned> targets = getArgumentsWithRole(update, Role::Param);
  targets.append(getArgumentsWithRole(update, Role::State));
  Operation *terminator = update.getBody().front().getTerminator();
  for (auto [argument, value] : llvm::zip(targets, terminator->getOperands())) {
    if (!isa<BlockArgument>(value)) {
      overwrittenAt[update.getArgument(argument)] = getLoadStage(value) - 1;
    }
  }
}

FusionPlan::Cone FusionPlan::findCone(Value root, unsigned stage,
                                      Shape domain) const {
  Cone cone;
  // Each value once: there may be exponentially many ways to reach one.
  llvm::SmallSetVector<Value, 16> values;
  values.insert(root);
  for (size_t i = 0; i < values.size(); ++i) {
    Value value = values[i];
    if (isLoaded(value, stage)) {
      cone.fullLoads += getShape(value) == domain;
      auto overwritten = overwrittenAt.find(value);
      if (overwritten != overwrittenAt.end() && overwritten->second < stage) {
        cone.overwrittenBytes += getMatrixBytes(getMatrixType(value));
      }
      continue;
    }
    Operation *op = value.getDefiningOp();
    cone.hasReduction |= isa<ReduceOp>(op);
    values.insert_range(
        llvm::make_filter_range(op->getOperands(), getMatrixType));
  }
  return cone;
}

/// A launch runs over the largest sizes among its operands and results. A
/// reduction of values that are all repeated ones would not be seen there.
bool FusionPlan::storeWhatShowsTheDomain() {
  for (const PlannedKernel &kernel : kernels) {
    Shape seen{1, 1};
    Value hidden;
    llvm::SmallSetVector<Value, 16> cone;
    cone.insert_range(kernel.roots);
    for (size_t i = 0; i < cone.size(); ++i) {
      Value value = cone[i];
      bool loaded = isLoaded(value, kernel.stage);
      if (loaded || i < kernel.roots.size()) {
        Shape shape = getShape(value);
        seen = {std::max(seen[0], shape[0]), std::max(seen[1], shape[1])};
      }
      if (loaded) {
        continue;
      }
      auto reduce = value.getDefiningOp<ReduceOp>();
      if (reduce && getShape(reduce.getInput()) == kernel.domain) {
        hidden = reduce.getInput();
      }
      cone.insert_range(llvm::make_filter_range(
          value.getDefiningOp()->getOperands(), getMatrixType));
    }
    if (seen == kernel.domain) {
      continue;
    }
    // A domain is a root's shape, which has been seen, or else the shape that
    // reductions of the kernel run over.
    assert(hidden && "a domain that neither a root nor a reduction has");
    if (store(hidden)) {
      return true;
    }
  }
  return false;
}

bool FusionPlan::storeWhatIsDearToRecompute() {
  // Storing a matrix costs reading it for ownership and writing it back, using
  // it costs reading it again: as much as reading three others.
  constexpr size_t maxLoads = 3;

  // Kernels that compute each value; users come first.
  DenseMap<Value, llvm::SmallSet<unsigned, 4>> usedIn;
  for (Operation *op : llvm::reverse(ops)) {
    Value value = op->getResult(0);
    llvm::SmallSet<unsigned, 4> &own = usedIn[value];
    if (isRoot(value)) {
      own.insert(kernelOf.lookup(value));
      continue;
    }
    for (Operation *user : value.getUsers()) {
      if (classify(user) == OpClass::Fusible) {
        // A copy: the map may grow while it is read.
        llvm::SmallSet<unsigned, 4> users = usedIn[user->getResult(0)];
        usedIn[value].insert(users.begin(), users.end());
      }
    }
    if (!isStorable(value)) {
      continue;
    }
    SmallVector<unsigned> users(usedIn[value].begin(), usedIn[value].end());
    llvm::sort(users);
    unsigned stage = node(value).stage;
    for (unsigned index : users) {
      const PlannedKernel &kernel = kernels[index];
      if (kernel.stage == stage) {
        continue;
      }
      Cone cone = findCone(value, kernel.stage, kernel.domain);
      // Reading an argument before it is overwritten beats keeping a copy of
      // it, unless what is made of it is larger.
      bool beatsCopy =
          cone.overwrittenBytes > 0 && !isSplat(value) &&
          getMatrixBytes(getMatrixType(value)) <= cone.overwrittenBytes;
      // What has work only for few matrices may compute it again.
      bool dear =
          users.size() > 1 && !kernel.isAlone &&
          (cone.hasReduction ? isa<ReduceOp>(op) : cone.fullLoads > maxLoads);
      if ((beatsCopy || dear) && store(value)) {
        return true;
      }
    }
  }
  return false;
}

//===----------------------------------------------------------------------===//
// Building kernels
//===----------------------------------------------------------------------===//

namespace {

/// Moves the ops of one planned kernel into a `kaon.kernel`.
class KernelBuilder {
public:
  KernelBuilder(const FusionPlan &plan, const PlannedKernel &kernel,
                const DenseMap<Value, Value> &stored, OpBuilder &host)
      : plan(plan), kernel(kernel), stored(stored), host(host) {}

  /// Builds the kernel at the host builder's insertion point.
  KernelOp build();

private:
  void collect(Value value);
  void emit(Operation *op);
  Value getInput(Value value);
  Value getScalar(Value scalar);
  Schedule chooseSchedule();
  void report(KernelOp op) const;

  const FusionPlan &plan;
  const PlannedKernel &kernel;
  const DenseMap<Value, Value> &stored;
  OpBuilder &host;
  OpBuilder body{host.getContext()};
  Block block;
  llvm::SmallSetVector<Operation *, 16> needed;
  SmallVector<Value> inputs, scalars;
  SmallVector<BlockArgument> scalarArguments;
  IRMapping mapping;
};

} // namespace

void KernelBuilder::collect(Value value) {
  if (!getMatrixType(value) || plan.isLoaded(value, kernel.stage)) {
    return;
  }
  if (needed.insert(value.getDefiningOp())) {
    for (Value operand : value.getDefiningOp()->getOperands()) {
      collect(operand);
    }
  }
}

Value KernelBuilder::getInput(Value value) {
  if (!mapping.contains(value)) {
    inputs.push_back(stored.lookup_or(value, value));
    mapping.map(value, block.insertArgument(inputs.size() - 1, value.getType(),
                                            value.getLoc()));
  }
  return mapping.lookup(value);
}

Value KernelBuilder::getScalar(Value scalar) {
  // A constant that was made for this kernel may exist already.
  auto isSame = [&](Value other) {
    FloatAttr a, b;
    return other == scalar || (matchPattern(other, m_Constant(&a)) &&
                               matchPattern(scalar, m_Constant(&b)) && a == b);
  };
  auto *found = llvm::find_if(scalars, isSame);
  if (found != scalars.end()) {
    return scalarArguments[found - scalars.begin()];
  }
  scalars.push_back(scalar);
  scalarArguments.push_back(
      block.addArgument(scalar.getType(), scalar.getLoc()));
  return scalarArguments.back();
}

void KernelBuilder::emit(Operation *op) {
  Value result = op->getResult(0);
  if (isSplat(result)) {
    std::optional<double> number = getSplatConstant(result);
    Value filled = number && isWellKnown(*number)
                       ? body.clone(*op)->getResult(0)
                       : createSplat(body, op->getLoc(),
                                     getScalar(getSplatScalar(host, result)),
                                     getMatrixType(result));
    mapping.map(result, filled);
    return;
  }
  for (Value operand : op->getOperands()) {
    if (!getMatrixType(operand)) {
      // The condition of a select: kernels receive f64 only.
      Location loc = op->getLoc();
      Value number = arith::SelectOp::create(host, loc, operand,
                                             createScalar(host, loc, 1.0),
                                             createScalar(host, loc, 0.0));
      Value zero = createScalar(body, loc, 0.0);
      mapping.map(operand,
                  arith::CmpFOp::create(body, loc, arith::CmpFPredicate::UNE,
                                        getScalar(number), zero));
    } else if (plan.isLoaded(operand, kernel.stage)) {
      getInput(operand);
    }
  }
  body.clone(*op, mapping);
}

Schedule KernelBuilder::chooseSchedule() {
  auto hasReduction = [&](Along along) {
    return llvm::any_of(needed, [&](Operation *op) {
      auto reduce = dyn_cast<ReduceOp>(op);
      return reduce && reduce.getAlong() == along;
    });
  };
  if (hasReduction(Along::Row)) {
    return Schedule::Rows;
  }
  if (hasReduction(Along::Column)) {
    return Schedule::Columns;
  }
  auto isFullOrSingle = [&](Value value) {
    return getShape(value) == kernel.domain || getShape(value) == Shape{1, 1};
  };
  bool flat = llvm::all_of(inputs, isFullOrSingle) &&
              llvm::all_of(needed, [&](Operation *op) {
                return isFullOrSingle(op->getResult(0));
              });
  return flat ? Schedule::Elementwise : Schedule::Rows;
}

void KernelBuilder::report(KernelOp op) const {
  auto options = remark::RemarkOpts::name("Kernel")
                     .category("kaon-fuse-kernels")
                     .function(op->getParentOfType<func::FuncOp>().getName());
  remark::passed(op.getLoc(), options) << remark::add(
      "{0} kernel over {1}x{2}: {3} ops, {4} inputs, {5} results",
      stringifySchedule(op.getSchedule()), kernel.domain[0], kernel.domain[1],
      needed.size(), inputs.size(), kernel.roots.size());
  bool mayKeep = kernel.isAlone && op.getSchedule() == Schedule::Elementwise;
  bool chooses = llvm::any_of(
      kernel.roots, [&](Value root) { return plan.choosesMaterialized(root); });
  if (chooses && !mayKeep) {
    remark::missed(op.getLoc(), options) << remark::add(
        "a kernel over {0}x{1} always runs: it chooses a materialized matrix "
        "or another, but is not elementwise, or the choice is not one for all "
        "elements that is known before",
        kernel.domain[0], kernel.domain[1]);
  }
}

KernelOp KernelBuilder::build() {
  for (Value root : kernel.roots) {
    collect(root);
  }
  SmallVector<Operation *> ordered(needed.getArrayRef());
  llvm::sort(ordered,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  body.setInsertionPointToEnd(&block);
  for (Operation *op : ordered) {
    emit(op);
  }
  SmallVector<Value> yielded;
  SmallVector<Type> types;
  SmallVector<Location> locations;
  for (Value root : kernel.roots) {
    yielded.push_back(mapping.lookup(root));
    types.push_back(root.getType());
    locations.push_back(root.getLoc());
  }
  Location loc = FusedLoc::get(host.getContext(), locations);
  YieldOp::create(body, loc, yielded);

  auto op =
      KernelOp::create(host, loc, types, chooseSchedule(), inputs, scalars);
  Block &destination = op.getBody().emplaceBlock();
  for (BlockArgument argument : block.getArguments()) {
    argument.replaceAllUsesWith(
        destination.addArgument(argument.getType(), argument.getLoc()));
  }
  destination.getOperations().splice(destination.end(), block.getOperations());
  report(op);
  return op;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {

struct FuseKernelsPass : kaon::impl::FuseKernelsPassBase<FuseKernelsPass> {
  void runOnOperation() override {
    func::FuncOp update = getOperation();
    if (!isUpdate(update)) {
      return;
    }
    SmallVector<ReduceOp> whole;
    for (Operation &op : update.getBody().front()) {
      if (classify(&op) == OpClass::Unsupported && !isa<MaterializeOp>(op)) {
        op.emitOpError()
            << "cannot be part of a kernel; kaon-expand-updates and "
               "kaon-split-phases come first";
        return signalPassFailure();
      }
      if (auto reduce = dyn_cast<ReduceOp>(op);
          reduce && needsTwoLevels(reduce)) {
        whole.push_back(reduce);
      }
    }
    for (ReduceOp reduce : whole) {
      reduce.replaceAllUsesWith(reduceRows(reduce));
    }
    eraseDeadOps(update);
    materializeViewedArguments(update);
    materializeMultipliedArguments(update);
    SmallVector<Value> materialized = takeMaterialized(update);
    build(update, FusionPlan(update, materialized));
  }

  /// Replaces what is to be stored by what it is.
  static SmallVector<Value> takeMaterialized(func::FuncOp update) {
    SmallVector<Value> values;
    for (auto op : llvm::to_vector(update.getOps<MaterializeOp>())) {
      values.push_back(op.getInput());
      op.replaceAllUsesWith(op.getInput());
      op.erase();
    }
    return values;
  }

  static void build(func::FuncOp update, const FusionPlan &plan) {
    Block &block = update.getBody().front();
    Operation *terminator = block.getTerminator();
    SmallVector<Operation *> fused, barriers;
    for (Operation &op : block) {
      OpClass kind = classify(&op);
      if (kind == OpClass::Fusible) {
        fused.push_back(&op);
      } else if (kind == OpClass::Barrier) {
        barriers.push_back(&op);
      }
    }

    OpBuilder host(terminator);
    DenseMap<Value, Value> stored;
    auto loadOperands = [&](Operation *op) {
      for (OpOperand &operand : op->getOpOperands()) {
        operand.set(stored.lookup_or(operand.get(), operand.get()));
      }
    };
    ArrayRef<PlannedKernel> kernels = plan.getKernels();
    for (unsigned stage = 0; stage < plan.getNumStages(); ++stage) {
      // Products first: a kernel of the same stage may overwrite in place what
      // they read.
      for (Operation *barrier : barriers) {
        if (plan.getStage(barrier) == stage) {
          barrier->moveBefore(terminator);
          loadOperands(barrier);
        }
      }
      for (; !kernels.empty() && kernels.front().stage == stage;
           kernels = kernels.drop_front()) {
        KernelOp kernel =
            KernelBuilder(plan, kernels.front(), stored, host).build();
        for (auto [root, result] :
             llvm::zip_equal(kernels.front().roots, kernel.getResults())) {
          stored[root] = result;
        }
      }
    }
    loadOperands(terminator);
    for (Operation *op : llvm::reverse(fused)) {
      op->erase();
    }
    eraseDeadOps(update);
  }
};

} // namespace
