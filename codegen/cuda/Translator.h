//===-- Translator.h - arithmetic as constructs of CUDA C++ -----*- C++ -*-===//
//
// The ops of arith and math that kernels compute with, one by one.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_TRANSLATOR_H
#define KAON_CODEGEN_CUDA_TRANSLATOR_H

#include "dialect/Kernel.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"

namespace kaon::cuda {

/// Whether a type is for memory only.
inline bool isHalf(mlir::Type type) { return type.isBF16() || type.isF16(); }

/// Translates the ops that compute numbers. Half precision is for memory only:
/// its values are held as the f32 that they are equal to.
class Translator {
public:
  explicit Translator(mlir::OpBuilder &builder) : b(builder) {}

  /// Translates an op whose operands have been translated; null after an error.
  mlir::Value translate(mlir::Operation *op, mlir::ValueRange operands);

  /// The type of a number.
  mlir::Type numberType(mlir::Value value) const {
    mlir::Type element = mlir::getElementTypeOrSelf(value.getType());
    return isHalf(element) ? b.getF32Type() : element;
  }
  mlir::Value literal(mlir::Location loc, mlir::Attribute number) {
    return kernel::LiteralOp::create(b, loc,
                                     llvm::cast<mlir::TypedAttr>(number));
  }
  /// A number in f32 or f64.
  mlir::Value convert(mlir::Location loc, mlir::Value value, mlir::Type type) {
    return value.getType() == type
               ? value
               : kernel::ConvertOp::create(b, loc, type, value).getResult();
  }

private:
  mlir::Value call(mlir::Operation *op, kernel::Function function,
                   mlir::ValueRange operands) {
    return kernel::CallOp::create(b, op->getLoc(), operands[0].getType(),
                                  function, operands);
  }
  mlir::Value translateConstant(mlir::arith::ConstantOp op);
  mlir::Value translateCompare(mlir::arith::CmpFOp op, mlir::Value left,
                               mlir::Value right);
  mlir::Value translateTruncation(mlir::arith::TruncFOp op, mlir::Value value);
  /// Logic on truth values; null if the op is on integers.
  mlir::Value translateLogic(mlir::Operation *op, mlir::ValueRange operands);

  mlir::OpBuilder &b;
};

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_TRANSLATOR_H
