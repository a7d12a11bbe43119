//===-- KaonUpdateOps.cpp - update math -----------------------------------===//
//
// Type inference, builders, result names and control flow of the update ops.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"

using namespace mlir;
using namespace kaon;

SmallVector<int64_t, 2> kaon::getReducedShape(ArrayRef<int64_t> shape,
                                              Along along) {
  switch (along) {
  case Along::Row:
    return {shape[0], 1};
  case Along::Column:
    return {1, shape[1]};
  case Along::All:
    return {1, 1};
  }
  llvm_unreachable("all cases are handled");
}

/// `type` with another shape.
static Type withShape(Type type, ArrayRef<int64_t> shape) {
  return cast<RankedTensorType>(type).clone(shape);
}

/// The shape of a matrix, or none. Type inference may run on operands that are
/// not verified yet; their type's constraint then reports what is wrong.
static std::optional<ArrayRef<int64_t>> getMatrixShape(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (tensor && tensor.getRank() == 2) {
    return tensor.getShape();
  }
  return std::nullopt;
}

static LogicalResult inferReducedType(Type input, Along along,
                                      SmallVectorImpl<Type> &results) {
  std::optional<ArrayRef<int64_t>> shape = getMatrixShape(input);
  if (!shape) {
    return failure();
  }
  results.push_back(withShape(input, getReducedShape(*shape, along)));
  return success();
}

//===----------------------------------------------------------------------===//
// Type inference
//===----------------------------------------------------------------------===//

LogicalResult NormOp::inferReturnTypes(MLIRContext *, std::optional<Location>,
                                       Adaptor adaptor,
                                       SmallVectorImpl<Type> &results) {
  return inferReducedType(adaptor.getInput().getType(), adaptor.getAlong(),
                          results);
}

LogicalResult ReduceOp::inferReturnTypes(MLIRContext *, std::optional<Location>,
                                         Adaptor adaptor,
                                         SmallVectorImpl<Type> &results) {
  return inferReducedType(adaptor.getInput().getType(), adaptor.getAlong(),
                          results);
}

LogicalResult TransposeOp::inferReturnTypes(MLIRContext *,
                                            std::optional<Location>,
                                            Adaptor adaptor,
                                            SmallVectorImpl<Type> &results) {
  Type input = adaptor.getInput().getType();
  std::optional<ArrayRef<int64_t>> shape = getMatrixShape(input);
  if (!shape) {
    return failure();
  }
  results.push_back(withShape(input, {shape->back(), shape->front()}));
  return success();
}

//===----------------------------------------------------------------------===//
// MatmulOp
//===----------------------------------------------------------------------===//

void MatmulOp::build(OpBuilder &builder, OperationState &state, Value lhs,
                     Value rhs, bool transposeA, bool transposeB,
                     bool symmetric) {
  auto lhsType = cast<RankedTensorType>(lhs.getType());
  auto rhsType = cast<RankedTensorType>(rhs.getType());
  Type result = lhsType.clone({lhsType.getDimSize(transposeA ? 1 : 0),
                               rhsType.getDimSize(transposeB ? 0 : 1)});
  build(builder, state, result, lhs, rhs, /*alpha=*/Value(), /*beta=*/Value(),
        /*addend=*/Value(), /*factor=*/Value(), transposeA, transposeB,
        symmetric);
}

void MatmulOp::build(OpBuilder &builder, OperationState &state, Type result,
                     Value lhs, Value rhs, Value alpha, Value beta,
                     Value addend, Value factor, bool transposeA,
                     bool transposeB, bool symmetric) {
  build(builder, state, result, lhs, rhs, alpha, beta, addend, factor,
        /*param=*/Value(), /*scalars=*/ValueRange(), transposeA, transposeB,
        symmetric, /*epilogue=*/FlatSymbolRefAttr(),
        /*sizes=*/DenseI64ArrayAttr());
}

std::array<int64_t, 3> MatmulOp::getProductSizes() {
  if (std::optional<ArrayRef<int64_t>> sizes = getSizes()) {
    return {(*sizes)[0], (*sizes)[1], (*sizes)[2]};
  }
  RankedTensorType lhs = getLhs().getType(), rhs = getRhs().getType();
  return {lhs.getDimSize(getTransposeA() ? 1 : 0),
          rhs.getDimSize(getTransposeB() ? 0 : 1),
          lhs.getDimSize(getTransposeA() ? 0 : 1)};
}

//===----------------------------------------------------------------------===//
// EveryOp
//===----------------------------------------------------------------------===//

void EveryOp::getSuccessorRegions(RegionBranchPoint point,
                                  SmallVectorImpl<RegionSuccessor> &regions) {
  if (!point.isParent()) {
    regions.push_back(RegionSuccessor(getOperation(), getResults()));
    return;
  }
  regions.push_back(RegionSuccessor(&getTaken()));
  regions.push_back(RegionSuccessor(&getOtherwise()));
}

//===----------------------------------------------------------------------===//
// Result names
//===----------------------------------------------------------------------===//

void MomentumOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getUpdate(), "update");
  setName(getNewMomentum(), "momentum");
}

void NewtonSchulzOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "orthogonal");
}

void NormalizeOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "normalized");
}

void NormOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "norm");
}

void ReduceOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), stringifyEnum(getKind()));
}

void BroadcastOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "broadcast");
}

void MaterializeOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "stored");
}

void TransposeOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "transposed");
}

void MatmulOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "product");
}

void ApplyOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(), "param");
}

void EveryOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  if (!getResults().empty()) {
    setName(getResults().front(), "every");
  }
}
