//===-- KaonCost.cpp - costs ----------------------------------------------===//
//
// Floating-point operations and bytes moved.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Interfaces/CastInterfaces.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace kaon;

int64_t kaon::getMatrixBytes(RankedTensorType type) {
  return type.getNumElements() * (type.getElementTypeBitWidth() / 8);
}

int64_t kaon::getMovedBytes(Operation *op) {
  // An operand that occurs twice is one matrix.
  llvm::SmallSetVector<Value, 8> values(op->operand_begin(), op->operand_end());
  values.insert_range(op->getResults());
  int64_t bytes = 0;
  for (Value value : values) {
    auto matrix = dyn_cast<RankedTensorType>(value.getType());
    if (matrix && matrix.hasStaticShape()) {
      bytes += getMatrixBytes(matrix);
    }
  }
  return bytes;
}

int64_t kaon::countKernelFlops(func::FuncOp kernel, ArrayRef<int64_t> sizes) {
  auto countElements = [&](Type type) -> int64_t {
    auto matrix = dyn_cast<RankedTensorType>(type);
    if (!matrix) {
      return 0;
    }
    int64_t elements = 1;
    for (auto [dim, size] : llvm::zip(matrix.getShape(), sizes)) {
      elements *= ShapedType::isDynamic(dim) ? size : dim;
    }
    return elements;
  };
  int64_t flops = 0;
  kernel.walk([&](Operation *op) {
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      flops += countElements(reduce.getInput().getType());
    } else if (op->hasTrait<OpTrait::Elementwise>() &&
               !isa<CastOpInterface>(op)) {
      flops += (isa<math::FmaOp>(op) ? 2 : 1) *
               countElements(op->getResult(0).getType());
    }
  });
  return flops;
}

static int64_t countEpilogueFlops(MatmulOp product) {
  auto kernel = product.getEpilogue()
                    ? SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
                          product, product.getEpilogueAttr())
                    : func::FuncOp();
  auto [m, n, k] = product.getProductSizes();
  return kernel ? countKernelFlops(kernel, {m, n}) : 0;
}

int64_t kaon::countProductFlops(MatmulOp product) {
  auto [m, n, k] = product.getProductSizes();
  int64_t elements = product.getSymmetric() ? n * (n + 1) / 2 : m * n;
  bool isScaled = product.getAlpha() || product.getFactor();
  return 2 * elements * k + (isScaled ? elements : 0) +
         (product.getAddend() ? 2 * elements : 0) + countEpilogueFlops(product);
}
