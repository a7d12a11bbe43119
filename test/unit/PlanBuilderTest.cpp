//===-- PlanBuilderTest.cpp - from planned modules to step plans ----------===//
//
// Planned modules written by hand, as kaon-plan-memory leaves them.
//
//===----------------------------------------------------------------------===//

#include "codegen/PlanBuilder.h"

#include "dialect/Kaon.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"

#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <gtest/gtest.h>

using namespace kaon;

namespace {

/// A plan, or the first error with its location.
struct BuiltPlan {
  std::optional<runtime::StepPlan> plan;
  std::string error;
};

BuiltPlan build(llvm::StringRef text) {
  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  BuiltPlan built;
  mlir::ScopedDiagnosticHandler handler(
      &context, [&](mlir::Diagnostic &diagnostic) {
        if (built.error.empty()) {
          llvm::raw_string_ostream(built.error)
              << diagnostic.getLocation() << ": " << diagnostic;
        }
        return mlir::success();
      });
  mlir::ParserConfig config(&context);
  mlir::OwningOpRef<mlir::ModuleOp> module =
      mlir::parseSourceString<mlir::ModuleOp>(text, config, "planned.mlir");
  if (!module) {
    return built;
  }
  mlir::FailureOr<runtime::StepPlan> plan = buildStepPlan(*module);
  if (succeeded(plan)) {
    built.plan = std::move(*plan);
  }
  return built;
}

/// Values of `program` for one scalar set.
std::vector<double> evaluate(const runtime::ScalarProgram &program,
                             int64_t step, std::vector<double> arguments) {
  std::vector<double> registers(program.numRegisters());
  program.evaluate(step, arguments.data(), registers.data());
  return registers;
}

constexpr const char *kernels = R"(
func.func private @kernel_a(%g: tensor<?x?xf32>, %m: tensor<?x?xf32>, %s: f64) -> (tensor<?x?xf32>, tensor<?x1xf32>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %0 = arith.mulf %g, %m : tensor<?x?xf32>
  %1 = kaon.reduce max %0 along row : tensor<?x?xf32> -> tensor<?x1xf32>
  return %0, %1 : tensor<?x?xf32>, tensor<?x1xf32>
}
func.func private @kernel_b(%n: tensor<1x?xf32>) -> tensor<1x1xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  %0 = kaon.reduce max %n along row : tensor<1x?xf32> -> tensor<1x1xf32>
  return %0 : tensor<1x1xf32>
}
func.func private @kernel_c(%w: tensor<?x?xf32>, %u: tensor<?x?xf32>, %n: tensor<1x1xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.subf %w, %u : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
)";

// One bucket of two matrices: momentum, the largest element by way of a view,
// the Gram matrix, its product with the momentum, and the update.
constexpr const char *update = R"(
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 512, mr = 12, nr = 32, kc = 256, block = 192>} {
func.func @muon(%w: tensor<40x70xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                %g: tensor<40x70xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                %m: tensor<40x70xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64},
                %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                %mu: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "mu"},
                %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> (tensor<40x70xf32>, tensor<40x70xf32>) attributes {kaon.update, kaon.workspace = 60000 : i64} {
  %t = arith.sitofp %step : i64 to f64
  %rate = arith.divf %lr, %t : f64
  %m1, %rows = kaon.launch @kernel_a ins(%g, %m : tensor<40x70xf32>, tensor<40x70xf32>) scalars(%mu : f64)
      {kaon.buffers = [#kaon.buffer<state, 0>, #kaon.buffer<workspace, 0>]} -> tensor<40x70xf32>, tensor<40x1xf32>
  %columns = kaon.transpose %rows {kaon.buffers = [#kaon.buffer<workspace, 0>]} : tensor<40x1xf32> -> tensor<1x40xf32>
  %n = kaon.launch @kernel_b ins(%columns : tensor<1x40xf32>) {kaon.buffers = [#kaon.buffer<workspace, 192>]}
      -> tensor<1x1xf32>
  %p = kaon.pack lhs %m1 {kaon.buffers = [#kaon.buffer<workspace, 256>]} : tensor<40x70xf32> -> tensor<4x864xf32>
  %q = kaon.pack rhs %m1 transpose {kaon.buffers = [#kaon.buffer<workspace, 14080>]}
      : tensor<40x70xf32> -> tensor<2x2304xf32>
  %gram = kaon.matmul %p, %q symmetric packed sizes [40, 40, 70] {kaon.buffers = [#kaon.buffer<workspace, 32512>]}
      : (tensor<4x864xf32>, tensor<2x2304xf32>) -> tensor<40x40xf32>
  %r = kaon.pack lhs %gram {kaon.buffers = [#kaon.buffer<workspace, 256>]} : tensor<40x40xf32> -> tensor<4x480xf32>
  %s = kaon.pack rhs %m1 {kaon.buffers = [#kaon.buffer<workspace, 14080>]} : tensor<40x70xf32> -> tensor<3x1280xf32>
  %u = kaon.matmul %r, %s packed sizes [40, 70, 40] alpha %mu beta %lr %m1
      {kaon.buffers = [#kaon.buffer<workspace, 32512>]}
      : (tensor<4x480xf32>, tensor<3x1280xf32>, tensor<40x70xf32>) -> tensor<40x70xf32>
  %w1 = kaon.launch @kernel_c ins(%w, %u, %n : tensor<40x70xf32>, tensor<40x70xf32>, tensor<1x1xf32>)
      scalars(%rate : f64) {kaon.buffers = [#kaon.buffer<param, 0>]} -> tensor<40x70xf32>
  return %w1, %m1 : tensor<40x70xf32>, tensor<40x70xf32>
}
kaon.program @step {
  kaon.parameter @muon "a" scalars 0 phase 0
  kaon.parameter @muon "b" scalars 1 phase 0
  kaon.phase 0 {
    kaon.bucket @muon parameters [0, 1] concurrent 2
  }
}
)";

std::string wholeModule() { return std::string(update) + kernels + "}"; }

/// `text` with the first `from` replaced by `to`.
std::string edited(std::string text, const std::string &from,
                   const std::string &to) {
  size_t position = text.find(from);
  EXPECT_NE(position, std::string::npos) << from;
  return position == std::string::npos
             ? text
             : text.replace(position, from.size(), to);
}

/// `wholeModule` with the first `from` replaced by `to`.
std::string edited(const std::string &from, const std::string &to) {
  return edited(wholeModule(), from, to);
}

/// A module whose update computes `%x` by `body` and hands it to a kernel.
std::string scalarModule(const std::string &body) {
  return R"(
func.func private @scale(%w: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %w : tensor<?x?xf32>
}
func.func @update(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                  %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                  %a: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "a"},
                  %b: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "b"},
                  %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 0 : i64} {
)" + body +
         R"(
  %w1 = kaon.launch @scale ins(%w : tensor<4x6xf32>) scalars(%x : f64) {kaon.buffers = [#kaon.buffer<param, 0>]}
      -> tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}
kaon.program @step {
  kaon.parameter @update "w" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @update parameters [0] concurrent 1
  }
}
)";
}

/// Value of `%x` at step 7 for a and b.
double computeScalar(const std::string &body, double a, double b) {
  BuiltPlan built = build(scalarModule(body));
  EXPECT_EQ(built.error, "");
  if (!built.plan) {
    return std::nan("");
  }
  const runtime::Sequence &sequence = built.plan->sequences[0];
  return evaluate(sequence.program, 7, {a, b})[sequence.launches[0].scalars[0]];
}

} // namespace

TEST(PlanBuilderTest, BuildsTheWholePlan) {
  BuiltPlan built = build(wholeModule());
  ASSERT_EQ(built.error, "");
  ASSERT_TRUE(built.plan);
  const runtime::StepPlan &plan = *built.plan;

  ASSERT_EQ(plan.parameters.size(), 2u);
  EXPECT_EQ(plan.parameters[1].name, "b");
  EXPECT_EQ(plan.parameters[1].rows, 40);
  EXPECT_EQ(plan.parameters[1].cols, 70);
  EXPECT_EQ(plan.parameters[1].scalarSet, 1);
  EXPECT_EQ(plan.parameters[0].states,
            (std::vector<runtime::StatePlan>{
                {"m", 40, 70, runtime::ElementType::F32}}));
  EXPECT_EQ(plan.scalarSets[0].names, (std::vector<std::string>{"lr", "mu"}));
  EXPECT_EQ(plan.scalarSets[1].names, (std::vector<std::string>{"lr", "mu"}));

  ASSERT_EQ(plan.sequences.size(), 1u);
  const runtime::Sequence &sequence = plan.sequences[0];
  EXPECT_EQ(sequence.name, "muon");
  EXPECT_EQ(sequence.workspaceBytes, 60032);
  EXPECT_EQ(plan.workspaceBytes, 2 * 60032);
  EXPECT_EQ(plan.phases,
            (std::vector<runtime::PhasePlan>{{plan.alone({0, {0, 1}, 2})}}));

  std::vector<std::string> names;
  for (const runtime::Launch &launch : sequence.launches) {
    names.push_back(plan.kernels[launch.kernel].name);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "kernel_a", "kernel_b", "pack_lhs_f32",
                "pack_rhs_transposed_f32", "matmul_symmetric_f32",
                "pack_lhs_f32", "pack_rhs_f32", "matmul_add_f32", "kernel_c"}));
  EXPECT_EQ(plan.kernels[0].schedule, runtime::Schedule::Rows);
  EXPECT_EQ(plan.kernels[plan.kernels.size() - 1].schedule,
            runtime::Schedule::Elementwise);

  // The rows' kernel: from gradient and state in place over the state.
  const runtime::Launch &rows = sequence.launches[0];
  EXPECT_EQ(rows.numInputs, 2);
  ASSERT_EQ(rows.operands.size(), 4u);
  EXPECT_EQ(rows.operands[0].kind, runtime::BufferKind::Grad);
  EXPECT_EQ(rows.operands[1].kind, runtime::BufferKind::State);
  EXPECT_EQ(rows.operands[2], rows.operands[1]);
  EXPECT_EQ(rows.operands[3].kind, runtime::BufferKind::Workspace);
  EXPECT_EQ(rows.sizes, (std::vector<int64_t>{40, 70}));
  EXPECT_EQ(rows.items, 40);
  EXPECT_EQ(rows.flops, 2 * 2800);
  EXPECT_EQ(rows.bytes, 4 * (3 * 2800 + 40));

  // Its second result is read as a row, through a view.
  const runtime::Launch &largest = sequence.launches[1];
  EXPECT_EQ(largest.operands[0].offset, 0);
  EXPECT_EQ(largest.operands[0].rows, 1);
  EXPECT_EQ(largest.operands[0].cols, 40);
  EXPECT_EQ(largest.items, 1);

  const runtime::Launch &lhs = sequence.launches[2],
                        &rhs = sequence.launches[3];
  EXPECT_EQ(lhs.sizes, (std::vector<int64_t>{40, 70}));
  EXPECT_EQ(lhs.items, 4);
  EXPECT_EQ(rhs.sizes, (std::vector<int64_t>{40, 70}));
  EXPECT_EQ(rhs.items, 2);

  // The right one is k x n as it is.
  const runtime::KernelPlan &left = built.plan->kernels[lhs.kernel],
                            &right = built.plan->kernels[rhs.kernel];
  EXPECT_EQ(left.tiles, (std::vector<int64_t>{lhs.operands[1].cols / 72}));
  EXPECT_EQ(right.tiles, (std::vector<int64_t>{rhs.operands[1].cols / 72}));
  EXPECT_FALSE(left.transposeA);
  EXPECT_FALSE(right.transposeA);

  const runtime::Launch &gram = sequence.launches[4];
  const runtime::KernelPlan &symmetric = built.plan->kernels[gram.kernel];
  EXPECT_TRUE(symmetric.symmetric);
  EXPECT_EQ(symmetric.tiles[0], left.tiles[0]);
  EXPECT_EQ(symmetric.tiles[1], right.tiles[0]);
  EXPECT_EQ(gram.sizes, (std::vector<int64_t>{40, 40, 70}));
  EXPECT_EQ(gram.items, 1);
  EXPECT_EQ(gram.flops, 40 * 41 * 70);
  std::vector<double> values = evaluate(sequence.program, 4, {0.5, 0.95});
  EXPECT_EQ(values[gram.scalars[0]], 1.0);
  EXPECT_EQ(values[gram.scalars[1]], 0.0);

  const runtime::Launch &product = sequence.launches[7];
  EXPECT_EQ(product.numInputs, 3);
  EXPECT_EQ(product.operands[2].kind, runtime::BufferKind::State);
  EXPECT_EQ(values[product.scalars[0]], 0.95);
  EXPECT_EQ(values[product.scalars[1]], 0.5);

  const runtime::Launch &apply = sequence.launches[8];
  EXPECT_EQ(apply.operands[2].rows * apply.operands[2].cols, 1);
  EXPECT_EQ(apply.operands[3].kind, runtime::BufferKind::Param);
  EXPECT_EQ(values[apply.scalars[0]], 0.5 / 4);
}

namespace {

// For a GPU: the gradient in half precision, its Gram matrix, and the product
// that changes the parameter, which is scaled and has an addend.
constexpr const char *cudaUpdate = R"(
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func @muon(%w: tensor<300x70xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                %g: tensor<300x70xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> tensor<300x70xf32> attributes {kaon.update, kaon.workspace = 53504 : i64} {
  %two = arith.constant 2.0 : f64
  %x = kaon.launch @kernel_a ins(%g : tensor<300x70xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<300x70xbf16>
  %a = kaon.matmul %x, %x transpose_a symmetric {kaon.buffers = [#kaon.buffer<workspace, 43264>]}
      : (tensor<300x70xbf16>, tensor<300x70xbf16>) -> tensor<70x70xbf16>
  %w1 = kaon.matmul %x, %a beta %two %x epilogue @kernel_b(%w : tensor<300x70xf32>) scalars(%lr)
      {kaon.buffers = [#kaon.buffer<param, 0>]}
      : (tensor<300x70xbf16>, tensor<70x70xbf16>, tensor<300x70xbf16>) -> tensor<300x70xf32>
  return %w1 : tensor<300x70xf32>
}
func.func private @kernel_a(%g: tensor<?x?xf32>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.truncf %g : tensor<?x?xf32> to tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @kernel_b(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>, %lr: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  %1 = arith.subf %w, %0 : tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
kaon.program @step {
  kaon.parameter @muon "a" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @muon parameters [0] concurrent 1
  }
}
}
)";

/// The error of `cudaUpdate` with the first `from` replaced by `to`.
std::string cudaError(const std::string &from, const std::string &to) {
  return build(edited(cudaUpdate, from, to)).error;
}

} // namespace

TEST(PlanBuilderTest, BuildsTheWholePlanForCuda) {
  BuiltPlan built = build(cudaUpdate);
  ASSERT_EQ(built.error, "");
  const runtime::StepPlan &plan = *built.plan;
  EXPECT_EQ(plan.target, runtime::Target::Cuda);
  using runtime::ElementType;
  std::vector<runtime::KernelPlan> kernels = {
      {"kernel_a",
       runtime::Schedule::Elementwise,
       256,
       {{ElementType::F32, ElementType::BF16}, 1, 0}},
      {"matmul_bf16_transposed_lhs_symmetric",
       runtime::Schedule::Matmul,
       256,
       {{3, ElementType::BF16}, 2, 1}},
      {"matmul_bf16_add_b",
       runtime::Schedule::Matmul,
       256,
       {{ElementType::BF16, ElementType::BF16, ElementType::BF16,
         ElementType::F32},
        3,
        3}}};
  kernels[1].symmetric = kernels[1].transposeA = true;
  EXPECT_TRUE(plan.kernels == kernels) << plan.toJson();
  const runtime::Sequence &sequence = plan.sequences[0];
  EXPECT_EQ(sequence.workspaceBytes, 53504);
  ASSERT_EQ(sequence.launches.size(), 3u);

  const runtime::Launch &narrow = sequence.launches[0];
  EXPECT_EQ(narrow.items, 3);
  EXPECT_EQ(narrow.grain, 8192);
  EXPECT_EQ(narrow.operands[1].pitch, 72);
  EXPECT_EQ(narrow.operands[1].bytes(), 43200);

  const runtime::Launch &gram = sequence.launches[1];
  EXPECT_EQ(gram.sizes, (std::vector<int64_t>{70, 70, 300}));
  EXPECT_EQ(gram.items, 1);
  EXPECT_EQ(gram.sharedBytes, 49152);
  EXPECT_EQ(gram.operands[0], narrow.operands[1]);
  std::vector<double> values = evaluate(sequence.program, 1, {0.25});
  ASSERT_EQ(gram.scalars.size(), 1u);
  EXPECT_EQ(values[gram.scalars[0]], 1.0);

  // alpha, beta, and the epilogue's own.
  const runtime::Launch &last = sequence.launches[2];
  EXPECT_EQ(last.numInputs, 3);
  ASSERT_EQ(last.operands.size(), 4u);
  EXPECT_EQ(last.operands[3].kind, runtime::BufferKind::Param);
  ASSERT_EQ(last.scalars.size(), 3u);
  EXPECT_EQ(values[last.scalars[0]], 1.0);
  EXPECT_EQ(values[last.scalars[1]], 2.0);
  EXPECT_EQ(values[last.scalars[2]], 0.25);
  EXPECT_EQ(last.items, 3);
  // Products, the sum, and the epilogue's one operation.
  EXPECT_EQ(last.flops, 21000 * (2 * 70 + 2 + 1));
  // Operands in half precision, of which X is also the addend, and the
  // parameter twice.
  EXPECT_EQ(last.bytes, 2 * (21000 + 4900) + 4 * 2 * 21000);
}

TEST(PlanBuilderTest, BuildsGroupsForCuda) {
  std::string text = cudaUpdate;
  auto replace = [&](const std::string &from, const std::string &to) {
    text = edited(text, from, to);
  };
  replace("  kaon.phase 0", R"(  kaon.parameter @muon "b" scalars 0 phase 0
  kaon.parameter @muon "c" scalars 0 phase 0
  kaon.phase 0)");
  replace("    kaon.bucket @muon parameters [0] concurrent 1\n",
          R"(    kaon.group launches [[0, 1], [1], [0, 1], [0]] {
      kaon.bucket @muon parameters [0, 2] concurrent 2
      kaon.bucket @muon parameters [1] concurrent 1
    }
)");
  // The second bucket's last launch would join the first one's second.
  EXPECT_EQ(build(text).error,
            "loc(\"planned.mlir\":27:1): 'kaon.program' op makes a step plan "
            "that is not valid: phases[0][0].launches[2][1].launch: expects a "
            "launch of the kernel 'matmul_bf16_transposed_lhs_symmetric', as "
            "the first part is, but got 'matmul_bf16_add_b'");

  replace("[[0, 1], [1], [0, 1], [0]]", "[[0, 1], [1], [0], [0, 1]]");
  BuiltPlan built = build(text);
  ASSERT_EQ(built.error, "");
  runtime::BucketGroup group;
  group.buckets = {{0, {0, 2}, 2, 0}, {0, {1}, 1, int64_t(2) * 53504}};
  group.launches = {{{0, 0}, {1, 0}}, {{1, 1}}, {{0, 1}}, {{0, 2}, {1, 2}}};
  EXPECT_EQ(built.plan->phases, std::vector<runtime::PhasePlan>{{group}});
  EXPECT_EQ(built.plan->workspaceBytes, 3 * 53504);
  EXPECT_EQ(built.plan->cost(0).launches, 4);

  replace("[0], [0, 1]]", "[0]]");
  EXPECT_NE(build(text).error.find(
                "launches: expects all 3 launches of bucket 0 ('muon'), but "
                "got 2"),
            std::string::npos);
}

TEST(PlanBuilderTest, PlansFactorsAndWhatIsKeptInPlace) {
  BuiltPlan built = build(R"(
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func @u(%w: tensor<300x70xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
             %g: tensor<300x70xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
             %s: tensor<1x1xf32> {kaon.role = #kaon.role<state>, kaon.name = "s"},
             %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> (tensor<300x70xf32>, tensor<1x1xf32>) attributes {kaon.update, kaon.workspace = 53760 : i64} {
  %x = kaon.launch @kernel_a ins(%g : tensor<300x70xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<300x70xbf16>
  %n = kaon.launch @kernel_n ins(%s : tensor<1x1xf32>) {kaon.buffers = [#kaon.buffer<workspace, 43264>]} -> tensor<1x1xf32>
  %y = kaon.launch @kernel_k ins(%x, %g, %n : tensor<300x70xbf16>, tensor<300x70xf32>, tensor<1x1xf32>)
      {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<300x70xbf16>
  %a = kaon.matmul %y, %y transpose_a symmetric factor %n {kaon.buffers = [#kaon.buffer<workspace, 43520>]}
      : (tensor<300x70xbf16>, tensor<300x70xbf16>) -> tensor<70x70xbf16>
  %w1 = kaon.matmul %y, %a factor %n epilogue @kernel_b(%w : tensor<300x70xf32>) {kaon.buffers = [#kaon.buffer<param, 0>]}
      : (tensor<300x70xbf16>, tensor<70x70xbf16>) -> tensor<300x70xf32>
  return %w1, %s : tensor<300x70xf32>, tensor<1x1xf32>
}
func.func private @kernel_a(%g: tensor<?x?xf32>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.truncf %g : tensor<?x?xf32> to tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @kernel_n(%s: tensor<1x1xf32>) -> tensor<1x1xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %s : tensor<1x1xf32>
}
func.func private @kernel_k(%x: tensor<?x?xbf16>, %g: tensor<?x?xf32>, %n: tensor<1x1xf32>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %ns = kaon.broadcast %n : tensor<1x1xf32> to tensor<?x?xf32>
  %kept = arith.cmpf oge, %ns, %ns : tensor<?x?xf32>
  %p = arith.mulf %ns, %g : tensor<?x?xf32>
  %h = arith.truncf %p : tensor<?x?xf32> to tensor<?x?xbf16>
  %0 = arith.select %kept, %x, %h : tensor<?x?xi1>, tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @kernel_b(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  %1 = arith.subf %w, %0 : tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
kaon.program @step {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @u parameters [0] concurrent 1
  }
}
}
)");
  ASSERT_EQ(built.error, "");
  const runtime::StepPlan &plan = *built.plan;
  const std::vector<runtime::Launch> &launches = plan.sequences[0].launches;
  ASSERT_EQ(launches.size(), 5u);
  // Nearly always, one number is read.
  EXPECT_EQ(plan.kernels[launches[2].kernel].name, "kernel_k_in_place");
  EXPECT_EQ(launches[2].bytes, 4);
  EXPECT_EQ(launches[2].flops, 0);
  for (size_t index : {3, 4}) {
    const runtime::Launch &product = launches[index];
    ASSERT_EQ(product.operands.size(), 4u);
    EXPECT_EQ(product.numInputs, 3);
    EXPECT_EQ(product.operands[2], launches[1].operands[1]);
    EXPECT_TRUE(product.hasFactor);
    EXPECT_EQ(plan.kernels[product.kernel].signature.types.size(), 3u);
    EXPECT_EQ(product.scalars.size(), 1u);
  }
  EXPECT_EQ(launches[4].flops, 21000 * (2 * 70 + 1 + 1));
  EXPECT_EQ(launches[4].bytes, 2 * (21000 + 4900) + 4 + 4 * 2 * 21000);
}

TEST(PlanBuilderTest, RefusesWhatCudaDoesNotRun) {
  EXPECT_EQ(
      cudaError("half = bf16", "half = f16"),
      "loc(\"planned.mlir\":10:8): 'kaon.matmul' op expects operands of the "
      "module's 'f16'; kaon-narrow-products comes first");
  EXPECT_EQ(cudaError("  %w1 = kaon.matmul",
                      "  %p = kaon.pack lhs %g {kaon.buffers = "
                      "[#kaon.buffer<workspace, 0>]} : tensor<300x70xf32> -> "
                      "tensor<75x288xf32>\n  %w1 = kaon.matmul"),
            "loc(\"planned.mlir\":12:8): 'kaon.pack' op has no kernel on CUDA");
}

TEST(PlanBuilderTest, BuildsTheSamePlanTwice) {
  BuiltPlan first = build(wholeModule()), second = build(wholeModule());
  ASSERT_TRUE(first.plan && second.plan);
  EXPECT_EQ(first.plan->toJson(), second.plan->toJson());
}

TEST(PlanBuilderTest, PlansEveryPhase) {
  std::string text =
      edited("kaon.program @step {", "kaon.program @step period 2 {");
  std::string first = "parameters [0, 1] concurrent 2\n  }\n";
  size_t position = text.find(first);
  ASSERT_NE(position, std::string::npos);
  text.insert(position + first.size(), R"(  kaon.phase 1 {
    kaon.bucket @muon parameters [1] concurrent 1
    kaon.bucket @muon parameters [0] concurrent 1
  }
)");
  BuiltPlan built = build(text);
  ASSERT_EQ(built.error, "");
  EXPECT_EQ(built.plan->phases, (std::vector<runtime::PhasePlan>{
                                    {built.plan->alone({0, {0, 1}, 2})},
                                    {built.plan->alone({0, {1}, 1}),
                                     built.plan->alone({0, {0}, 1})}}));
  EXPECT_EQ(built.plan->sequences.size(), 1u);
}

TEST(PlanBuilderTest, ChoosesGrainsByWork) {
  auto grainOf = [](int64_t rows, int64_t cols, const char *schedule) {
    std::string type = llvm::formatv("tensor<{0}x{1}xf32>", rows, cols).str();
    std::string text = scalarModule("%x = arith.addf %a, %b : f64");
    for (size_t at; (at = text.find("tensor<4x6xf32>")) != std::string::npos;) {
      text.replace(at, 15, type);
    }
    text.replace(text.find("<elementwise>"), 13, schedule);
    BuiltPlan built = build(text);
    EXPECT_EQ(built.error, "");
    return built.plan ? built.plan->sequences[0].launches[0].grain : 0;
  };
  // 256 KiB, read and written.
  EXPECT_EQ(grainOf(1000, 1024, "<rows>"), 32);
  EXPECT_EQ(grainOf(10, 1024, "<rows>"), 10);
  EXPECT_EQ(grainOf(10, 1 << 20, "<rows>"), 1);
  EXPECT_EQ(grainOf(1 << 20, 100, "<columns>"), 64);
  EXPECT_EQ(grainOf(256, 1024, "<columns>"), 128);
}

TEST(PlanBuilderTest, TranslatesHostScalars) {
  EXPECT_EQ(computeScalar("%x = arith.addf %a, %b : f64", 2, 3), 5);
  EXPECT_EQ(computeScalar("%x = arith.subf %a, %b : f64", 2, 3), -1);
  EXPECT_EQ(computeScalar("%x = arith.mulf %a, %b : f64", 2, 3), 6);
  EXPECT_EQ(computeScalar("%x = arith.divf %a, %b : f64", 3, 2), 1.5);
  EXPECT_EQ(computeScalar("%x = arith.negf %a : f64", 3, 2), -3);
  EXPECT_EQ(computeScalar("%x = arith.maximumf %a, %b : f64", 3, 2), 3);
  EXPECT_EQ(computeScalar("%x = arith.minimumf %a, %b : f64", 3, 2), 2);
  EXPECT_EQ(computeScalar("%x = arith.constant 1.0e-8 : f64", 0, 0), 1e-8);
  EXPECT_EQ(computeScalar("%x = math.sqrt %a : f64", 2, 0), std::sqrt(2.0));
  EXPECT_EQ(computeScalar("%x = math.rsqrt %a : f64", 2, 0),
            1 / std::sqrt(2.0));
  EXPECT_EQ(computeScalar("%x = math.exp %a : f64", 2, 0), std::exp(2.0));
  EXPECT_EQ(computeScalar("%x = math.log %a : f64", 2, 0), std::log(2.0));
  EXPECT_EQ(computeScalar("%x = math.absf %a : f64", -2, 0), 2);
  EXPECT_EQ(computeScalar("%x = math.floor %a : f64", -1.5, 0), -2);
  EXPECT_EQ(computeScalar("%x = math.ceil %a : f64", -1.5, 0), -1);
  EXPECT_EQ(computeScalar("%x = math.copysign %a, %b : f64", 2, -1), -2);
  EXPECT_EQ(computeScalar("%x = math.fma %a, %b, %a : f64", 2, 3), 8);
  EXPECT_EQ(computeScalar(R"(%t = arith.sitofp %step : i64 to f64
    %x = math.powf %a, %t : f64)",
                          0.9, 0),
            std::pow(0.9, 7));
  EXPECT_EQ(computeScalar(R"(%one = arith.constant 1 : i64
    %before = arith.subi %step, %one : i64
    %x = arith.sitofp %before : i64 to f64)",
                          0, 0),
            6);
  EXPECT_EQ(computeScalar(R"(%limit = arith.constant 5 : i64
    %c = arith.cmpi sgt, %step, %limit : i64
    %x = arith.select %c, %a, %b : f64)",
                          2, 3),
            2);
}

TEST(PlanBuilderTest, TranslatesEveryComparison) {
  const double nan = std::nan("");
  struct {
    const char *predicate;
    bool less, equal, greater, unordered;
  } cases[] = {{"oeq", 0, 1, 0, 0}, {"ogt", 0, 0, 1, 0}, {"oge", 0, 1, 1, 0},
               {"olt", 1, 0, 0, 0}, {"ole", 1, 1, 0, 0}, {"one", 1, 0, 1, 0},
               {"ord", 1, 1, 1, 0}, {"ueq", 0, 1, 0, 1}, {"ugt", 0, 0, 1, 1},
               {"uge", 0, 1, 1, 1}, {"ult", 1, 0, 0, 1}, {"ule", 1, 1, 0, 1},
               {"une", 1, 0, 1, 1}, {"uno", 0, 0, 0, 1}};
  for (const auto &[predicate, less, equal, greater, unordered] : cases) {
    std::string body = llvm::formatv(R"(%c = arith.cmpf {0}, %a, %b : f64
      %yes = arith.constant 1.0 : f64
      %no = arith.constant 0.0 : f64
      %x = arith.select %c, %yes, %no : f64)",
                                     predicate)
                           .str();
    EXPECT_EQ(computeScalar(body, 1, 2), less) << predicate;
    EXPECT_EQ(computeScalar(body, 2, 2), equal) << predicate;
    EXPECT_EQ(computeScalar(body, 3, 2), greater) << predicate;
    EXPECT_EQ(computeScalar(body, nan, 2), unordered) << predicate;
  }
}

TEST(PlanBuilderTest, SaysWhereSomethingHasNoPlaceInAPlan) {
  auto error = [](const std::string &text) {
    BuiltPlan built = build(text);
    EXPECT_FALSE(built.plan);
    return built.error;
  };
  auto contains = [](const std::string &text, const std::string &part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks\n"
                                                  << part;
  };
  contains(error(scalarModule("%x = math.sin %a : f64")),
           "loc(\"planned.mlir\":12:6): 'math.sin' op cannot be computed on "
           "the host once per step");
  // A true boolean is less than a false one to signed integers.
  contains(error(scalarModule("%p = arith.cmpf olt, %a, %b : f64\n"
                              "%q = arith.cmpi slt, %p, %p : i1\n"
                              "%x = arith.select %q, %a, %b : f64")),
           "'arith.cmpi' op cannot be computed on the host once per step");
  contains(error(scalarModule("%i = arith.constant -9223372036854775808 : i64\n"
                              "%x = arith.sitofp %i : i64 to f64")),
           "'arith.constant' op cannot be computed on the host once per step");
  contains(error(scalarModule("%y = arith.addf %w, %g : tensor<4x6xf32>\n  %x "
                              "= arith.addf %a, %b : f64")),
           "loc(\"planned.mlir\":12:6): 'arith.addf' op has no place in a step "
           "plan");
  contains(error(edited("{kaon.buffers = [#kaon.buffer<workspace, 192>]}", "")),
           "'kaon.launch' op expects 1 kaon.buffers, but got 0; "
           "kaon-plan-memory comes first");
  contains(error(edited(", kaon.workspace = 60000 : i64", "")),
           "'func.func' op expects one block and kaon.workspace; "
           "kaon-plan-memory comes first");
  contains(error(edited("attributes {kaon.cpu = #kaon.cpu_target<vector_bits = "
                        "512, mr = 12, nr = 32, kc = 256, block "
                        "= 192>} {",
                        "{")),
           "'kaon.pack' op needs kaon.cpu on the module");
  contains(
      error(edited("#kaon.buffer<state, 0>", "#kaon.buffer<workspace, 64>")),
      "'kaon.launch' op writes two results to the same memory");
  contains(error(edited("#kaon.buffer<workspace, 192>",
                        "#kaon.buffer<workspace, 60032>")),
           "'kaon.launch' op writes result #0 to bytes [60032, 60036), which "
           "are not aligned to 64 or not within the workspace of 60000 bytes");
  contains(error("module {}"), "'builtin.module' op expects one kaon.program "
                               "to make a step plan of, but got 0");
}
