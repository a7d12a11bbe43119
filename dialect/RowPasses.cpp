//===-- RowPasses.cpp - walks over a row that a kernel takes --------------===//
//
// Each pass is found from what it must produce, backwards: reductions that
// become possible in it, and results. What an earlier pass has had already is
// restored if it was worth keeping.
//
//===----------------------------------------------------------------------===//

#include "dialect/RowPasses.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace kaon;

/// Order of definition: arguments first.
static bool isBefore(Value a, Value b) {
  auto first = dyn_cast<BlockArgument>(a), second = dyn_cast<BlockArgument>(b);
  if (first && second) {
    return first.getArgNumber() < second.getArgNumber();
  }
  if (first || second) {
    return static_cast<bool>(first);
  }
  return a.getDefiningOp()->isBeforeInBlock(b.getDefiningOp());
}

/// On the chip, a value takes the place of one f32.
static bool fitsIntoF32(Value value) {
  Type element = cast<RankedTensorType>(value.getType()).getElementType();
  return isa<FloatType>(element) && element.getIntOrFloatBitWidth() <= 32;
}

RowPasses::RowPasses(func::FuncOp kernel, Mode mode)
    : kernel(kernel), mode(mode) {
  analyzeLevels();
  for (unsigned level = 0; level < numPasses; ++level) {
    addPass(level, mode == Mode::Stream && level + 1 == numPasses);
  }
  // Kept where it is known first.
  DenseSet<Value> handled;
  for (RowPass &pass : passes) {
    for (Value value : kept) {
      bool isHere = llvm::is_contained(pass.loads, value) ||
                    llvm::is_contained(pass.ops, value.getDefiningOp());
      if (isHere && handled.insert(value).second) {
        pass.kept.push_back(value);
      }
    }
  }
}

bool RowPasses::isAlongRow(Value value) {
  unsigned inner = getKernelSchedule(kernel) == Schedule::Rows ? 1 : 0;
  auto matrix = dyn_cast<RankedTensorType>(value.getType());
  return matrix && matrix.getDimSize(inner) != 1;
}

void RowPasses::analyzeLevels() {
  Block &body = kernel.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    if (isAlongRow(argument)) {
      varying.insert(argument);
    }
  }
  for (Operation &op : body.without_terminator()) {
    unsigned level = 0;
    for (Value operand : op.getOperands()) {
      level = std::max(level, getLevel(operand));
    }
    // What has one element already is reduced by leaving it as it is.
    bool reduces = isa<ReduceOp>(op) && isAlongRow(op.getOperand(0));
    numPasses = std::max(numPasses, reduces ? level + 1 : 0);
    for (Value result : op.getResults()) {
      levels[result] = level + (reduces ? 1 : 0);
      bool varies = !reduces && llvm::any_of(op.getOperands(), [&](Value v) {
        return varying.contains(v);
      });
      if (varies && isAlongRow(result)) {
        varying.insert(result);
      }
    }
  }
  for (Value result : getTerminator()->getOperands()) {
    if (isAlongRow(result)) {
      numPasses = std::max(numPasses, getLevel(result) + 1);
    }
  }
}

/// Adds `value`, and what it takes to compute it, to a pass.
void RowPasses::visit(Value value, RowPass &pass) {
  if (isUniform(value) || !current.insert(value).second) {
    return;
  }
  bool isAgain = mode == Mode::Keep && known.contains(value);
  if (isAgain && fitsIntoF32(value)) {
    pass.restored.push_back(value);
    return;
  }
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    keepable &= !isAgain;
    pass.loads.push_back(argument);
    return;
  }
  Operation *op = value.getDefiningOp();
  for (Value operand : op->getOperands()) {
    visit(operand, pass);
  }
  pass.ops.push_back(op);
}

/// Room on the chip is dearer than arithmetic: what follows from other restored
/// values need not be kept itself.
void RowPasses::recomputeFromRestored(RowPass &pass) {
  for (size_t i = 0; i < pass.restored.size();) {
    Value value = pass.restored[i];
    Operation *op = value.getDefiningOp();
    bool follows = op && llvm::all_of(op->getOperands(), [&](Value operand) {
                     return isUniform(operand) ||
                            llvm::is_contained(pass.restored, operand) ||
                            llvm::is_contained(pass.loads, operand);
                   });
    if (!follows) {
      ++i;
      continue;
    }
    pass.restored.erase(pass.restored.begin() + i);
    pass.ops.push_back(op);
    i = 0;
  }
}

void RowPasses::addPass(unsigned level, bool storesAll) {
  RowPass pass;
  current.clear();
  for (auto reduce : kernel.getBody().front().getOps<ReduceOp>()) {
    if (isAlongRow(reduce.getInput()) && getLevel(reduce.getInput()) == level) {
      pass.reductions.push_back(reduce);
      visit(reduce.getInput(), pass);
    }
  }
  for (OpOperand &result : getTerminator()->getOpOperands()) {
    bool isNow =
        mode == Mode::Stream ? storesAll : getLevel(result.get()) == level;
    if (isAlongRow(result.get()) && isNow) {
      pass.stores.push_back(result.getOperandNumber());
      visit(result.get(), pass);
    }
  }
  recomputeFromRestored(pass);
  llvm::sort(pass.loads, isBefore);
  llvm::sort(pass.restored, isBefore);
  llvm::sort(pass.ops,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  kept.insert_range(pass.restored);
  known.insert_range(current);
  passes.push_back(std::move(pass));
}

bool RowPasses::mayStoreOver(unsigned result, unsigned argument) const {
  assert(mode == Mode::Keep && "streamed rows are stored last");
  bool isStored = false;
  for (const RowPass &pass : passes) {
    // Within a pass, an element is loaded before it is stored.
    bool isLoaded = llvm::any_of(pass.loads, [&](BlockArgument loaded) {
      return loaded.getArgNumber() == argument;
    });
    if (isStored && isLoaded) {
      return false;
    }
    isStored |= llvm::is_contained(pass.stores, result);
  }
  return true;
}
