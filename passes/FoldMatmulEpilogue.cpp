//===-- FoldMatmulEpilogue.cpp - products absorb what follows -------------===//
//
// Numeric class: reassociating.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_FOLDMATMULEPILOGUEPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

/// A product that only one op uses, which may therefore change it.
static MatmulOp getOwnProduct(Value value) {
  auto product = value.getDefiningOp<MatmulOp>();
  bool isOwn = product && !product.isPacked() && !product.getEpilogue() &&
               value.hasOneUse();
  return isOwn ? product : MatmulOp();
}

/// The scale and the matrix of `scalar * matrix`, or a null scale.
static std::pair<Value, Value> matchScale(Value value) {
  if (auto scaling = value.getDefiningOp<arith::MulFOp>()) {
    for (auto [scale, matrix] :
         {std::pair(scaling.getLhs(), scaling.getRhs()),
          std::pair(scaling.getRhs(), scaling.getLhs())}) {
      if (isSplat(scale)) {
        return {scale, matrix};
      }
    }
  }
  return {Value(), value};
}

static bool isMarkedSymmetric(Value matrix) {
  auto product = matrix.getDefiningOp<MatmulOp>();
  return product && product.getSymmetric();
}

/// The factor of a product with factor `alpha` that is scaled by a matrix of
/// equal numbers, if there is one that does the same. Two factors that are
/// harmless one after the other may overflow or vanish as one, and then a zero
/// product becomes NaN: only constants are multiplied, and only to a normal
/// number of the element type.
static std::optional<double> combineFactors(Value scale, Value alpha) {
  std::optional<double> first = getSplatConstant(scale);
  FloatAttr second;
  if (!first || !matchPattern(alpha, m_Constant(&second))) {
    return std::nullopt;
  }
  auto element = cast<FloatType>(getMatrixType(scale).getElementType());
  auto isNormal = [&](double number) {
    APFloat rounded(number);
    bool losesInfo = false;
    rounded.convert(element.getFloatSemantics(), APFloat::rmNearestTiesToEven,
                    &losesInfo);
    return rounded.isNormal();
  };
  double product = *first * second.getValueAsDouble();
  if (isNormal(*first) && isNormal(second.getValueAsDouble()) &&
      isNormal(product)) {
    return product;
  }
  return std::nullopt;
}

static Value negate(OpBuilder &builder, Location loc, Value factor) {
  return factor ? arith::NegFOp::create(builder, loc, factor).getResult()
                : createScalar(builder, loc, -1.0);
}

/// Replaces an op by a copy of a product with other factors and addend.
static void replaceByProduct(PatternRewriter &rewriter, Operation *op,
                             MatmulOp product, Value alpha, Value beta,
                             Value addend) {
  if (addend && !beta) {
    beta = createScalar(rewriter, op->getLoc(), 1.0);
  }
  rewriter.replaceOpWithNewOp<MatmulOp>(
      op, op->getResult(0).getType(), product.getLhs(), product.getRhs(), alpha,
      beta, addend, product.getFactor(), product.getTransposeA(),
      product.getTransposeB(), product.getSymmetric());
  rewriter.eraseOp(product);
}

namespace {

/// s * (alpha A B)  ->  (s alpha) A B, whatever factor the product has
///
/// A product with an addend is left alone: its terms may cancel, and scaled one
/// by one they may not be numbers any more.
struct FoldScale : OpRewritePattern<arith::MulFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::MulFOp op,
                                PatternRewriter &rewriter) const override {
    for (auto [scale, matrix] : {std::pair(op.getLhs(), op.getRhs()),
                                 std::pair(op.getRhs(), op.getLhs())}) {
      MatmulOp product = getOwnProduct(matrix);
      if (!product || product.getAddend() || !isSplat(scale)) {
        continue;
      }
      // Nothing is created for a match that fails.
      Value alpha;
      if (!product.getAlpha()) {
        alpha = getSplatScalar(rewriter, scale);
      } else if (std::optional<double> combined =
                     combineFactors(scale, product.getAlpha())) {
        alpha = createScalar(rewriter, op.getLoc(), *combined);
      } else {
        continue;
      }
      replaceByProduct(rewriter, op, product, alpha, Value(), Value());
      return success();
    }
    return rewriter.notifyMatchFailure(
        op, "no host scalar times a product with one use, no addend and no "
            "factor that it cannot join");
  }
};

/// alpha A B +- t C, t C +- alpha A B  ->  one product with an addend
///
/// A product with a factor is left alone: it would scale the addend too.
template <typename SumOp> struct FoldSum : OpRewritePattern<SumOp> {
  using OpRewritePattern<SumOp>::OpRewritePattern;

  LogicalResult matchAndRewrite(SumOp op,
                                PatternRewriter &rewriter) const override {
    constexpr bool isDifference = std::is_same_v<SumOp, arith::SubFOp>;
    for (bool productIsLeft : {false, true}) {
      Value side = productIsLeft ? op.getLhs() : op.getRhs();
      Value other = productIsLeft ? op.getRhs() : op.getLhs();
      MatmulOp product = getOwnProduct(side);
      // A uniform addend is cheaper to add later than to fill memory with.
      if (!product || product.getAddend() || product.getFactor() ||
          isSplat(other)) {
        continue;
      }
      // The promise of symmetry would cover the addend too; half of the product
      // is worth more than its epilogue.
      auto [scale, addend] = matchScale(other);
      if (product.getSymmetric() && !isMarkedSymmetric(addend)) {
        continue;
      }
      Value beta = scale ? getSplatScalar(rewriter, scale) : Value();
      Value alpha = product.getAlpha();
      if (isDifference && productIsLeft) {
        beta = negate(rewriter, op.getLoc(), beta);
      } else if (isDifference) {
        alpha = negate(rewriter, op.getLoc(), alpha);
      }
      replaceByProduct(rewriter, op, product, alpha, beta, addend);
      return success();
    }
    return rewriter.notifyMatchFailure(
        op, "no operand is a product with one use, no addend and no factor");
  }
};

struct FoldMatmulEpiloguePass
    : kaon::impl::FoldMatmulEpiloguePassBase<FoldMatmulEpiloguePass> {
  LogicalResult initialize(MLIRContext *context) override {
    RewritePatternSet owned(context);
    owned.add<FoldScale, FoldSum<arith::AddFOp>, FoldSum<arith::SubFOp>>(
        context);
    patterns = std::move(owned);
    return success();
  }

  void runOnOperation() override {
    // Top-down order folds inner scalings before the sums that use them.
    GreedyRewriteConfig config;
    config.setUseTopDownTraversal(true);
    if (failed(applyPatternsGreedily(getOperation(), patterns, config))) {
      return signalPassFailure();
    }
  }

  FrozenRewritePatternSet patterns;
};

} // namespace
