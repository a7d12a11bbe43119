//===-- FoldNorms.cpp - products scale what was normalized ----------------===//
//
// Numeric class: approximate.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/Remarks.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallPtrSet.h"

#include <cmath>

namespace kaon {
#define GEN_PASS_DEF_FOLDNORMSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

// A matrix whose number is within 2^-32 and 2^32 is multiplied as it is. Others
// are first brought there by the power of two next to their number among
// 2^-128, 2^-64, 2^64 and 2^128, which reach every number that normalizes a
// matrix of f32: the smallest one has norm 2^-149.
static constexpr int rangeExponent = 32, stepExponent = 64, numSteps = 2;

namespace {

/// A matrix that is multiplied or divided by a number, rounded for products.
struct ScaledMatrix {
  arith::TruncFOp rounded;
  Value matrix; // f32
  Value number; // 1x1
  bool isDivided;
};

/// Folds the number of one matrix into its products.
class NormFolder : public ImplicitLocOpBuilder {
public:
  explicit NormFolder(ScaledMatrix scaled)
      : ImplicitLocOpBuilder(scaled.rounded.getLoc(), scaled.rounded),
        scaled(scaled) {}

  void fold();

private:
  Value fill(double number, Value like) {
    return createFill(*this, getLoc(), number, getMatrixType(like));
  }
  Value convert(Value matrix, Type element) {
    return createConversion(*this, getLoc(), matrix, element);
  }
  Value compare(arith::CmpFPredicate predicate, Value matrix, double number) {
    return arith::CmpFOp::create(*this, predicate, matrix,
                                 fill(number, matrix));
  }
  Value choose(Value condition, double number, Value otherwise) {
    return arith::SelectOp::create(*this, condition, fill(number, otherwise),
                                   otherwise);
  }
  Value computeNumber();
  Value computeRescue(Value number);
  Value computeRescued(Value rescue);

  ScaledMatrix scaled;
};

} // namespace

static remark::RemarkOpts getRemark(Operation *op) {
  return remark::RemarkOpts::name("Norm")
      .category("kaon-fold-norms")
      .function(op->getParentOfType<func::FuncOp>().getName());
}

/// What the matrix is multiplied by, in f64: the number or its inverse.
Value NormFolder::computeNumber() {
  Value number = convert(scaled.number, getF64Type());
  return scaled.isDivided
             ? arith::DivFOp::create(*this, fill(1.0, number), number)
             : number;
}

/// The power of two that brings the matrix to where its products are safe. One
/// for the number zero, which a zero matrix has.
Value NormFolder::computeRescue(Value number) {
  Value magnitude = math::AbsFOp::create(*this, number);
  Value rescue = fill(1.0, number);
  for (int step = 1; step <= numSteps; ++step) {
    int exponent = step * stepExponent;
    double bound = std::ldexp(1.0, exponent - rangeExponent);
    rescue = choose(compare(arith::CmpFPredicate::OGT, magnitude, bound),
                    std::ldexp(1.0, exponent), rescue);
    rescue = choose(compare(arith::CmpFPredicate::OLT, magnitude, 1 / bound),
                    std::ldexp(1.0, -exponent), rescue);
  }
  return choose(compare(arith::CmpFPredicate::OEQ, magnitude, 0.0), 1.0,
                rescue);
}

/// The matrix in half precision, times `rescue`. It is in memory without, where
/// it stays if that is one: see findKeptArgument.
Value NormFolder::computeRescued(Value rescue) {
  Type half = getMatrixType(scaled.rounded).getElementType();
  Value stored = MaterializeOp::create(*this, convert(scaled.matrix, half));
  Value wide = convert(scaled.matrix, getF64Type());
  Value factors = BroadcastOp::create(*this, wide.getType(), rescue);
  Value product = arith::MulFOp::create(*this, wide, factors);
  Value isKept = compare(arith::CmpFPredicate::OEQ, factors, 1.0);
  Value moved = convert(convert(product, getF32Type()), half);
  return arith::SelectOp::create(*this, isKept, stored, moved);
}

void NormFolder::fold() {
  Value number = computeNumber(), rescue = computeRescue(number);
  Value rest = arith::DivFOp::create(*this, number, rescue);
  Value linear = convert(rest, getF32Type());
  Value square =
      convert(arith::MulFOp::create(*this, rest, rest), getF32Type());
  Value rounded = scaled.rounded, rescued = computeRescued(rescue);
  // An op is among the users once per operand.
  llvm::SetVector<Operation *> products(rounded.user_begin(),
                                        rounded.user_end());
  for (Operation *user : products) {
    auto product = cast<MatmulOp>(user);
    bool isSquare = product.getLhs() == product.getRhs();
    product.getFactorMutable().assign(isSquare ? square : linear);
    product->replaceUsesOfWith(rounded, rescued);
  }
  ArrayRef<int64_t> shape = getMatrixType(rounded).getShape();
  remark::passed(getLoc(), getRemark(scaled.rounded))
      << remark::add("{0} products scale a {1}x{2} matrix themselves",
                     products.size(), shape[0], shape[1]);
}

//===----------------------------------------------------------------------===//
// What is normalized
//===----------------------------------------------------------------------===//

namespace {

/// A matrix that is multiplied or divided by numbers: one, or one for each row
/// or column.
struct Scaling {
  Value matrix;
  Value numbers;
  bool isDivided;
};

} // namespace

static Value skipWidening(Value matrix) {
  while (auto widened = matrix.getDefiningOp<arith::ExtFOp>()) {
    matrix = widened.getIn();
  }
  return matrix;
}

static std::optional<Scaling> matchScaling(Value value) {
  Operation *op = value.getDefiningOp();
  if (!isa_and_present<arith::MulFOp, arith::DivFOp>(op)) {
    return std::nullopt;
  }
  bool isDivided = isa<arith::DivFOp>(op);
  for (unsigned side : {1u, 0u}) {
    auto repeated = op->getOperand(side).getDefiningOp<BroadcastOp>();
    if (repeated && (side == 1 || !isDivided)) {
      return Scaling{op->getOperand(1 - side), repeated.getInput(), isDivided};
    }
  }
  return std::nullopt;
}

/// Whether every element of `value` is made of the one of `matrix` at the same
/// place, and of nothing else.
static bool isMadeOf(Value value, Value matrix) {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 8> seen;
  while (!pending.empty()) {
    Value next = skipWidening(pending.pop_back_val());
    Operation *op = next.getDefiningOp();
    if (next == matrix || isSplat(next)) {
      continue;
    }
    if (!op || !isElementwise(op)) {
      return false;
    }
    if (seen.insert(op).second) {
      llvm::append_range(pending, op->getOperands());
    }
  }
  return true;
}

/// Whether numbers are divided by what was measured on a matrix: by a reduction
/// of nothing else. Their product with the matrix has its size from them then,
/// whatever size the matrix has. `isInverted`: whether they are divided by.
static bool divideByMeasure(Value numbers, bool isInverted, Value matrix) {
  SmallVector<std::pair<Value, bool>> pending{{numbers, isInverted}};
  // Ops that were met as they are, and inverted.
  std::array<llvm::SmallPtrSet<Operation *, 16>, 2> seen;
  while (!pending.empty()) {
    auto [value, inverted] = pending.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (!op || !seen[inverted].insert(op).second) {
      continue;
    }
    auto reduce = dyn_cast<ReduceOp>(op);
    if (reduce && inverted && isMadeOf(reduce.getInput(), matrix)) {
      return true;
    }
    bool isRoot = isa<math::RsqrtOp>(op), isQuotient = isa<arith::DivFOp>(op);
    for (OpOperand &operand : op->getOpOperands()) {
      bool flips = isRoot || (isQuotient && operand.getOperandNumber() == 1);
      pending.push_back({operand.get(), inverted != flips});
    }
  }
  return false;
}

/// Whether a matrix is one that was divided by its own size: all of it, or its
/// rows or columns.
static bool isDividedBySize(Value value) {
  SmallVector<Scaling> scalings;
  Value matrix = value;
  while (std::optional<Scaling> scaling = matchScaling(matrix)) {
    scalings.push_back(*scaling);
    matrix = skipWidening(scaling->matrix);
  }
  return llvm::any_of(scalings, [&](const Scaling &scaling) {
    return divideByMeasure(scaling.numbers, scaling.isDivided, matrix);
  });
}

/// Whether a matrix is a polynomial of matrices that were divided by their own
/// sizes: it is far from the limits of f32, however large or small what the
/// update was given is.
static bool hasModerateSize(Value value) {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty()) {
    Value next = pending.pop_back_val();
    Operation *op = next.getDefiningOp();
    if (isSplat(next) || isDividedBySize(next)) {
      continue;
    }
    if (!isa_and_present<MatmulOp, TransposeOp, arith::AddFOp, arith::SubFOp,
                         arith::MulFOp, arith::NegFOp, arith::ExtFOp,
                         arith::TruncFOp>(op)) {
      return false;
    }
    if (seen.insert(op).second) {
      // Scalars of the host are taken for what they nearly always are:
      // coefficients.
      llvm::copy_if(op->getOperands(), std::back_inserter(pending),
                    getMatrixType);
    }
  }
  return true;
}

/// Whether each element of a matrix is made of those at the same place in
/// matrices in memory, and of single numbers: then an elementwise kernel can
/// make it again, which one with values per row or column is not.
static bool isFlat(Value matrix) {
  SmallVector<Value> pending{matrix};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty()) {
    Value value = pending.pop_back_val();
    Operation *op = value.getDefiningOp();
    bool isStored =
        !op || isa<MatmulOp, TransposeOp>(op) ||
        llvm::any_of(value.getUsers(), llvm::IsaPred<func::ReturnOp>);
    if (isStored || isUniform(value) || !seen.insert(op).second) {
      continue;
    }
    if (!isElementwise(op)) {
      return false;
    }
    llvm::append_range(pending, op->getOperands());
  }
  return true;
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// Matches `matrix * number` and `matrix / number` of f32, or in f64 of a
/// matrix of f32, rounded for products.
static std::optional<ScaledMatrix> matchScaled(arith::TruncFOp rounded) {
  Value value = rounded.getIn();
  if (auto narrowed = value.getDefiningOp<arith::TruncFOp>()) {
    value = narrowed.getIn();
  }
  std::optional<Scaling> scaling = matchScaling(value);
  if (!scaling || getMatrixType(scaling->numbers).getNumElements() != 1) {
    return std::nullopt;
  }
  Value matrix = scaling->matrix;
  if (getMatrixType(matrix).getElementType().isF64()) {
    auto widened = matrix.getDefiningOp<arith::ExtFOp>();
    matrix = widened ? widened.getIn() : matrix;
  }
  bool isMeasured = divideByMeasure(scaling->numbers, scaling->isDivided,
                                    skipWidening(matrix));
  return isMeasured
             ? std::optional(ScaledMatrix{rounded, matrix, scaling->numbers,
                                          scaling->isDivided})
             : std::nullopt;
}

namespace {

/// Chooses the matrices of one update whose numbers its products apply.
class NormChooser {
public:
  explicit NormChooser(CudaTargetAttr target) : half(target.getHalfType()) {}

  /// Looks at a rounding; says why if its matrix is normalized, but not chosen.
  void visit(arith::TruncFOp rounded);
  ArrayRef<ScaledMatrix> getChosen() const { return chosen; }

private:
  StringRef findObstacle(ScaledMatrix scaled) const;
  StringRef findObstacle(Operation *user, Value matrix) const;

  FloatType half;
  SmallVector<ScaledMatrix> chosen;
  /// Products that apply the number of one that was chosen. Looked up only.
  DenseSet<Operation *> products;
};

} // namespace

/// What keeps a use of the normalized matrix from being one of a matrix that is
/// scaled afterwards, with its number or its square; empty if nothing does.
StringRef NormChooser::findObstacle(Operation *user, Value matrix) const {
  auto product = dyn_cast<MatmulOp>(user);
  if (!product) {
    return "others than products read it";
  }
  if (product.getFactor() || products.contains(product)) {
    return "a product of it has a factor already";
  }
  bool isLeft = product.getLhs() == matrix,
       isRight = product.getRhs() == matrix;
  Value addend = product.getAddend();
  if (addend && (isLeft == isRight || addend != matrix)) {
    return "a product of it adds what does not scale with it";
  }
  Value other = isLeft ? product.getRhs() : product.getLhs();
  return isLeft != isRight && !hasModerateSize(other)
             ? "a product multiplies it with what may be of any size"
             : "";
}

StringRef NormChooser::findObstacle(ScaledMatrix scaled) const {
  if (!half.isBF16()) {
    return "f16 has no range for a matrix that is not";
  }
  if (!getMatrixType(scaled.matrix).getElementType().isF32()) {
    return "it is not of f32";
  }
  if (!isFlat(scaled.matrix)) {
    return "its rows or columns are scaled in the same pass";
  }
  Value narrowed = scaled.rounded.getIn();
  bool isRead = !narrowed.hasOneUse();
  if (auto op = narrowed.getDefiningOp<arith::TruncFOp>()) {
    isRead |= !op.getIn().hasOneUse();
  }
  if (isRead) {
    return "others than products read it";
  }
  for (Operation *user : scaled.rounded->getUsers()) {
    StringRef obstacle = findObstacle(user, scaled.rounded);
    if (!obstacle.empty()) {
      return obstacle;
    }
  }
  return "";
}

void NormChooser::visit(arith::TruncFOp rounded) {
  auto type = getMatrixType(rounded);
  // The norm of a single row is there before the row leaves the chip.
  if (!type || type.getElementType() != half || type.getDimSize(0) == 1 ||
      llvm::none_of(rounded->getUsers(), llvm::IsaPred<MatmulOp>)) {
    return;
  }
  std::optional<ScaledMatrix> scaled = matchScaled(rounded);
  if (!scaled) {
    return;
  }
  StringRef obstacle = findObstacle(*scaled);
  if (obstacle.empty()) {
    chosen.push_back(*scaled);
    products.insert_range(rounded->getUsers());
    return;
  }
  remark::missed(rounded.getLoc(), getRemark(rounded))
      << remark::add("a {0}x{1} matrix is normalized before its products: {2}",
                     type.getDimSize(0), type.getDimSize(1), obstacle);
}

namespace {

struct FoldNormsPass : kaon::impl::FoldNormsPassBase<FoldNormsPass> {
  void runOnOperation() override {
    func::FuncOp update = getOperation();
    CudaTargetAttr target = getCudaTarget(update);
    if (!isUpdate(update) || !target) {
      return;
    }
    // All are chosen before any is rewritten: what is rewritten does not look
    // normalized any more.
    NormChooser chooser(target);
    llvm::for_each(update.getOps<arith::TruncFOp>(),
                   [&](arith::TruncFOp rounded) { chooser.visit(rounded); });
    for (const ScaledMatrix &scaled : chooser.getChosen()) {
      NormFolder(scaled).fold();
    }
    eraseDeadOps(update);
  }
};

} // namespace
