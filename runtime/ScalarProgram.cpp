//===-- ScalarProgram.cpp - host scalar expressions -----------------------===//
//
// Evaluates the register machine described in ScalarProgram.h.
//
//===----------------------------------------------------------------------===//

#include "runtime/ScalarProgram.h"

#include <bit>
#include <charconv>
#include <cmath>

using namespace kaon::runtime;

namespace {
struct OpcodeInfo {
  std::string_view keyword;
  int numOperands;
};
} // namespace

// In the order of ScalarOpcode.
static constexpr OpcodeInfo opcodes[] = {
    {"const", 0}, {"arg", 0},      {"step", 0},   {"add", 2},       {"sub", 2},
    {"mul", 2},   {"div", 2},      {"neg", 1},    {"pow", 2},       {"sqrt", 1},
    {"exp", 1},   {"log", 1},      {"abs", 1},    {"floor", 1},     {"ceil", 1},
    {"fma", 3},   {"copysign", 2}, {"min", 2},    {"max", 2},       {"lt", 2},
    {"le", 2},    {"eq", 2},       {"ne", 2},     {"unordered", 2}, {"and", 2},
    {"or", 2},    {"not", 1},      {"select", 3},
};
static_assert(std::size(opcodes) ==
              static_cast<size_t>(ScalarOpcode::Select) + 1);

static double minimum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) {
    return a + b;
  }
  if (a == b) {
    return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}

static double maximum(double a, double b) { return -minimum(-a, -b); }

std::string_view kaon::runtime::stringify(ScalarOpcode opcode) {
  return opcodes[static_cast<size_t>(opcode)].keyword;
}

std::optional<ScalarOpcode>
kaon::runtime::parseScalarOpcode(std::string_view keyword) {
  for (size_t i = 0; i < std::size(opcodes); ++i) {
    if (opcodes[i].keyword == keyword) {
      return static_cast<ScalarOpcode>(i);
    }
  }
  return std::nullopt;
}

int kaon::runtime::numOperands(ScalarOpcode opcode) {
  return opcodes[static_cast<size_t>(opcode)].numOperands;
}

bool ScalarInstruction::operator==(const ScalarInstruction &other) const {
  if (opcode != other.opcode || index != other.index) {
    return false;
  }
  for (int i = 0; i < numOperands(opcode); ++i) {
    if (operands[i] != other.operands[i]) {
      return false;
    }
  }
  // By bits: NaN equals itself, 0 differs from -0.
  return std::bit_cast<uint64_t>(value) == std::bit_cast<uint64_t>(other.value);
}

int32_t ScalarProgram::append(const ScalarInstruction &instruction) {
  code.push_back(instruction);
  return numRegisters() - 1;
}

int32_t ScalarProgram::constant(double value) {
  ScalarInstruction instruction;
  instruction.value = value;
  return append(instruction);
}

int32_t ScalarProgram::argument(int32_t index) {
  ScalarInstruction instruction;
  instruction.opcode = ScalarOpcode::Argument;
  instruction.index = index;
  return append(instruction);
}

int32_t ScalarProgram::step() {
  ScalarInstruction instruction;
  instruction.opcode = ScalarOpcode::Step;
  return append(instruction);
}

int32_t ScalarProgram::operation(ScalarOpcode opcode, int32_t a, int32_t b,
                                 int32_t c) {
  ScalarInstruction instruction;
  instruction.opcode = opcode;
  instruction.operands[0] = a;
  instruction.operands[1] = b;
  instruction.operands[2] = c;
  return append(instruction);
}

Status ScalarProgram::validate(int64_t numArguments) const {
  for (int32_t i = 0; i < numRegisters(); ++i) {
    const ScalarInstruction &instruction = code[i];
    if (instruction.opcode == ScalarOpcode::Argument &&
        (instruction.index < 0 || instruction.index >= numArguments)) {
      return Status::failure("instruction ", i, ": expects an argument below ",
                             numArguments, ", but got ", instruction.index);
    }
    for (int operand = 0; operand < numOperands(instruction.opcode);
         ++operand) {
      int32_t source = instruction.operands[operand];
      if (source < 0 || source >= i) {
        return Status::failure("instruction ", i, " (",
                               stringify(instruction.opcode),
                               "): expects operand ", operand,
                               " to be an earlier register, but got ", source);
      }
    }
  }
  return Status::success();
}

void ScalarProgram::evaluate(int64_t step, const double *arguments,
                             double *registers) const {
  for (size_t i = 0; i < code.size(); ++i) {
    const ScalarInstruction &instruction = code[i];
    int numSources = numOperands(instruction.opcode);
    double a = numSources > 0 ? registers[instruction.operands[0]] : 0.0;
    double b = numSources > 1 ? registers[instruction.operands[1]] : 0.0;
    double c = numSources > 2 ? registers[instruction.operands[2]] : 0.0;
    double &result = registers[i];
    switch (instruction.opcode) {
    case ScalarOpcode::Constant:
      result = instruction.value;
      break;
    case ScalarOpcode::Argument:
      result = arguments[instruction.index];
      break;
    case ScalarOpcode::Step:
      result = static_cast<double>(step);
      break;
    case ScalarOpcode::Add:
      result = a + b;
      break;
    case ScalarOpcode::Sub:
      result = a - b;
      break;
    case ScalarOpcode::Mul:
      result = a * b;
      break;
    case ScalarOpcode::Div:
      result = a / b;
      break;
    case ScalarOpcode::Neg:
      result = -a;
      break;
    case ScalarOpcode::Pow:
      result = std::pow(a, b);
      break;
    case ScalarOpcode::Sqrt:
      result = std::sqrt(a);
      break;
    case ScalarOpcode::Exp:
      result = std::exp(a);
      break;
    case ScalarOpcode::Log:
      result = std::log(a);
      break;
    case ScalarOpcode::Abs:
      result = std::fabs(a);
      break;
    case ScalarOpcode::Floor:
      result = std::floor(a);
      break;
    case ScalarOpcode::Ceil:
      result = std::ceil(a);
      break;
    case ScalarOpcode::Fma:
      result = std::fma(a, b, c);
      break;
    case ScalarOpcode::CopySign:
      result = std::copysign(a, b);
      break;
    case ScalarOpcode::Minimum:
      result = minimum(a, b);
      break;
    case ScalarOpcode::Maximum:
      result = maximum(a, b);
      break;
    case ScalarOpcode::Less:
      result = a < b;
      break;
    case ScalarOpcode::LessEqual:
      result = a <= b;
      break;
    case ScalarOpcode::Equal:
      result = a == b;
      break;
    case ScalarOpcode::NotEqual:
      result = a != b;
      break;
    case ScalarOpcode::Unordered:
      result = std::isunordered(a, b);
      break;
    case ScalarOpcode::And:
      result = a != 0 && b != 0;
      break;
    case ScalarOpcode::Or:
      result = a != 0 || b != 0;
      break;
    case ScalarOpcode::Not:
      result = a == 0;
      break;
    case ScalarOpcode::Select:
      result = a != 0 ? b : c;
      break;
    }
  }
}

std::string ScalarProgram::print(std::string_view indent) const {
  std::ostringstream stream;
  for (int32_t i = 0; i < numRegisters(); ++i) {
    const ScalarInstruction &instruction = code[i];
    stream << indent << '%' << i << " = " << stringify(instruction.opcode);
    if (instruction.opcode == ScalarOpcode::Constant) {
      stream << ' ' << printDouble(instruction.value);
    }
    if (instruction.opcode == ScalarOpcode::Argument) {
      stream << ' ' << instruction.index;
    }
    for (int operand = 0; operand < numOperands(instruction.opcode);
         ++operand) {
      stream << (operand ? ", %" : " %") << instruction.operands[operand];
    }
    stream << '\n';
  }
  return std::move(stream).str();
}

std::string kaon::runtime::printDouble(double value) {
  char buffer[32];
  std::to_chars_result result =
      std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}
