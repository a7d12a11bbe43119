//===-- KaonCost.cpp - cost model -----------------------------------------===//
//
// Floating-point operations and bytes moved, from static shapes.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"

using namespace mlir;
using namespace kaon;

/// Elements of a tensor, zero if its shape is not known.
static int64_t getNumElements(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() ? tensor.getNumElements() : 0;
}

/// Bytes of a tensor, zero if its shape is not known.
static int64_t getNumBytes(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.getElementType().isIntOrFloat()
             ? getNumElements(type) * tensor.getElementTypeBitWidth() / 8
             : 0;
}

int64_t kaon::getMovedBytes(Operation *op) {
  int64_t bytes = 0;
  for (Type type : op->getOperandTypes()) {
    bytes += getNumBytes(type);
  }
  for (Type type : op->getResultTypes()) {
    bytes += getNumBytes(type);
  }
  return bytes;
}

//===----------------------------------------------------------------------===//
// CostModelOpInterface
//===----------------------------------------------------------------------===//

int64_t MomentumOp::getFlops() {
  // Two scaled terms (lerp) or one (heavy ball), and one sum; twice if
  // nesterov.
  int64_t perForm = getForm() == MomentumForm::Lerp ? 3 : 2;
  return getNumElements(getGradient().getType()) * perForm *
         (getNesterov() ? 2 : 1);
}

int64_t NewtonSchulzOp::getFlops() {
  RankedTensorType type = getInput().getType();
  if (!type.hasStaticShape()) {
    return 0;
  }
  int64_t shortSide = std::min(type.getDimSize(0), type.getDimSize(1));
  int64_t elements = type.getNumElements();
  // Per step: the Gram matrix of the short side and its square, half of each
  // because they are symmetric, and the product with the matrix itself.
  int64_t gram = shortSide * elements;
  int64_t square = shortSide * shortSide * shortSide;
  int64_t product = 2 * shortSide * elements;
  int64_t normalization = getMode() == NormalizeMode::None ? 0 : 3 * elements;
  return getSteps() * (gram + square + product) + normalization;
}

int64_t NormalizeOp::getFlops() {
  // A square and a sum for the norm, a division to apply it.
  return getMode() == NormalizeMode::None
             ? 0
             : 3 * getNumElements(getInput().getType());
}

int64_t NormOp::getFlops() {
  return 2 * getNumElements(getInput().getType()) +
         getNumElements(getResult().getType());
}

int64_t ReduceOp::getFlops() { return getNumElements(getInput().getType()); }

int64_t BroadcastOp::getFlops() { return 0; }

int64_t TransposeOp::getFlops() { return 0; }

int64_t MatmulOp::getFlops() {
  auto [m, n, k] = getProductSizes();
  if (ShapedType::isDynamic(m) || ShapedType::isDynamic(n) ||
      ShapedType::isDynamic(k)) {
    return 0;
  }
  // A symmetric result needs the elements on and below the diagonal only.
  int64_t elements = getSymmetric() ? n * (n + 1) / 2 : m * n;
  return 2 * elements * k + (getAlpha() ? elements : 0) +
         (getAddend() ? 2 * elements : 0);
}

int64_t ApplyOp::getFlops() {
  // Cautious decay compares a product with zero as well.
  int64_t perElement = getForm() == ApplyForm::Cautious ? 6
                       : getForm() == ApplyForm::After  ? 4
                                                        : 3;
  return perElement * getNumElements(getParam().getType());
}

int64_t PackOp::getFlops() { return 0; }

int64_t KernelOp::getFlops() {
  int64_t flops = 0;
  for (Operation &op : getBody().front()) {
    flops += estimateCost(&op).flops;
  }
  return flops;
}

//===----------------------------------------------------------------------===//
// Estimates
//===----------------------------------------------------------------------===//

Cost kaon::estimateCost(Operation *op) {
  if (auto model = dyn_cast<CostModelOpInterface>(op)) {
    return {model.getFlops(), model.getBytes()};
  }
  if (auto every = dyn_cast<EveryOp>(op)) {
    Cost alternatives[2];
    for (auto [cost, region] : llvm::zip(alternatives, every->getRegions())) {
      for (Operation &nested : region.front()) {
        cost += estimateCost(&nested);
      }
    }
    return alternatives[alternatives[0].flops < alternatives[1].flops];
  }
  if (op->hasTrait<OpTrait::Elementwise>()) {
    Cost cost;
    cost.bytes = getMovedBytes(op);
    for (Type type : op->getResultTypes()) {
      cost.flops += getNumElements(type);
    }
    return cost;
  }
  return {};
}

Cost kaon::estimateCost(func::FuncOp function) {
  Cost cost;
  for (Block &block : function.getBody()) {
    for (Operation &op : block) {
      cost += estimateCost(&op);
    }
  }
  return cost;
}
