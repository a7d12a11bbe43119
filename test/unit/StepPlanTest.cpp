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
#include <tuple>

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

/// For CUDA: a 300x70 gradient becomes bf16, its Gram matrix is computed, and
/// the product of the two changes the parameter in an epilogue.
StepPlan cudaPlan() {
  StepPlan plan;
  plan.target = Target::Cuda;
  plan.parameters = {{"w", 300, 70, ElementType::F32, ElementType::F32, {}, 0}};
  plan.scalarSets = {{{"rate"}}};
  plan.kernels = {
      {"narrow", Schedule::Elementwise, 256},
      {"matmul_bf16_transposed_rhs_symmetric", Schedule::Matmul, 256},
      {"matmul_bf16_update", Schedule::Matmul, 256}};
  auto half = [](int64_t rows, int64_t cols, int64_t offset) {
    Operand place = operand(BufferKind::Workspace, rows, cols, 0, offset);
    place.type = ElementType::BF16;
    place.pitch = (cols + 7) / 8 * 8;
    return place;
  };
  Operand x = half(300, 70, 0), gram = half(300, 300, 43264);
  Operand w = operand(BufferKind::Param, 300, 70),
          g = operand(BufferKind::Grad, 300, 70);
  Sequence sequence;
  sequence.name = "muon";
  int32_t rate = sequence.program.argument(0),
          one = sequence.program.constant(1.0);
  sequence.workspaceBytes = 43264 + 182528;
  sequence.launches = {
      {0, {g, x}, 1, {}, {300, 70}, 3, cudaElementwiseGrain, 0, 126000, 0},
      {1, {x, x, gram}, 2, {one}, {300, 300, 70}, 6, 1, 6300000, 264000, 49152},
      {2,
       {gram, x, w},
       2,
       {one, rate},
       {300, 70, 300},
       3,
       1,
       12600000,
       390000,
       49152}};
  plan.sequences = {sequence};
  plan.phases = {{plan.alone({0, {0}, 1})}};
  plan.workspaceBytes = sequence.workspaceBytes;
  plan.kernels[1].symmetric = plan.kernels[1].transposeB = true;
  signKernels(plan);
  return plan;
}

/// For CUDA: gradients of two shapes are copied to the workspace and taken from
/// there; those of the second shape are doubled in between. Both run in
/// lock-step.
StepPlan groupedPlan() {
  StepPlan plan;
  plan.target = Target::Cuda;
  plan.parameters = {{"a", 3, 4, ElementType::F32, ElementType::F32, {}, 0},
                     {"b", 5, 6, ElementType::F32, ElementType::F32, {}, 0},
                     {"c", 5, 6, ElementType::F32, ElementType::F32, {}, 0}};
  plan.scalarSets = {{{"rate"}}};
  plan.kernels = {{"copy", Schedule::Elementwise, 256},
                  {"descent", Schedule::Elementwise, 256},
                  {"twice", Schedule::Elementwise, 256}};
  for (auto [rows, cols, name] :
       {std::tuple(3, 4, "wide"), std::tuple(5, 6, "square")}) {
    Operand w = operand(BufferKind::Param, rows, cols),
            g = operand(BufferKind::Grad, rows, cols),
            u = operand(BufferKind::Workspace, rows, cols);
    Sequence sequence;
    sequence.name = name;
    int32_t rate = sequence.program.argument(0);
    auto add = [&](int32_t kernel, std::vector<Operand> operands,
                   std::vector<int32_t> scalars) {
      auto numInputs = static_cast<int32_t>(operands.size()) - 1;
      int64_t size = rows * cols;
      sequence.launches.push_back({kernel,
                                   std::move(operands),
                                   numInputs,
                                   std::move(scalars),
                                   {rows, cols},
                                   1,
                                   cudaElementwiseGrain,
                                   size,
                                   8 * size,
                                   0});
    };
    add(0, {g, u}, {});
    if (rows == 5) {
      add(2, {u, u}, {});
    }
    add(1, {w, u, w}, {rate});
    sequence.workspaceBytes = 256;
    plan.sequences.push_back(std::move(sequence));
  }
  plan.phases = {{{{{0, {0}, 1, 0}, {1, {1, 2}, 2, 256}},
                   {{{0, 0}, {1, 0}}, {{1, 1}}, {{0, 1}, {1, 2}}}}}};
  plan.workspaceBytes = 256 + 2 * 256;
  signKernels(plan);
  return plan;
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
  EXPECT_EQ(message(edited(plan, "\"version\":4", "\"version\":3")),
            "version: expects 4, but got 3");
  EXPECT_EQ(message(edited(plan, "\"target\":\"cpu\"", "\"target\":\"tpu\"")),
            "target: expects a target, but got \"tpu\"");
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
            "phases[0][0].buckets[0].members: expects a list, but got object");
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
       "phases[0][0].buckets[0].members[1]: parameter 'w1 \"quoted\" \xc3\xa9' "
       "has a "
       "40x71 f32 param, but launch 0 of 'row_step' "
       "expects its operand 0 to be 40x70 f32"},
      {[](StepPlan &plan) { plan.parameters[0].gradType = ElementType::BF16; },
       "phases[0][0].buckets[0].members[0]: parameter 'w0' has a 40x70 bf16 "
       "grad, but "
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
       "sequences[0].launches[0].inputs: expects 2 for the kernel 'row', but "
       "got 3"},
      {[](StepPlan &plan) { plan.kernels[2].signature.numInputs = 3; },
       "kernels[2].inputs: expects at least one operand to be written, but got "
       "3 read of 3"},
      {[](StepPlan &plan) { plan.kernels[2].signature.numScalars = -1; },
       "kernels[2].scalars: expects at least 0, but got -1"},
      {[](StepPlan &plan) { plan.kernels[0].signature.numInputs = 0; },
       "kernels[0].inputs: expects 1 for the schedule transpose, but got 0"},
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
         Operand &result = plan.sequences[1].launches[0].operands[1];
         std::swap(result.rows, result.cols);
         result.pitch = result.cols;
       },
       "sequences[1].launches[0].operands[1]: expects a shape that goes with "
       "the schedule transpose and sizes 40x70, "
       "but got 40x70"},
      {[](StepPlan &plan) { plan.sequences[1].launches[0].scalars = {0}; },
       "sequences[1].launches[0].scalars: expects 0 for the kernel "
       "'transpose', but got 1"},
      {[](StepPlan &plan) { plan.kernels[0].signature.numScalars = 1; },
       "kernels[0].scalars: expects 0 for the schedule transpose, but got 1"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Matmul;
         plan.kernels[0].tiles = {8, 16, 64};
       },
       "kernels[0].operands: expects 3 or 4 operands for the schedule matmul, "
       "but got 2"},
      {[](StepPlan &plan) { plan.kernels[0].schedule = Schedule::Pack; },
       "kernels[0].tiles: expects 1 sizes of tiles for the schedule pack, but "
       "got 0"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Pack;
         plan.kernels[0].tiles = {0};
       },
       "kernels[0].tiles[0]: expects at least 1, but got 0"},
      {[](StepPlan &plan) { plan.kernels[0].symmetric = true; },
       "kernels[0].symmetric: expects false for the schedule transpose, but "
       "got true"},
      {[](StepPlan &plan) { plan.kernels[1].transposeA = true; },
       "kernels[1].transposeA: expects false for the schedule rows, but got "
       "true"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Pack;
         plan.kernels[0].tiles = {8};
         plan.kernels[0].transposeB = true;
       },
       "kernels[0].transposeB: expects false for the schedule pack, but got "
       "true"},
      {[](StepPlan &plan) { plan.kernels[1].reductions = 1; },
       "kernels[1].reductions: expects at most 0, but got 1"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].grain = (int64_t(1) << 48) + 1;
       },
       "sequences[0].launches[0].grain: expects at most 281474976710656, but "
       "got 281474976710657"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].kind = BufferKind::State;
       },
       "phases[0][0].buckets[0].members[0]: launch 0 of 'row_step', operand 1 "
       "of "
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
       "phases[0][0].buckets[0].members[0]: scalar program of 'row_step' with "
       "the scalar "
       "set 0 of parameter 'w0': instruction 1: "
       "expects an argument below 1, but got 1"},
      {[](StepPlan &plan) { plan.phases.clear(); },
       "phases: expects at least one phase, but got none"},
      {[](StepPlan &plan) { plan.phases[1][0].buckets[0].sequence = 2; },
       "phases[1][0].buckets[0].sequence: expects a sequence below 2, but got "
       "2"},
      {[](StepPlan &plan) { plan.phases[1][0].buckets[0].concurrent = 4; },
       "phases[1][0].buckets[0].concurrent: expects between 1 and the bucket's "
       "3 members, "
       "but got 4"},
      {[](StepPlan &plan) { plan.phases[1][0].buckets[0].members[2] = 3; },
       "phases[1][0].buckets[0].members[2]: expects a parameter below 3, but "
       "got 3"},
      {[](StepPlan &plan) { plan.phases[1][0].buckets[0].members[2] = 0; },
       "phases[1][0].buckets[0].members[2]: expects each parameter once per "
       "phase, but "
       "got 'w0' twice"},
      {[](StepPlan &plan) { plan.phases[1][0].buckets[0].members.pop_back(); },
       "phases[1]: expects every parameter in a bucket, but 'w2' is in none"},
      {[](StepPlan &plan) { plan.workspaceBytes += 64; },
       "workspaceBytes: expects the 44800 bytes that the largest group needs, "
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

TEST(StepPlanTest, SurvivesJsonForCuda) {
  StepPlan plan = cudaPlan();
  plan.kernels[1].mappedOperands = 2;
  plan.kernels[1].threads = cudaWarpgroupThreads;
  plan.sequences[0].launches[1].sharedBytes = cudaWarpgroupSharedBytes;
  ASSERT_EQ(plan.validate().message(), "");
  std::string text = plan.toJson();
  Result<StepPlan> read = StepPlan::fromJson(text);
  ASSERT_EQ(read.status().message(), "");
  EXPECT_TRUE(*read == plan);
  EXPECT_EQ(read->toJson(), text);
}

TEST(StepPlanTest, NamesTheFieldThatIsWrongForCuda) {
  struct {
    std::function<void(StepPlan &)> damage;
    const char *message;
  } cases[] = {
      {[](StepPlan &plan) { plan.target = Target::Cpu; },
       "kernels[0].threads: expects 0, but got 256"},
      {[](StepPlan &plan) { plan.kernels[1].threads = 0; },
       "kernels[1].threads: expects 256 for the schedule matmul, but got 0"},
      {[](StepPlan &plan) { plan.kernels[0].mappedOperands = 2; },
       "kernels[0].mappedOperands: expects 0, or 2 for a product on CUDA, but "
       "got 2"},
      {[](StepPlan &plan) { plan.kernels[1].mappedOperands = 1; },
       "kernels[1].mappedOperands: expects 0, or 2 for a product on CUDA, but "
       "got 1"},
      {[](StepPlan &plan) {
         Operand &operand = plan.sequences[0].launches[1].operands[0];
         operand.kind = BufferKind::Grad;
         operand.pitch = 0;
       },
       "sequences[0].launches[1].operands[0].kind: expects a matrix of the "
       "workspace, where rows are aligned, but got grad"},
      {[](StepPlan &plan) { plan.kernels[1].mappedOperands = 2; },
       "kernels[1].threads: expects 288 for a product of mapped operands, but "
       "got 256"},
      {[](StepPlan &plan) {
         plan.kernels[1].mappedOperands = 2;
         plan.kernels[1].threads = 288;
       },
       "sequences[0].launches[1].sharedBytes: expects 98352, but got 49152"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.kernels[0].threads = 1056;
       },
       "kernels[0].threads: expects a multiple of 32 from 32 to 1024, but got "
       "1056"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.kernels[0].threads = 100;
       },
       "kernels[0].threads: expects a multiple of 32 from 32 to 1024, but got "
       "100"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[1].sizes[2] = int64_t(1) << 31;
       },
       "sequences[0].launches[1].sizes[2]: expects at most 2147483647 for the "
       "schedule matmul on cuda, but got 2147483648"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.sequences[0].launches[0].grain = 32;
         plan.sequences[0].launches[0].sizes[1] = int64_t(1) << 31;
       },
       "sequences[0].launches[0].sizes[1]: expects at most 2147483647 for the "
       "schedule rows on cuda, but got 2147483648"},
      {[](StepPlan &plan) { plan.kernels[0].threads = 512; },
       "kernels[0].threads: expects 256 for the schedule elementwise, but got "
       "512"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Columns;
         plan.kernels[0].threads = 128;
       },
       "kernels[0].threads: expects 256 for the schedule columns, but got 128"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Transpose;
         plan.kernels[0].threads = 512;
       },
       "kernels[0].threads: expects 256 for the schedule transpose, but got "
       "512"},
      {[](StepPlan &plan) { plan.kernels[2].threads = 128; },
       "kernels[2].threads: expects 256 for the schedule matmul, but got 128"},
      {[](StepPlan &plan) { plan.kernels[2].threads = 288; },
       "kernels[2].threads: expects 256 for the schedule matmul, but got 288"},
      {[](StepPlan &plan) { plan.kernels[2].tiles = {64}; },
       "kernels[2].tiles: expects 0 sizes of tiles for the schedule matmul, "
       "but got 1"},
      {[](StepPlan &plan) { plan.kernels[0].schedule = Schedule::Rows; },
       "sequences[0].launches[0].grain: expects at most 32, but got 8192"},
      {[](StepPlan &plan) { plan.kernels[0].kept = 1; },
       "kernels[0].kept: expects at most 0, but got 1"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.kernels[0].kept = 1;
       },
       "kernels[0].registerGroups: expects at least 1, but got 0"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.kernels[0].registerGroups = 1;
       },
       "kernels[0].registerGroups: expects at most 0, but got 1"},
      {[](StepPlan &plan) {
         // Of nine groups of columns, one of 32 threads has one beyond its
         // registers.
         KernelPlan &kernel = plan.kernels[0];
         kernel.schedule = Schedule::Rows;
         kernel.threads = 32;
         kernel.reductions = 2;
         kernel.kept = 3;
         kernel.registerGroups = 1;
         Launch &launch = plan.sequences[0].launches[0];
         launch.sizes = {300, 257};
         launch.grain = 32;
         launch.items = 10;
       },
       "sequences[0].launches[0].sharedBytes: expects 3584, but got 0"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Columns;
         Launch &launch = plan.sequences[0].launches[0];
         launch.grain = cudaColumnGrain;
         launch.sizes = {1, int64_t(1) << 31};
         launch.items = launch.sizes[1] / cudaColumnGrain;
       },
       "sequences[0].launches[0].sizes[1]: expects at most 2147483647 for the "
       "schedule columns on cuda, but got 2147483648"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         Launch &launch = plan.sequences[0].launches[0];
         launch.sizes = {int64_t(1) << 32, 1};
         launch.grain = 32;
         launch.items = int64_t(1) << 27;
       },
       "sequences[0].launches[0].sizes[0]: expects at most 4294967295 for the "
       "schedule rows on cuda, but got 4294967296"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Rows;
         plan.kernels[0].reductions = 4096;
         plan.kernels[0].kept = 4;
         plan.kernels[0].registerGroups = 1;
         Launch &launch = plan.sequences[0].launches[0];
         launch.grain = 32;
         launch.items = 10;
         launch.sizes[1] = 1 << 20;
         launch.sharedBytes = (4096 << 8) + 511 * (256 << 7);
       },
       "sequences[0].launches[0].sharedBytes: expects at most 1048576, but got "
       "17793024"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].sharedBytes = 16; },
       "sequences[0].launches[0].sharedBytes: expects 0, but got 16"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[1].sharedBytes = 49151;
       },
       "sequences[0].launches[1].sharedBytes: expects 49152, but got 49151"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Transpose;
         Launch &launch = plan.sequences[0].launches[0];
         launch.grain = 1;
         launch.items = 10;
         launch.sharedBytes = 2 * cudaTransposeSharedElements;
       },
       "sequences[0].launches[0].sharedBytes: expects 8448, but got 4224"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Columns;
         plan.kernels[0].reductions = 2;
         Launch &launch = plan.sequences[0].launches[0];
         launch.grain = cudaColumnGrain;
         launch.items = 3;
         launch.sharedBytes = 2048;
       },
       "sequences[0].launches[0].sharedBytes: expects 4096, but got 2048"},
      {[](StepPlan &plan) { plan.sequences[0].workspaceBytes += 64; },
       "sequences[0].workspaceBytes: expects a multiple of 256 bytes, but got "
       "225856"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].offset = 64;
       },
       "sequences[0].launches[0].operands[1].offset: expects a multiple of 256 "
       "bytes, but got 64"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].pitch = 70;
       },
       "sequences[0].launches[0].operands[1].pitch: expects a multiple of 8 "
       "elements, but got 70"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].pitch = 64;
       },
       "sequences[0].launches[0].operands[1].pitch: expects at least the 70 "
       "columns and at most 281474976710656 elements in all, but got 64"},
      {[](StepPlan &plan) {
         plan.sequences[0].launches[0].operands[1].pitch = 4096;
       },
       "sequences[0].launches[0].operands[1]: expects to end within the "
       "sequence's workspace of 225792 bytes, but ends at 2457600"},
      {[](StepPlan &plan) {
         Launch &launch = plan.sequences[0].launches[0];
         launch.grain = 4096;
         launch.items = 6;
       },
       "sequences[0].launches[0].grain: expects 8192, but got 4096"},
      {[](StepPlan &plan) { plan.sequences[0].launches[0].items = 300; },
       "sequences[0].launches[0].items: expects 3 for the schedule elementwise "
       "and sizes 300x70, but got 300"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Columns;
         plan.sequences[0].launches[0].grain = 64;
         plan.sequences[0].launches[0].items = 2;
       },
       "sequences[0].launches[0].grain: expects 32, but got 64"},
      {[](StepPlan &plan) {
         plan.kernels[0].schedule = Schedule::Transpose;
         plan.sequences[0].launches[0].grain = 64;
         plan.sequences[0].launches[0].items = 10;
       },
       "sequences[0].launches[0].grain: expects 1, but got 64"},
      {[](StepPlan &plan) { plan.kernels[0].schedule = Schedule::Pack; },
       "kernels[0].schedule: expects one of the target cuda, but got pack"},
      {[](StepPlan &plan) { plan.sequences[0].launches[1].grain = 2; },
       "sequences[0].launches[1].grain: expects 1, but got 2"},
      {[](StepPlan &plan) { plan.sequences[0].launches[1].items = 5; },
       "sequences[0].launches[1].items: expects 6 for the schedule matmul and "
       "sizes 300x300 of a symmetric product, but got 5"},
      {[](StepPlan &plan) { plan.sequences[0].launches[2].items = 2; },
       "sequences[0].launches[2].items: expects 3 for the schedule matmul and "
       "sizes 300x70 of a product that is not symmetric, but got 2"},
      {[](StepPlan &plan) { plan.sequences[0].launches[1].scalars = {}; },
       "sequences[0].launches[1].scalars: expects 1 for the kernel "
       "'matmul_bf16_transposed_rhs_symmetric', but got 0"},
      {[](StepPlan &plan) {
         Launch &launch = plan.sequences[0].launches[1];
         launch.operands[0].rows = 600;
         launch.operands[0].cols = 35;
         launch.operands[0].pitch = 40;
         plan.sequences[0].workspaceBytes *= 2;
       },
       "sequences[0].launches[1].operands[0]: expects a shape that goes with "
       "the schedule matmul and sizes 300x300x70, but got 600x35"},
  };
  for (const auto &[damage, message] : cases) {
    StepPlan plan = cudaPlan();
    damage(plan);
    EXPECT_EQ(plan.validate().message(), message);
    EXPECT_FALSE(StepPlan::fromJson(plan.toJson()).ok()) << message;
  }
}

TEST(StepPlanTest, RefusesLaunchesThatTheirKernelDoesNotTake) {
  struct {
    std::function<void(Launch &)> damage; // of the second that copies
    const char *message;
  } cases[] = {
      {[](Launch &launch) {
         launch.operands.insert(launch.operands.begin(), launch.operands[0]);
         launch.numInputs = 2;
       },
       "operands: expects 2 for the kernel 'copy', but got 3"},
      {[](Launch &launch) {
         launch.operands[0] = launch.operands[1];
         launch.numInputs = 0;
       },
       "inputs: expects 1 for the kernel 'copy', but got 0"},
      {[](Launch &launch) { launch.scalars = {0}; },
       "scalars: expects 0 for the kernel 'copy', but got 1"},
      {[](Launch &launch) { launch.operands[1].type = ElementType::F64; },
       "operands[1].type: expects f32 for the kernel 'copy', but got f64"},
      {[](Launch &launch) {
         launch.operands[0].rows = launch.operands[0].cols = 1;
       },
       "operands[0].rows: expects one for each of the launch, as the launches "
       "before of 'copy' have, but got one for all"},
  };
  for (const auto &[damage, message] : cases) {
    StepPlan plan = groupedPlan();
    // Room for wider elements.
    plan.sequences[1].workspaceBytes = 512;
    plan.workspaceBytes = 256 + 2 * 512;
    ASSERT_EQ(plan.validate().message(), "");
    damage(plan.sequences[1].launches[0]);
    EXPECT_EQ(plan.validate().message(),
              concat("sequences[1].launches[0].", message));
    EXPECT_FALSE(StepPlan::fromJson(plan.toJson()).ok()) << message;
  }
}

TEST(StepPlanTest, TakesOneRowOfOneForNoVector) {
  // A matrix with a single row does not say whether others share theirs.
  StepPlan plan = groupedPlan();
  plan.parameters[0].rows = 1;
  plan.parameters[0].cols = 12;
  for (Launch &launch : plan.sequences[0].launches) {
    for (Operand &operand : launch.operands) {
      operand.rows = 1;
      operand.cols = 12;
      operand.pitch = operand.kind == BufferKind::Workspace ? 12 : 0;
    }
    launch.sizes = {1, 12};
  }
  EXPECT_EQ(plan.validate().message(), "");
}

TEST(StepPlanTest, HoldsProductsToTheTilesOfTheirKernel) {
  // A kernel computes all tiles or those of a triangle, in every launch; which
  // of them, only the plan says.
  StepPlan plan = cudaPlan();
  ASSERT_EQ(plan.validate().message(), "");
  plan.sequences[0].launches[1].items = 9;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[1].items: expects 6 for the schedule matmul "
            "and sizes 300x300 of a symmetric product, but got 9");
  plan.kernels[1].symmetric = false;
  EXPECT_EQ(plan.validate().message(), "");
  plan.sequences[0].launches[1].items = 6;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[1].items: expects 9 for the schedule matmul "
            "and sizes 300x300 of a product that is not symmetric, but got 6");
  plan = cudaPlan();
  plan.kernels[2].symmetric = true;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[2].sizes: expects a square result of the "
            "symmetric product 'matmul_bf16_update', but got 300x70");
}

/// cudaPlan with a factor, which a first launch takes from the gradient.
static StepPlan scaledPlan() {
  StepPlan plan = cudaPlan();
  Sequence &sequence = plan.sequences[0];
  Operand factor = operand(BufferKind::Workspace, 1, 1, 0, 226048 - 256);
  sequence.workspaceBytes = plan.workspaceBytes = 226048;
  plan.kernels.push_back({"largest", Schedule::Rows, 32});
  plan.parameters[0].states = {{"s", 1, 1, ElementType::F32}};
  sequence.launches.insert(sequence.launches.begin(),
                           {3,
                            {operand(BufferKind::State, 1, 1), factor},
                            1,
                            {},
                            {1, 1},
                            1,
                            1,
                            0,
                            8,
                            0});
  Launch &last = sequence.launches.back();
  last.operands.insert(last.operands.begin() + 2, factor);
  last.numInputs = 3;
  last.hasFactor = true;
  signKernels(plan);
  plan.phases = {{plan.alone({0, {0}, 1})}};
  return plan;
}

TEST(StepPlanTest, SaysWhetherAProductHasAFactor) {
  StepPlan plan = scaledPlan();
  ASSERT_EQ(plan.validate().message(), "");
  EXPECT_TRUE(*StepPlan::fromJson(plan.toJson()) == plan);
  // The code takes a pointer to it, which may be null.
  EXPECT_EQ(plan.kernels[2].signature, cudaPlan().kernels[2].signature);
  auto expectExtras = [](size_t numOperands, bool hasFactor,
                         std::optional<size_t> addend,
                         std::optional<size_t> factor) {
    ProductExtras extras = ProductExtras::of(numOperands, hasFactor);
    EXPECT_EQ(extras.addend, addend);
    EXPECT_EQ(extras.factor, factor);
  };
  expectExtras(3, false, std::nullopt, std::nullopt);
  expectExtras(4, false, 2, std::nullopt);
  expectExtras(4, true, std::nullopt, 2);
  expectExtras(5, true, 2, 3);

  Launch &last = plan.sequences[0].launches.back();
  last.hasFactor = false;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[3].operands: expects 3 for the kernel "
            "'matmul_bf16_update', but got 4");
  plan = scaledPlan();
  plan.sequences[0].launches.back().operands[2].type = ElementType::BF16;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[3].operands[2].type: expects f32 for a "
            "factor, but got bf16");
  plan = scaledPlan();
  plan.sequences[0].launches.back().operands[2].cols = 2;
  plan.sequences[0].launches.back().operands[2].pitch = 2;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[3].operands[2]: expects a shape that goes "
            "with the schedule matmul and sizes 300x70x300, but got 1x2");
  plan = scaledPlan();
  plan.sequences[0].launches[0].hasFactor = true;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].factor: expects none but for products on "
            "cuda, but got one");
}

TEST(StepPlanTest, RefusesOperandsThatNoProductOnCudaHas) {
  StepPlan plan = cudaPlan();
  std::vector<ElementType> &types = plan.kernels[2].signature.types;
  types[1] = ElementType::F16;
  EXPECT_EQ(plan.validate().message(),
            "kernels[2].operands[1]: expects all of bf16 or all of f16 for "
            "what a product multiplies and adds, but got f16 beside bf16");
  types = {ElementType::BF16, ElementType::BF16, ElementType::BF16,
           ElementType::BF16, ElementType::F32};
  plan.kernels[2].signature.numInputs = 4;
  EXPECT_EQ(plan.validate().message(),
            "kernels[2].operands: expects 3 or 4 operands for the schedule "
            "matmul, but got 5");
  types.pop_back();
  plan.kernels[2].signature.numInputs = 3;
  plan.kernels[2].signature.numScalars = 1;
  EXPECT_EQ(plan.validate().message(),
            "kernels[2].scalars: expects at least 2, but got 1");
}

TEST(StepPlanTest, HoldsPacksAndProductsOnTheCpuToTheirTiles) {
  // The Gram matrix of the gradient, which replaces the parameter.
  StepPlan plan;
  plan.parameters = {{"w", 40, 40, ElementType::F32, ElementType::F32, {}, 0}};
  plan.scalarSets = {{}};
  plan.kernels = {{"pack_lhs", Schedule::Pack},
                  {"pack_rhs_transposed", Schedule::Pack},
                  {"matmul_symmetric", Schedule::Matmul}};
  plan.kernels[0].tiles = {16};
  plan.kernels[1].tiles = {32};
  plan.kernels[2].tiles = {16, 32, 32};
  plan.kernels[2].symmetric = true;
  Operand g = operand(BufferKind::Grad, 40, 40),
          left = operand(BufferKind::Workspace, 3, 640, 0, 0),
          right = operand(BufferKind::Workspace, 2, 1280, 0, 7680);
  Sequence sequence;
  sequence.name = "gram";
  int32_t one = sequence.program.constant(1.0);
  sequence.launches = {{0, {g, left}, 1, {}, {40, 40}, 3, 1, 0, 0},
                       {1, {g, right}, 1, {}, {40, 40}, 2, 1, 0, 0},
                       {2,
                        {left, right, operand(BufferKind::Param, 40, 40)},
                        2,
                        {one, one},
                        {40, 40, 40},
                        3,
                        1,
                        0,
                        0}};
  sequence.workspaceBytes = plan.workspaceBytes = 7680 + 10240;
  plan.sequences = {sequence};
  plan.phases = {{plan.alone({0, {0}, 1})}};
  signKernels(plan);
  ASSERT_EQ(plan.validate().message(), "");
  EXPECT_TRUE(*StepPlan::fromJson(plan.toJson()) == plan);

  auto message = [&](const std::function<void(StepPlan &)> &damage) {
    StepPlan damaged = plan;
    damage(damaged);
    return damaged.validate().message();
  };
  EXPECT_EQ(message([](StepPlan &plan) { plan.kernels[0].tiles = {8}; }),
            "sequences[0].launches[0].items: expects 5 for the schedule pack "
            "and sizes 40x40, but got 3");
  EXPECT_EQ(message([](StepPlan &plan) { plan.kernels[2].tiles[0] = 8; }),
            "sequences[0].launches[2].operands[0]: expects a shape that goes "
            "with the schedule matmul and sizes 40x40x40, but got 3x640");
  // Slivers are padded to multiples of four, but must have been packed so.
  EXPECT_EQ(message([](StepPlan &plan) {
              plan.sequences[0].launches[2].sizes[2] = 39;
            }),
            "sequences[0].launches[2].operands[0]: expects slivers of 40 "
            "vectors of length 39, but got those of launch 0 ('pack_lhs') with "
            "sizes 40x40");
  EXPECT_EQ(message([](StepPlan &plan) { plan.kernels[2].tiles[2] = 64; }),
            "sequences[0].launches[2].items: expects 1 for the schedule matmul "
            "and sizes 40x40 of a symmetric product, but got 3");
  EXPECT_EQ(message([](StepPlan &plan) { plan.kernels[2].symmetric = false; }),
            "sequences[0].launches[2].items: expects 4 for the schedule matmul "
            "and sizes 40x40 of a product that is not symmetric, but got 3");
  EXPECT_EQ(message([](StepPlan &plan) { plan.kernels[2].transposeA = true; }),
            "kernels[2].transposeA: expects false for the schedule matmul, but "
            "got true");
  EXPECT_EQ(
      message([](StepPlan &plan) { plan.kernels[2].signature.numScalars = 1; }),
      "kernels[2].scalars: expects 2 for the schedule matmul, but got 1");
}

TEST(StepPlanTest, TellsHowTheMatricesOfAPackLie) {
  StepPlan plan;
  plan.parameters = {{"w", 40, 7, ElementType::F32, ElementType::F32, {}, 0}};
  plan.scalarSets = {{}};
  plan.kernels = {{"pack_lhs_transposed", Schedule::Pack}};
  plan.kernels[0].tiles = {8};
  plan.kernels[0].transposeA = true;
  Sequence sequence;
  sequence.launches = {{0,
                        {operand(BufferKind::Grad, 40, 7),
                         operand(BufferKind::Workspace, 5, 64)},
                        1,
                        {},
                        {40, 7},
                        5,
                        1,
                        0,
                        0}};
  sequence.workspaceBytes = 5 * 64 * 4;
  plan.sequences = {sequence};
  signKernels(plan);
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].operands[0]: expects a shape that goes "
            "with the schedule pack and sizes 40x7, but got 40x7");
}

TEST(StepPlanTest, FollowsWhatLaunchesLeaveInTheWorkspace) {
  // examplePlan turns the gradient (40x70) into the workspace, and back.
  struct {
    std::function<void(std::vector<Launch> &)> damage; // of the second sequence
    const char *message;
  } cases[] = {
      {[](auto &launches) { std::swap(launches[0], launches[1]); },
       "operands[0]: expects to read what a launch before wrote, but none "
       "wrote the 70x40 f32 at byte 0 with pitch 40"},
      {[](auto &launches) { launches[1].operands[0].offset = 11200; },
       "operands[0]: expects to read what a launch before wrote, but none "
       "wrote the 70x40 f32 at byte 11200 with pitch 40"},
      {[](auto &launches) { launches[1].operands[0].offset = 64; },
       "operands[0]: expects the 70x40 f32 at byte 0 with pitch 40 that launch "
       "0 wrote there, but got the 70x40 f32 at byte 64 with pitch 40"},
      {[](auto &launches) { launches[1].operands[1].offset = 0; },
       "operands[1]: expects memory apart from that of operand 0, which is "
       "still read, or to replace it element by element, but got the "
       "workspace's 40x70 f32 at byte 0 with pitch 70"},
      {[](auto &launches) {
         launches[1].operands[0] = launches[0].operands[0];
         launches[1].operands[1] = launches[0].operands[1];
         launches[1].sizes = launches[0].sizes;
         launches[1].items = launches[0].items;
       },
       "operands[1]: expects a launch that reads it before it is overwritten, "
       "but there is none"},
  };
  for (const auto &[damage, message] : cases) {
    StepPlan plan = examplePlan();
    damage(plan.sequences[1].launches);
    std::string found = plan.validate().message();
    EXPECT_TRUE(found.starts_with("sequences[1].launches[")) << found;
    EXPECT_TRUE(found.ends_with(message)) << found;
    EXPECT_FALSE(StepPlan::fromJson(plan.toJson()).ok()) << message;
  }
}

TEST(StepPlanTest, LetsKernelsReplaceWhatTheyReadElementByElement) {
  // groupedPlan doubles a matrix of the workspace in place.
  StepPlan plan = groupedPlan();
  Launch &twice = plan.sequences[1].launches[1];
  EXPECT_EQ(twice.operands[0], twice.operands[1]);
  ASSERT_EQ(plan.validate().message(), "");
  // Of a state that is written twice, one of the two is left.
  plan = MomentumPlan().add("w", 3, 4).plan;
  std::vector<Operand> &operands = plan.sequences[0].launches[0].operands;
  operands[3] = operands[4];
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].operands[4]: expects memory apart from "
            "that of operand 3, which is written, too, but got the state");
}

TEST(StepPlanTest, TakesTurnedVectorsWhoseElementsLieTogether) {
  // A value per row of the gradient, read as one row.
  StepPlan plan;
  plan.target = Target::Cuda;
  plan.parameters = {{"w",
                      40,
                      70,
                      ElementType::F32,
                      ElementType::F32,
                      {{"s", 1, 1, ElementType::F32}},
                      0}};
  plan.scalarSets = {{}};
  plan.kernels = {{"norms", Schedule::Rows, 32},
                  {"largest", Schedule::Rows, 32}};
  Operand norms = operand(BufferKind::Workspace, 40, 1),
          turned = operand(BufferKind::Workspace, 1, 40);
  Sequence sequence;
  sequence.launches = {
      {0, {operand(BufferKind::Grad, 40, 70), norms}, 1, {}, {40, 70}, 2, 32},
      {1, {turned, operand(BufferKind::State, 1, 1)}, 1, {}, {1, 40}, 1, 32}};
  sequence.workspaceBytes = plan.workspaceBytes = 768;
  plan.sequences = {sequence};
  plan.phases = {{plan.alone({0, {0}, 1})}};
  signKernels(plan);
  EXPECT_EQ(plan.validate().message(), "");
  plan.sequences[0].launches[0].operands[1].pitch = 2;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[1].operands[0]: expects the 40x1 f32 at "
            "byte 0 with pitch 2 that launch 0 wrote there, but got the 1x40 "
            "f32 at byte 0 with pitch 40");
}

TEST(StepPlanTest, RefusesLaunchesLargerThanTheirMatrices) {
  // A result that all rows share would be written by all of them, and sizes
  // that no operand has reach beyond every one.
  StepPlan plan = examplePlan();
  Launch &launch = plan.sequences[0].launches[0];
  launch.operands[2].rows = 1;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].operands[2]: expects a shape that goes "
            "with the schedule rows and sizes 40x70, but got 1x70");
  for (Operand &operand : launch.operands) {
    operand.rows = 40;
    operand.cols = 1;
  }
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].sizes[1]: expects 1 as the largest "
            "operand has, but got 70");
  plan = MomentumPlan().add("w", 1, 1).plan;
  Launch &single = plan.sequences[0].launches[0];
  single.sizes[1] = 2;
  EXPECT_EQ(plan.validate().message(),
            "sequences[0].launches[0].operands[3]: expects a shape that goes "
            "with the schedule elementwise and sizes 1x2, but got 1x1");
}

TEST(StepPlanTest, LeavesPitchesOutsideTheWorkspaceToTheCaller) {
  StepPlan plan = cudaPlan();
  plan.sequences[0].launches[0].operands[0].pitch = 72;
  EXPECT_EQ(
      plan.validate().message(),
      "sequences[0].launches[0].operands[0].pitch: expects 0, but got 72");
}

TEST(StepPlanTest, KeepsRowsOfTheCpuTogether) {
  StepPlan plan = examplePlan();
  plan.sequences[1].launches[0].operands[1].pitch = 48;
  EXPECT_EQ(
      plan.validate().message(),
      "sequences[1].launches[0].operands[1].pitch: expects 40, but got 48");
  plan = examplePlan();
  plan.sequences[1].launches[0].sharedBytes = 16;
  EXPECT_EQ(plan.validate().message(),
            "sequences[1].launches[0].sharedBytes: expects 0, but got 16");
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

TEST(StepPlanTest, CountsNoMoreWorkThanItCanSay) {
  StepPlan plan = examplePlan();
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  plan.sequences[0].launches[0].flops = most / 2;
  plan.sequences[1].launches[0].bytes = most;
  ASSERT_EQ(plan.validate().message(), "");
  EXPECT_EQ(plan.cost(0), (Cost{most, 3 * 12 * 2800, 2}));
  EXPECT_EQ(plan.cost(1), (Cost{3 * 2 * 2800, most, 6}));
}

TEST(StepPlanTest, CountsSharedLaunchesOnce) {
  StepPlan plan = groupedPlan();
  EXPECT_EQ(plan.cost(0), (Cost{24 + 2 * 90, 192 + 2 * 720, 3}));
  // Apart, each bucket has launches of its own, for each of its rounds.
  const BucketGroup group = plan.phases[0][0];
  plan.phases[0] = {plan.alone(group.buckets[0]), plan.alone(group.buckets[1])};
  ASSERT_EQ(plan.validate().message(), "");
  EXPECT_EQ(plan.cost(0).launches, 5);
  plan.phases[0][1].buckets[0].concurrent = 1;
  plan.workspaceBytes = plan.requiredWorkspaceBytes();
  ASSERT_EQ(plan.validate().message(), "");
  EXPECT_EQ(plan.cost(0).launches, 8);
}

TEST(StepPlanTest, KeepsWorkspacesOfAGroupApart) {
  StepPlan plan = groupedPlan();
  EXPECT_EQ(plan.requiredWorkspaceBytes(), 256 + 2 * 256);
  // Which comes first does not matter, nor a gap.
  plan.phases[0][0].buckets[0].workspaceOffset = 768;
  plan.phases[0][0].buckets[1].workspaceOffset = 0;
  plan.workspaceBytes = 1024;
  EXPECT_EQ(plan.validate().message(), "");
  plan.phases[0][0].buckets[0].workspaceOffset = 256;
  EXPECT_EQ(plan.validate().message(),
            "phases[0][0].buckets[0].workspaceOffset: expects a workspace "
            "apart from that of bucket 1, which ends at byte 512, but got 256");
  // Groups run one after the other, so that they may share.
  plan = groupedPlan();
  const BucketGroup group = plan.phases[0][0];
  plan.phases[0] = {plan.alone(group.buckets[0]), plan.alone(group.buckets[1])};
  plan.phases[0][1].buckets[0].workspaceOffset = 0;
  plan.workspaceBytes = 512;
  EXPECT_EQ(plan.validate().message(), "");
}

TEST(StepPlanTest, NamesTheFieldOfAGroupThatIsWrong) {
  struct {
    std::function<void(BucketGroup &)> damage;
    const char *message;
  } cases[] = {
      {[](BucketGroup &group) { group.buckets.clear(); },
       "buckets: expects at least one bucket, but got 0"},
      {[](BucketGroup &group) { group.buckets[1].concurrent = 1; },
       "buckets[1].concurrent: expects all 2 members of a bucket that is in a "
       "group with others, but got 1"},
      {[](BucketGroup &group) { group.buckets[1].workspaceOffset = 128; },
       "buckets[1].workspaceOffset: expects a multiple of 256 bytes, but got "
       "128"},
      {[](BucketGroup &group) {
         group.buckets[1].workspaceOffset = int64_t(1) << 61;
       },
       "buckets[1].workspaceOffset: expects at most 1152921504606846976 bytes, "
       "but got 2305843009213693952"},
      {[](BucketGroup &group) { group.buckets[1].workspaceOffset = 0; },
       "buckets[1].workspaceOffset: expects a workspace apart from that of "
       "bucket 0, which ends at byte 256, but got 0"},
      {[](BucketGroup &group) { group.launches[1].clear(); },
       "launches[1]: expects at least one bucket, but got none"},
      {[](BucketGroup &group) { group.launches[0][1].bucket = 2; },
       "launches[0][1].bucket: expects a bucket below 2, but got 2"},
      {[](BucketGroup &group) { group.launches[0][1] = {0, 1}; },
       "launches[0][1].bucket: expects ascending buckets, but got 0 after 0"},
      {[](BucketGroup &group) { group.launches[2][1].launch = 3; },
       "launches[2][1].launch: expects a launch below 3, but got 3"},
      {[](BucketGroup &group) {
         std::swap(group.launches[0], group.launches[1]);
       },
       "launches[0][0].launch: expects 0, the next one of bucket 1, but got 1"},
      {[](BucketGroup &group) { group.launches[2].push_back({1, 2}); },
       "launches[2][2].bucket: expects ascending buckets, but got 1 after 1"},
      {[](BucketGroup &group) { group.launches.push_back({{0, 1}}); },
       "launches[3][0].launch: expects 2, the next one of bucket 0, but got 1"},
      {[](BucketGroup &group) { group.launches[2].pop_back(); },
       "launches: expects all 3 launches of bucket 1 ('square'), but got 2"},
      {[](BucketGroup &group) {
         group.launches = {{{0, 0}, {1, 0}}, {{0, 1}, {1, 1}}, {{1, 2}}};
       },
       "launches[1][1].launch: expects a launch of the kernel 'descent', as "
       "the first part is, but got 'twice'"},
  };
  for (const auto &[damage, message] : cases) {
    StepPlan plan = groupedPlan();
    damage(plan.phases[0][0]);
    EXPECT_EQ(plan.validate().message(), concat("phases[0][0].", message));
    EXPECT_FALSE(StepPlan::fromJson(plan.toJson()).ok()) << message;
  }
}

TEST(StepPlanTest, RunsBucketsOneByOneOnTheCpu) {
  StepPlan plan = MomentumPlan().add("w", 3, 4).add("v", 5, 6).plan;
  ASSERT_EQ(plan.phases[0].size(), 2u);
  EXPECT_EQ(plan.cost(0).launches, 2);
  BucketGroup &group = plan.phases[0][0];
  group.buckets.push_back(plan.phases[0][1].buckets[0]);
  group.launches = {{{0, 0}, {1, 0}}};
  plan.phases[0].pop_back();
  EXPECT_EQ(plan.validate().message(),
            "phases[0][0].buckets: expects one bucket on the target cpu, but "
            "got 2");
}

TEST(StepPlanTest, SurvivesJsonWithGroups) {
  StepPlan plan = groupedPlan();
  ASSERT_EQ(plan.validate().message(), "");
  std::string text = plan.toJson();
  Result<StepPlan> read = StepPlan::fromJson(text);
  ASSERT_EQ(read.status().message(), "");
  EXPECT_TRUE(*read == plan);
  EXPECT_EQ(read->toJson(), text);
  auto message = [&](const std::string &from, const std::string &to) {
    return StepPlan::fromJson(edited(plan, from, to)).status().message();
  };
  EXPECT_EQ(message("{\"bucket\":0,\"launch\":0}", "{\"bucket\":0}"),
            "phases[0][0].launches[0][0].launch: expects a value, but found "
            "none");
  EXPECT_EQ(message("[{\"bucket\":1,\"launch\":1}]", "1"),
            "phases[0][0].launches[1]: expects a list, but got 1");
  EXPECT_EQ(message(",\"workspaceOffset\":256", ""),
            "phases[0][0].buckets[1].workspaceOffset: expects a value, but "
            "found none");
}

TEST(StepPlanTest, PrintsForPeople) {
  EXPECT_EQ(
      MomentumPlan().add("w", 300, 400).add("v", 300, 400).plan.print(),
      R"(step plan version 4 for cpu, period 1, 2 parameters, 1 kernels, 0 B workspace
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

TEST(StepPlanTest, PrintsBlocksForCuda) {
  EXPECT_EQ(
      cudaPlan().print(),
      R"(step plan version 4 for cuda, period 1, 1 parameters, 3 kernels, 226 kB workspace
scalar set 0: rate
parameter 0 "w": 300x70 f32, gradient f32, scalar set 0
sequence 0 @muon: 3 launches, 226 kB workspace
  %0 = arg 0
  %1 = const 1
  launch elementwise @narrow [300x70] (grad: 300x70xf32) -> (workspace+0: 300x70xbf16 pitch 72) items 3 grain 8192, 256 threads, 0 B shared, 0 FLOP, 126 kB
  launch matmul @matmul_bf16_transposed_rhs_symmetric [300x300x70] (workspace+0: 300x70xbf16 pitch 72, workspace+0: 300x70xbf16 pitch 72) -> (workspace+43264: 300x300xbf16 pitch 304) scalars(%1) items 6 grain 1, 256 threads, 49.2 kB shared, 6.3 MFLOP, 264 kB
  launch matmul @matmul_bf16_update [300x70x300] (workspace+43264: 300x300xbf16 pitch 304, workspace+0: 300x70xbf16 pitch 72) -> (param: 300x70xf32) scalars(%1, %0) items 3 grain 1, 256 threads, 49.2 kB shared, 12.6 MFLOP, 390 kB
phase 0: 18.9 MFLOP, 780 kB, 3 launches
  bucket @muon concurrent 1 parameters [0]
)");
}

TEST(StepPlanTest, PrintsGroups) {
  std::string text = groupedPlan().print();
  size_t phase = text.find("phase 0: ");
  ASSERT_NE(phase, std::string::npos);
  EXPECT_EQ(text.substr(phase),
            R"(phase 0: 204 FLOP, 1.63 kB, 3 launches
  group of 2 buckets, 3 launches
    bucket @wide concurrent 1 parameters [0] workspace+0
    bucket @square concurrent 2 parameters [1, 2] workspace+256
    launch @copy: bucket 0 launch 0, bucket 1 launch 0
    launch @twice: bucket 1 launch 1
    launch @descent: bucket 0 launch 1, bucket 1 launch 2
)");
}
