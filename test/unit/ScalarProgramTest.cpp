//===-- ScalarProgramTest.cpp - host scalar expressions -------------------===//
//
// Every operation against its definition, validation and printing.
//
//===----------------------------------------------------------------------===//

#include "runtime/ScalarProgram.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>

using namespace kaon::runtime;

namespace {

constexpr double notANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Value of `opcode` on constants.
double evaluate(ScalarOpcode opcode, double a, double b = 0, double c = 0) {
  ScalarProgram program;
  int32_t first = program.constant(a), second = program.constant(b),
          third = program.constant(c);
  program.operation(opcode, first, second, third);
  EXPECT_TRUE(program.validate(0).ok());
  std::vector<double> registers(program.numRegisters());
  program.evaluate(1, nullptr, registers.data());
  return registers.back();
}

bool sameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

} // namespace

TEST(ScalarProgramTest, ComputesAdamBiasCorrection) {
  // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  ScalarProgram program;
  int32_t lr = program.argument(0), beta1 = program.argument(1),
          beta2 = program.argument(2), t = program.step();
  int32_t one = program.constant(1.0);
  int32_t correction1 = program.operation(
      ScalarOpcode::Sub, one, program.operation(ScalarOpcode::Pow, beta1, t));
  int32_t correction2 = program.operation(
      ScalarOpcode::Sub, one, program.operation(ScalarOpcode::Pow, beta2, t));
  int32_t root = program.operation(ScalarOpcode::Sqrt, correction2);
  program.operation(ScalarOpcode::Div,
                    program.operation(ScalarOpcode::Mul, lr, root),
                    correction1);
  ASSERT_TRUE(program.validate(3).ok());

  const double arguments[] = {1e-3, 0.9, 0.999};
  std::vector<double> registers(program.numRegisters());
  for (int64_t step : {1, 2, 1000}) {
    program.evaluate(step, arguments, registers.data());
    double expected =
        1e-3 * std::sqrt(1 - std::pow(0.999, step)) / (1 - std::pow(0.9, step));
    EXPECT_EQ(registers.back(), expected) << "step " << step;
  }
}

TEST(ScalarProgramTest, EvaluatesEveryOperation) {
  EXPECT_EQ(evaluate(ScalarOpcode::Add, 2, 3), 5);
  EXPECT_EQ(evaluate(ScalarOpcode::Sub, 2, 3), -1);
  EXPECT_EQ(evaluate(ScalarOpcode::Mul, 2, 3), 6);
  EXPECT_EQ(evaluate(ScalarOpcode::Div, 3, 2), 1.5);
  EXPECT_EQ(evaluate(ScalarOpcode::Div, 1, 0), infinity);
  EXPECT_TRUE(sameBits(evaluate(ScalarOpcode::Neg, 0), -0.0));
  EXPECT_EQ(evaluate(ScalarOpcode::Pow, 0.9, 10), std::pow(0.9, 10));
  EXPECT_EQ(evaluate(ScalarOpcode::Sqrt, 2), std::sqrt(2.0));
  EXPECT_EQ(evaluate(ScalarOpcode::Exp, 1), std::exp(1.0));
  EXPECT_EQ(evaluate(ScalarOpcode::Log, 3), std::log(3.0));
  EXPECT_EQ(evaluate(ScalarOpcode::Abs, -3), 3);
  EXPECT_EQ(evaluate(ScalarOpcode::Floor, -1.5), -2);
  EXPECT_EQ(evaluate(ScalarOpcode::Ceil, -1.5), -1);
  EXPECT_EQ(evaluate(ScalarOpcode::CopySign, 2, -0.0), -2);
  EXPECT_EQ(evaluate(ScalarOpcode::And, 2, 0), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::And, 2, 1), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Or, 2, 0), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Or, 0, 0), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::Not, 2), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::Not, 0), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Select, 1, 5, 7), 5);
  EXPECT_EQ(evaluate(ScalarOpcode::Select, 0, 5, 7), 7);
}

TEST(ScalarProgramTest, RoundsFmaOnce) {
  double epsilon = std::ldexp(1.0, -30);
  // (1 + e)(1 - e) - 1 is -e^2 exactly, and 0 when the product is rounded
  // first.
  EXPECT_EQ(evaluate(ScalarOpcode::Fma, 1 + epsilon, 1 - epsilon, -1),
            -epsilon * epsilon);
}

TEST(ScalarProgramTest, MinimumAndMaximumPropagateNaNAndOrderZeros) {
  EXPECT_EQ(evaluate(ScalarOpcode::Minimum, 2, 3), 2);
  EXPECT_EQ(evaluate(ScalarOpcode::Maximum, 2, 3), 3);
  EXPECT_TRUE(std::isnan(evaluate(ScalarOpcode::Minimum, notANumber, 3)));
  EXPECT_TRUE(std::isnan(evaluate(ScalarOpcode::Maximum, 3, notANumber)));
  EXPECT_TRUE(sameBits(evaluate(ScalarOpcode::Minimum, 0.0, -0.0), -0.0));
  EXPECT_TRUE(sameBits(evaluate(ScalarOpcode::Maximum, -0.0, 0.0), 0.0));
}

TEST(ScalarProgramTest, ComparesLikeIeee754) {
  EXPECT_EQ(evaluate(ScalarOpcode::Less, 1, 2), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Less, 2, 2), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::LessEqual, 2, 2), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Equal, 2, 2), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::NotEqual, 2, 2), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::Less, notANumber, 2), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::Equal, notANumber, notANumber), 0);
  EXPECT_EQ(evaluate(ScalarOpcode::NotEqual, notANumber, notANumber), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Unordered, notANumber, 1), 1);
  EXPECT_EQ(evaluate(ScalarOpcode::Unordered, 2, 1), 0);
}

TEST(ScalarProgramTest, KeywordsRoundTrip) {
  for (int i = 0; i <= static_cast<int>(ScalarOpcode::Select); ++i) {
    auto opcode = static_cast<ScalarOpcode>(i);
    EXPECT_EQ(parseScalarOpcode(stringify(opcode)), opcode);
  }
  EXPECT_EQ(parseScalarOpcode("sine"), std::nullopt);
}

TEST(ScalarProgramTest, RefusesWrongRegistersAndArguments) {
  ScalarProgram selfReference;
  selfReference.operation(ScalarOpcode::Neg, 0);
  EXPECT_EQ(selfReference.validate(0).message(),
            "instruction 0 (neg): expects operand 0 to be an earlier register, "
            "but got 0");

  ScalarProgram negative;
  negative.operation(ScalarOpcode::Add, negative.constant(1), -1);
  EXPECT_EQ(negative.validate(0).message(),
            "instruction 1 (add): expects operand 1 to be an earlier register, "
            "but got -1");

  ScalarProgram argument;
  argument.argument(2);
  EXPECT_EQ(argument.validate(2).message(),
            "instruction 0: expects an argument below 2, but got 2");
  EXPECT_TRUE(argument.validate(3).ok());
}

TEST(ScalarProgramTest, PrintsExactly) {
  ScalarProgram program;
  int32_t tiny = program.constant(1e-8);
  program.operation(ScalarOpcode::Select, program.argument(1), tiny,
                    program.step());
  EXPECT_EQ(program.print("  "), "  %0 = const 1e-08\n"
                                 "  %1 = arg 1\n"
                                 "  %2 = step\n"
                                 "  %3 = select %1, %0, %2\n");
  EXPECT_EQ(printDouble(0.1), "0.1");
  EXPECT_EQ(printDouble(1.0 / 3.0), "0.3333333333333333");
}
