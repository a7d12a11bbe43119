//===-- Support.cpp - helpers shared by passes ----------------------------===//

#include "passes/Support.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Iterators.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace kaon {

RankedTensorType getMatrixType(Value value) {
  return dyn_cast<RankedTensorType>(value.getType());
}

int64_t balanceConcurrency(int64_t members, int64_t limit) {
  limit = std::clamp<int64_t>(limit, 1, members);
  int64_t rounds = llvm::divideCeil(members, limit);
  return llvm::divideCeil(members, rounds);
}

Value createScalar(OpBuilder &builder, Location loc, double value) {
  return arith::ConstantOp::create(builder, loc,
                                   builder.getF64FloatAttr(value));
}

Value createSplat(OpBuilder &builder, Location loc, Value scalar,
                  RankedTensorType type) {
  if (scalar.getType() != type.getElementType()) {
    scalar =
        arith::TruncFOp::create(builder, loc, type.getElementType(), scalar);
  }
  return tensor::SplatOp::create(builder, loc, scalar, type);
}

Value createFill(OpBuilder &builder, Location loc, double value,
                 RankedTensorType type) {
  auto element = builder.getFloatAttr(type.getElementType(), value);
  return arith::ConstantOp::create(builder, loc,
                                   DenseElementsAttr::get(type, element));
}

Value createConversion(OpBuilder &builder, Location loc, Value matrix,
                       Type element) {
  RankedTensorType type = getMatrixType(matrix);
  if (type.getElementType() == element) {
    return matrix;
  }
  Type result = type.clone(element);
  if (element.getIntOrFloatBitWidth() > type.getElementTypeBitWidth()) {
    return arith::ExtFOp::create(builder, loc, result, matrix);
  }
  return arith::TruncFOp::create(builder, loc, result, matrix);
}

std::optional<double> getSplatConstant(Value matrix) {
  DenseFPElementsAttr elements;
  if (getMatrixType(matrix) && matchPattern(matrix, m_Constant(&elements)) &&
      elements.isSplat()) {
    APFloat number = elements.getSplatValue<APFloat>();
    bool losesInfo = false;
    number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven,
                   &losesInfo);
    return number.convertToDouble();
  }
  return std::nullopt;
}

bool isSplat(Value matrix) {
  return getSplatConstant(matrix) || matrix.getDefiningOp<tensor::SplatOp>();
}

Value getRepeated(Value matrix) {
  auto broadcast = matrix.getDefiningOp<BroadcastOp>();
  bool isSingle =
      broadcast && broadcast.getInput().getType().getNumElements() == 1;
  return isSingle ? broadcast.getInput() : Value();
}

bool isUniform(Value matrix) { return isSplat(matrix) || getRepeated(matrix); }

Value getSplatScalar(OpBuilder &builder, Value matrix) {
  if (std::optional<double> number = getSplatConstant(matrix)) {
    return createScalar(builder, matrix.getLoc(), *number);
  }
  auto splat = matrix.getDefiningOp<tensor::SplatOp>();
  if (!splat) {
    return {};
  }
  Value scalar = splat.getInput();
  if (scalar.getType().isF64()) {
    return scalar;
  }
  if (auto truncated = scalar.getDefiningOp<arith::TruncFOp>();
      truncated && truncated.getIn().getType().isF64()) {
    return truncated.getIn();
  }
  return arith::ExtFOp::create(builder, splat.getLoc(), builder.getF64Type(),
                               scalar);
}

static ProductOperand seeThroughTransposes(Value matrix, bool transposed) {
  while (auto transpose = matrix.getDefiningOp<TransposeOp>()) {
    matrix = transpose.getInput();
    transposed = !transposed;
  }
  return {matrix, transposed};
}

std::pair<ProductOperand, ProductOperand> getProductOperands(MatmulOp product) {
  return {seeThroughTransposes(product.getLhs(), product.getTransposeA()),
          seeThroughTransposes(product.getRhs(), product.getTransposeB())};
}

bool isElementwise(Operation *op) {
  // arith.select with a scalar condition is elementwise in its two values.
  return OpTrait::hasElementwiseMappableTraits(op) &&
         op->getNumResults() == 1 && getMatrixType(op->getResult(0));
}

Value createCopy(OpBuilder &builder, Location loc, Value matrix) {
  auto kernel =
      KernelOp::create(builder, loc, TypeRange(matrix.getType()),
                       Schedule::Elementwise, ValueRange(matrix), ValueRange());
  OpBuilder::InsertionGuard guard(builder);
  Block *block = builder.createBlock(&kernel.getBody(), {},
                                     TypeRange(matrix.getType()), {loc});
  YieldOp::create(builder, loc, block->getArgument(0));
  return kernel.getResult(0);
}

void eraseDeadOps(func::FuncOp function) {
  // Users come after definitions within a block, and nested blocks within their
  // op: reverse order meets every user first.
  function.walk<WalkOrder::PostOrder, ReverseIterator>([](Operation *op) {
    if (isOpTriviallyDead(op)) {
      op->erase();
    }
  });
}

} // namespace kaon
