//===-- Translator.cpp - arithmetic as constructs of CUDA C++ -------------===//

#include "codegen/cuda/Translator.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace kaon::cuda {

static Type elementTypeOf(Value value) {
  return getElementTypeOrSelf(value.getType());
}

Value Translator::translateConstant(arith::ConstantOp op) {
  Attribute value = op.getValue();
  if (auto elements = dyn_cast<ElementsAttr>(value)) {
    auto splat = dyn_cast<SplatElementsAttr>(elements);
    if (!splat) {
      op.emitOpError() << "expects all elements of a constant inside a kernel "
                          "to be equal, but got "
                       << elements;
      return {};
    }
    value = splat.getSplatValue<Attribute>();
  }
  Type type = elementTypeOf(op.getResult());
  if (auto number = dyn_cast<FloatAttr>(value); number && isHalf(type)) {
    bool losesInfo;
    APFloat wide = number.getValue();
    wide.convert(APFloat::IEEEsingle(), APFloat::rmNearestTiesToEven,
                 &losesInfo);
    value = b.getFloatAttr(b.getF32Type(), wide);
  }
  return literal(op.getLoc(), value);
}

Value Translator::translateCompare(arith::CmpFOp op, Value left, Value right) {
  using kernel::Predicate;
  Location loc = op.getLoc();
  auto compare = [&](Predicate predicate, Value lhs, Value rhs) -> Value {
    return kernel::CompareOp::create(b, loc, b.getI1Type(), predicate, lhs,
                                     rhs);
  };
  auto negate = [&](Value value) -> Value {
    return kernel::NotOp::create(b, loc, b.getI1Type(), value);
  };
  auto oneOf = [&](Value lhs, Value rhs) -> Value {
    return kernel::OrOp::create(b, loc, b.getI1Type(), lhs, rhs);
  };
  switch (op.getPredicate()) {
  case arith::CmpFPredicate::OEQ:
    return compare(Predicate::Equal, left, right);
  case arith::CmpFPredicate::OLT:
    return compare(Predicate::Less, left, right);
  case arith::CmpFPredicate::OLE:
    return compare(Predicate::LessEqual, left, right);
  case arith::CmpFPredicate::OGT:
    return compare(Predicate::Greater, left, right);
  case arith::CmpFPredicate::OGE:
    return compare(Predicate::GreaterEqual, left, right);
  case arith::CmpFPredicate::UNE:
    return compare(Predicate::NotEqual, left, right);
  // C++ has no comparison that holds for NaN but `!=`: the opposite of the
  // opposite, which does not.
  case arith::CmpFPredicate::ULT:
    return negate(compare(Predicate::GreaterEqual, left, right));
  case arith::CmpFPredicate::ULE:
    return negate(compare(Predicate::Greater, left, right));
  case arith::CmpFPredicate::UGT:
    return negate(compare(Predicate::LessEqual, left, right));
  case arith::CmpFPredicate::UGE:
    return negate(compare(Predicate::Less, left, right));
  case arith::CmpFPredicate::ONE:
    return oneOf(compare(Predicate::Less, left, right),
                 compare(Predicate::Greater, left, right));
  case arith::CmpFPredicate::UEQ:
    return negate(oneOf(compare(Predicate::Less, left, right),
                        compare(Predicate::Greater, left, right)));
  case arith::CmpFPredicate::ORD:
    return kernel::AndOp::create(b, loc, b.getI1Type(),
                                 compare(Predicate::Equal, left, left),
                                 compare(Predicate::Equal, right, right));
  case arith::CmpFPredicate::UNO:
    return oneOf(compare(Predicate::NotEqual, left, left),
                 compare(Predicate::NotEqual, right, right));
  case arith::CmpFPredicate::AlwaysTrue:
    return literal(loc, b.getBoolAttr(true));
  case arith::CmpFPredicate::AlwaysFalse:
    return literal(loc, b.getBoolAttr(false));
  }
  llvm_unreachable("all predicates are handled");
}

Value Translator::translateTruncation(arith::TruncFOp op, Value value) {
  Type type = elementTypeOf(op.getResult());
  if (!isHalf(type)) {
    return convert(op.getLoc(), value, type);
  }
  // Narrowing from f64 would round twice.
  if (!elementTypeOf(op.getIn()).isF32()) {
    op.emitOpError() << "expects f32 as the source of " << type << ", but got "
                     << elementTypeOf(op.getIn());
    return {};
  }
  Value half = kernel::ConvertOp::create(b, op.getLoc(), type, value);
  return convert(op.getLoc(), half, b.getF32Type());
}

Value Translator::translateLogic(Operation *op, ValueRange operands) {
  if (operands.size() != 2 || !operands[0].getType().isInteger(1)) {
    return {};
  }
  Location loc = op->getLoc();
  return llvm::TypeSwitch<Operation *, Value>(op)
      .Case([&](arith::AndIOp) -> Value {
        return kernel::AndOp::create(b, loc, b.getI1Type(), operands[0],
                                     operands[1]);
      })
      .Case([&](arith::OrIOp) -> Value {
        return kernel::OrOp::create(b, loc, b.getI1Type(), operands[0],
                                    operands[1]);
      })
      .Case([&](arith::XOrIOp) -> Value {
        return kernel::CompareOp::create(b, loc, b.getI1Type(),
                                         kernel::Predicate::NotEqual,
                                         operands[0], operands[1]);
      })
      .Default(Value());
}

Value Translator::translate(Operation *op, ValueRange operands) {
  using kernel::Function;
  auto isHalfValue = [](Value value) { return isHalf(elementTypeOf(value)); };
  // A choice is no arithmetic: f32 holds what it chooses between.
  if (!isa<arith::ExtFOp, arith::TruncFOp, arith::ConstantOp, arith::SelectOp>(
          op) &&
      (llvm::any_of(op->getOperands(), isHalfValue) ||
       llvm::any_of(op->getResults(), isHalfValue))) {
    op->emitOpError() << "expects operands and results of type f32 or f64: "
                         "16-bit types are for memory only";
    return {};
  }
  Value result =
      llvm::TypeSwitch<Operation *, Value>(op)
          .Case([&](arith::ConstantOp constant) {
            return translateConstant(constant);
          })
          .Case(
              [&](arith::AddFOp) { return call(op, Function::Add, operands); })
          .Case(
              [&](arith::SubFOp) { return call(op, Function::Sub, operands); })
          .Case(
              [&](arith::MulFOp) { return call(op, Function::Mul, operands); })
          .Case(
              [&](arith::DivFOp) { return call(op, Function::Div, operands); })
          .Case([&](math::FmaOp) { return call(op, Function::Fma, operands); })
          .Case(
              [&](math::SqrtOp) { return call(op, Function::Sqrt, operands); })
          .Case([&](arith::MaximumFOp) {
            return call(op, Function::Maximum, operands);
          })
          .Case([&](arith::MinimumFOp) {
            return call(op, Function::Minimum, operands);
          })
          .Case([&](math::AbsFOp) { return call(op, Function::Abs, operands); })
          .Case([&](math::CopySignOp) {
            return call(op, Function::CopySign, operands);
          })
          .Case([&](math::FloorOp) {
            return call(op, Function::Floor, operands);
          })
          .Case([&](math::ExpOp) { return call(op, Function::Exp, operands); })
          .Case([&](math::LogOp) { return call(op, Function::Log, operands); })
          .Case([&](math::PowFOp) { return call(op, Function::Pow, operands); })
          .Case([&](math::RsqrtOp) {
            Value one = literal(op->getLoc(),
                                b.getFloatAttr(operands[0].getType(), 1.0));
            return call(op, Function::Div,
                        {one, call(op, Function::Sqrt, operands)});
          })
          .Case([&](arith::NegFOp) -> Value {
            return kernel::NegateOp::create(b, op->getLoc(),
                                            operands[0].getType(), operands[0]);
          })
          .Case([&](arith::ExtFOp extension) {
            return convert(op->getLoc(), operands[0],
                           numberType(extension.getResult()));
          })
          .Case([&](arith::TruncFOp truncation) {
            return translateTruncation(truncation, operands[0]);
          })
          .Case([&](arith::CmpFOp compare) {
            return translateCompare(compare, operands[0], operands[1]);
          })
          .Case([&](arith::SelectOp) -> Value {
            return kernel::SelectOp::create(b, op->getLoc(),
                                            operands[1].getType(), operands[0],
                                            operands[1], operands[2]);
          })
          .Default([&](Operation *) { return translateLogic(op, operands); });
  // Constants and conversions have reported what is wrong with them.
  if (!result && !isa<arith::ConstantOp, arith::TruncFOp>(op)) {
    op->emitOpError() << "cannot be computed inside a CUDA kernel: expects "
                         "kaon.reduce, kaon.broadcast, tensor.splat, constants "
                         "and arithmetic on numbers and truth values";
  }
  return result;
}

} // namespace kaon::cuda
