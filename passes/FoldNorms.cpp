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
  remark::passed(
      getLoc(),
      remark::RemarkOpts::name("Norm")
          .category("kaon-fold-norms")
          .function(scaled.rounded->getParentOfType<func::FuncOp>().getName()))
      << remark::add("{0} products scale a {1}x{2} matrix themselves",
                     products.size(), shape[0], shape[1]);
}

/// Whether a single number depends on a matrix, which a reduction must have led
/// to: the product of both has its size from the number then, whatever size the
/// matrix has.
static bool isMeasuredOn(Value number, Value matrix) {
  SmallVector<Value> pending{number};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty()) {
    Value value = pending.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (value == matrix) {
      return true;
    }
    if (op && seen.insert(op).second) {
      llvm::append_range(pending, op->getOperands());
    }
  }
  return false;
}

/// Matches `matrix * number` and `matrix / number` of f32, or in f64 of a
/// matrix of f32, if nothing but the rounding uses it.
static std::optional<ScaledMatrix> matchScaled(arith::TruncFOp rounded) {
  Value value = rounded.getIn();
  if (auto narrowed = value.getDefiningOp<arith::TruncFOp>();
      narrowed && value.hasOneUse()) {
    value = narrowed.getIn();
  }
  Operation *op = value.getDefiningOp();
  if (!isa_and_present<arith::MulFOp, arith::DivFOp>(op) ||
      !value.hasOneUse()) {
    return std::nullopt;
  }
  bool isDivided = isa<arith::DivFOp>(op);
  for (unsigned side : {1u, 0u}) {
    Value number = getRepeated(op->getOperand(side));
    Value matrix = op->getOperand(1 - side);
    if (auto widened = matrix.getDefiningOp<arith::ExtFOp>();
        widened && getMatrixType(matrix).getElementType().isF64()) {
      matrix = widened.getIn();
    }
    if (number && getMatrixType(matrix).getElementType().isF32() &&
        isMeasuredOn(number, matrix) && (side == 1 || !isDivided)) {
      return ScaledMatrix{rounded, matrix, number, isDivided};
    }
  }
  return std::nullopt;
}

/// Whether a product of `matrix` scales with it, or with its square: what else
/// it multiplies does not, and neither does another addend.
static bool canScale(Operation *user, Value matrix) {
  auto product = dyn_cast<MatmulOp>(user);
  if (!product || product.getFactor()) {
    return false;
  }
  int degree = (product.getLhs() == matrix) + (product.getRhs() == matrix);
  Value addend = product.getAddend();
  return addend ? degree == 1 && addend == matrix : degree > 0;
}

namespace {

struct FoldNormsPass : kaon::impl::FoldNormsPassBase<FoldNormsPass> {
  void runOnOperation() override {
    func::FuncOp update = getOperation();
    CudaTargetAttr target = getCudaTarget(update);
    if (!isUpdate(update) || !target || !target.getHalfType().isBF16()) {
      return;
    }
    for (auto rounded : llvm::to_vector(update.getOps<arith::TruncFOp>())) {
      if (std::optional<ScaledMatrix> scaled = match(rounded)) {
        NormFolder(*scaled).fold();
      }
    }
    eraseDeadOps(update);
  }

  static std::optional<ScaledMatrix> match(arith::TruncFOp rounded) {
    auto type = getMatrixType(rounded);
    // The norm of a single row is there before the row leaves the chip.
    if (!type || !type.getElementType().isBF16() || type.getDimSize(0) == 1 ||
        rounded->use_empty()) {
      return std::nullopt;
    }
    bool scales = llvm::all_of(rounded->getUsers(), [&](Operation *user) {
      return canScale(user, rounded);
    });
    return scales ? matchScaled(rounded) : std::nullopt;
  }
};

} // namespace
