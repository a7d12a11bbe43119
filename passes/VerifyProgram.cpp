//===-- VerifyProgram.cpp - what no single op can see ---------------------===//
//
// Numeric class: bitwise (changes nothing).
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/SymbolTable.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/StringMap.h"

namespace kaon {
#define GEN_PASS_DEF_VERIFYPROGRAMPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

/// Verifies that an op is one that updates are made of:
/// - update math, elementwise math or host scalar math
/// - arithmetic on matrices of the compute type
/// - a `kaon.every` asks for the update's own step
static LogicalResult verifyOp(Operation *op, func::FuncOp update,
                              Type computeType) {
  if (auto every = dyn_cast<EveryOp>(op)) {
    unsigned step = getArgumentsWithRole(update, Role::Step).front();
    if (every.getStep() != update.getArgument(step)) {
      return every.emitOpError()
             << "expects the step of its update, argument #" << step;
    }
    return success();
  }
  if (isa<func::ReturnOp>(op) ||
      isa_and_present<KaonDialect>(op->getDialect())) {
    return success();
  }
  if (!isa_and_present<arith::ArithDialect, math::MathDialect>(
          op->getDialect()) &&
      !isa<tensor::SplatOp>(op)) {
    return op->emitOpError()
           << "cannot be part of an update; expects ops of kaon, arith and "
              "math, and tensor.splat";
  }
  if (isa<arith::ExtFOp, arith::TruncFOp>(op)) {
    return success();
  }
  for (Type type : op->getResultTypes()) {
    auto matrix = dyn_cast<RankedTensorType>(type);
    if (matrix && isa<FloatType>(matrix.getElementType()) &&
        matrix.getElementType() != computeType &&
        !matrix.getElementType().isF64()) {
      return op->emitOpError()
             << "expects the compute type of its update, " << computeType
             << ", but got " << matrix.getElementType();
    }
  }
  return success();
}

static LogicalResult verifyUpdate(func::FuncOp update) {
  auto param = cast<RankedTensorType>(
      update.getArgumentTypes()[getArgumentsWithRole(update, Role::Param)
                                    .front()]);
  if (param.getNumElements() == 0) {
    return update.emitOpError()
           << "expects a parameter with elements, but got "
           << param.getDimSize(0) << "x" << param.getDimSize(1);
  }
  Type element = param.getElementType();
  Type computeType =
      element.isF64() ? element : Float32Type::get(update.getContext());
  WalkResult walked = update.getBody().walk([&](Operation *op) {
    return WalkResult(verifyOp(op, update, computeType));
  });
  return failure(walked.wasInterrupted());
}

/// Verifies that:
/// - matrices have names of their own
/// - updates that share a scalar set read as many scalars
static LogicalResult verifyProgram(ProgramOp program, SymbolTable &symbols) {
  llvm::StringMap<ParameterOp> names;
  DenseMap<int64_t, ParameterOp> scalarSets;
  auto countScalars = [&](ParameterOp parameter) {
    auto symbol = cast<FlatSymbolRefAttr>(parameter.getUpdates()[0]);
    auto update = symbols.lookup<func::FuncOp>(symbol.getAttr());
    return getArgumentsWithRole(update, Role::Scalar).size();
  };
  for (ParameterOp parameter : program.getParameters()) {
    auto [name, isNewName] = names.try_emplace(parameter.getName(), parameter);
    if (!isNewName) {
      InFlightDiagnostic diagnostic = parameter.emitOpError()
                                      << "expects a name of its own, but \""
                                      << parameter.getName() << "\" is taken";
      diagnostic.attachNote(name->second.getLoc()) << "by this matrix";
      return diagnostic;
    }
    auto [set, isNewSet] =
        scalarSets.try_emplace(parameter.getScalars(), parameter);
    size_t expected = countScalars(set->second),
           found = countScalars(parameter);
    if (!isNewSet && expected != found) {
      InFlightDiagnostic diagnostic =
          parameter.emitOpError()
          << "reads " << found << " scalars from set " << parameter.getScalars()
          << ", which has " << expected;
      diagnostic.attachNote(set->second.getLoc()) << "for this matrix";
      return diagnostic;
    }
  }
  return success();
}

namespace {

struct VerifyProgramPass
    : kaon::impl::VerifyProgramPassBase<VerifyProgramPass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    for (auto update : getOperation().getOps<func::FuncOp>()) {
      if (isUpdate(update) && failed(verifyUpdate(update))) {
        return signalPassFailure();
      }
    }
    for (auto program : getOperation().getOps<ProgramOp>()) {
      if (failed(verifyProgram(program, symbols))) {
        return signalPassFailure();
      }
    }
  }
};

} // namespace
