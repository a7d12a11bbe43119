//===-- ScalarProgram.h - host scalar expressions ---------------*- C++ -*-===//
//
// What an update computes from hyperparameters and the step count alone (bias
// corrections, decayed learning rates) is evaluated on the host in f64, once
// per step and scalar set, by a straight-line register machine. Instruction i
// writes register i, so that a program is its own list of values.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_SCALARPROGRAM_H
#define KAON_RUNTIME_SCALARPROGRAM_H

#include "runtime/Status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kaon::runtime {

/// Operations on f64 registers. Comparisons give 1 or 0; a condition holds when
/// it is not 0.
enum class ScalarOpcode : uint8_t {
  Constant, // value
  Argument, // hyperparameter number `index`
  Step,     // the step count, 1 at the first step
  Add,
  Sub,
  Mul,
  Div,
  Neg,
  Pow,
  Sqrt,
  Exp,
  Log,
  Abs,
  Floor,
  Ceil,
  Fma,      // a * b + c, rounded once
  CopySign, // magnitude of a, sign of b
  Minimum,  // NaN when either is; -0 below +0
  Maximum,
  Less,
  LessEqual,
  Equal,
  NotEqual, // true for NaN, as the others are false
  Unordered,
  And,
  Or,
  Not,
  Select, // a ? b : c
};

/// The keyword of `opcode` in plans, "add" for instance.
std::string_view stringify(ScalarOpcode opcode);

/// The opcode that a keyword names.
std::optional<ScalarOpcode> parseScalarOpcode(std::string_view keyword);

/// How many registers `opcode` reads, 0 to 3.
int numOperands(ScalarOpcode opcode);

struct ScalarInstruction {
  ScalarOpcode opcode = ScalarOpcode::Constant;
  int32_t operands[3] = {0, 0,
                         0}; // registers; the first numOperands(opcode) count
  int32_t index = 0;         // of an Argument
  double value = 0.0;        // of a Constant

  bool operator==(const ScalarInstruction &other) const;
};

class ScalarProgram {
public:
  /// Appends an instruction and returns its register.
  int32_t append(const ScalarInstruction &instruction);
  int32_t constant(double value);
  int32_t argument(int32_t index);
  int32_t step();
  int32_t operation(ScalarOpcode opcode, int32_t a, int32_t b = 0,
                    int32_t c = 0);

  const std::vector<ScalarInstruction> &instructions() const { return code; }
  int32_t numRegisters() const { return static_cast<int32_t>(code.size()); }

  /// Checks that registers are written before they are read and that arguments
  /// lie below `numArguments`.
  Status validate(int64_t numArguments) const;

  /// Fills `registers` (numRegisters() of them). `arguments` holds the values
  /// of one scalar set. The program must be valid.
  void evaluate(int64_t step, const double *arguments, double *registers) const;

  /// One instruction per line: `%2 = mul %0, %1`.
  std::string print(std::string_view indent = "") const;

  bool operator==(const ScalarProgram &other) const {
    return code == other.code;
  }

private:
  std::vector<ScalarInstruction> code;
};

/// The shortest decimal text that reads back as exactly `value`.
std::string printDouble(double value);

} // namespace kaon::runtime

#endif // KAON_RUNTIME_SCALARPROGRAM_H
