//===-- ExecutorTest.cpp - replaying plans --------------------------------===//
//
// Results against loops written out, phases, skipped matrices, strides,
// division of work, checks before anything changes, and the absence of
// allocations.
//
//===----------------------------------------------------------------------===//

#include "runtime/Executor.h"

#include "AllocationCounter.h"
#include "TestPlans.h"
#include "runtime/HostBackend.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace kaon::runtime;
using namespace kaon::runtime::test;

namespace {

std::unique_ptr<Executor> makeExecutor(const StepPlan &plan, int threads = 4) {
  Result<std::unique_ptr<Executor>> executor = Executor::create(
      plan, std::make_unique<HostBackend>(testKernels(), threads));
  EXPECT_EQ(executor.status().message(), "");
  return executor.ok() ? std::move(*executor) : nullptr;
}

/// Runs a step with all scalar sets alike.
Result<int64_t> step(Executor &executor, const Model &model, int64_t count,
                     const std::vector<double> &values,
                     bool checkFinite = true) {
  std::vector<KaonScalars> scalars(
      executor.plan().scalarSets.size(),
      KaonScalars{values.data(), static_cast<int64_t>(values.size())});
  return executor.step(
      {count, model.buffers.data(), static_cast<int64_t>(model.buffers.size()),
       scalars.data(), static_cast<int64_t>(scalars.size()), checkFinite});
}

/// What the plan of MomentumPlan does to matrix `index` of `model`.
void momentumStep(const StepPlan &plan, Model &model, size_t index, float rate,
                  float mu) {
  for (int64_t i = 0; i < plan.parameters[index].rows; ++i) {
    for (int64_t j = 0; j < plan.parameters[index].cols; ++j) {
      float &m = model.at(3 * index + 2, i, j);
      m = mu * m + model.at(3 * index + 1, i, j);
      model.at(3 * index, i, j) -= rate * m;
    }
  }
}

class ExecutorTest : public ::testing::Test {
protected:
  void SetUp() override { ThreadPool::setLimit(4); }
  void TearDown() override { ThreadPool::setLimit(0); }
};

} // namespace

TEST_F(ExecutorTest, UpdatesParametersAndStates) {
  // Shapes below, at and above the row length that elementwise kernels see.
  StepPlan plan = MomentumPlan()
                      .add("small", 3, 5)
                      .add("small too", 3, 5)
                      .add("row", 1, 8192)
                      .add("tail", 100, 97)
                      .add("long", 1, 50001)
                      .add("column", 777, 1)
                      .plan;
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  Model model(plan), expected(plan);
  for (int64_t count = 1; count <= 3; ++count) {
    Result<int64_t> result = step(*executor, model, count, {0.25, 0.5});
    ASSERT_EQ(result.status().message(), "");
    EXPECT_EQ(*result, 0);
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      momentumStep(plan, expected, i,
                   static_cast<float>(0.25 / static_cast<double>(count)), 0.5f);
    }
    EXPECT_EQ(model.memory, expected.memory) << "step " << count;
  }
  EXPECT_EQ(executor->matrixCount(0), 18);
}

TEST_F(ExecutorTest, KeepsToTheMatrixWhenRowsAreApart) {
  StepPlan plan = MomentumPlan().add("w", 30, 17).add("v", 30, 17).plan;
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  // Model's padding has values that a step must not touch.
  Model model(plan, /*padding=*/3), expected(plan, /*padding=*/3);
  ASSERT_EQ(step(*executor, model, 1, {0.25, 0.5}).status().message(), "");
  for (size_t i = 0; i < 2; ++i) {
    momentumStep(plan, expected, i, 0.25f, 0.5f);
  }
  EXPECT_EQ(model.memory, expected.memory);

  // One of two matrices of a launch contiguous, the other not.
  Model packed(plan), mixed(plan, 3), expectedMixed(plan, 3);
  for (size_t i = 0; i < 3; ++i) {
    std::swap(mixed.memory[i], packed.memory[i]);
    mixed.buffers[i] = {mixed.memory[i].data(), 17};
    expectedMixed.memory[i] = mixed.memory[i];
    expectedMixed.buffers[i] = {expectedMixed.memory[i].data(), 17};
  }
  ASSERT_EQ(step(*executor, mixed, 1, {0.25, 0.5}).status().message(), "");
  for (size_t i = 0; i < 2; ++i) {
    momentumStep(plan, expectedMixed, i, 0.25f, 0.5f);
  }
  EXPECT_EQ(mixed.memory, expectedMixed.memory);
}

TEST_F(ExecutorTest, ReplaysThePhaseOfTheStep) {
  StepPlan plan = periodicPlan(40, 70, 5, 2);
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  Model model(plan), expected(plan);
  for (int64_t count = 1; count <= 4; ++count) {
    ASSERT_EQ(step(*executor, model, count, {0.125}).status().message(), "");
    for (size_t p = 0; p < 5; ++p) {
      for (int64_t i = 0; i < 40; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < 70; ++j) {
          sum += std::fabs(expected.at(2 * p + 1, i, j));
        }
        for (int64_t j = 0; j < 70; ++j) {
          float g = expected.at(2 * p + 1, i, j);
          expected.at(2 * p, i, j) -=
              count % 2 == 0 ? 0.125f * g / sum : 0.125f * g;
        }
      }
    }
    EXPECT_EQ(model.memory, expected.memory) << "step " << count;
  }
  // Two transpositions on each of two refreshes, one launch of the others per
  // step.
  EXPECT_EQ(executor->matrixCount(0), 2 * 2 * 5);
  EXPECT_EQ(executor->matrixCount(1), 2 * 5);
  EXPECT_EQ(executor->matrixCount(2), 2 * 5);
}

TEST_F(ExecutorTest, SkipsMatricesWithoutGradient) {
  StepPlan plan = periodicPlan(40, 70, 5, 2);
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  Model model(plan), all(plan);
  for (size_t skipped : {0, 3, 4}) {
    model.buffers[2 * skipped + 1].data = nullptr;
  }
  // What belongs to a skipped matrix is not looked at.
  model.buffers[2 * 3].data = nullptr;
  Model before = model;
  ASSERT_EQ(step(*executor, model, 1, {0.125}).status().message(), "");
  ASSERT_EQ(step(*executor, all, 1, {0.125}).status().message(), "");
  for (size_t p : {0, 3, 4}) {
    EXPECT_EQ(model.memory[2 * p], before.memory[2 * p]) << "matrix " << p;
  }
  for (size_t p : {1, 2}) {
    EXPECT_EQ(model.memory[2 * p], all.memory[2 * p]) << "matrix " << p;
  }

  for (size_t p = 0; p < 5; ++p) {
    model.buffers[2 * p + 1].data = nullptr;
  }
  before = model;
  EXPECT_EQ(*step(*executor, model, 2, {0.125}), 0);
  EXPECT_EQ(model.memory, before.memory);
}

TEST_F(ExecutorTest, GivesEachScalarSetItsValues) {
  StepPlan plan =
      MomentumPlan().add("a", 4, 4, 0).add("b", 4, 4, 1).add("c", 4, 4, 0).plan;
  ASSERT_EQ(plan.phases[0].size(), 1u) << "the sets share a bucket";
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  Model model(plan), expected(plan);
  const double first[] = {0.25, 0.5}, second[] = {0.125, 0.75};
  const KaonScalars scalars[] = {{first, 2}, {second, 2}};
  ASSERT_TRUE(executor->step({1, model.buffers.data(), 9, scalars, 2, 1}).ok());
  momentumStep(plan, expected, 0, 0.25f, 0.5f);
  momentumStep(plan, expected, 1, 0.125f, 0.75f);
  momentumStep(plan, expected, 2, 0.25f, 0.5f);
  EXPECT_EQ(model.memory, expected.memory);
}

TEST_F(ExecutorTest, ResultsDoNotDependOnThreadsOrGrain) {
  auto run = [](int threads, int64_t grain) {
    StepPlan plan = periodicPlan(130, 67, 7, 3);
    for (Sequence &sequence : plan.sequences) {
      for (Launch &launch : sequence.launches) {
        launch.grain = grain;
      }
    }
    std::unique_ptr<Executor> executor = makeExecutor(plan, threads);
    Model model(plan);
    for (int64_t count = 1; count <= 4; ++count) {
      EXPECT_TRUE(step(*executor, model, count, {0.125}).ok());
    }
    return model.memory;
  };
  auto reference = run(1, 1000);
  for (int threads : {1, 2, 4}) {
    for (int64_t grain : {1, 7, 64}) {
      EXPECT_EQ(run(threads, grain), reference)
          << threads << " threads, grain " << grain;
    }
  }
}

TEST_F(ExecutorTest, DividesElementwiseWorkByElements) {
  // 20 biases: one launch, and with one thread and a large grain a call each.
  MomentumPlan biases;
  for (int i = 0; i < 20; ++i) {
    biases.add(concat("bias", i), 1, 768);
  }
  biases.plan.sequences[0].launches[0].grain = 1000;
  resetCallCounter();
  Model biasModel(biases.plan);
  ASSERT_TRUE(
      step(*makeExecutor(biases.plan, 1), biasModel, 1, {0.25, 0.5}).ok());
  EXPECT_EQ(readCallCounter().calls, 20);
  EXPECT_EQ(readCallCounter().mostColumns, 768);

  // A long row is cut into rows of 8192.
  StepPlan row = MomentumPlan().add("embedding", 1, 100000).plan;
  resetCallCounter();
  Model rowModel(row);
  ASSERT_TRUE(step(*makeExecutor(row, 1), rowModel, 1, {0.25, 0.5}).ok());
  EXPECT_EQ(readCallCounter().mostColumns, HostBackend::elementwiseColumns);

  // So are many short rows, unless they are apart in memory.
  StepPlan narrow = MomentumPlan().add("narrow", 50000, 2).plan;
  resetCallCounter();
  Model narrowModel(narrow);
  ASSERT_TRUE(step(*makeExecutor(narrow, 1), narrowModel, 1, {0.25, 0.5}).ok());
  EXPECT_EQ(readCallCounter().mostColumns, HostBackend::elementwiseColumns);
  resetCallCounter();
  Model apartModel(narrow, /*padding=*/1);
  ASSERT_TRUE(step(*makeExecutor(narrow, 1), apartModel, 1, {0.25, 0.5}).ok());
  EXPECT_EQ(readCallCounter().mostColumns, 2);
}

TEST_F(ExecutorTest, AllocatesNothingInAStep) {
  if (!canCountAllocations) {
    GTEST_SKIP() << "the sanitizer has an allocator of its own";
  }
  int64_t start = numAllocations();
  // Through a volatile pointer, or the compiler leaves both calls out.
  void *volatile probe = ::operator new(100);
  ::operator delete(probe);
  ASSERT_GT(numAllocations(), start) << "allocations are not counted";

  StepPlan plan = periodicPlan(130, 67, 7, 3);
  std::unique_ptr<Executor> executor = makeExecutor(plan, 4);
  StepPlan elementwise = MomentumPlan().add("w", 100, 97).add("b", 1, 5).plan;
  std::unique_ptr<Executor> other = makeExecutor(elementwise, 4);
  Model model(plan), otherModel(elementwise);
  const double values[] = {0.125, 0.5};
  const KaonScalars one = {values, 1}, two = {values, 2};
  int64_t before = numAllocations();
  for (int64_t count = 1; count <= 6; ++count) {
    EXPECT_TRUE(
        executor->step({count, model.buffers.data(), 14, &one, 1, 1}).ok());
    EXPECT_TRUE(
        other->step({count, otherModel.buffers.data(), 6, &two, 1, 1}).ok());
  }
  EXPECT_EQ(numAllocations() - before, 0);
}

TEST_F(ExecutorTest, NonFiniteGradientsStopTheStep) {
  StepPlan plan =
      MomentumPlan().add("w", 3, 5).add("v", 200, 301).add("b", 1, 50000).plan;
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t padding : {0, 2}) {
    Model model(plan, padding);
    // The largest finite number is not a reason to stop.
    model.at(1, 0, 0) = std::numeric_limits<float>::max();
    model.at(1, 0, 1) = -std::numeric_limits<float>::denorm_min();
    model.at(4, 199, 300) = -inf;
    Model before = model;
    EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}), 1);
    model.at(7, 0, 49999) = nan;
    model.at(7, 0, 0) = nan;
    EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}), 2);
    for (size_t i : {0, 2, 3, 5, 6, 8}) {
      EXPECT_EQ(model.memory[i], before.memory[i]) << "buffer " << i;
    }

    // A skipped gradient does not count.
    Model skipping = model;
    for (size_t i = 0; i < skipping.buffers.size(); ++i) {
      skipping.buffers[i].data = skipping.memory[i].data();
    }
    skipping.buffers[7].data = nullptr;
    EXPECT_EQ(*step(*executor, skipping, 1, {0.25, 0.5}), 1);

    // Unchecked, they go through.
    EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}, /*checkFinite=*/false),
              0);
    EXPECT_TRUE(std::isinf(model.at(3, 199, 300)));
  }
}

TEST_F(ExecutorTest, FindsNonFiniteGradientsOfEveryType) {
  struct {
    ElementType type;
    std::vector<uint64_t> finite, nonFinite; // bits
  } cases[] = {
      {ElementType::F16,
       {0x0000, 0x8000, 0x7bff, 0xfbff, 0x0001},
       {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff}},
      {ElementType::BF16,
       {0x0000, 0x8000, 0x7f7f, 0xff7f, 0x0001},
       {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff}},
      {ElementType::F32,
       {0, 0x80000000, 0x7f7fffff, 0xff7fffff, 1},
       {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001}},
      {ElementType::F64,
       {0, 0x8000000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 1},
       {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000,
        0x7ff0000000000001}},
  };
  for (const auto &[type, finite, nonFinite] : cases) {
    StepPlan plan = MomentumPlan().add("w", 1, 77).plan;
    plan.parameters[0].gradType = type;
    // Only the check is run: the phase has an empty sequence.
    plan.sequences[0].launches.clear();
    plan.phases[0][0].launches.clear();
    std::unique_ptr<Executor> executor = makeExecutor(plan);
    Model model(plan);
    std::vector<uint64_t> storage(77, 0);
    model.buffers[1].data = storage.data();
    auto put = [&](int64_t index, uint64_t bits) {
      std::memcpy(reinterpret_cast<std::byte *>(storage.data()) +
                      index * byteSize(type),
                  &bits, static_cast<size_t>(byteSize(type)));
    };
    for (size_t i = 0; i < finite.size(); ++i) {
      put(static_cast<int64_t>(i), finite[i]);
    }
    EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}), 0) << stringify(type);
    for (uint64_t bits : nonFinite) {
      for (int64_t position : {0, 40, 76}) {
        put(position, bits);
        EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}), 1)
            << stringify(type) << " 0x" << std::hex << bits;
        put(position, 0);
      }
    }
    EXPECT_EQ(*step(*executor, model, 1, {0.25, 0.5}), 0) << stringify(type);
  }
}

TEST_F(ExecutorTest, SaysWhatIsWrongBeforeAnythingChanges) {
  StepPlan plan = MomentumPlan()
                      .add("w", 3, 5)
                      .add("blocks.0.bias", 1, 5)
                      .add("v", 3, 5)
                      .plan;
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  struct {
    std::function<void(KaonStep &, std::vector<KaonBuffer> &, KaonScalars &)>
        damage;
    const char *message;
  } cases[] = {
      {[](KaonStep &step, auto &, auto &) { step.step = 0; },
       "step: expects the step count, 1 at the first step, but got 0"},
      {[](KaonStep &step, auto &, auto &) { step.num_buffers = 8; },
       "step: expects 9 buffers for 3 parameters, but got 8"},
      {[](KaonStep &step, auto &, auto &) { step.buffers = nullptr; },
       "step: expects a pointer to 9 buffers, but got null"},
      {[](KaonStep &step, auto &, auto &) { step.num_scalars = 0; },
       "step: expects values for 1 scalar sets, but got 0"},
      {[](KaonStep &step, auto &, auto &) { step.scalars = nullptr; },
       "step: expects a pointer to 1 scalar sets, but got null"},
      {[](KaonStep &, auto &, KaonScalars &scalars) { scalars.count = 1; },
       "scalar set 0: expects 2 values (lr, mu), but got 1"},
      {[](KaonStep &, auto &, KaonScalars &scalars) {
         scalars.values = nullptr;
       },
       "scalar set 0: expects 2 values (lr, mu), but got null"},
      {[](KaonStep &, auto &buffers, auto &) { buffers[3].data = nullptr; },
       "parameter 'blocks.0.bias': expects a pointer to 1x5 elements of f32, "
       "but got null"},
      {[](KaonStep &, auto &buffers, auto &) { buffers[8].data = nullptr; },
       "state 'm' of parameter 'v': expects a pointer to 3x5 elements of f32, "
       "but got null"},
      {[](KaonStep &, auto &buffers, auto &) {
         buffers[7].data = reinterpret_cast<void *>(0x1002);
       },
       "gradient of parameter 'v': expects a pointer that is a multiple of 4 "
       "for f32, but got 0x1002"},
      {[](KaonStep &, auto &buffers, auto &) { buffers[7].row_stride = 4; },
       "gradient of parameter 'v': expects a row stride of at least the 5 "
       "columns, but got 4"},
  };
  for (const auto &[damage, message] : cases) {
    Model model(plan), before(plan);
    std::vector<KaonBuffer> buffers = model.buffers;
    const double values[] = {0.25, 0.5};
    KaonScalars scalars{values, 2};
    KaonStep arguments{1, buffers.data(), 9, &scalars, 1, 1};
    damage(arguments, buffers, scalars);
    EXPECT_EQ(executor->step(arguments).status().message(), message);
    EXPECT_EQ(model.memory, before.memory) << message;
  }
  // The stride of a single row has no meaning.
  Model model(plan);
  model.buffers[3].row_stride = 0;
  EXPECT_EQ(step(*executor, model, 1, {0.25, 0.5}).status().message(), "");
}

TEST_F(ExecutorTest, ReadsColumnsAsRowsWhereTheyAreContiguous) {
  StepPlan plan = MomentumPlan().add("w", 5, 1).plan;
  for (Operand &operand : plan.sequences[0].launches[0].operands) {
    std::swap(operand.rows, operand.cols);
  }
  plan.sequences[0].launches[0].sizes = {1, 5};
  plan.sequences[0].launches[0].items = 1;
  std::unique_ptr<Executor> executor = makeExecutor(plan);
  Model model(plan), expected(plan);
  ASSERT_EQ(step(*executor, model, 1, {0.25, 0.5}).status().message(), "");
  momentumStep(plan, expected, 0, 0.25f, 0.5f);
  EXPECT_EQ(model.memory, expected.memory);

  Model apart(plan, /*padding=*/1);
  EXPECT_EQ(step(*executor, apart, 1, {0.25, 0.5}).status().message(),
            "parameter 'w': expects a row stride of 1, because the update "
            "reads the 5x1 column as a row, but got 2");
}

TEST_F(ExecutorTest, RefusesPlansItCannotRun) {
  StepPlan plan = MomentumPlan().add("w", 3, 5).plan;
  auto message = [](const StepPlan &plan, const KernelTable &kernels) {
    return Executor::create(plan, std::make_unique<HostBackend>(kernels, 1))
        .status()
        .message();
  };
  EXPECT_EQ(message(plan, KernelTable()),
            "expects code for the kernel 'momentum', but there is none; "
            "loaded: none");
  KernelTable others;
  others.add("row", testKernels().find("row"));
  others.add("momentum", nullptr);
  EXPECT_EQ(message(plan, others),
            "expects code for the kernel 'momentum', but there is none; "
            "loaded: 'momentum', 'row'");

  StepPlan foreign = plan;
  foreign.target = Target::Cuda;
  foreign.kernels[0].threads = 256;
  foreign.sequences[0].launches[0].items = 1;
  foreign.sequences[0].launches[0].grain = cudaElementwiseGrain;
  EXPECT_EQ(message(foreign, testKernels()),
            "target: expects a plan for cpu, but got one for cuda");

  StepPlan broken = plan;
  broken.phases.clear();
  EXPECT_EQ(message(broken, testKernels()),
            "phases: expects at least one phase, but got none");

  StepPlan huge = periodicPlan(1 << 20, 1 << 20, 1, 1);
  huge.sequences[1].workspaceBytes = huge.workspaceBytes = int64_t(1) << 59;
  EXPECT_EQ(message(huge, testKernels()),
            "expects 576460752303423488 bytes of free memory for the "
            "workspace, but the "
            "system has not got them");
}

TEST_F(ExecutorTest, TwoThreadsMayStepTwoExecutorsOrOne) {
  StepPlan plan = periodicPlan(64, 33, 4, 2);
  std::unique_ptr<Executor> shared = makeExecutor(plan, 4);
  auto run = [&](Executor &executor, Model &model) {
    for (int64_t count = 1; count <= 50; ++count) {
      EXPECT_TRUE(step(executor, model, count, {0.125}).ok());
    }
  };
  Model reference(plan);
  run(*shared, reference);
  std::vector<Model> models;
  for (int i = 0; i < 4; ++i) {
    models.emplace_back(plan);
  }
  std::unique_ptr<Executor> own = makeExecutor(plan, 3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { run(i == 0 ? *own : *shared, models[i]); });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  for (const Model &model : models) {
    EXPECT_EQ(model.memory, reference.memory);
  }
}

TEST_F(ExecutorTest, StepsInAForkedChild) {
  StepPlan plan = periodicPlan(64, 33, 4, 2);
  std::unique_ptr<Executor> executor = makeExecutor(plan, 4);
  Model model(plan);
  ASSERT_TRUE(step(*executor, model, 1, {0.125}).ok());
  pid_t child = fork();
  Result<int64_t> result = step(*executor, model, 2, {0.125});
  if (child == 0) {
    _exit(result.ok() ? static_cast<int>(static_cast<unsigned char>(
                            std::bit_cast<uint32_t>(model.at(0, 1, 1))))
                      : 255);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  // The child computed what the parent did: the low byte of an element tells.
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(
      WEXITSTATUS(status),
      static_cast<unsigned char>(std::bit_cast<uint32_t>(model.at(0, 1, 1))));
}

namespace {
/// Runs out of memory in a step, and counts its beginnings and ends.
class ThrowingBackend final : public Backend {
public:
  explicit ThrowingBackend(int &open) : open(open) {}

  Status prepare(const StepPlan &, std::span<const PhaseSchedule>) override {
    return Status::success();
  }
  Status beginStep(void *) override {
    ++open;
    return Status::success();
  }
  Status endStep() override {
    --open;
    return Status::success();
  }
  Status runPhase(const PhaseRun &) override { throw std::bad_alloc(); }
  Result<int64_t> countNonFinite(std::span<const BoundGradient>) override {
    return int64_t(0);
  }
  Status synchronize() override { return Status::success(); }

private:
  int &open;
};
} // namespace

TEST_F(ExecutorTest, EndsStepsThatThrow) {
  StepPlan plan = MomentumPlan().add("w", 3, 5).plan;
  int open = 0;
  Result<std::unique_ptr<Executor>> executor =
      Executor::create(plan, std::make_unique<ThrowingBackend>(open));
  ASSERT_EQ(executor.status().message(), "");
  Model model(plan);
  EXPECT_THROW((void)step(**executor, model, 1, {0.25, 0.5}), std::bad_alloc);
  EXPECT_EQ(open, 0);
}
