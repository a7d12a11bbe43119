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
  bool isNarrow(Value matrix) const;
  bool mayRoundAddend(Value addend) const;
  Value getNarrow(Value matrix);

  FloatType half;
  // Looked up only.
  DenseMap<Value, Value> narrowed;
};

} // namespace

/// Whether a matrix is one in half precision, widened.
bool Narrower::isNarrow(Value matrix) const {
  auto widened = matrix.getDefiningOp<arith::ExtFOp>();
  return widened && getMatrixType(widened.getIn()).getElementType() == half;
}

/// Whether an addend may be in half precision: if a product made it, or reads
/// it in half precision anyway. A parameter or a state must not lose bits to
/// the sum with what changes it.
bool Narrower::mayRoundAddend(Value addend) const {
  if (isNarrow(addend)) {
    return true;
  }
  Value source = addend;
  if (auto widened = addend.getDefiningOp<arith::ExtFOp>()) {
    source = widened.getIn();
  }
  if (isa<BlockArgument>(source)) {
    return false;
  }
  bool isMultiplied = llvm::any_of(addend.getUsers(), [&](Operation *user) {
    auto product = dyn_cast<MatmulOp>(user);
    return product &&
           llvm::is_contained({product.getLhs(), product.getRhs()}, addend);
  });
  return isMultiplied || narrowed.contains(addend);
}

/// A matrix in half precision, rounded where it is defined, once for all
/// products that read it.
Value Narrower::getNarrow(Value matrix) {
  if (!matrix) {
    return {};
  }
  auto type = getMatrixType(matrix);
  // What was widened is exactly what it was before.
  if (isNarrow(matrix)) {
    return matrix.getDefiningOp<arith::ExtFOp>().getIn();
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
  Value addend = product.getAddend();
  bool addsWide = addend && !mayRoundAddend(addend);
  Value lhs = getNarrow(product.getLhs()), rhs = getNarrow(product.getRhs()),
        narrowAddend = addsWide ? Value() : getNarrow(addend);
  OpBuilder builder(product);
  auto type = product.getResult().getType();
  auto result = MatmulOp::create(
      builder, product.getLoc(), type.clone(half), lhs, rhs, product.getAlpha(),
      addsWide ? Value() : product.getBeta(), narrowAddend,
      /*factor=*/Value(), product.getTransposeA(), product.getTransposeB(),
      product.getSymmetric());
  Location loc = product.getLoc();
  Value wide = arith::ExtFOp::create(builder, loc, type, result.getResult());
  if (addsWide) {
    Value scaled = arith::MulFOp::create(
        builder, loc, createSplat(builder, loc, product.getBeta(), type),
        addend);
    wide = arith::AddFOp::create(builder, loc, scaled, wide);
  }
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
