//===-- OrientProducts.cpp - Gram matrices of the shorter side ------------===//
//
// Numeric class: reassociating.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Remarks.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_ORIENTPRODUCTSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

/// A Gram matrix: of the rows of a matrix (`X X^T`) or of its columns (`X^T
/// X`).
struct Gram {
  Value base;
  Along side;

  bool operator==(const Gram &other) const {
    return base == other.base && side == other.side;
  }
  /// Rows and columns of the Gram matrix.
  int64_t getSize() const {
    return getMatrixType(base).getDimSize(side == Along::Row ? 0 : 1);
  }
  Gram flip() const {
    return {base, side == Along::Row ? Along::Column : Along::Row};
  }
};

} // namespace

/// A uniform matrix of another shape.
static Value resizeUniform(OpBuilder &builder, Value value,
                           RankedTensorType type) {
  if (std::optional<double> number = getSplatConstant(value)) {
    return createFill(builder, value.getLoc(), *number, type);
  }
  if (auto splat = value.getDefiningOp<tensor::SplatOp>()) {
    return tensor::SplatOp::create(builder, value.getLoc(), splat.getInput(),
                                   type);
  }
  auto broadcast = value.getDefiningOp<BroadcastOp>();
  return BroadcastOp::create(builder, value.getLoc(), type,
                             broadcast.getInput());
}

namespace {

/// The polynomials in Gram matrices that a function computes.
class GramPolynomials {
public:
  /// Visits an op after its operands.
  void visit(Operation *op);

  /// Rewrites the polynomials in every Gram matrix for which the other side is
  /// shorter and all uses can be rewritten; reports what else needs a longer
  /// one.
  void orient(StringRef update);

private:
  /// All polynomials in one Gram matrix, in order.
  struct Family {
    Gram gram;
    SmallVector<Operation *> polynomials;
  };

  std::optional<Gram> find(Operation *op) const;
  std::optional<Gram> lookup(Value value) const {
    auto found = grams.find(value);
    return found == grams.end() ? std::nullopt : std::optional(found->second);
  }
  /// Whether an op multiplies a polynomial in a Gram matrix with its base, so
  /// that the polynomial can change sides.
  bool isProductWithBase(Operation *op, const Gram &gram) const;
  bool canRewrite(const Family &family) const;
  void reportLonger(const Family &family, StringRef update) const;
  void rewrite(const Family &family, StringRef update) const;

  DenseMap<Value, Gram> grams;
  SmallVector<Family> families;
};

} // namespace

std::optional<Gram> GramPolynomials::find(Operation *op) const {
  if (auto product = dyn_cast<MatmulOp>(op)) {
    // A factor is uniform, but no matrix to resize with the polynomial.
    if (product.isPacked() || product.getFactor()) {
      return std::nullopt;
    }
    std::optional<Gram> left = lookup(product.getLhs()),
                        right = lookup(product.getRhs()), result;
    auto [lhs, rhs] = getProductOperands(product);
    if (left && right && *left == *right) {
      // Polynomials are symmetric: transposition does not matter.
      result = left;
    } else if (lhs.matrix == rhs.matrix && lhs.transposed != rhs.transposed) {
      result = Gram{lhs.matrix, rhs.transposed ? Along::Row : Along::Column};
    }
    Value addend = product.getAddend();
    if (result && addend && lookup(addend) != result) {
      return std::nullopt;
    }
    return result;
  }
  if (isa<arith::AddFOp, arith::SubFOp>(op)) {
    std::optional<Gram> left = lookup(op->getOperand(0));
    return left == lookup(op->getOperand(1)) ? left : std::nullopt;
  }
  if (isa<arith::NegFOp, TransposeOp>(op)) {
    return lookup(op->getOperand(0));
  }
  if (isa<arith::MulFOp>(op) && isUniform(op->getOperand(0))) {
    return lookup(op->getOperand(1));
  }
  if (isa<arith::MulFOp, arith::DivFOp>(op) && isUniform(op->getOperand(1))) {
    return lookup(op->getOperand(0));
  }
  return std::nullopt;
}

void GramPolynomials::visit(Operation *op) {
  if (op->getNumResults() != 1) {
    return;
  }
  if (std::optional<Gram> gram = find(op)) {
    grams.insert({op->getResult(0), *gram});
    auto *family = llvm::find_if(
        families, [&](const Family &f) { return f.gram == *gram; });
    if (family == families.end()) {
      families.push_back({*gram, {}});
      family = std::prev(families.end());
    }
    family->polynomials.push_back(op);
  }
}

bool GramPolynomials::isProductWithBase(Operation *op, const Gram &gram) const {
  auto product = dyn_cast<MatmulOp>(op);
  if (!product || product.isPacked()) {
    return false;
  }
  // P(X X^T) X and X^T P(X X^T); X P(X^T X) and P(X^T X) X^T.
  bool ofRows = gram.side == Along::Row;
  auto [lhs, rhs] = getProductOperands(product);
  bool baseIsRight = lookup(product.getLhs()) == gram &&
                     rhs == ProductOperand{gram.base, !ofRows};
  bool baseIsLeft = lookup(product.getRhs()) == gram &&
                    lhs == ProductOperand{gram.base, ofRows};
  return baseIsLeft || baseIsRight;
}

/// Whether nothing but products with the base and other polynomials read the
/// polynomials.
bool GramPolynomials::canRewrite(const Family &family) const {
  return llvm::all_of(family.polynomials, [&](Operation *op) {
    return llvm::all_of(op->getUsers(), [&](Operation *user) {
      return isProductWithBase(user, family.gram) ||
             (user->getNumResults() == 1 &&
              lookup(user->getResult(0)) == family.gram);
    });
  });
}

static remark::RemarkOpts getRemark(StringRef update) {
  return remark::RemarkOpts::name("Orient")
      .category("kaon-orient-products")
      .function(update);
}

void GramPolynomials::rewrite(const Family &family, StringRef update) const {
  Gram gram = family.gram.flip();
  Value base = gram.base;
  auto type = RankedTensorType::get({gram.getSize(), gram.getSize()},
                                    getMatrixType(base).getElementType());
  IRMapping mapping;
  SmallVector<MatmulOp> products;
  for (Operation *op : family.polynomials) {
    OpBuilder builder(op);
    // A Gram matrix of the base, rather than a product of two polynomials.
    auto product = dyn_cast<MatmulOp>(op);
    bool isGram = product && !lookup(product.getLhs());
    for (Value operand : op->getOperands()) {
      if (getMatrixType(operand) && isUniform(operand)) {
        mapping.map(operand, resizeUniform(builder, operand, type));
      }
    }
    Operation *clone = builder.clone(*op, mapping);
    clone->getResult(0).setType(type);
    if (isGram) {
      auto made = cast<MatmulOp>(clone);
      made.getLhsMutable().set(base);
      made.getRhsMutable().set(base);
      made.setTransposeA(gram.side == Along::Column);
      made.setTransposeB(gram.side == Along::Row);
    }
    for (Operation *user : op->getUsers()) {
      if (isProductWithBase(user, family.gram) &&
          !llvm::is_contained(products, user)) {
        products.push_back(cast<MatmulOp>(user));
      }
    }
  }
  for (MatmulOp product : products) {
    // The polynomial moves to the base's other side; as a symmetric matrix it
    // needs no transposition, and the base keeps its own.
    auto [left, right] = getProductOperands(product);
    Value lhs = product.getLhs(), rhs = product.getRhs();
    bool baseIsRight = lookup(lhs) == family.gram;
    product.getLhsMutable().set(baseIsRight ? base : mapping.lookup(rhs));
    product.getRhsMutable().set(baseIsRight ? mapping.lookup(lhs) : base);
    product.setTransposeA(baseIsRight && right.transposed);
    product.setTransposeB(!baseIsRight && left.transposed);
  }
  for (Operation *op : llvm::reverse(family.polynomials)) {
    op->erase();
  }
  remark::passed(base.getLoc(), getRemark(update)) << remark::add(
      "products with a Gram matrix of {0}x{0} now use one of {1}x{1}",
      family.gram.getSize(), gram.getSize());
}

void GramPolynomials::orient(StringRef update) {
  // Decided before any rewriting, which erases what the decisions look at.
  SmallVector<Family> chosen;
  for (const Family &family : families) {
    if (family.gram.flip().getSize() >= family.gram.getSize()) {
      continue;
    }
    if (canRewrite(family)) {
      chosen.push_back(family);
    } else {
      reportLonger(family, update);
    }
  }
  for (const Family &family : chosen) {
    rewrite(family, update);
  }
}

/// Reports products that could do with a smaller Gram matrix, if nobody else
/// needed the larger one.
void GramPolynomials::reportLonger(const Family &family,
                                   StringRef update) const {
  bool isMultiplied = llvm::any_of(family.polynomials, [&](Operation *op) {
    return llvm::any_of(op->getUsers(), [&](Operation *user) {
      return isProductWithBase(user, family.gram);
    });
  });
  if (isMultiplied) {
    remark::missed(family.polynomials.front()->getLoc(), getRemark(update))
        << remark::add("products with a Gram matrix of {0}x{0} do not use one "
                       "of {1}x{1}: something else needs the larger one",
                       family.gram.getSize(), family.gram.flip().getSize());
  }
}

namespace {

struct OrientProductsPass
    : kaon::impl::OrientProductsPassBase<OrientProductsPass> {
  void runOnOperation() override {
    GramPolynomials polynomials;
    getOperation().getBody().walk<WalkOrder::PreOrder>(
        [&](Operation *op) { polynomials.visit(op); });
    polynomials.orient(getOperation().getName());
    eraseDeadOps(getOperation());
  }
};

} // namespace
