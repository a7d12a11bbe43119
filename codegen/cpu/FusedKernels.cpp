//===-- FusedKernels.cpp - elementwise, row and column kernels ------------===//

#include "codegen/cpu/FusedKernels.h"

#include "codegen/cpu/KernelBuilder.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace kaon::cpu {

using Values = KernelBuilder::Values;

// What these kernels decide for themselves, and why. All else is in the IR.

/// Lanes of a row sum; part of the numeric contract. Elements of a row are
/// handled as many at a time: one 512-bit register of f32, or several narrower
/// ones.
static constexpr int64_t reductionLanes = 16;

/// Elements that kernels without row sums handle at a time: two registers, so
/// that one can be loaded while the other is computed with, and in column
/// kernels whole cache lines of every row.
static constexpr int64_t freeLanes = 2 * reductionLanes;

static bool isHalf(Type type) { return type.isBF16() || type.isF16(); }

/// The 16-bit types are carried as their bits and converted by integer
/// arithmetic: hosts that lack them, or whose conversions flush subnormals,
/// give the same results as all others.
static Type storageType(Type element) {
  return isHalf(element) ? IntegerType::get(element.getContext(), 16) : element;
}

static Type elementTypeOf(Value value) {
  return getElementTypeOrSelf(value.getType());
}

/// `element`, or a vector of it if `like` is a vector.
static Type withShapeOf(Type element, Value like) {
  auto vector = dyn_cast<VectorType>(like.getType());
  return vector ? VectorType::get(vector.getShape(), element) : element;
}

//===----------------------------------------------------------------------===//
// Half precision
//===----------------------------------------------------------------------===//

namespace {
/// Conversions between f32 and the 16-bit types, for scalars and vectors alike.
/// All round to nearest, ties to even; a NaN stays a NaN.
struct HalfConversion {
  KernelBuilder &b;

  Value widenBF16(Value half);
  Value narrowToBF16(Value value);
  Value widenF16(Value half);
  Value narrowToF16(Value value);

private:
  Value number(Value like, int64_t value);
  Value toInteger(Value value) {
    return arith::BitcastOp::create(b, withShapeOf(b.getI32Type(), value),
                                    value);
  }
  Value toFloat(Value bits) {
    return arith::BitcastOp::create(b, withShapeOf(b.getF32Type(), bits), bits);
  }
  Value extend(Value half) {
    return arith::ExtUIOp::create(b, withShapeOf(b.getI32Type(), half), half);
  }
  Value truncate(Value bits) {
    return arith::TruncIOp::create(b, withShapeOf(b.getI16Type(), bits), bits);
  }
  Value shiftLeft(Value x, int64_t by) {
    return arith::ShLIOp::create(b, x, number(x, by));
  }
  Value shiftRight(Value x, int64_t by) {
    return arith::ShRUIOp::create(b, x, number(x, by));
  }
  Value bitAnd(Value x, int64_t y) {
    return arith::AndIOp::create(b, x, number(x, y));
  }
  Value bitOr(Value x, int64_t y) {
    return arith::OrIOp::create(b, x, number(x, y));
  }
  Value plus(Value x, int64_t y) {
    return arith::AddIOp::create(b, x, number(x, y));
  }
  Value atLeast(Value x, int64_t y) {
    return b.compare(arith::CmpIPredicate::uge, x, number(x, y));
  }
};
} // namespace

Value HalfConversion::number(Value like, int64_t value) {
  Type element = elementTypeOf(like);
  Attribute attribute =
      b.getIntegerAttr(element, APInt(element.getIntOrFloatBitWidth(), value,
                                      /*isSigned=*/true));
  if (auto vector = dyn_cast<VectorType>(like.getType())) {
    attribute = DenseElementsAttr::get(vector, attribute);
  }
  return arith::ConstantOp::create(b, cast<TypedAttr>(attribute));
}

Value HalfConversion::widenBF16(Value half) {
  return toFloat(shiftLeft(extend(half), 16));
}

Value HalfConversion::narrowToBF16(Value value) {
  Value bits = toInteger(value);
  Value high = shiftRight(bits, 16);
  Value rounded = shiftRight(b.add(plus(bits, 0x7fff), bitAnd(high, 1)), 16);
  Value isNaN =
      arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, value, value);
  return truncate(b.select(isNaN, bitOr(high, 0x40), rounded));
}

Value HalfConversion::widenF16(Value half) {
  Value bits = extend(half);
  Value sign = shiftLeft(bitAnd(bits, 0x8000), 16);
  Value magnitude = shiftLeft(bitAnd(bits, 0x7fff), 13);
  // The exponents' biases differ by 112; the product is exact, also for numbers
  // that are subnormal in f16.
  Value rebias = toFloat(number(magnitude, 0x77800000));
  Value finite =
      toInteger(arith::MulFOp::create(b, toFloat(magnitude), rebias));
  Value special = bitOr(magnitude, 0x7f800000);
  Value result = b.select(atLeast(magnitude, 0x0f800000), special, finite);
  return toFloat(arith::OrIOp::create(b, result, sign));
}

Value HalfConversion::narrowToF16(Value value) {
  Value bits = toInteger(value);
  Value magnitude = bitAnd(bits, 0x7fffffff);
  // Normal numbers: round by an addition below the kept bits, and rebias.
  Value odd = bitAnd(shiftRight(magnitude, 13), 1);
  Value normal =
      shiftRight(b.add(plus(magnitude, 0xfff - (int64_t(112) << 23)), odd), 13);
  // Subnormal ones: adding 0.5 makes the processor round at the right bit.
  Value half = number(magnitude, 0x3f000000);
  Value sum =
      toInteger(arith::AddFOp::create(b, toFloat(magnitude), toFloat(half)));
  Value subnormal = b.sub(sum, half);
  Value isNaN =
      arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, value, value);
  Value special =
      b.select(isNaN, number(magnitude, 0x7e00), number(magnitude, 0x7c00));
  Value result = b.select(atLeast(magnitude, 0x38800000), normal, subnormal);
  result = b.select(atLeast(magnitude, 0x47800000), special, result);
  Value sign = bitAnd(shiftRight(bits, 16), 0x8000);
  return truncate(arith::OrIOp::create(b, result, sign));
}

//===----------------------------------------------------------------------===//
// The kernel
//===----------------------------------------------------------------------===//

namespace {

/// Where in its matrix a loop body is.
struct Place {
  /// The row; null outside of the loop over rows (column kernels).
  Value row;
  /// The first column of the vector; null outside of the loop over columns (row
  /// kernels).
  Value column;
  /// Which lanes exist; null means all.
  Value mask;
};

class FusedKernel {
public:
  FusedKernel(ModuleOp module, func::FuncOp source, Schedule schedule)
      : source(source), body(source.getBody().front()), schedule(schedule),
        b(source.getLoc(), module.getContext()) {
    lanes = schedule == Schedule::Rows ? reductionLanes : freeLanes;
  }

  LogicalResult build(ModuleOp module, StringRef name);

private:
  /// Values known so far at some place, by the value of the source that they
  /// stand for: vectors, or scalars that hold for all lanes.
  using Known = llvm::DenseMap<Value, Value>;

  //===--- analysis ---------------------------------------------------------//

  LogicalResult analyze();
  void findEarlyResults();
  /// The operands that the passes after `pass` read and whose elements differ
  /// from place to place.
  llvm::SetVector<BlockArgument> readAfter(int64_t pass) const;
  /// The result that holds a value which an earlier pass has stored, or -1.
  int64_t storedBefore(Value value, int64_t pass) const;
  bool isHost(Value value) const {
    return !isa<RankedTensorType>(value.getType());
  }
  /// Whether elements of this type lie along the lanes.
  bool liesAlongLanes(Type type) const;
  /// Whether a reduction leaves its input as it is: one element per result.
  bool isIdentity(ReduceOp op) const;
  func::ReturnOp terminator() const {
    return cast<func::ReturnOp>(body.getTerminator());
  }
  /// The reductions that pass `pass` computes.
  SmallVector<ReduceOp> reductionsOf(int64_t pass) const {
    return llvm::filter_to_vector(reductions, [&](ReduceOp op) {
      return passOf.lookup(op.getInput()) == pass;
    });
  }
  /// Whether an operand changes from one turn of the inner loop to the next.
  bool variesInside(RankedTensorType type) const {
    return schedule == Schedule::Columns ? type.getDimSize(0) != 1
                                         : liesAlongLanes(type);
  }

  //===--- code -------------------------------------------------------------//

  Value evaluate(Value value, const Place &place, Known &known);
  /// Evaluates, ahead of the inner loop, what pass `pass` can know there: a
  /// division by a norm, say, happens once per row.
  void evaluateInvariants(int64_t pass, const Place &place, Known &known);
  Value loadElements(int64_t buffer, RankedTensorType type, const Place &place);
  Value compute(Operation *op, const Place &place, Known &known);
  Value toLanes(Value value);
  Value pointerTo(int64_t buffer, RankedTensorType type, const Place &place);
  void storeResult(int64_t index, Value value, const Place &place);

  Value initialAccumulator(ReduceOp op);
  Value accumulate(ReduceOp op, Value sum, const Place &place, Known &known);
  /// Adds a product that is exact: a processor that can may round once, in one
  /// instruction, without changing a bit.
  Value addExactProduct(arith::MulFOp product, Value sum, const Place &place,
                        Known &known);
  /// The value of a reduction from its accumulator.
  Value finish(ReduceOp op, Value sum);

  /// Loops over vectors of columns in [begin, end): whole ones, then the tail.
  Values loopOverColumns(Value begin, Value end, Value row, ValueRange init,
                         function_ref<Values(const Place &, ValueRange)> body);

  using InnerBody = function_ref<Values(const Place &, ValueRange)>;
  using InnerLoop = function_ref<Values(ValueRange, InnerBody)>;

  /// The pass that stores a result which changes from one turn of the inner
  /// loop to the next.
  int64_t storingPass(int64_t index) const;
  /// Stores the results of pass `pass`, or, where it is the number of passes,
  /// those that do not change in the inner loop.
  void storeResults(int64_t pass, const Place &place, Known &known);
  /// Whether no early result lies in the memory of an operand that is read
  /// after it was stored; null if there is no such operand.
  Value mayStoreEarly();
  /// All passes over one row, or one block of columns. `innerLoop` makes a loop
  /// over the places in it.
  void buildItem(const Place &outer, InnerLoop innerLoop);
  void buildRows();
  void buildColumns();

  func::FuncOp source;
  Block &body;
  Schedule schedule;
  KernelBuilder b;
  KernelArguments args;
  int64_t lanes;
  /// How many of the arguments are matrices.
  int64_t inputs = 0;

  /// The first pass in which a value can be computed.
  llvm::DenseMap<Value, int64_t> passOf;
  /// Values that change from one turn of the inner loop to the next.
  llvm::DenseSet<Value> varying;
  SmallVector<ReduceOp> reductions;
  /// How many passes there are.
  int64_t passes = 0;
  /// Results that are stored by the pass which computes them, before the last
  /// one, and read by the passes after it.
  SmallVector<int64_t> earlyResults;
  /// Whether the code being built stores them so.
  bool storesEarly = false;
  /// The pass being built.
  int64_t currentPass = 0;

  Values data, strides, hostScalars;
  Value rows, cols;
};

} // namespace

bool FusedKernel::liesAlongLanes(Type type) const {
  auto tensor = cast<RankedTensorType>(type);
  if (schedule == Schedule::Elementwise) {
    return tensor.getDimSize(0) != 1 || tensor.getDimSize(1) != 1;
  }
  return tensor.getDimSize(1) != 1;
}

bool FusedKernel::isIdentity(ReduceOp op) const {
  return op.getInput().getType().getDimSize(
             op.getAlong() == Along::Row ? 1 : 0) == 1;
}

/// 16-bit types only occur in memory: next to f32 or f64 on one side of a
/// conversion, and narrowing from f64 would round twice.
static LogicalResult verifyHalfPrecision(Operation *op) {
  auto isHalfValue = [](Value value) { return isHalf(elementTypeOf(value)); };
  bool reads = llvm::any_of(op->getOperands(), isHalfValue),
       writes = llvm::any_of(op->getResults(), isHalfValue);
  if (isa<arith::TruncFOp>(op) && writes &&
      !elementTypeOf(op->getOperand(0)).isF32()) {
    return op->emitOpError()
           << "expects f32 as the source of " << elementTypeOf(op->getResult(0))
           << ", but got " << elementTypeOf(op->getOperand(0));
  }
  if ((reads || writes) &&
      !isa<arith::ExtFOp, arith::TruncFOp, BroadcastOp, tensor::DimOp>(op)) {
    return op->emitOpError() << "expects operands and results of type f32 or "
                                "f64: 16-bit types are for memory only";
  }
  return success();
}

/// Kernels compute element by element; sizes and elements that differ from each
/// other have no place in that.
static LogicalResult verifyComputable(Operation *op) {
  auto isIndex = [](Value value) { return value.getType().isIndex(); };
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    auto elements = dyn_cast<ElementsAttr>(constant.getValue());
    if (elements && !isa<SplatElementsAttr>(elements)) {
      return op->emitOpError()
             << "expects all elements of a constant inside a kernel to be "
                "equal, but got "
             << elements;
    }
    return success();
  }
  if (isa<ReduceOp, BroadcastOp, tensor::SplatOp, tensor::DimOp>(op)) {
    return success();
  }
  if (llvm::any_of(op->getOperands(), isIndex) ||
      llvm::any_of(op->getResults(), isIndex)) {
    return op->emitOpError()
           << "expects numbers: inside a kernel, sizes are for tensor.splat "
              "only";
  }
  if (op->hasTrait<OpTrait::Elementwise>() && op->getNumResults() == 1 &&
      op->getNumRegions() == 0 &&
      isa_and_present<arith::ArithDialect, math::MathDialect>(
          op->getDialect())) {
    return success();
  }
  return op->emitOpError()
         << "cannot be computed inside a kernel: expects kaon.reduce, "
            "kaon.broadcast, tensor.splat, constants and elementwise "
            "operations of arith and math";
}

LogicalResult FusedKernel::analyze() {
  for (BlockArgument argument : body.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (type && variesInside(type)) {
      varying.insert(argument);
    }
  }
  for (Operation &op : body.without_terminator()) {
    int64_t pass = 0;
    bool varies = false;
    for (Value operand : op.getOperands()) {
      pass = std::max(pass, passOf.lookup(operand));
      varies |= varying.contains(operand);
    }
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      Along expected =
          schedule == Schedule::Columns ? Along::Column : Along::Row;
      if (schedule == Schedule::Elementwise || reduce.getAlong() != expected) {
        return op.emitOpError()
               << "cannot be computed by a kernel with schedule '"
               << stringifyEnum(schedule) << "'";
      }
      if (!isIdentity(reduce)) {
        if (!liesAlongLanes(reduce.getInput().getType())) {
          return op.emitOpError() << "expects more than one column, but got "
                                  << reduce.getInput().getType();
        }
        reductions.push_back(reduce);
        varies = false;
        passes = std::max(passes, ++pass);
      }
    }
    if (failed(verifyComputable(&op)) || failed(verifyHalfPrecision(&op))) {
      return failure();
    }
    for (Value result : op.getResults()) {
      passOf[result] = pass;
      if (varies) {
        varying.insert(result);
      }
    }
  }
  // The last pass stores, alone or beside the last reductions.
  for (Value result : terminator().getOperands()) {
    if (variesInside(cast<RankedTensorType>(result.getType()))) {
      passes = std::max(passes, passOf.lookup(result) + 1);
    }
  }
  findEarlyResults();
  return success();
}

int64_t FusedKernel::storedBefore(Value value, int64_t pass) const {
  if (storesEarly && passOf.lookup(value) < pass) {
    for (int64_t index : earlyResults) {
      if (terminator().getOperand(index) == value) {
        return index;
      }
    }
  }
  return -1;
}

llvm::SetVector<BlockArgument> FusedKernel::readAfter(int64_t pass) const {
  llvm::SetVector<BlockArgument> found;
  for (int64_t later = pass + 1; later < passes; ++later) {
    SmallVector<Value> worklist;
    for (ReduceOp op : reductionsOf(later)) {
      worklist.push_back(op.getInput());
    }
    for (auto [i, result] : llvm::enumerate(terminator().getOperands())) {
      if (storingPass(i) == later) {
        worklist.push_back(result);
      }
    }
    llvm::DenseSet<Value> seen;
    while (!worklist.empty()) {
      Value value = worklist.pop_back_val();
      if (!varying.contains(value) || storedBefore(value, later) >= 0 ||
          !seen.insert(value).second) {
        continue;
      }
      if (auto argument = dyn_cast<BlockArgument>(value)) {
        found.insert(argument);
      } else {
        llvm::append_range(worklist, value.getDefiningOp()->getOperands());
      }
    }
  }
  return found;
}

/// A new state, say, from which the last pass computes the rest again: that
/// takes fewer instructions than from the old one, which is read once then.
void FusedKernel::findEarlyResults() {
  for (auto [i, result] : llvm::enumerate(terminator().getOperands())) {
    if (varying.contains(result) && !isa<BlockArgument>(result) &&
        variesInside(cast<RankedTensorType>(result.getType())) &&
        passOf.lookup(result) < passes - 1) {
      earlyResults.push_back(i);
    }
  }
  size_t before = readAfter(0).size();
  storesEarly = true;
  if (readAfter(0).size() == before) {
    earlyResults.clear();
  }
  storesEarly = false;
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

Value FusedKernel::toLanes(Value value) {
  return isa<VectorType>(value.getType()) ? value : b.splat(value, lanes);
}

Value FusedKernel::pointerTo(int64_t buffer, RankedTensorType type,
                             const Place &place) {
  Type element = storageType(type.getElementType());
  Value pointer = data[buffer];
  bool manyRows = type.getDimSize(0) != 1 ||
                  (schedule == Schedule::Elementwise && liesAlongLanes(type));
  if (manyRows) {
    pointer = b.address(pointer, element, b.mul(place.row, strides[buffer]));
  }
  return liesAlongLanes(type) ? b.address(pointer, element, place.column)
                              : pointer;
}

Value FusedKernel::loadElements(int64_t buffer, RankedTensorType type,
                                const Place &place) {
  Type element = storageType(type.getElementType());
  Value pointer = pointerTo(buffer, type, place);
  if (!liesAlongLanes(type)) {
    return b.load(element, pointer);
  }
  auto vector = VectorType::get({lanes}, element);
  return place.mask ? b.loadMasked(vector, pointer, place.mask)
                    : b.load(vector, pointer);
}

void FusedKernel::storeResult(int64_t index, Value value, const Place &place) {
  auto type = cast<RankedTensorType>(terminator().getOperand(index).getType());
  Value pointer = pointerTo(inputs + index, type, place);
  if (!liesAlongLanes(type)) {
    b.store(value, pointer);
    return;
  }
  value = toLanes(value);
  if (place.mask) {
    b.storeMasked(value, pointer, place.mask);
  } else {
    b.store(value, pointer);
  }
}

Value FusedKernel::evaluate(Value value, const Place &place, Known &known) {
  if (Value found = known.lookup(value)) {
    return found;
  }
  Value result;
  if (int64_t stored = storedBefore(value, currentPass); stored >= 0) {
    result = loadElements(inputs + stored,
                          cast<RankedTensorType>(value.getType()), place);
  } else if (auto argument = dyn_cast<BlockArgument>(value)) {
    result = isHost(value)
                 ? hostScalars[argument.getArgNumber() - inputs]
                 : loadElements(argument.getArgNumber(),
                                cast<RankedTensorType>(value.getType()), place);
  } else {
    result = compute(value.getDefiningOp(), place, known);
  }
  known[value] = result;
  return result;
}

void FusedKernel::evaluateInvariants(int64_t pass, const Place &place,
                                     Known &known) {
  for (Operation &op : body.without_terminator()) {
    if (isa<tensor::DimOp>(op) || op.getResult(0).getType().isIndex()) {
      continue;
    }
    Value result = op.getResult(0);
    if (!varying.contains(result) && passOf.lookup(result) <= pass) {
      evaluate(result, place, known);
    }
  }
}

Value FusedKernel::compute(Operation *op, const Place &place, Known &known) {
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    Attribute value = constant.getValue();
    if (auto elements = dyn_cast<SplatElementsAttr>(value)) {
      value = elements.getSplatValue<Attribute>();
    }
    return arith::ConstantOp::create(b, cast<TypedAttr>(value));
  }
  // Repeating a value takes nothing: scalars stand for all lanes, and a value
  // per column for all rows.
  if (isa<BroadcastOp, tensor::SplatOp>(op) || isa<ReduceOp>(op)) {
    return evaluate(op->getOperand(0), place, known);
  }

  Values operands;
  bool anyVector = false;
  for (Value operand : op->getOperands()) {
    operands.push_back(evaluate(operand, place, known));
    anyVector |= isa<VectorType>(operands.back().getType());
  }
  if (anyVector) {
    for (Value &operand : operands) {
      operand = toLanes(operand);
    }
  }
  Type element = elementTypeOf(op->getResult(0));
  HalfConversion convert{b};
  if (isa<arith::ExtFOp>(op) && isHalf(elementTypeOf(op->getOperand(0)))) {
    bool brain = elementTypeOf(op->getOperand(0)).isBF16();
    Value wide =
        brain ? convert.widenBF16(operands[0]) : convert.widenF16(operands[0]);
    return element.isF32()
               ? wide
               : arith::ExtFOp::create(b, withShapeOf(element, wide), wide)
                     .getResult();
  }
  if (isa<arith::TruncFOp>(op) && isHalf(element)) {
    return element.isBF16() ? convert.narrowToBF16(operands[0])
                            : convert.narrowToF16(operands[0]);
  }
  Type type = anyVector ? VectorType::get({lanes}, element) : element;
  return b
      .create(b.getLoc(), op->getName().getIdentifier(), operands, type,
              op->getAttrs())
      ->getResult(0);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

Value FusedKernel::initialAccumulator(ReduceOp op) {
  bool sum = op.getKind() == ReduceKind::Sum;
  auto element =
      sum ? b.getF64Type()
          : cast<FloatType>(op.getInput().getType().getElementType());
  APFloat value =
      sum ? APFloat::getZero(element.getFloatSemantics())
          : APFloat::getInf(element.getFloatSemantics(),
                            /*Negative=*/op.getKind() == ReduceKind::Max);
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(VectorType::get({lanes}, element), value));
}

static Value combineReduction(KernelBuilder &b, ReduceKind kind, Value x,
                              Value y) {
  switch (kind) {
  case ReduceKind::Sum:
    return arith::AddFOp::create(b, x, y);
  case ReduceKind::Max:
    return arith::MaximumFOp::create(b, x, y);
  case ReduceKind::Min:
    return arith::MinimumFOp::create(b, x, y);
  }
  llvm_unreachable("all kinds are handled");
}

/// Whether a number in f64 was one in a type whose products f64 holds exactly.
static bool isWidened(Value value) {
  auto extend = value.getDefiningOp<arith::ExtFOp>();
  return extend && elementTypeOf(value).isF64() &&
         elementTypeOf(extend.getIn()).getIntOrFloatBitWidth() <= 32;
}

Value FusedKernel::addExactProduct(arith::MulFOp product, Value sum,
                                   const Place &place, Known &known) {
  auto contract = arith::FastMathFlags::contract;
  Value left = toLanes(evaluate(product.getLhs(), place, known));
  Value right = toLanes(evaluate(product.getRhs(), place, known));
  Value value = arith::MulFOp::create(b, left, right, contract);
  return arith::AddFOp::create(b, sum, value, contract);
}

Value FusedKernel::accumulate(ReduceOp op, Value sum, const Place &place,
                              Known &known) {
  auto product = op.getInput().getDefiningOp<arith::MulFOp>();
  if (op.getKind() == ReduceKind::Sum && product &&
      isWidened(product.getLhs()) && isWidened(product.getRhs())) {
    Value next = addExactProduct(product, sum, place, known);
    return place.mask ? b.select(place.mask, next, sum) : next;
  }
  Value value = toLanes(evaluate(op.getInput(), place, known));
  if (op.getKind() == ReduceKind::Sum && !elementTypeOf(value).isF64()) {
    value = arith::ExtFOp::create(b, sum.getType(), value);
  }
  Value next = combineReduction(b, op.getKind(), sum, value);
  return place.mask ? b.select(place.mask, next, sum) : next;
}

Value FusedKernel::finish(ReduceOp op, Value sum) {
  if (op.getAlong() == Along::Row) {
    for (int64_t half = lanes / 2; half > 0; half /= 2) {
      auto low = llvm::to_vector(llvm::seq<int64_t>(0, half));
      auto high = llvm::to_vector(llvm::seq<int64_t>(half, 2 * half));
      sum = combineReduction(b, op.getKind(), b.shuffle(sum, sum, low),
                             b.shuffle(sum, sum, high));
    }
    sum = vector::ExtractOp::create(b, sum, ArrayRef<int64_t>{0});
  }
  Type element = op.getType().getElementType();
  return elementTypeOf(sum) == element
             ? sum
             : arith::TruncFOp::create(b, withShapeOf(element, sum), sum)
                   .getResult();
}

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

Values FusedKernel::loopOverColumns(
    Value begin, Value end, Value row, ValueRange init,
    function_ref<Values(const Place &, ValueRange)> body) {
  Value whole = b.add(begin, b.roundDown(b.sub(end, begin), lanes));
  Values carried =
      b.loop(begin, whole, lanes, init, [&](Value column, ValueRange values) {
        return body({row, column, Value()}, values);
      });
  // At most one turn.
  Value mask = b.laneMask(lanes, b.sub(end, whole));
  return b.loop(whole, end, lanes, carried,
                [&](Value column, ValueRange values) {
                  return body({row, column, mask}, values);
                });
}

int64_t FusedKernel::storingPass(int64_t index) const {
  Value result = terminator().getOperand(index);
  if (!variesInside(cast<RankedTensorType>(result.getType()))) {
    return passes;
  }
  return storesEarly && llvm::is_contained(earlyResults, index)
             ? passOf.lookup(result)
             : passes - 1;
}

void FusedKernel::storeResults(int64_t pass, const Place &place, Known &known) {
  // All loads of a place come before its stores.
  SmallVector<std::pair<int64_t, Value>> values;
  for (auto [i, result] : llvm::enumerate(terminator().getOperands())) {
    if (storingPass(i) == pass) {
      values.push_back({i, evaluate(result, place, known)});
    }
  }
  for (auto [i, value] : values) {
    storeResult(i, value, place);
  }
}

Value FusedKernel::mayStoreEarly() {
  auto addressOf = [&](int64_t buffer) -> Value {
    return LLVM::PtrToIntOp::create(b, b.getI64Type(), data[buffer]);
  };
  Value safe;
  storesEarly = true;
  for (int64_t index : earlyResults) {
    for (BlockArgument operand : readAfter(storingPass(index))) {
      Value apart =
          b.compare(arith::CmpIPredicate::ne, addressOf(inputs + index),
                    addressOf(operand.getArgNumber()));
      safe = safe ? arith::AndIOp::create(b, safe, apart).getResult() : apart;
    }
  }
  storesEarly = false;
  return safe;
}

void FusedKernel::buildItem(const Place &outer, InnerLoop innerLoop) {
  Known ofItem;
  for (int64_t pass = 0; pass < passes; ++pass) {
    currentPass = pass;
    evaluateInvariants(pass, outer, ofItem);
    SmallVector<ReduceOp> current = reductionsOf(pass);
    Values init;
    for (ReduceOp op : current) {
      init.push_back(initialAccumulator(op));
    }
    Values sums = innerLoop(init, [&](const Place &place, ValueRange carried) {
      Known known = ofItem;
      Values next;
      for (auto [op, sum] : llvm::zip_equal(current, carried)) {
        next.push_back(accumulate(op, sum, place, known));
      }
      storeResults(pass, place, known);
      return next;
    });
    for (auto [op, sum] : llvm::zip_equal(current, sums)) {
      ofItem[op.getResult()] = finish(op, sum);
    }
  }
  evaluateInvariants(passes, outer, ofItem);
  storeResults(passes, outer, ofItem);
}

void FusedKernel::buildRows() {
  b.loop(args.begin, args.end, 1, [&](Value row) {
    buildItem({row, Value(), Value()}, [&](ValueRange init, InnerBody body) {
      return loopOverColumns(b.index(0), cols, row, init, body);
    });
  });
}

void FusedKernel::buildColumns() {
  auto forBlock = [&](const Place &block, ValueRange) {
    buildItem(block, [&](ValueRange init, InnerBody body) {
      return b.loop(b.index(0), rows, 1, init,
                    [&](Value row, ValueRange carried) {
                      return body({row, block.column, block.mask}, carried);
                    });
    });
    return Values();
  };
  loopOverColumns(args.begin, args.end, Value(), {}, forBlock);
}

LogicalResult FusedKernel::build(ModuleOp module, StringRef name) {
  if (failed(analyze())) {
    return failure();
  }
  b.createKernel(module, name, args);
  inputs = llvm::count_if(source.getArgumentTypes(),
                          llvm::IsaPred<RankedTensorType>);
  for (int64_t i = 0, e = inputs + source.getNumResults(); i < e; ++i) {
    data.push_back(b.bufferData(args, i));
    strides.push_back(b.bufferStride(args, i));
  }
  for (int64_t i = 0, e = source.getNumArguments() - inputs; i < e; ++i) {
    hostScalars.push_back(b.scalar(args, i));
  }
  rows = b.size(args, 0);
  cols = b.size(args, 1);
  auto buildItems = [&](bool early) {
    storesEarly = early;
    schedule == Schedule::Columns ? buildColumns() : buildRows();
  };
  if (Value mayStore = mayStoreEarly()) {
    b.ifElse(mayStore, [&] { buildItems(true); }, [&] { buildItems(false); });
  } else {
    buildItems(!earlyResults.empty());
  }
  return success();
}

LogicalResult buildFusedKernel(ModuleOp module, StringRef name,
                               func::FuncOp source, Schedule schedule) {
  return FusedKernel(module, source, schedule).build(module, name);
}

} // namespace kaon::cpu
