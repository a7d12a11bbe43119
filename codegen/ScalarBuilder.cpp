//===-- ScalarBuilder.cpp - host scalars of an update ---------------------===//

#include "codegen/ScalarBuilder.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;
using runtime::ScalarInstruction;
using runtime::ScalarOpcode;

int32_t ScalarBuilder::getConstant(double value) {
  ScalarInstruction wanted;
  wanted.value = value;
  for (auto [index, instruction] : llvm::enumerate(program.instructions())) {
    if (instruction == wanted) {
      return static_cast<int32_t>(index);
    }
  }
  return program.append(wanted);
}

std::optional<int32_t> ScalarBuilder::translateConstant(Attribute value) {
  if (auto number = dyn_cast<FloatAttr>(value)) {
    return getConstant(number.getValueAsDouble());
  }
  auto number = dyn_cast<IntegerAttr>(value);
  if (!number) {
    return std::nullopt;
  }
  if (number.getType().isInteger(1)) {
    return getConstant(number.getValue().isZero() ? 0.0 : 1.0);
  }
  if (number.getValue().getSignificantBits() > 64) {
    return std::nullopt;
  }
  // Integers are held as f64, which is exact for those that step counts reach.
  int64_t integer = number.getInt();
  constexpr int64_t largest = int64_t(1) << 53;
  if (integer > largest || integer < -largest) {
    return std::nullopt;
  }
  return getConstant(static_cast<double>(integer));
}

std::optional<int32_t>
ScalarBuilder::translateComparison(arith::CmpFPredicate predicate, int32_t a,
                                   int32_t b) {
  auto negate = [&](int32_t value) {
    return program.operation(ScalarOpcode::Not, value);
  };
  switch (predicate) {
  case arith::CmpFPredicate::AlwaysFalse:
    return getConstant(0.0);
  case arith::CmpFPredicate::AlwaysTrue:
    return getConstant(1.0);
  case arith::CmpFPredicate::OEQ:
    return program.operation(ScalarOpcode::Equal, a, b);
  case arith::CmpFPredicate::OGT:
    return program.operation(ScalarOpcode::Less, b, a);
  case arith::CmpFPredicate::OGE:
    return program.operation(ScalarOpcode::LessEqual, b, a);
  case arith::CmpFPredicate::OLT:
    return program.operation(ScalarOpcode::Less, a, b);
  case arith::CmpFPredicate::OLE:
    return program.operation(ScalarOpcode::LessEqual, a, b);
  case arith::CmpFPredicate::ONE: {
    int32_t less = program.operation(ScalarOpcode::Less, a, b);
    int32_t greater = program.operation(ScalarOpcode::Less, b, a);
    return program.operation(ScalarOpcode::Or, less, greater);
  }
  case arith::CmpFPredicate::ORD:
    return negate(program.operation(ScalarOpcode::Unordered, a, b));
  case arith::CmpFPredicate::UEQ: {
    int32_t equal = program.operation(ScalarOpcode::Equal, a, b);
    int32_t unordered = program.operation(ScalarOpcode::Unordered, a, b);
    return program.operation(ScalarOpcode::Or, equal, unordered);
  }
  case arith::CmpFPredicate::UGT:
    return negate(program.operation(ScalarOpcode::LessEqual, a, b));
  case arith::CmpFPredicate::UGE:
    return negate(program.operation(ScalarOpcode::Less, a, b));
  case arith::CmpFPredicate::ULT:
    return negate(program.operation(ScalarOpcode::LessEqual, b, a));
  case arith::CmpFPredicate::ULE:
    return negate(program.operation(ScalarOpcode::Less, b, a));
  case arith::CmpFPredicate::UNE:
    return program.operation(ScalarOpcode::NotEqual, a, b);
  case arith::CmpFPredicate::UNO:
    return program.operation(ScalarOpcode::Unordered, a, b);
  }
  return std::nullopt;
}

std::optional<int32_t>
ScalarBuilder::translateComparison(arith::CmpIPredicate predicate, int32_t a,
                                   int32_t b) {
  switch (predicate) {
  case arith::CmpIPredicate::eq:
    return program.operation(ScalarOpcode::Equal, a, b);
  case arith::CmpIPredicate::ne:
    return program.operation(ScalarOpcode::NotEqual, a, b);
  case arith::CmpIPredicate::slt:
    return program.operation(ScalarOpcode::Less, a, b);
  case arith::CmpIPredicate::sle:
    return program.operation(ScalarOpcode::LessEqual, a, b);
  case arith::CmpIPredicate::sgt:
    return program.operation(ScalarOpcode::Less, b, a);
  case arith::CmpIPredicate::sge:
    return program.operation(ScalarOpcode::LessEqual, b, a);
  default:
    return std::nullopt;
  }
}

LogicalResult ScalarBuilder::translate(Operation *op) {
  SmallVector<int32_t, 3> sources = llvm::map_to_vector<3>(
      op->getOperands(), [&](Value value) { return lookup(value); });
  auto apply = [&](ScalarOpcode opcode) -> std::optional<int32_t> {
    sources.resize(3, 0);
    return program.operation(opcode, sources[0], sources[1], sources[2]);
  };
  std::optional<int32_t> result =
      llvm::TypeSwitch<Operation *, std::optional<int32_t>>(op)
          .Case([&](arith::ConstantOp constant) {
            return translateConstant(constant.getValue());
          })
          .Case([&](arith::CmpFOp compare) {
            return translateComparison(compare.getPredicate(), sources[0],
                                       sources[1]);
          })
          .Case([&](arith::CmpIOp compare) -> std::optional<int32_t> {
            // Truth is -1 as an i1, and 1 here: order is not the same.
            if (compare.getLhs().getType().isInteger(1)) {
              return std::nullopt;
            }
            return translateComparison(compare.getPredicate(), sources[0],
                                       sources[1]);
          })
          .Case([&](math::RsqrtOp) {
            int32_t root = program.operation(ScalarOpcode::Sqrt, sources[0]);
            return program.operation(ScalarOpcode::Div, getConstant(1.0), root);
          })
          // The step count is held as f64 already.
          .Case([&](arith::SIToFPOp) { return sources[0]; })
          .Case<arith::AddFOp, arith::AddIOp>(
              [&](auto) { return apply(ScalarOpcode::Add); })
          .Case<arith::SubFOp, arith::SubIOp>(
              [&](auto) { return apply(ScalarOpcode::Sub); })
          .Case<arith::MulFOp, arith::MulIOp>(
              [&](auto) { return apply(ScalarOpcode::Mul); })
          .Case([&](arith::DivFOp) { return apply(ScalarOpcode::Div); })
          .Case([&](arith::NegFOp) { return apply(ScalarOpcode::Neg); })
          .Case<arith::MinimumFOp, arith::MinSIOp>(
              [&](auto) { return apply(ScalarOpcode::Minimum); })
          .Case<arith::MaximumFOp, arith::MaxSIOp>(
              [&](auto) { return apply(ScalarOpcode::Maximum); })
          .Case([&](arith::SelectOp) { return apply(ScalarOpcode::Select); })
          .Case([&](arith::AndIOp) { return apply(ScalarOpcode::And); })
          .Case([&](arith::OrIOp) { return apply(ScalarOpcode::Or); })
          .Case([&](arith::XOrIOp) { return apply(ScalarOpcode::NotEqual); })
          .Case([&](math::SqrtOp) { return apply(ScalarOpcode::Sqrt); })
          .Case([&](math::ExpOp) { return apply(ScalarOpcode::Exp); })
          .Case([&](math::LogOp) { return apply(ScalarOpcode::Log); })
          .Case([&](math::PowFOp) { return apply(ScalarOpcode::Pow); })
          .Case([&](math::AbsFOp) { return apply(ScalarOpcode::Abs); })
          .Case([&](math::FloorOp) { return apply(ScalarOpcode::Floor); })
          .Case([&](math::CeilOp) { return apply(ScalarOpcode::Ceil); })
          .Case([&](math::FmaOp) { return apply(ScalarOpcode::Fma); })
          .Case([&](math::CopySignOp) { return apply(ScalarOpcode::CopySign); })
          .Default(std::optional<int32_t>());
  // Bitwise operations on wider integers are not what And, Or and NotEqual
  // compute.
  bool isBitwise = isa<arith::AndIOp, arith::OrIOp, arith::XOrIOp>(op) &&
                   !op->getResult(0).getType().isInteger(1);
  // A true boolean is 1 here, but -1 to signed integer arithmetic.
  bool isSignedBoolean =
      isa<arith::AddIOp, arith::SubIOp, arith::MulIOp, arith::MinSIOp,
          arith::MaxSIOp, arith::SIToFPOp, arith::CmpIOp>(op) &&
      op->getOperand(0).getType().isInteger(1);
  if (auto compare = dyn_cast<arith::CmpIOp>(op)) {
    isSignedBoolean &= compare.getPredicate() != arith::CmpIPredicate::eq &&
                       compare.getPredicate() != arith::CmpIPredicate::ne;
  }
  if (!result || isBitwise || isSignedBoolean) {
    return op->emitOpError() << "cannot be computed on the host once per step";
  }
  registers[op->getResult(0)] = *result;
  return success();
}
