//===-- PrepareKernel.cpp - deciding what a printed kernel looks like -----===//

#include "codegen/cuda/Passes.h"
#include "codegen/cuda/PrintKernel.h"
#include "codegen/cuda/Spelling.h"
#include "mlir/IR/Builders.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon::kernel;

namespace kaon::cuda {

#define GEN_PASS_DEF_PREPAREKERNEL
#include "codegen/cuda/Passes.h.inc"

/// Characters of an expression beyond which parts of it become variables. With
/// its statement and its indentation it then fits into a line of 80.
static constexpr size_t maxExpression = 56;

/// Whether an op computes a value that is written where it is used.
static bool isExpression(Operation *op) {
  return isa<LiteralOp, ScalarOp, GetOp, ReadOp, LoadOp, CallOp, ConvertOp,
             NegateOp, CompareOp, AndOp, OrOp, NotOp, SelectOp>(op);
}

/// Whether an expression may be written several times: it costs nothing and is
/// the same everywhere.
static bool isLeaf(Operation *op) {
  return isa<LiteralOp, ScalarOp, ReadOp>(op);
}

/// The user's name of an op's result, empty if it has none.
static StringRef getUserName(Operation *op) {
  auto name = dyn_cast<NameLoc>(op->getLoc());
  return name ? name.getName().getValue() : StringRef();
}

/// What a value without a name of the user's is called.
static StringRef getDefaultName(Operation *op) {
  return llvm::TypeSwitch<Operation *, StringRef>(op)
      .Case([](CallOp call) -> StringRef {
        switch (call.getFunction()) {
        case Function::Add:
          return "sum";
        case Function::Sub:
          return "difference";
        case Function::Mul:
          return "product";
        case Function::Div:
          return "quotient";
        case Function::Sqrt:
          return "root";
        default:
          return "value";
        }
      })
      .Case([](ConvertOp convert) {
        return convert.getType().isF64() ? "wide" : "rounded";
      })
      .Case<CompareOp, AndOp, OrOp, NotOp>([](auto) { return "condition"; })
      .Case([](GetOp) { return "element"; })
      .Default(StringRef("value"));
}

/// Names for the parameters that are used. C++ warns of those that are not.
static ArrayAttr nameParameters(Block &body, std::optional<ArrayAttr> wishes,
                                NameScope &scope) {
  Builder b(body.getParentOp()->getContext());
  SmallVector<Attribute> names;
  for (BlockArgument argument : body.getArguments()) {
    StringRef wish =
        wishes ? cast<StringAttr>((*wishes)[argument.getArgNumber()]).getValue()
               : StringRef("parameter");
    names.push_back(b.getStringAttr(argument.use_empty() ? std::string()
                                                         : scope.choose(wish)));
  }
  return b.getArrayAttr(names);
}

namespace {

/// Prepares one method.
class MethodPreparer {
public:
  MethodPreparer(MethodOp method, NameScope scope)
      : method(method), scope(std::move(scope)), b(method.getContext()) {}

  void run();

private:
  void eraseUnused();
  void prepare(Operation *op);
  /// Whether a value is a part of the expression of `user` so far.
  bool isPart(Value value) {
    Operation *op = value.getDefiningOp();
    return op && isExpression(op) && !isLeaf(op);
  }
  bool needsVariable(Operation *op);
  /// Makes the largest part of an op's expression a variable; false if it has
  /// none.
  bool shorten(Operation *op);
  void makeVariable(Operation *op);

  MethodOp method;
  NameScope scope;
  OpBuilder b;
};

} // namespace

void MethodPreparer::eraseUnused() {
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(method.getBody().front()))) {
    if (isExpression(&op) && op.use_empty()) {
      op.erase();
    }
  }
}

/// Whether a member is changed in the same method. Where it is read is then not
/// where its value is used.
static bool isChanged(GetOp get) {
  return llvm::any_of(get->getBlock()->getOps<SetOp>(), [&](SetOp set) {
    return set.getAggregate() == get.getAggregate() &&
           set.getIndex() == get.getIndex();
  });
}

bool MethodPreparer::needsVariable(Operation *op) {
  if (!isExpression(op) || isLeaf(op)) {
    return false;
  }
  if (!op->hasOneUse()) {
    return true;
  }
  if (auto get = dyn_cast<GetOp>(op); get && isChanged(get)) {
    return true;
  }
  StringRef name = getUserName(op);
  Operation *user = *op->user_begin();
  return !name.empty() && isExpression(user) && getUserName(user) != name;
}

void MethodPreparer::makeVariable(Operation *op) {
  StringRef wish = getUserName(op);
  b.setInsertionPointAfter(op);
  Value value = op->getResult(0);
  auto let = LetOp::create(
      b, op->getLoc(), scope.choose(wish.empty() ? getDefaultName(op) : wish),
      value);
  value.replaceAllUsesExcept(let.getResult(), let);
}

bool MethodPreparer::shorten(Operation *op) {
  Operation *largest = nullptr;
  size_t length = 0;
  for (Value operand : op->getOperands()) {
    size_t ofOperand = isPart(operand) ? spellExpression(operand).size() : 0;
    if (ofOperand > length) {
      largest = operand.getDefiningOp();
      length = ofOperand;
    }
  }
  if (!largest) {
    return false;
  }
  makeVariable(largest);
  return true;
}

void MethodPreparer::prepare(Operation *op) {
  if (!isExpression(op)) {
    return;
  }
  while (spellExpression(op->getResult(0)).size() > maxExpression &&
         shorten(op)) {
  }
  if (needsVariable(op)) {
    makeVariable(op);
  }
}

void MethodPreparer::run() {
  eraseUnused();
  method.setNamesAttr(
      nameParameters(method.getBody().front(), method.getNames(), scope));
  for (Operation &op : llvm::make_early_inc_range(method.getBody().front())) {
    prepare(&op);
  }
}

/// Gives the fields of a class names that are free, in the methods too.
static void nameFields(ClassOp classOp, NameScope &scope) {
  OpBuilder b(classOp.getContext());
  llvm::StringMap<std::string> names;
  for (auto field : classOp.getOps<FieldOp>()) {
    std::string name = scope.choose(field.getSymName());
    names[field.getSymName()] = name;
    field.setSymName(name);
  }
  auto rename = [&](auto op) { op.setField(names[op.getField()]); };
  classOp.walk([&](AssignOp op) { rename(op); });
  classOp.walk([&](ReadOp op) { rename(op); });
}

static void prepareClass(ClassOp classOp) {
  NameScope scope;
  scope.take(classOp.getSymName());
  for (Operation &op : classOp.getBody().front()) {
    if (isa<AliasOp, ConstantOp>(op)) {
      scope.take(SymbolTable::getSymbolName(&op).getValue());
    }
  }
  nameFields(classOp, scope);
  for (auto method : classOp.getOps<MethodOp>()) {
    MethodPreparer(method, scope).run();
  }
}

namespace {
struct PrepareKernelPass : impl::PrepareKernelBase<PrepareKernelPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    for (auto classOp : module.getOps<ClassOp>()) {
      prepareClass(classOp);
    }
    for (auto entry : module.getOps<EntryOp>()) {
      NameScope scope;
      entry.setNamesAttr(
          nameParameters(entry.getBody().front(), entry.getNames(), scope));
    }
    if (failed(verifyPrintable(module))) {
      signalPassFailure();
    }
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// What printing counts on
//===----------------------------------------------------------------------===//

/// `name` is an identifier that is not taken; it is taken afterwards.
static LogicalResult claim(Operation *op, StringRef name, NameScope &scope) {
  if (!isIdentifier(name) || scope.choose(name) != name) {
    return op->emitOpError()
           << "expects a name that C++ and the kernel leave free, but got '"
           << name << "': run kaon-prepare-kernel first";
  }
  return success();
}

/// Parameters that are used have names.
static LogicalResult verifyParameters(Operation *op, Block &body,
                                      std::optional<ArrayAttr> names,
                                      NameScope &scope) {
  if (!names) {
    return op->emitOpError()
           << "expects names of its parameters: run kaon-prepare-kernel first";
  }
  for (auto [argument, attribute] :
       llvm::zip_equal(body.getArguments(), *names)) {
    StringRef name = cast<StringAttr>(attribute).getValue();
    if ((!argument.use_empty() || !name.empty()) &&
        failed(claim(op, name, scope))) {
      return failure();
    }
  }
  return success();
}

static LogicalResult verifyMethod(MethodOp method, NameScope scope) {
  Block &body = method.getBody().front();
  if (failed(verifyParameters(method, body, method.getNames(), scope))) {
    return failure();
  }
  for (Operation &op : body) {
    if (auto let = dyn_cast<LetOp>(op)) {
      if (failed(claim(let, let.getName(), scope))) {
        return failure();
      }
    }
    bool isWrittenOnce = !isExpression(&op) || isLeaf(&op) || op.hasOneUse();
    if (!isWrittenOnce) {
      return op.emitOpError() << "expects one use or a variable, but got "
                              << std::distance(op.user_begin(), op.user_end())
                              << " uses: run kaon-prepare-kernel first";
    }
    if (auto get = dyn_cast<GetOp>(op);
        get && isChanged(get) && !isa<LetOp>(*op.user_begin())) {
      return op.emitOpError() << "expects a variable for what is changed "
                                 "later: run kaon-prepare-kernel first";
    }
  }
  return success();
}

static LogicalResult verifyClass(ClassOp classOp) {
  NameScope scope;
  if (failed(claim(classOp, classOp.getSymName(), scope))) {
    return failure();
  }
  for (Operation &op : classOp.getBody().front()) {
    if (isa<MethodOp>(op)) {
      continue;
    }
    if (failed(claim(&op, SymbolTable::getSymbolName(&op).getValue(), scope))) {
      return failure();
    }
  }
  for (auto method : classOp.getOps<MethodOp>()) {
    if (failed(verifyMethod(method, scope))) {
      return failure();
    }
  }
  return success();
}

LogicalResult verifyPrintable(ModuleOp module) {
  auto entries = module.getOps<EntryOp>();
  if (!llvm::hasSingleElement(entries)) {
    return module.emitError() << "cannot be printed: expects one kernel.entry, "
                                 "but got "
                              << std::distance(entries.begin(), entries.end());
  }
  NameScope names;
  for (Operation &op : *module.getBody()) {
    if (!isa<IncludeOp, AliasOp, ClassOp, EntryOp>(op)) {
      return op.emitOpError()
             << "cannot be printed: expects kernel.include, kernel.alias, "
                "kernel.class and kernel.entry in the module";
    }
    if (!isa<IncludeOp>(op) &&
        failed(claim(&op, SymbolTable::getSymbolName(&op).getValue(), names))) {
      return failure();
    }
    if (auto classOp = dyn_cast<ClassOp>(op);
        classOp && failed(verifyClass(classOp))) {
      return failure();
    }
    if (auto entry = dyn_cast<EntryOp>(op)) {
      NameScope scope;
      if (failed(verifyParameters(entry, entry.getBody().front(),
                                  entry.getNames(), scope))) {
        return failure();
      }
    }
  }
  return success();
}

} // namespace kaon::cuda
