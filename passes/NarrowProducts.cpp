//===-- NarrowProducts.cpp - products in half precision -------------------===//
//
// Numeric class: approximate.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_NARROWPRODUCTSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

/// Rewrites the products of one update.
class Narrower {
public:
  explicit Narrower(FloatType half) : half(half) {}

  LogicalResult narrow(MatmulOp product);

private:
  Value getNarrow(Value matrix);

  FloatType half;
  // Looked up only.
  DenseMap<Value, Value> narrowed;
};

} // namespace

/// A matrix in half precision, rounded where it is defined, once for all
/// products that read it.
Value Narrower::getNarrow(Value matrix) {
  if (!matrix) {
    return {};
  }
  auto type = getMatrixType(matrix);
  // What was widened is exactly what it was before.
  auto widened = matrix.getDefiningOp<arith::ExtFOp>();
  if (widened && getMatrixType(widened.getIn()).getElementType() == half) {
    return widened.getIn();
  }
  Value &result = narrowed[matrix];
  if (!result) {
    OpBuilder builder(matrix.getContext());
    builder.setInsertionPointAfterValue(matrix);
    result = arith::TruncFOp::create(builder, matrix.getLoc(), type.clone(half),
                                     matrix);
  }
  return result;
}

LogicalResult Narrower::narrow(MatmulOp product) {
  Type element = product.getLhs().getType().getElementType();
  if (element == half) {
    return success();
  }
  if (!element.isF32()) {
    return product.emitOpError() << "expects operands of f32 to take the "
                                    "product of in "
                                 << half << ", but got " << element;
  }
  if (product.isPacked()) {
    return product.emitOpError()
           << "expects operands that are not packed, which only products of "
              "the CPU read";
  }
  Value lhs = getNarrow(product.getLhs()), rhs = getNarrow(product.getRhs()),
        addend = getNarrow(product.getAddend());
  OpBuilder builder(product);
  auto type = product.getResult().getType();
  auto result = MatmulOp::create(
      builder, product.getLoc(), type.clone(half), lhs, rhs, product.getAlpha(),
      product.getBeta(), addend, product.getTransposeA(),
      product.getTransposeB(), product.getSymmetric());
  Value wide = arith::ExtFOp::create(builder, product.getLoc(), type,
                                     result.getResult());
  product.replaceAllUsesWith(wide);
  product.erase();
  return success();
}

/// A vector in half precision that is seen as a row or a column is not what its
/// transpose is, because its rows have gaps: what is transposed is wide.
static void widenViews(func::FuncOp update) {
  for (auto transpose : llvm::to_vector(update.getOps<TransposeOp>())) {
    auto type = getMatrixType(transpose.getResult());
    if (!transpose.isView() || type.getElementTypeBitWidth() != 16) {
      continue;
    }
    OpBuilder builder(transpose);
    Location loc = transpose.getLoc();
    auto widen = [&](RankedTensorType narrow) {
      return narrow.clone(builder.getF32Type());
    };
    Value wide = arith::ExtFOp::create(builder, loc,
                                       widen(transpose.getInput().getType()),
                                       transpose.getInput());
    Value turned = TransposeOp::create(builder, loc, wide);
    transpose.replaceAllUsesWith(
        arith::TruncFOp::create(builder, loc, type, turned).getResult());
    transpose.erase();
  }
}

namespace {

struct NarrowProductsPass
    : kaon::impl::NarrowProductsPassBase<NarrowProductsPass> {
  void runOnOperation() override {
    func::FuncOp update = getOperation();
    if (!isUpdate(update)) {
      return;
    }
    CudaTargetAttr target = getCudaTarget(update);
    if (!target) {
      update.emitOpError() << "can only be narrowed for a known GPU, but the "
                              "module has no "
                           << KaonDialect::getCudaAttrName();
      return signalPassFailure();
    }
    Narrower narrower(target.getHalfType());
    SmallVector<MatmulOp> products;
    update.walk([&](MatmulOp product) { products.push_back(product); });
    for (MatmulOp product : products) {
      if (failed(narrower.narrow(product))) {
        return signalPassFailure();
      }
    }
    widenViews(update);
    eraseDeadOps(update);
  }
};

} // namespace
