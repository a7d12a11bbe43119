//===-- LowerToKernel.cpp - from kernel functions to CUDA constructs ------===//

#include "codegen/cuda/LaunchShape.h"
#include "codegen/cuda/Passes.h"
#include "codegen/cuda/Translator.h"
#include "dialect/Kaon.h"
#include "dialect/Kernel.h"
#include "dialect/RowPasses.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;

namespace kaon::cuda {

#define GEN_PASS_DEF_LOWERTOKERNEL
#include "codegen/cuda/Passes.h.inc"

using Values = SmallVector<Value>;

namespace {
/// Threads of a block, and blocks that are to fit onto a multiprocessor.
struct LaunchBounds {
  int64_t threads, blocks;
};
} // namespace

static constexpr LaunchBounds defaultBounds = {runtime::cudaBlockThreads, 2};
static constexpr LaunchBounds transposeBounds = {runtime::cudaBlockThreads, 4};
static constexpr LaunchBounds warpgroupBounds = {runtime::cudaWarpgroupThreads,
                                                 2};

/// A multiprocessor has 128 registers for each of 512 threads. With half as
/// many, divisions in f64 spill.
static LaunchBounds boundsOfRows(int64_t threads) {
  return {threads, std::max<int64_t>(1, 512 / threads)};
}

static Type elementTypeOf(Value value) {
  return getElementTypeOrSelf(value.getType());
}

/// The user's name of a value, empty if it has none.
static StringRef nameOf(Location loc) {
  auto name = dyn_cast<NameLoc>(loc);
  return name ? name.getName().getValue() : StringRef();
}

/// Whether an op's result is its first operand, seen as another matrix.
static bool isPassedThrough(Operation *op) {
  if (auto reduce = dyn_cast<ReduceOp>(op)) {
    unsigned dim = reduce.getAlong() == Along::Row ? 1 : 0;
    return reduce.getInput().getType().getDimSize(dim) == 1;
  }
  return isa<BroadcastOp, tensor::SplatOp>(op);
}

/// Follows what is passed through.
static Value getOrigin(Value value) {
  Operation *op = value.getDefiningOp();
  while (op && isPassedThrough(op)) {
    value = op->getOperand(0);
    op = value.getDefiningOp();
  }
  return value;
}

//===----------------------------------------------------------------------===//
// Elementwise, row and column kernels
//===----------------------------------------------------------------------===//

namespace {

/// What a kernel does in one pass over its elements.
struct ElementPass {
  SmallVector<BlockArgument> loads;
  Values restored;
  SmallVector<Operation *> ops;
  SmallVector<ReduceOp> reductions;
  SmallVector<unsigned> stores;
  Values kept;
};

class FusedLowering {
public:
  FusedLowering(func::FuncOp source, OpBuilder &builder)
      : source(source), body(source.getBody().front()),
        schedule(*getKernelSchedule(source)), b(builder), translator(builder) {}

  /// Lowers the kernel.
  LogicalResult run();
  /// Lowers the kernel as the epilogue of a product: to a class that makes the
  /// new parameter of the product, which is the first operand, and the
  /// parameter.
  LogicalResult runAsEpilogue();

private:
  /// Where code is generated: a method, and the values that it has so far.
  struct Scope {
    kernel::MethodOp method;
    /// The number of passes that are over, or -1 inside of a pass.
    int64_t stage = -1;
    llvm::DenseMap<Value, Value> known = llvm::DenseMap<Value, Value>();
  };

  //===--- analysis ---------------------------------------------------------//

  LogicalResult verify();
  void analyzeElementwise();
  void analyzePasses();
  /// Whether a matrix of this type has elements of its own within a row
  /// (column, matrix).
  bool isVaryingType(Type type);
  bool isVarying(Value value) const { return varying.contains(value); }
  func::ReturnOp terminator() const {
    return cast<func::ReturnOp>(body.getTerminator());
  }
  unsigned numOperands() { return numInputs + source.getNumResults(); }
  bool isRows() const { return schedule == Schedule::Rows; }
  /// Whether the result lies over the argument that the kernel keeps.
  bool isInPlace() const { return source->hasAttr(inPlaceAttrName); }

  //===--- declarations -----------------------------------------------------//

  void createClass(StringRef name);
  void declareClass();
  void declarePass(unsigned index);
  kernel::MethodOp createMethod(kernel::MethodKind kind, TypeRange types,
                                ArrayRef<StringRef> names);
  kernel::OperandAttr describeOperand(unsigned operand,
                                      const ElementPass &pass);
  void createKernelEntry();
  FlatSymbolRefAttr symbolOf(StringRef prefix, unsigned index) const {
    return FlatSymbolRefAttr::get(b.getContext(),
                                  prefix.str() + std::to_string(index));
  }

  //===--- code -------------------------------------------------------------//

  LogicalResult fillPass(unsigned index);
  LogicalResult fillFinish();
  LogicalResult fillKeeps();
  /// Computes and assigns the fields that other methods read.
  LogicalResult fillStage(Scope &scope);
  /// Calls `visit` for the values that are fields, in the order of the kernel.
  void forEachField(function_ref<void(Value)> visit);
  /// Declares the fields in that order, whoever asked for them first.
  void sortFields();
  /// The value of `value` in a scope; null after an error.
  Value use(Value value, Scope &scope);
  Value compute(Value value, Scope &scope);
  Value loadUniform(BlockArgument argument, Scope &scope);
  /// What is stored as a result, in the type of arithmetic on it.
  Value useResult(unsigned result, Scope &scope);
  kernel::FieldOp getField(Value value);
  std::string chooseFieldName(Value value);

  func::FuncOp source;
  Block &body;
  Schedule schedule;
  OpBuilder &b;
  Translator translator;

  unsigned numInputs = 0;
  SmallVector<ElementPass, 2> passes;
  llvm::DenseSet<Value> varying;
  /// After how many passes a value that does not vary is known.
  llvm::DenseMap<Value, int64_t> stages;
  llvm::DenseMap<Value, int64_t> slots;
  int64_t numKept = 0;

  kernel::ClassOp classOp;
  Scope constructor, finish, keeps;
  SmallVector<Scope, 2> passScopes;
  /// What follows each pass; no method where it has no reductions.
  SmallVector<Scope, 2> reducedScopes;
  llvm::MapVector<Value, kernel::FieldOp> fields;
};

} // namespace

/// The name of the generated class.
static StringRef classNameOf(Schedule schedule) {
  return schedule == Schedule::Elementwise ? "Function" : "Step";
}

bool FusedLowering::isVaryingType(Type type) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
  switch (schedule) {
  case Schedule::Elementwise:
    // A kernel over single elements has no others.
    return shape[0] != 1 || shape[1] != 1 ||
           shape ==
               cast<RankedTensorType>(source.getResultTypes()[0]).getShape();
  case Schedule::Rows:
    return shape[1] != 1;
  case Schedule::Columns:
    return shape[0] != 1;
  }
  llvm_unreachable("all schedules are handled");
}

LogicalResult FusedLowering::verify() {
  if (isRows()) {
    for (StringRef name : {threadsAttrName, registerGroupsAttrName}) {
      if (!source->getAttrOfType<IntegerAttr>(name)) {
        return source.emitOpError()
               << "expects " << name << " on a kernel of rows";
      }
    }
  }
  if (isInPlace() && !findKeptArgument(source)) {
    return source.emitOpError()
           << "expects the result of a kernel with " << inPlaceAttrName
           << " to be a select between an argument and something else, by what "
              "is the same for all elements";
  }
  return success();
}

void FusedLowering::analyzeElementwise() {
  ElementPass pass;
  for (BlockArgument argument : body.getArguments().take_front(numInputs)) {
    if (isVaryingType(argument.getType())) {
      varying.insert(argument);
      if (!argument.use_empty()) {
        pass.loads.push_back(argument);
      }
    }
  }
  for (Operation &op : body.without_terminator()) {
    if (llvm::any_of(op.getOperands(),
                     [&](Value operand) { return isVarying(operand); }) &&
        !isa<tensor::DimOp>(op)) {
      varying.insert(op.result_begin(), op.result_end());
      pass.ops.push_back(&op);
    }
  }
  pass.stores = llvm::to_vector(llvm::seq(source.getNumResults()));
  passes.push_back(std::move(pass));
}

void FusedLowering::analyzePasses() {
  bool isStreaming = !isRows() || source->hasAttr(streamingAttrName);
  RowPasses analysis(source, isStreaming ? RowPasses::Mode::Stream
                                         : RowPasses::Mode::Keep);
  for (const RowPass &pass : analysis.getPasses()) {
    passes.push_back({pass.loads, pass.restored, pass.ops, pass.reductions,
                      pass.stores, pass.kept});
  }
  for (Value value : analysis.getKept()) {
    slots[value] = numKept++;
  }
  for (BlockArgument argument : body.getArguments()) {
    if (!analysis.isUniform(argument)) {
      varying.insert(argument);
    }
  }
  for (Operation &op : body.without_terminator()) {
    for (Value result : op.getResults()) {
      if (!analysis.isUniform(result)) {
        varying.insert(result);
      }
      stages[result] = analysis.getLevel(result);
    }
  }
}

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

kernel::MethodOp FusedLowering::createMethod(kernel::MethodKind kind,
                                             TypeRange types,
                                             ArrayRef<StringRef> names) {
  auto method = kernel::MethodOp::create(b, source.getLoc(), kind,
                                         /*result_type=*/nullptr,
                                         b.getStrArrayAttr(names));
  Block &block = method.getBody().emplaceBlock();
  for (Type type : types) {
    block.addArgument(type, source.getLoc());
  }
  return method;
}

/// How a pass sees an operand: inputs first, then results.
kernel::OperandAttr FusedLowering::describeOperand(unsigned operand,
                                                   const ElementPass &pass) {
  using kernel::Access;
  bool isInput = operand < numInputs;
  Type type = isInput ? source.getArgument(operand).getType()
                      : source.getResultTypes()[operand - numInputs];
  Access access = Access::None;
  if (!isVaryingType(type)) {
    access = Access::Uniform;
  } else if (isInput &&
             llvm::is_contained(pass.loads, source.getArgument(operand))) {
    bool isOfRow = schedule == Schedule::Columns &&
                   cast<RankedTensorType>(type).getDimSize(1) == 1;
    access = isOfRow ? Access::ReadOfRow : Access::Read;
  } else if (!isInput && llvm::is_contained(pass.stores, operand - numInputs)) {
    access = Access::Write;
  }
  return kernel::OperandAttr::get(b.getContext(), getElementTypeOrSelf(type),
                                  access);
}

void FusedLowering::declarePass(unsigned index) {
  const ElementPass &pass = passes[index];
  SmallVector<kernel::OperandAttr> operands;
  for (unsigned operand = 0; operand < numOperands(); ++operand) {
    operands.push_back(describeOperand(operand, pass));
  }
  bool isElementwise = schedule == Schedule::Elementwise;
  std::string suffix = isElementwise ? "" : std::to_string(index);
  kernel::AliasOp::create(b, source.getLoc(), "List" + suffix,
                          kernel::OperandsAttr::get(b.getContext(), operands));
  if (isElementwise) {
    return;
  }
  SmallVector<kernel::ReductionAttr> reductions;
  for (ReduceOp op : pass.reductions) {
    kernel::ReductionKind kind =
        op.getKind() == ReduceKind::Sum   ? kernel::ReductionKind::Sum
        : op.getKind() == ReduceKind::Max ? kernel::ReductionKind::Max
                                          : kernel::ReductionKind::Min;
    Type type = kind == kernel::ReductionKind::Sum
                    ? b.getF64Type()
                    : elementTypeOf(op.getInput());
    reductions.push_back(
        kernel::ReductionAttr::get(b.getContext(), kind, type));
  }
  kernel::AliasOp::create(
      b, source.getLoc(), "Reductions" + suffix,
      kernel::ReductionsAttr::get(b.getContext(), reductions));
}

void FusedLowering::createClass(StringRef name) {
  classOp = kernel::ClassOp::create(b, source.getLoc(), name);
  b.setInsertionPointToStart(&classOp.getBody().emplaceBlock());
}

void FusedLowering::declareClass() {
  createClass(classNameOf(schedule));
  MLIRContext *context = b.getContext();
  bool isElementwise = schedule == Schedule::Elementwise;
  for (unsigned i = 0; i < passes.size(); ++i) {
    declarePass(i);
  }
  Type matrix = kernel::MatrixType::get(context, numOperands());
  Type scalars = kernel::ScalarsType::get(context);
  if (isElementwise) {
    constructor = {createMethod(kernel::MethodKind::Constructor,
                                {scalars, matrix}, {"scalars", "matrix"}),
                   0};
    auto element = kernel::ElementType::get(
        context, FlatSymbolRefAttr::get(context, "List"));
    passScopes.push_back(
        {createMethod(kernel::MethodKind::Call, {element}, {"element"}), -1});
    if (isInPlace()) {
      keeps = {createMethod(kernel::MethodKind::Keeps, {}, {}), -1};
      keeps.method.setResultType(b.getI1Type());
    }
    return;
  }

  SmallVector<FlatSymbolRefAttr> lists, reductions;
  for (unsigned i = 0; i < passes.size(); ++i) {
    lists.push_back(symbolOf("List", i));
    reductions.push_back(symbolOf("Reductions", i));
  }
  kernel::AliasOp::create(
      b, source.getLoc(), "Passes",
      kernel::PassListAttr::get(context, lists, reductions));
  if (isRows()) {
    kernel::ConstantOp::create(b, source.getLoc(), kernel::keptConstantName,
                               numKept);
  }
  StringRef position = isRows() ? "row" : "column";
  constructor = {createMethod(kernel::MethodKind::Constructor,
                              {scalars, matrix, b.getI64Type()},
                              {"scalars", "matrix", position}),
                 0};
  for (unsigned i = 0; i < passes.size(); ++i) {
    Type index = kernel::PassIndexType::get(context, i);
    SmallVector<Type> types{index, kernel::ElementType::get(context, lists[i])};
    SmallVector<StringRef> names{"", "element"};
    if (isRows()) {
      types.push_back(kernel::KeptType::get(context));
      names.push_back("onChip");
    }
    types.push_back(kernel::ContributionsType::get(context, reductions[i]));
    names.push_back("contributions");
    passScopes.push_back(
        {createMethod(kernel::MethodKind::Pass, types, names), -1});
    Scope reduced = {nullptr, i + 1};
    if (!passes[i].reductions.empty()) {
      reduced.method = createMethod(
          kernel::MethodKind::Reduced,
          {index, kernel::ResultsType::get(context, reductions[i])},
          {"", "results"});
    }
    reducedScopes.push_back(std::move(reduced));
  }
  finish = {createMethod(kernel::MethodKind::Finish, {matrix, b.getI64Type()},
                         {"matrix", position}),
            -1};
}

/// A kernel's entry, whose body runs `driver` on its parameters.
static void createEntry(OpBuilder &b, Location loc, StringRef name,
                        LaunchBounds bounds, TypeRange types,
                        ArrayRef<StringRef> names, kernel::Driver driver,
                        ArrayRef<Attribute> templateArgs) {
  auto entry = kernel::EntryOp::create(b, loc, name, bounds.threads,
                                       bounds.blocks, b.getStrArrayAttr(names));
  Block &block = entry.getBody().emplaceBlock();
  for (Type type : types) {
    block.addArgument(type, loc);
  }
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(&block);
  // Transposes have no scalars, but the parameters of other kernels.
  unsigned numUsed = driver == kernel::Driver::Transpose ? 2 : types.size();
  kernel::RunOp::create(b, loc, driver, b.getArrayAttr(templateArgs),
                        block.getArguments().take_front(numUsed));
}

/// The entry of a kernel over matrices.
static void createMatrixEntry(OpBuilder &b, Location loc, StringRef name,
                              LaunchBounds bounds, unsigned numOperands,
                              kernel::Driver driver,
                              ArrayRef<Attribute> templateArgs) {
  MLIRContext *context = b.getContext();
  createEntry(b, loc, name, bounds,
              {kernel::MatricesType::get(context, numOperands),
               kernel::BlocksType::get(context),
               kernel::ScalarsType::get(context)},
              {"matrices", "blocks", "scalars"}, driver, templateArgs);
}

void FusedLowering::createKernelEntry() {
  SmallVector<Attribute> args{
      FlatSymbolRefAttr::get(b.getContext(), classNameOf(schedule))};
  LaunchBounds bounds = defaultBounds;
  kernel::Driver driver = kernel::Driver::Elementwise;
  if (isRows()) {
    auto threads = source->getAttrOfType<IntegerAttr>(threadsAttrName);
    args.push_back(threads);
    args.push_back(source->getAttr(registerGroupsAttrName));
    bounds = boundsOfRows(threads.getInt());
    driver = kernel::Driver::Rows;
  } else if (schedule == Schedule::Columns) {
    driver = kernel::Driver::Columns;
  } else if (isInPlace()) {
    driver = kernel::Driver::ElementwiseInPlace;
  }
  createMatrixEntry(b, source.getLoc(), source.getName(), bounds, numOperands(),
                    driver, args);
}

//===----------------------------------------------------------------------===//
// Code
//===----------------------------------------------------------------------===//

std::string FusedLowering::chooseFieldName(Value value) {
  // A scalar that is only converted keeps its name.
  Value named = value;
  while (Operation *op = named.getDefiningOp()) {
    if (!isPassedThrough(op) && !isa<arith::TruncFOp, arith::ExtFOp>(op)) {
      break;
    }
    named = op->getOperand(0);
  }
  std::string name = nameOf(named.getLoc()).str();
  if (!name.empty()) {
    return name;
  }
  if (auto argument = dyn_cast<BlockArgument>(named)) {
    bool isScalar = argument.getArgNumber() >= numInputs;
    return isScalar
               ? "scalar" + std::to_string(argument.getArgNumber() - numInputs)
               : "operand" + std::to_string(argument.getArgNumber());
  }
  if (auto reduce = dyn_cast<ReduceOp>(named.getDefiningOp())) {
    return stringifyEnum(reduce.getKind()).str();
  }
  return isRows()                        ? "ofRow"
         : schedule == Schedule::Columns ? "ofColumn"
                                         : "uniform";
}

kernel::FieldOp FusedLowering::getField(Value value) {
  kernel::FieldOp &field = fields[value];
  if (!field) {
    std::string name = chooseFieldName(value), unique = name;
    // What the class declares for itself has names, too.
    for (unsigned i = 1; SymbolTable::lookupSymbolIn(classOp, unique); ++i) {
      unique = name + std::to_string(i);
    }
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToEnd(&classOp.getBody().front());
    field = kernel::FieldOp::create(b, value.getLoc(), unique,
                                    translator.numberType(value));
  }
  return field;
}

Value FusedLowering::loadUniform(BlockArgument argument, Scope &scope) {
  Location loc = argument.getLoc();
  Block &block = scope.method.getBody().front();
  unsigned number = argument.getArgNumber();
  if (number >= numInputs) {
    return kernel::ScalarOp::create(b, loc, b.getF64Type(),
                                    block.getArgument(0), number - numInputs);
  }
  auto type = cast<RankedTensorType>(argument.getType());
  bool isSingle = type.getDimSize(0) == 1 && type.getDimSize(1) == 1;
  kernel::Place place = isSingle   ? kernel::Place::Single
                        : isRows() ? kernel::Place::OfRow
                                   : kernel::Place::OfColumn;
  return kernel::LoadOp::create(
      b, loc, translator.numberType(argument), place, block.getArgument(1),
      number, isSingle ? Value() : block.getArgument(2), type.getElementType());
}

Value FusedLowering::compute(Value value, Scope &scope) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    return loadUniform(argument, scope);
  }
  Operation *op = value.getDefiningOp();
  if (auto reduce = dyn_cast<ReduceOp>(op)) {
    // This is the scope that follows the pass.
    const ElementPass &pass = passes[scope.stage - 1];
    auto *position = llvm::find(pass.reductions, reduce);
    Type type = reduce.getKind() == ReduceKind::Sum
                    ? b.getF64Type()
                    : elementTypeOf(reduce.getInput());
    Value result = kernel::GetOp::create(
        b, op->getLoc(), type, scope.method.getBody().front().getArgument(1),
        position - pass.reductions.begin());
    return translator.convert(op->getLoc(), result,
                              translator.numberType(value));
  }
  Values operands;
  for (Value operand : op->getOperands()) {
    operands.push_back(use(operand, scope));
    if (!operands.back()) {
      return {};
    }
  }
  return translator.translate(op, operands);
}

Value FusedLowering::use(Value value, Scope &scope) {
  value = getOrigin(value);
  if (Value known = scope.known.lookup(value)) {
    return known;
  }
  bool isConstant = value.getDefiningOp<arith::ConstantOp>() != nullptr;
  // What varies and is asked for was listed by the pass, and is known by now.
  bool isHere =
      isVarying(value) || isConstant || stages.lookup(value) == scope.stage;
  Value result = isHere ? compute(value, scope)
                        : kernel::ReadOp::create(b, value.getLoc(),
                                                 translator.numberType(value),
                                                 getField(value).getSymName())
                              .getResult();
  scope.known[value] = result;
  return result;
}

Value FusedLowering::useResult(unsigned result, Scope &scope) {
  Value value = getOrigin(terminator().getOperand(result));
  // Storing narrows, and would do so in the same way.
  if (auto truncation = value.getDefiningOp<arith::TruncFOp>();
      truncation && isHalf(elementTypeOf(value)) &&
      elementTypeOf(truncation.getIn()).isF32()) {
    value = truncation.getIn();
  }
  return use(value, scope);
}

LogicalResult FusedLowering::fillPass(unsigned index) {
  const ElementPass &pass = passes[index];
  Scope &scope = passScopes[index];
  Block &block = scope.method.getBody().front();
  b.setInsertionPointToEnd(&block);
  bool isElementwise = schedule == Schedule::Elementwise;
  Value element = block.getArgument(isElementwise ? 0 : 1);
  for (BlockArgument argument : pass.loads) {
    scope.known[argument] = kernel::GetOp::create(
        b, argument.getLoc(), translator.numberType(argument), element,
        argument.getArgNumber());
  }
  Value onChip = isRows() ? block.getArgument(2) : Value();
  for (Value value : pass.restored) {
    scope.known[value] = kernel::GetOp::create(
        b, value.getLoc(), b.getF32Type(), onChip, slots.lookup(value));
  }
  for (Operation *op : pass.ops) {
    // A result that is only narrowed for memory is narrowed by the store.
    bool isForMemory =
        isa<arith::TruncFOp>(op) && isHalf(elementTypeOf(op->getResult(0))) &&
        llvm::all_of(op->getUsers(), llvm::IsaPred<func::ReturnOp>) &&
        elementTypeOf(op->getOperand(0)).isF32();
    if (!isForMemory && !use(op->getResult(0), scope)) {
      return failure();
    }
  }
  for (auto [number, op] : llvm::enumerate(pass.reductions)) {
    ReduceOp reduce = op;
    Value value = use(reduce.getInput(), scope);
    if (!value) {
      return failure();
    }
    bool isSum = reduce.getKind() == ReduceKind::Sum;
    Value contribution =
        isSum ? translator.convert(reduce.getLoc(), value, b.getF64Type())
              : value;
    kernel::SetOp::create(b, reduce.getLoc(), block.getArguments().back(),
                          number, contribution);
  }
  for (unsigned result : pass.stores) {
    Value value = useResult(result, scope);
    if (!value) {
      return failure();
    }
    kernel::SetOp::create(b, value.getLoc(), element, numInputs + result,
                          value);
  }
  for (Value kept : pass.kept) {
    Value value = use(kept, scope);
    if (!value) {
      return failure();
    }
    kernel::SetOp::create(b, kept.getLoc(), onChip, slots.lookup(kept), value);
  }
  return success();
}

LogicalResult FusedLowering::fillFinish() {
  Block &block = finish.method.getBody().front();
  b.setInsertionPointToEnd(&block);
  kernel::Place place =
      isRows() ? kernel::Place::OfRow : kernel::Place::OfColumn;
  for (auto [number, value] : llvm::enumerate(terminator().getOperands())) {
    if (isVaryingType(value.getType())) {
      continue;
    }
    Value result = useResult(number, finish);
    if (!result) {
      return failure();
    }
    kernel::StoreOp::create(b, value.getLoc(), place, block.getArgument(0),
                            numInputs + number, block.getArgument(1), result,
                            elementTypeOf(value));
  }
  return success();
}

LogicalResult FusedLowering::fillKeeps() {
  b.setInsertionPointToEnd(&keeps.method.getBody().front());
  Value condition = use(findKeptArgument(source)->condition, keeps);
  if (!condition) {
    return failure();
  }
  kernel::ReturnOp::create(b, condition.getLoc(), condition);
  return success();
}

void FusedLowering::forEachField(function_ref<void(Value)> visit) {
  auto visitField = [&](Value value) {
    if (fields.contains(value)) {
      visit(value);
    }
  };
  llvm::for_each(body.getArguments(), visitField);
  for (Operation &op : body.without_terminator()) {
    llvm::for_each(op.getResults(), visitField);
  }
}

void FusedLowering::sortFields() {
  forEachField([&](Value value) {
    fields[value]->moveBefore(&classOp.getBody().front(),
                              classOp.getBody().front().end());
  });
}

LogicalResult FusedLowering::fillStage(Scope &scope) {
  Values assigned;
  forEachField([&](Value value) {
    if (stages.lookup(value) == scope.stage) {
      assigned.push_back(value);
    }
  });
  if (!scope.method) {
    assert(assigned.empty() && "nothing is known after a pass without "
                               "reductions that was not before");
    return success();
  }
  b.setInsertionPointToEnd(&scope.method.getBody().front());
  for (Value value : assigned) {
    Value result = use(value, scope);
    if (!result) {
      return failure();
    }
    StringRef field = fields[value].getSymName();
    kernel::AssignOp::create(b, value.getLoc(), field, result);
    // What follows reads the field rather than a second name for it.
    scope.known[value] =
        kernel::ReadOp::create(b, value.getLoc(), result.getType(), field);
  }
  return success();
}

LogicalResult FusedLowering::run() {
  if (failed(verify())) {
    return failure();
  }
  numInputs = llvm::count_if(source.getArgumentTypes(),
                             llvm::IsaPred<RankedTensorType>);
  bool isElementwise = schedule == Schedule::Elementwise;
  isElementwise ? analyzeElementwise() : analyzePasses();

  StringRef header = isElementwise ? "Elementwise.cuh"
                     : isRows()    ? "Rows.cuh"
                                   : "Columns.cuh";
  kernel::IncludeOp::create(b, source.getLoc(), header);
  declareClass();
  for (unsigned i = 0; i < passes.size(); ++i) {
    if (failed(fillPass(i))) {
      return failure();
    }
  }
  if ((!isElementwise && failed(fillFinish())) ||
      (isInPlace() && failed(fillKeeps()))) {
    return failure();
  }
  // Later stages ask earlier ones for fields.
  for (Scope &scope : llvm::reverse(reducedScopes)) {
    if (failed(fillStage(scope))) {
      return failure();
    }
  }
  if (failed(fillStage(constructor))) {
    return failure();
  }
  sortFields();
  b.setInsertionPointAfter(classOp);
  createKernelEntry();
  return success();
}

LogicalResult FusedLowering::runAsEpilogue() {
  if (failed(verify())) {
    return failure();
  }
  numInputs = 2;
  analyzeElementwise();
  createClass("Update");
  MLIRContext *context = b.getContext();
  Value product = source.getArgument(0), parameter = source.getArgument(1);
  Type type = translator.numberType(parameter);
  constructor = {createMethod(kernel::MethodKind::Constructor,
                              {kernel::ScalarsType::get(context)}, {"scalars"}),
                 0};
  Scope scope = {createMethod(kernel::MethodKind::Call,
                              {type, translator.numberType(product)},
                              {"parameter", "product"}),
                 -1};
  scope.method.setResultType(type);
  Block &block = scope.method.getBody().front();
  scope.known = {{parameter, block.getArgument(0)},
                 {product, block.getArgument(1)}};
  b.setInsertionPointToEnd(&block);
  Value result = useResult(0, scope);
  if (!result) {
    return failure();
  }
  kernel::ReturnOp::create(b, result.getLoc(), result);
  if (failed(fillStage(constructor))) {
    return failure();
  }
  sortFields();
  b.setInsertionPointAfter(classOp);
  return success();
}

//===----------------------------------------------------------------------===//
// Products and transposes
//===----------------------------------------------------------------------===//

static LogicalResult lowerProduct(func::FuncOp source, MatmulOp op,
                                  OpBuilder &b) {
  Type type = op.getLhs().getType().getElementType();
  if (!isHalf(type)) {
    return op.emitOpError() << "expects operands of bf16 or f16 on CUDA, but "
                               "got "
                            << type;
  }
  Location loc = op.getLoc();
  MLIRContext *context = b.getContext();
  CudaTargetAttr target = getCudaTarget(source);
  bool byWarpgroups = target && target.getMainLoop() == MainLoop::Wgmma;
  kernel::IncludeOp::create(b, loc, "Gemm.cuh");
  if (byWarpgroups) {
    kernel::IncludeOp::create(b, loc, "WarpgroupProduct.cuh");
  }
  // The depth is contiguous in the rows of the left operand as it is, and in
  // those of the right one if it is transposed.
  using kernel::Contiguous;
  auto loop = kernel::TileProductAttr::get(
      context, type,
      op.getTransposeA() ? Contiguous::Extent : Contiguous::Depth,
      op.getTransposeB() ? Contiguous::Depth : Contiguous::Extent,
      byWarpgroups);
  bool hasAddend = static_cast<bool>(op.getAddend());
  Attribute epilogue =
      kernel::StoreTileAttr::get(context, type, op.getSymmetric(), hasAddend);
  if (FlatSymbolRefAttr name = op.getEpilogueAttr()) {
    auto update =
        SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(source, name);
    if (!update || update.isDeclaration()) {
      return op.emitOpError()
             << "expects its epilogue " << name << " in the module";
    }
    if (failed(FusedLowering(update, b).runAsEpilogue())) {
      return failure();
    }
    epilogue = kernel::ApplyTileAttr::get(
        context, type, op.getParam().getType().getElementType(), hasAddend,
        FlatSymbolRefAttr::get(context, "Update"));
    update.erase();
  }
  kernel::AliasOp::create(b, loc, "Loop", loop);
  kernel::AliasOp::create(b, loc, "Epilogue", epilogue);
  createEntry(
      b, loc, source.getName(), byWarpgroups ? warpgroupBounds : defaultBounds,
      {kernel::ProductsType::get(context), kernel::ScalarsType::get(context)},
      {"list", "scalars"}, kernel::Driver::Product,
      {FlatSymbolRefAttr::get(context, "Loop"),
       FlatSymbolRefAttr::get(context, "Epilogue")});
  return success();
}

static LogicalResult lowerTranspose(func::FuncOp source, TransposeOp op,
                                    OpBuilder &b) {
  kernel::IncludeOp::create(b, op.getLoc(), "Transpose.cuh");
  createMatrixEntry(b, op.getLoc(), source.getName(), transposeBounds,
                    /*numOperands=*/2, kernel::Driver::Transpose,
                    TypeAttr::get(op.getInput().getType().getElementType()));
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// The only op of this kind in a function, or null.
template <typename OpT> static OpT getOnly(func::FuncOp function) {
  if (function.isDeclaration()) {
    return {};
  }
  auto ops = function.getOps<OpT>();
  return llvm::hasSingleElement(ops) ? *ops.begin() : OpT();
}

static LogicalResult lowerKernel(func::FuncOp source, OpBuilder &b) {
  if (auto product = getOnly<MatmulOp>(source)) {
    return lowerProduct(source, product, b);
  }
  if (auto transpose = getOnly<TransposeOp>(source)) {
    return lowerTranspose(source, transpose, b);
  }
  return FusedLowering(source, b).run();
}

namespace {
struct LowerToKernelPass : impl::LowerToKernelBase<LowerToKernelPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<func::FuncOp> sources;
    llvm::SmallPtrSet<Operation *, 2> epilogues;
    for (func::FuncOp function : module.getOps<func::FuncOp>()) {
      auto product = getOnly<MatmulOp>(function);
      if (product && product.getEpilogueAttr()) {
        epilogues.insert(
            SymbolTable::lookupSymbolIn(module, product.getEpilogueAttr()));
      }
      if (product || getOnly<TransposeOp>(function) ||
          getKernelSchedule(function)) {
        sources.push_back(function);
      }
    }
    llvm::erase_if(sources, [&](func::FuncOp function) {
      return epilogues.contains(function);
    });
    if (sources.size() != 1) {
      module.emitError() << "expects a module with one kernel, but got "
                         << sources.size();
      return signalPassFailure();
    }
    OpBuilder builder(sources[0]);
    if (failed(lowerKernel(sources[0], builder))) {
      return signalPassFailure();
    }
    sources[0].erase();
  }
};
} // namespace

} // namespace kaon::cuda
