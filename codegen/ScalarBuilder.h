//===-- ScalarBuilder.h - host scalars of an update -------------*- C++ -*-===//
//
// Arithmetic on f64 hyperparameters and on the step count becomes instructions
// of the scalar program, which the runtime evaluates once per step.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_SCALARBUILDER_H
#define KAON_CODEGEN_SCALARBUILDER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Operation.h"
#include "runtime/ScalarProgram.h"

#include "llvm/ADT/DenseMap.h"

#include <optional>

namespace kaon {

/// Turns the host scalars of one update into its scalar program.
class ScalarBuilder {
public:
  explicit ScalarBuilder(runtime::ScalarProgram &program) : program(program) {}

  void defineArgument(mlir::Value value, int32_t index) {
    registers[value] = program.argument(index);
  }
  void defineStep(mlir::Value value) { registers[value] = program.step(); }

  /// Translates an op on host scalars.
  llvm::LogicalResult translate(mlir::Operation *op);

  /// The register of a host scalar.
  int32_t lookup(mlir::Value value) const { return registers.lookup(value); }

  /// The register of a number that is not in the module.
  int32_t getConstant(double value);

private:
  std::optional<int32_t> translateConstant(mlir::Attribute value);
  std::optional<int32_t>
  translateComparison(mlir::arith::CmpFPredicate predicate, int32_t a,
                      int32_t b);
  std::optional<int32_t>
  translateComparison(mlir::arith::CmpIPredicate predicate, int32_t a,
                      int32_t b);

  runtime::ScalarProgram &program;
  llvm::DenseMap<mlir::Value, int32_t> registers; // looked up only
};

} // namespace kaon

#endif // KAON_CODEGEN_SCALARBUILDER_H
