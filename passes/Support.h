//===-- Support.h - helpers shared by passes --------------------*- C++ -*-===//
//
// Small questions about, and constructions of, update functions that several
// passes need.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PASSES_SUPPORT_H
#define KAON_PASSES_SUPPORT_H

#include "dialect/Kaon.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"

#include <optional>

namespace kaon {

/// The matrix type of a value, or null for a host scalar.
mlir::RankedTensorType getMatrixType(mlir::Value value);

/// How many of a bucket's members to handle at once if at most `limit` may be:
/// as many in every round, so that the last one fills the threads too.
int64_t balanceConcurrency(int64_t members, int64_t limit);

/// An `f64` host constant.
mlir::Value createScalar(mlir::OpBuilder &builder, mlir::Location loc,
                         double value);

/// A matrix filled with an `f64` host scalar, rounded once to the element type.
mlir::Value createSplat(mlir::OpBuilder &builder, mlir::Location loc,
                        mlir::Value scalar, mlir::RankedTensorType type);

/// A matrix filled with a number.
mlir::Value createFill(mlir::OpBuilder &builder, mlir::Location loc,
                       double value, mlir::RankedTensorType type);

/// A matrix with its elements widened or rounded to another type; the matrix
/// itself if they have that type.
mlir::Value createConversion(mlir::OpBuilder &builder, mlir::Location loc,
                             mlir::Value matrix, mlir::Type element);

/// If every element of a matrix is one host scalar, that scalar as `f64`, whose
/// rounding to the element type is the element; null otherwise. May create a
/// constant or an extension at the builder's insertion point.
mlir::Value getSplatScalar(mlir::OpBuilder &builder, mlir::Value matrix);

/// Whether every element of a matrix is one host scalar.
bool isSplat(mlir::Value matrix);

/// The single element on the device that a matrix repeats, or null.
mlir::Value getRepeated(mlir::Value matrix);

/// Whether all elements of a matrix are equal: one host scalar, or one device
/// scalar repeated.
bool isUniform(mlir::Value matrix);

/// The number of a constant splat.
std::optional<double> getSplatConstant(mlir::Value matrix);

/// An operand of a product: a matrix and whether it is transposed.
struct ProductOperand {
  mlir::Value matrix;
  bool transposed;

  bool operator==(const ProductOperand &other) const {
    return matrix == other.matrix && transposed == other.transposed;
  }
};

/// The operands of a product, seen through transposes of their own.
std::pair<ProductOperand, ProductOperand> getProductOperands(MatmulOp product);

/// Whether an op computes every element of its results from the elements of its
/// operands at the same place, all of one shape.
bool isElementwise(mlir::Operation *op);

/// A kernel that copies a matrix.
mlir::Value createCopy(mlir::OpBuilder &builder, mlir::Location loc,
                       mlir::Value matrix);

/// Erases ops whose results nobody uses, and what becomes unused by it.
void eraseDeadOps(mlir::func::FuncOp function);

} // namespace kaon

#endif // KAON_PASSES_SUPPORT_H
