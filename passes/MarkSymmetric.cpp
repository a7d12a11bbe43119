//===-- MarkSymmetric.cpp - products whose result is symmetric ------------===//
//
// Numeric class: reassociating.
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_MARKSYMMETRICPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

/// Finds which values are symmetric, and which symmetric matrix each is a
/// polynomial in: two polynomials in one matrix commute, so that their product
/// is symmetric as well.
class SymmetryAnalysis {
public:
  /// Visits an op after its operands; tells whether its result is symmetric.
  bool visit(Operation *op);

private:
  bool isSymmetric(Value value) const {
    return generators.contains(value) || isUniformSquare(value);
  }

  /// Whether all elements are equal, and the matrix square.
  static bool isUniformSquare(Value value) {
    auto type = getMatrixType(value);
    return type && type.getDimSize(0) == type.getDimSize(1) && isUniform(value);
  }

  Value findGenerator(Operation *op);
  Value findProductGenerator(MatmulOp op);
  Value findElementwiseGenerator(Operation *op) const;

  /// The matrix that a symmetric value is a polynomial in; itself if no other
  /// is known.
  DenseMap<Value, Value> generators;
  /// The first `X X^T` and the first `X^T X` of each X: later ones are equal.
  std::array<DenseMap<Value, Value>, 2> gramMatrices;
};

} // namespace

/// The generator of a product without its addend, null if it is not known to be
/// symmetric.
Value SymmetryAnalysis::findProductGenerator(MatmulOp op) {
  // X X^T or X^T X.
  auto [lhs, rhs] = getProductOperands(op);
  if (lhs.matrix == rhs.matrix && lhs.transposed != rhs.transposed &&
      !generators.contains(lhs.matrix)) {
    auto &known = gramMatrices[lhs.transposed];
    // With an addend the result is another matrix than the Gram matrix.
    return op.getAddend()
               ? known.lookup_or(lhs.matrix, op.getResult())
               : known.insert({lhs.matrix, op.getResult()}).first->second;
  }
  // Transposition does not matter for polynomials in one symmetric matrix.
  auto left = generators.find(lhs.matrix), right = generators.find(rhs.matrix);
  if (left != generators.end() && right != generators.end() &&
      left->second == right->second) {
    return left->second;
  }
  return {};
}

Value SymmetryAnalysis::findElementwiseGenerator(Operation *op) const {
  // Scaling, sums and differences stay within the polynomials of one matrix;
  // other functions keep symmetry only.
  Value generator, result = op->getResult(0);
  bool linear = isa<arith::AddFOp, arith::SubFOp, arith::NegFOp>(op) ||
                (isa<arith::MulFOp>(op) &&
                 llvm::any_of(op->getOperands(), isUniformSquare)) ||
                (isa<arith::DivFOp>(op) && isUniformSquare(op->getOperand(1)));
  for (Value operand : op->getOperands()) {
    if (!getMatrixType(operand)) {
      continue;
    }
    if (!isSymmetric(operand)) {
      return {};
    }
    if (isUniformSquare(operand)) {
      // Adding a number to every element leaves the polynomials.
      linear &= !isa<arith::AddFOp, arith::SubFOp>(op);
      continue;
    }
    Value own = generators.lookup(operand);
    linear &= !generator || generator == own;
    generator = own;
  }
  return linear && generator ? generator : result;
}

Value SymmetryAnalysis::findGenerator(Operation *op) {
  if (auto product = dyn_cast<MatmulOp>(op)) {
    Value generator =
        product.isPacked() ? Value() : findProductGenerator(product);
    Value addend = product.getAddend();
    if (!generator || !addend) {
      return generator;
    }
    if (!isSymmetric(addend)) {
      return {};
    }
    return generators.lookup(addend) == generator ? generator
                                                  : product.getResult();
  }
  if (auto transpose = dyn_cast<TransposeOp>(op)) {
    return generators.lookup(transpose.getInput());
  }
  return isElementwise(op) && !isSplat(op->getResult(0))
             ? findElementwiseGenerator(op)
             : Value();
}

bool SymmetryAnalysis::visit(Operation *op) {
  if (op->getNumResults() != 1 || !getMatrixType(op->getResult(0))) {
    return false;
  }
  Value generator = findGenerator(op);
  if (generator) {
    generators[op->getResult(0)] = generator;
  }
  return static_cast<bool>(generator);
}

namespace {

struct MarkSymmetricPass
    : kaon::impl::MarkSymmetricPassBase<MarkSymmetricPass> {
  void runOnOperation() override {
    SymmetryAnalysis analysis;
    // Pre-order meets definitions before uses, in nested regions too.
    getOperation().getBody().walk<WalkOrder::PreOrder>([&](Operation *op) {
      bool symmetric = analysis.visit(op);
      if (auto product = dyn_cast<MatmulOp>(op); product && symmetric) {
        product.setSymmetric(true);
      }
    });
  }
};

} // namespace
