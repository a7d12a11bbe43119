//===-- KaonFolds.cpp - folds and canonicalization ------------------------===//
//
// Local simplifications. Every one is exact for every input, infinities, NaN
// and signed zeros included; that is why `apply` with a zero step or `momentum`
// with a zero coefficient stay as they are: 0 * x is not 0 for every x.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/PatternMatch.h"

using namespace mlir;
using namespace kaon;

namespace {
#include "dialect/KaonCanonicalization.cpp.inc"
} // namespace

/// A splat constant with the type of `result`, or null if `input` is not a
/// splat constant.
static OpFoldResult resizeSplat(Attribute input, RankedTensorType result) {
  auto splat = dyn_cast_or_null<SplatElementsAttr>(input);
  if (!splat || !result.hasStaticShape()) {
    return {};
  }
  return DenseElementsAttr::get(result, splat.getSplatValue<Attribute>());
}

//===----------------------------------------------------------------------===//
// Folds
//===----------------------------------------------------------------------===//

OpFoldResult NewtonSchulzOp::fold(FoldAdaptor) {
  // No steps and no normalization.
  if (getSteps() == 0 && getMode() == NormalizeMode::None) {
    return getInput();
  }
  return {};
}

OpFoldResult NormalizeOp::fold(FoldAdaptor) {
  if (getMode() == NormalizeMode::None) {
    return getInput();
  }
  return {};
}

OpFoldResult ReduceOp::fold(FoldAdaptor) {
  // A sum of one element is that element, sign of zero included.
  if (getInput().getType() == getResult().getType()) {
    ArrayRef<int64_t> shape = getInput().getType().getShape();
    bool oneEach = (getAlong() == Along::Row || shape[0] == 1) &&
                   (getAlong() == Along::Column || shape[1] == 1);
    if (oneEach) {
      return getInput();
    }
  }
  return {};
}

OpFoldResult BroadcastOp::fold(FoldAdaptor adaptor) {
  RankedTensorType type = getResult().getType();
  // Types with unknown sizes are equal without the sizes being so.
  if (getInput().getType() == type && type.hasStaticShape()) {
    return getInput();
  }
  return resizeSplat(adaptor.getInput(), type);
}

OpFoldResult TransposeOp::fold(FoldAdaptor adaptor) {
  if (auto inner = getInput().getDefiningOp<TransposeOp>()) {
    return inner.getInput();
  }
  RankedTensorType type = getResult().getType();
  if (type.getShape() == ArrayRef<int64_t>{1, 1}) {
    return getInput();
  }
  return resizeSplat(adaptor.getInput(), type);
}

//===----------------------------------------------------------------------===//
// Patterns
//===----------------------------------------------------------------------===//

namespace {
/// broadcast(splat(s)) -> splat(s), transpose(splat(s)) -> splat(s).
template <typename OpT> struct ResizeSplat : OpRewritePattern<OpT> {
  using OpRewritePattern<OpT>::OpRewritePattern;

  LogicalResult matchAndRewrite(OpT op,
                                PatternRewriter &rewriter) const override {
    auto splat = op.getInput().template getDefiningOp<tensor::SplatOp>();
    if (!splat) {
      return rewriter.notifyMatchFailure(op, "input is not a splat");
    }
    if (!op.getResult().getType().hasStaticShape()) {
      return rewriter.notifyMatchFailure(op, "result has unknown sizes");
    }
    rewriter.replaceOpWithNewOp<tensor::SplatOp>(op, op.getResult().getType(),
                                                 splat.getInput());
    return success();
  }
};

/// matmul(transpose(a), b) -> matmul(a, b) transpose_a, and so for b.
struct FoldTransposeIntoMatmul : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(MatmulOp op,
                                PatternRewriter &rewriter) const override {
    if (op.isPacked()) {
      return rewriter.notifyMatchFailure(op, "operands are packed");
    }
    auto lhs = op.getLhs().getDefiningOp<TransposeOp>();
    auto rhs = op.getRhs().getDefiningOp<TransposeOp>();
    if (!lhs && !rhs) {
      return rewriter.notifyMatchFailure(op, "no operand is a transpose");
    }
    rewriter.modifyOpInPlace(op, [&] {
      if (lhs) {
        op.getLhsMutable().assign(lhs.getInput());
        op.setTransposeA(!op.getTransposeA());
      }
      if (rhs) {
        op.getRhsMutable().assign(rhs.getInput());
        op.setTransposeB(!op.getTransposeB());
      }
    });
    return success();
  }
};

/// matmul(a, b) alpha 1.0 -> matmul(a, b): multiplying by one is exact.
struct DropUnitAlpha : OpRewritePattern<MatmulOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(MatmulOp op,
                                PatternRewriter &rewriter) const override {
    if (!op.getAlpha() || !matchPattern(op.getAlpha(), m_OneFloat())) {
      return rewriter.notifyMatchFailure(op, "alpha is not one");
    }
    rewriter.modifyOpInPlace(op, [&] { op.getAlphaMutable().clear(); });
    return success();
  }
};

/// every period 1 {a} else {b} -> a: each step is the period's only one.
struct InlineEveryStep : OpRewritePattern<EveryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(EveryOp op,
                                PatternRewriter &rewriter) const override {
    if (op.getPeriod() != 1) {
      return rewriter.notifyMatchFailure(op, "period is not one");
    }
    Block &body = op.getTaken().front();
    Operation *yield = body.getTerminator();
    SmallVector<Value> results(yield->getOperands());
    rewriter.eraseOp(yield);
    rewriter.inlineBlockBefore(&body, op);
    rewriter.replaceOp(op, results);
    return success();
  }
};

/// Drops the results of `every` that nothing uses, and replaces those for which
/// both regions yield the same value from outside.
struct SimplifyEveryResults : OpRewritePattern<EveryOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(EveryOp op,
                                PatternRewriter &rewriter) const override {
    Operation *yields[] = {op.getTaken().front().getTerminator(),
                           op.getOtherwise().front().getTerminator()};
    SmallVector<Value> replacements(op.getNumResults());
    SmallVector<unsigned> kept;
    for (OpResult result : op->getResults()) {
      unsigned i = result.getResultNumber();
      Value taken = yields[0]->getOperand(i);
      if (taken == yields[1]->getOperand(i)) {
        replacements[i] = taken;
      } else if (!result.use_empty()) {
        kept.push_back(i);
      }
    }
    if (kept.size() == op.getNumResults()) {
      return rewriter.notifyMatchFailure(op, "every result is needed");
    }
    if (kept.empty()) {
      rewriter.replaceOp(op, replacements);
      return success();
    }

    SmallVector<Type> types;
    for (unsigned i : kept) {
      types.push_back(op.getResult(i).getType());
    }
    auto smaller = EveryOp::create(rewriter, op.getLoc(), types, op.getStep(),
                                   op.getPeriodAttr(), op.getPhaseAttr());
    smaller->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    for (auto [from, to] :
         llvm::zip_equal(op->getRegions(), smaller->getRegions())) {
      rewriter.inlineRegionBefore(from, to, to.end());
    }
    for (Operation *yield : yields) {
      SmallVector<Value> operands;
      for (unsigned i : kept) {
        operands.push_back(yield->getOperand(i));
      }
      rewriter.modifyOpInPlace(yield, [&] { yield->setOperands(operands); });
    }
    for (auto [i, result] : llvm::zip_equal(kept, smaller.getResults())) {
      replacements[i] = result;
    }
    rewriter.replaceOp(op, replacements);
    return success();
  }
};
} // namespace

void BroadcastOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<BroadcastOfBroadcast, ResizeSplat<BroadcastOp>>(context);
}

void TransposeOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                              MLIRContext *context) {
  patterns.add<ResizeSplat<TransposeOp>, TransposeOfBroadcast>(context);
}

void MatmulOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                           MLIRContext *context) {
  patterns.add<FoldTransposeIntoMatmul, DropUnitAlpha>(context);
}

void EveryOp::getCanonicalizationPatterns(RewritePatternSet &patterns,
                                          MLIRContext *context) {
  patterns.add<InlineEveryStep, SimplifyEveryResults>(context);
}
