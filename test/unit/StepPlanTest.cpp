//===-- StepPlanTest.cpp - plans as data ----------------------------------===//
//
// Validation of every field, JSON both ways, printing and costs.
//
//===----------------------------------------------------------------------===//

#include "runtime/StepPlan.h"

#include "TestPlans.h"

#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <string>

using namespace kaon::runtime;
using namespace kaon::runtime::test;

namespace {

StepPlan examplePlan() {
  StepPlan plan = periodicPlan(40, 70, 3, 2);
  plan.parameters[1].name = "w1 \"quoted\" \xc3\xa9";
  return plan;
}

/// The text of `plan` with the first `from` replaced by `to`.
std::string edited(const StepPlan &plan, const std::string &from,
                   const std::string &to) {
  std::string text = plan.toJson();
  size_t position = text.find(from);
  EXPECT_NE(position, std::string::npos) << from << " is not in " << text;
  if (position != std::string::npos) {
    text.replace(position, from.size(), to);
  }
  return text;
}

} // namespace

TEST(StepPlanTest, SurvivesJson) {
  StepPlan plan = examplePlan();
  // Every kind of instruction operand, and constants that JSON finds hard.
  ScalarProgram &program = plan.sequences[0].program;
  int32_t infinity = program.constant(std::numeric_limits<double>::infinity());
  int32_t minus = program.constant(-std::numeric_limits<double>::infinity());
  int32_t nan = program.constant(std::numeric_limits<double>::quiet_NaN());
  program.constant(5e-324);
  program.constant(-0.0);
  program.constant(0.1 + 0.2);
  program.operation(ScalarOpcode::Select, infinity, minus, nan);
  ASSERT_EQ(plan.validate().message(), "");

  std::string text = plan.toJson();
  Result<StepPlan> read = StepPlan::fromJson(text);
  ASSERT_EQ(read.status().message(), "");
  EXPECT_TRUE(*read == plan);
  EXPECT_EQ(read->toJson(), text);
}

TEST(StepPlanTest, RefusesForeignText) {
  StepPlan plan = examplePlan();
  auto message = [](const std::string &text) {
    return StepPlan::fromJson(text).status().message();
  };
  EXPECT_EQ(message(""), "the plan: expects valid JSON, but cannot be parsed");
  EXPECT_EQ(message("{"), "the plan: expects valid JSON, but cannot be parsed");
  EXPECT_EQ(message("3"), "the plan: expects an object, but got 3");
  EXPECT_EQ(message("{}"), "format: expects a value, but found none");
  EXPECT_EQ(message(R"({"format": "x"})"),
            "format: expects 'kaon-step-plan', but got 'x'");
  EXPECT_EQ(message(edited(plan, "\"version\":1", "\"version\":2")),
            "version: expects 1, but got 2");
  EXPECT_EQ(message(edited(plan, "\"period\":2", "\"period\":3")),
            "period: expects the number of phases, 2, but got 3");
  EXPECT_EQ(message(edited(plan, "\"rows\":40", "\"rows\":4.5")),
            "parameters[0].rows: expects an integer, but got 4.5");
  EXPECT_EQ(message(edited(plan, "\"rows\":40", "\"rows\":[[1]]")),
            "parameters[0].rows: expects an integer, but got array");
  EXPECT_EQ(
      message(edited(plan, "\"rows\":40", "\"rows\":99999999999999999999")),
      "parameters[0].rows: expects an integer, but got 1e+20");
  EXPECT_EQ(
      message(edited(plan, "\"rows\":40", "\"rows\":18446744073709551615")),
      "parameters[0].rows: expects an integer of 64 bits, but got "
      "18446744073709551615");
  EXPECT_EQ(
      message(edited(plan, "\"scalarSet\":0", "\"scalarSet\":4294967296")),
      "parameters[0].scalarSet: expects an integer of 32 bits, but got "
      "4294967296");
  EXPECT_EQ(
      message(edited(plan, "\"paramType\":\"f32\"", "\"paramType\":\"f8\"")),
      "parameters[0].paramType: expects an element type, but got \"f8\"");
  EXPECT_EQ(message(edited(plan, "{\"op\":\"arg\"", "{\"op\":\"sine\"")),
            "sequences[0].scalarProgram[0].op: expects a scalar operation, but "
            "got \"sine\"");
  EXPECT_EQ(message(edited(plan, "{\"op\":\"arg\",\"index\":0}",
                           "{\"op\":\"add\",\"operands\":[0]}")),
            "sequences[0].scalarProgram[0].operands: expects 2 registers for "
            "the operation add, but got array");
  EXPECT_EQ(message(edited(plan, "{\"op\":\"arg\",\"index\":0}",
                           "{\"op\":\"const\",\"value\":\"big\"}")),
            "sequences[0].scalarProgram[0].value: expects a number, \"inf\", "
            "\"-inf\" or \"nan\", but got \"big\"");
  EXPECT_EQ(message(edited(plan, "\"members\":[0,1,2]", "\"members\":{}")),
            "phases[0][0].members: expects a list, but got object");
  EXPECT_EQ(message(edited(plan, "\"name\":\"w0\"", "\"name\":\"\xff\"")),
            "the plan: expects valid JSON, but cannot be parsed");
}

TEST(StepPlanTest, NamesTheFieldThatIsWrong) {
  struct {
    std::function<void(StepPlan &)> damage;
    const char *message;
  } cases[] = {
      {[](StepPlan &plan) { plan.parameters[0].rows = 0; },
       "parameters[0]: expects at least one row and one column and at most "
       "281474976710656 elements, but got 0x70"},
      {[](StepPlan &plan) {
         plan.parameters[0].rows = plan.parameters[0].cols = int64_t(1) << 40;
       },
       "parameters[0]: expects at least one row and one column and at most "
       "281474976710656 elements, but got "
       "1099511627776x1099511627776"},
      {[](StepPlan &plan) { plan.parameters[1].scalarSet = 1; },
       "parameters[1].scalarSet: expects a scalar set below 1, but got 1"},
      {[](StepPlan &plan) {
         plan.parameters[2].states = {{"m", 40, 71, ElementType::F32}};
       },
       "parameters[2].states[0]: expects 1 or 40 rows and 1 or 70 columns, but "
       "got 40x71"},
      {[](StepPlan &plan) { plan.parameters[1].cols = 71; },
       "phases[0][0].members[1]: parameter 'w1 \"quoted\" \xc3\xa9' has a "
       "40x71 f32 param, but launch 0 of 'row_step' "
       "expects its operand 0 to be 40x70 f32"},
      {[](StepPlan &plan) { plan.parameters[0].gradType = ElementType::BF16; },
       "phases[0][0].members[0]: parameter 'w0' has a 40x70 bf16 grad, but "
       "launch 0 of 'row_step' expects its operand "
       "1 to be 40x70 f32"},
      {[](StepPlan &plan) { plan.kernels[1].name = ""; },
       "kernels[1].name: expects a name, but got none"},
      {[](StepPlan &plan) { plan.kernels[1].name = "row"; },
       "kernels[2].name: expects distinct names, but got 'row' twice"},
      {[](StepPlan &plan) { plan.sequences[1].workspaceBytes += 4; },
       "sequences[1].workspaceBytes: expects a multiple of 64 bytes, but got "
       "22404"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].kernel = 3; },
       "sequences[0].launches[0].kernel: expects a kernel below 3, but got 3"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].sizes = {40}; },
       "sequences[0].launches[0].sizes: expects 2 sizes for the schedule rows, "
       "but got 1"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].sizes[1] = -1; },
       "sequences[0].launches[0].sizes: expects at least one row and one "
       "column and at most 281474976710656 elements, but got 40x-1"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].items = 41; },
       "sequences[0].launches[0].items: expects 40 for the schedule rows and "
       "sizes 40x70, but got 41"},
      {[](StepPlan &plan) { plan.sequences[1].launches[0].items = 1; },
       "sequences[1].launches[0].items: expects 2 for the schedule transpose "
       "and sizes 40x70, but got 1"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].grain = 0; },
       "sequences[0].launches[0].grain: expects at least 1, but got 0"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].flops = -1; },
       "sequences[0].launches[0].flops: expects at least 0, but got -1"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].numInputs = 3; },
       "sequences[0].launches[0].inputs: expects at least one operand to be "
       "written, but got 3 read of 3"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[2].kind = BufferKind::Grad;
       },
       "sequences[0].launches[0].operands[2].kind: expects a result outside "
       "the gradient, which a step never changes"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[0].cols = 35;
       },
       "sequences[0].launches[0].operands[0]: expects a shape that goes with "
       "the schedule rows and sizes 40x70, but got 40x35"},
      {[](StepPlan &plan) {
         std::swap(plan.sequences[1].launches[0].operands[1].rows,
                   plan.sequences[1].launches[0].operands[1].cols);
       },
       "sequences[1].launches[0].operands[1]: expects a shape that goes with "
       "the schedule transpose and sizes 40x70, "
       "but got 40x70"},
      {[](StepPlan &plan) { plan.sequences[1].launches[0].scalars = {0}; },
       "sequences[1].launches[0].scalars: expects 0 scalars for the schedule "
       "transpose, but got 1"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Matmul;
         plan.sequences[1].launches[0].sizes = {40, 70, 1};
       },
       "sequences[1].launches[0].operands: expects 3 or 4 operands for the "
       "schedule matmul, but got 2"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].kind = BufferKind::State;
       },
       "phases[0][0].members[0]: launch 0 of 'row_step', operand 1 of "
       "parameter 'w0': expects a state below 0, but got "
       "0"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].scalars = {1}; },
       "sequences[0].launches[0].scalars[0]: expects a register below 1, but "
       "got 1"},
      {[](StepPlan &plan) {
         plan.sequences[1].launches[0].operands[1].offset = 32;
       },
       "sequences[1].launches[0].operands[1].offset: expects a multiple of 64 "
       "bytes, but got 32"},
      {[](StepPlan &plan) {
         plan.sequences[1].launches[1].operands[1].offset += 64;
       },
       "sequences[1].launches[1].operands[1]: expects to end within the "
       "sequence's workspace of 22400 bytes, but ends "
       "at 22464"},
      {[](StepPlan &plan) { plan.sequences[0].program.argument(1); },
       "phases[0][0].members[0]: scalar program of 'row_step' with the scalar "
       "set 0 of parameter 'w0': instruction 1: "
       "expects an argument below 1, but got 1"},
      {[](StepPlan &plan) { plan.phases.clear(); },
       "phases: expects at least one phase, but got none"},
      {[](StepPlan &plan) { plan.phases[1][0].sequence = 2; },
       "phases[1][0].sequence: expects a sequence below 2, but got 2"},
      {[](StepPlan &plan) { plan.phases[1][0].concurrent = 4; },
       "phases[1][0].concurrent: expects between 1 and the bucket's 3 members, "
       "but got 4"},
      {[](StepPlan &plan) { plan.phases[1][0].members[2] = 3; },
       "phases[1][0].members[2]: expects a parameter below 3, but got 3"},
      {[](StepPlan &plan) { plan.phases[1][0].members[2] = 0; },
       "phases[1][0].members[2]: expects each parameter once per phase, but "
       "got 'w0' twice"},
      {[](StepPlan &plan) { plan.phases[1][0].members.pop_back(); },
       "phases[1]: expects every parameter in a bucket, but 'w2' is in none"},
      {[](StepPlan &plan) { plan.workspaceBytes += 64; },
       "workspaceBytes: expects the 44800 bytes that the largest bucket needs, "
       "but got 44864"},
  };
  ASSERT_EQ(examplePlan().validate().message(), "");
  for (const auto &[damage, message] : cases) {
    StepPlan plan = examplePlan();
    damage(plan);
    EXPECT_EQ(plan.validate().message(), message);
    // Reading validates, too.
    EXPECT_FALSE(StepPlan::fromJson(plan.toJson()).ok()) << message;
  }
}

TEST(StepPlanTest, AllowsColumnsSeenAsRows) {
  StepPlan plan = MomentumPlan().add("w", 5, 1).plan;
  for (Operand &operand : plan.sequences[0].launches[0].operands) {
    std::swap(operand.rows, operand.cols);
  }
  plan.sequences[0].launches[0].sizes = {1, 5};
  plan.sequences[0].launches[0].items = 1;
  EXPECT_EQ(plan.validate().message(), "");
}

TEST(StepPlanTest, CountsWork) {
  StepPlan plan = examplePlan();
  EXPECT_EQ(plan.period(), 2);
  EXPECT_EQ(plan.cost(0), (Cost{3 * 4 * 2800, 3 * 12 * 2800, 2}));
  EXPECT_EQ(plan.cost(1), (Cost{3 * 2 * 2800, 3 * 28 * 2800, 6}));
}

TEST(StepPlanTest, PrintsForPeople) {
  EXPECT_EQ(
      MomentumPlan().add("w", 300, 400).add("v", 300, 400).plan.print(),
      R"(step plan version 1, period 1, 2 parameters, 1 kernels, 0 B workspace
scalar set 0: lr mu
parameter 0 "w": 300x400 f32, gradient f32, scalar set 0, state m: 300x400 f32
parameter 1 "v": 300x400 f32, gradient f32, scalar set 0, state m: 300x400 f32
sequence 0 @momentum_300x400: 1 launches, 0 B workspace
  %0 = arg 0
  %1 = step
  %2 = div %0, %1
  %3 = arg 1
  launch elementwise @momentum [300x400] (param: 300x400xf32, grad: 300x400xf32, state m: 300x400xf32) -> (param: 300x400xf32, state m: 300x400xf32) scalars(%2, %3) items 300 grain 1, 480 kFLOP, 2.4 MB
phase 0: 960 kFLOP, 4.8 MB, 1 launches
  bucket @momentum_300x400 concurrent 2 parameters [0, 1]
)");
}
