//===-- Scenarios.cpp - the launcher on the imitated driver ---------------===//

#include "test/cuda/fake/Scenarios.h"

#include "runtime/Math.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <dlfcn.h>
#include <thread>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

namespace kaon::test {

static void *findControl(const char *name) {
  void *library = dlopen(KAON_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  void *found = library ? dlsym(library, name) : nullptr;
  if (!found) {
    std::abort(); // The tests were built without it.
  }
  return found;
}

const FakeControls &FakeControls::get() {
  static const FakeControls controls = [] {
    FakeControls found;
#define KAON_FAKE_CONTROL(name)                                                \
  found.name = reinterpret_cast<decltype(found.name)>(                         \
      findControl("kaon_fake_cuda_" #name))
    KAON_FAKE_CONTROL(set_kernel_directory);
    KAON_FAKE_CONTROL(set_devices);
    KAON_FAKE_CONTROL(set_delays);
    KAON_FAKE_CONTROL(take_faults);
    KAON_FAKE_CONTROL(allocated_bytes);
    KAON_FAKE_CONTROL(stream_create);
    KAON_FAKE_CONTROL(stream_destroy);
    KAON_FAKE_CONTROL(stream_set_capturing);
    KAON_FAKE_CONTROL(stream_block);
    KAON_FAKE_CONTROL(stream_unblock);
#undef KAON_FAKE_CONTROL
    found.set_kernel_directory(KAON_FAKE_KERNELS);
    return found;
  }();
  return controls;
}

std::string FakeControls::takeFaults() const {
  std::array<char, 8192> text = {};
  take_faults(text.data(), text.size());
  return text.data();
}

std::shared_ptr<CudaDriver> openFake() {
  FakeControls::get();
  Result<std::shared_ptr<CudaDriver>> driver = CudaDriver::open(KAON_FAKE_CUDA);
  return driver.ok() ? *driver : nullptr;
}

Images declareKernels() {
  Images images;
  for (const char *name :
       {"momentum", "transpose_f32", "descent", "check_finite_f32"}) {
    std::string text =
        concat(".version 9.0\n.target sm_90a\n.address_size 64\n"
               ".visible .entry ",
               name, "(.param .u64 a, .param .u64 b, .param .u64 c)\n",
               ".maxntid 256\n{ ret; }\n");
    const auto *bytes = reinterpret_cast<const std::byte *>(text.data());
    images[name].assign(bytes, bytes + text.size());
  }
  return images;
}

//===----------------------------------------------------------------------===//
// Plans and models
//===----------------------------------------------------------------------===//

static Operand modelOperand(BufferKind kind, int64_t rows, int64_t cols) {
  Operand operand;
  operand.kind = kind;
  operand.rows = rows;
  operand.cols = cols;
  return operand;
}

static Operand workspaceOperand(int64_t rows, int64_t cols, int64_t offset) {
  Operand operand = modelOperand(BufferKind::Workspace, rows, cols);
  operand.offset = offset;
  operand.pitch = cols;
  return operand;
}

static Launch elementwise(int32_t kernel, std::vector<Operand> operands,
                          int32_t inputs, std::vector<int32_t> scalars) {
  Launch launch;
  launch.kernel = kernel;
  launch.sizes = {operands[0].rows, operands[0].cols};
  launch.items =
      ceilDiv(launch.sizes[0] * launch.sizes[1], cudaElementwiseGrain);
  launch.grain = cudaElementwiseGrain;
  launch.operands = std::move(operands);
  launch.numInputs = inputs;
  launch.scalars = std::move(scalars);
  return launch;
}

static Launch transpose(const Operand &from, const Operand &to) {
  Launch launch;
  launch.operands = {from, to};
  launch.numInputs = 1;
  launch.sizes = {from.rows, from.cols};
  launch.items = ceilDiv(from.rows, cudaTransposeRows) *
                 ceilDiv(from.cols, cudaTransposeColumns);
  launch.sharedBytes = 2112 * sizeof(float);
  return launch;
}

using Shape = std::pair<int64_t, int64_t>;
// One has more elements, or rows, than a block takes.
static constexpr Shape momentumShapes[] = {{3, 70}, {1, 9001}};
static constexpr Shape detourShapes[] = {{3, 70}, {40, 5}};
static constexpr int32_t matricesPerShape = hasThreadSanitizer ? 1 : 2;

/// Parameters of each shape, in a bucket for each, and the buckets in a group.
static StepPlan basePlan(std::span<const Shape> shapes,
                         std::vector<StatePlan> states) {
  StepPlan plan;
  plan.target = Target::Cuda;
  plan.phases.resize(1);
  BucketGroup &group = plan.phases[0].emplace_back();
  for (auto [rows, cols] : shapes) {
    for (StatePlan &state : states) {
      state.rows = rows;
      state.cols = cols;
    }
    auto first = static_cast<int32_t>(plan.parameters.size());
    std::vector<int32_t> members;
    for (int32_t i = first; i < first + matricesPerShape; ++i) {
      members.push_back(i);
      plan.parameters.push_back({concat("w", i), rows, cols, ElementType::F32,
                                 ElementType::F32, states, 0});
    }
    group.buckets.push_back({static_cast<int32_t>(group.buckets.size()),
                             members, matricesPerShape});
  }
  return plan;
}

/// Has all buckets take part in every launch, with workspaces of their own.
static void runInLockStep(StepPlan &plan) {
  BucketGroup &group = plan.phases[0][0];
  for (Bucket &bucket : group.buckets) {
    bucket.workspaceOffset = plan.workspaceBytes;
    plan.workspaceBytes += plan.slotBytes(bucket);
  }
  size_t numLaunches = plan.sequences[0].launches.size();
  for (size_t i = 0; i < numLaunches; ++i) {
    std::vector<LaunchPart> &parts = group.launches.emplace_back();
    for (size_t j = 0; j < group.buckets.size(); ++j) {
      parts.push_back({static_cast<int32_t>(j), static_cast<int32_t>(i)});
    }
  }
}

StepPlan momentumPlan() {
  StepPlan plan = basePlan(momentumShapes, {{"m", 0, 0, ElementType::F32}});
  plan.scalarSets = {{{"rate", "mu"}}};
  plan.kernels = {{"momentum", Schedule::Elementwise, 256}};
  for (auto [rows, cols] : momentumShapes) {
    Operand w = modelOperand(BufferKind::Param, rows, cols),
            g = modelOperand(BufferKind::Grad, rows, cols),
            m = modelOperand(BufferKind::State, rows, cols);
    Sequence sequence;
    int32_t rate = sequence.program.argument(0),
            mu = sequence.program.argument(1);
    sequence.launches = {elementwise(0, {w, g, m, w, m}, 3, {rate, mu})};
    plan.sequences.push_back(sequence);
  }
  plan.kernels[0].signature = Signature::of(plan.sequences[0].launches[0]);
  runInLockStep(plan);
  return plan;
}

StepPlan detourPlan() {
  StepPlan plan = basePlan(detourShapes, {});
  plan.scalarSets = {{{"rate"}}};
  plan.kernels = {{"transpose_f32", Schedule::Transpose, 256},
                  {"descent", Schedule::Elementwise, 256}};
  for (auto [rows, cols] : detourShapes) {
    int64_t bytes = roundUp(rows * cols * 4, bufferAlignment(Target::Cuda));
    Operand w = modelOperand(BufferKind::Param, rows, cols),
            g = modelOperand(BufferKind::Grad, rows, cols),
            there = workspaceOperand(cols, rows, 0),
            back = workspaceOperand(rows, cols, bytes);
    Sequence sequence;
    int32_t rate = sequence.program.argument(0);
    sequence.launches = {transpose(g, there), transpose(there, back),
                         elementwise(1, {w, back, w}, 2, {rate})};
    sequence.workspaceBytes = 2 * bytes;
    plan.sequences.push_back(sequence);
  }
  for (const Launch &launch : plan.sequences[0].launches) {
    plan.kernels[launch.kernel].signature = Signature::of(launch);
  }
  runInLockStep(plan);
  return plan;
}

HostModel::HostModel(const StepPlan &plan, int64_t padding) {
  float value = 0.5f;
  for (const ParameterPlan &parameter : plan.parameters) {
    for (size_t i = 0; i < 2 + parameter.states.size(); ++i) {
      std::vector<float> &added =
          memory.emplace_back(parameter.rows * (parameter.cols + padding));
      for (float &element : added) {
        // Bounded, and never twice the same in a row.
        value = value < 0 ? -0.75f * value : 0.3f - 1.1f * value;
        element = value;
      }
    }
  }
  size_t buffer = 0;
  for (const ParameterPlan &parameter : plan.parameters) {
    for (size_t i = 0; i < 2 + parameter.states.size(); ++i, ++buffer) {
      buffers.push_back({memory[buffer].data(), parameter.cols + padding});
    }
  }
}

/// Calls `visit` with all buffers' elements, matrix by matrix.
template <typename Visit>
static void forEachElement(HostModel &model, const StepPlan &plan,
                           Visit visit) {
  size_t first = 0;
  for (const ParameterPlan &parameter : plan.parameters) {
    int64_t stride = model.buffers[first].row_stride;
    for (int64_t i = 0; i < parameter.rows; ++i) {
      for (int64_t j = 0; j < parameter.cols; ++j) {
        visit(first, i * stride + j);
      }
    }
    first += 2 + parameter.states.size();
  }
}

void momentumStep(HostModel &model, const StepPlan &plan, float rate,
                  float mu) {
  forEachElement(model, plan, [&](size_t first, int64_t at) {
    float &m = model.memory[first + 2][at];
    float scaled = mu * m;
    m = scaled + model.memory[first + 1][at];
    float change = rate * m;
    model.memory[first][at] -= change;
  });
}

void descentStep(HostModel &model, const StepPlan &plan, float rate) {
  forEachElement(model, plan, [&](size_t first, int64_t at) {
    float change = rate * model.memory[first + 1][at];
    model.memory[first][at] -= change;
  });
}

Result<int64_t> step(Executor &executor, const HostModel &model, int64_t count,
                     const std::vector<double> &values, void *stream,
                     bool checkFinite) {
  KaonScalars scalars{values.data(), static_cast<int64_t>(values.size())};
  return executor.step({count, model.buffers.data(),
                        static_cast<int64_t>(model.buffers.size()), &scalars, 1,
                        checkFinite},
                       stream);
}

//===----------------------------------------------------------------------===//
// Scenarios
//===----------------------------------------------------------------------===//

namespace {
/// A stream of the program around the launcher.
class UserStream {
public:
  UserStream() : handle(FakeControls::get().stream_create()) {}
  ~UserStream() { FakeControls::get().stream_destroy(handle); }
  UserStream(const UserStream &) = delete;
  UserStream &operator=(const UserStream &) = delete;

  void *const handle;
};

/// Lets a stream do nothing as long as it lives.
class Blocked {
public:
  explicit Blocked(const UserStream &stream) : stream(stream) {
    FakeControls::get().stream_block(stream.handle);
  }
  ~Blocked() { FakeControls::get().stream_unblock(stream.handle); }
  Blocked(const Blocked &) = delete;
  Blocked &operator=(const Blocked &) = delete;

private:
  const UserStream &stream;
};
} // namespace

static Result<std::unique_ptr<Executor>> makeExecutor(const StepPlan &plan,
                                                      bool graphs) {
  CudaOptions options;
  options.graphs = graphs;
  return Executor::create(plan, std::make_unique<CudaBackend>(
                                    openFake(), declareKernels(), options));
}

/// Many steps without waiting, with a check now and then.
static Status runManySteps(bool graphs) {
  StepPlan plan = momentumPlan();
  Result<std::unique_ptr<Executor>> executor = makeExecutor(plan, graphs);
  KAON_RETURN_IF_ERROR(executor.status());
  HostModel model(plan), expected(plan);
  UserStream stream;
  for (int64_t count = 1; count <= 12; ++count) {
    double rate = 0.5 / static_cast<double>(count);
    Result<int64_t> found = step(**executor, model, count, {rate, 0.5},
                                 stream.handle, count % 5 == 0);
    KAON_RETURN_IF_ERROR(found.status());
    momentumStep(expected, plan, static_cast<float>(rate), 0.5f);
  }
  KAON_RETURN_IF_ERROR((*executor)->synchronize());
  return model.memory == expected.memory
             ? Status::success()
             : Status::failure("many steps: wrong results");
}

/// Steps on two streams, of which the first one is slow.
static Status runTwoStreams(bool graphs) {
  StepPlan plan = detourPlan();
  Result<std::unique_ptr<Executor>> executor = makeExecutor(plan, graphs);
  KAON_RETURN_IF_ERROR(executor.status());
  HostModel model(plan), other(plan), expected(plan), otherExpected(plan);
  UserStream slow, fast;
  {
    Blocked blocked(slow);
    Result<int64_t> first =
        step(**executor, model, 1, {0.25}, slow.handle, false);
    KAON_RETURN_IF_ERROR(first.status());
    Result<int64_t> second =
        step(**executor, other, 2, {0.5}, fast.handle, false);
    KAON_RETURN_IF_ERROR(second.status());
    descentStep(expected, plan, 0.25f);
    descentStep(otherExpected, plan, 0.5f);
    // Long enough for a stream that does not wait to be done.
    struct timespec pause = {0, 3'000'000};
    nanosleep(&pause, nullptr);
  }
  KAON_RETURN_IF_ERROR((*executor)->synchronize());
  return model.memory == expected.memory && other.memory == otherExpected.memory
             ? Status::success()
             : Status::failure("two streams: wrong results");
}

/// Rows that are apart, then together, then without some gradients.
static Status runChanges(bool graphs) {
  StepPlan plan = momentumPlan();
  Result<std::unique_ptr<Executor>> executor = makeExecutor(plan, graphs);
  KAON_RETURN_IF_ERROR(executor.status());
  for (int64_t padding : {0, 3, 1, 0}) {
    HostModel model(plan, padding), expected(plan, padding);
    Result<int64_t> all = step(**executor, model, 1, {0.25, 0.5}, nullptr,
                               /*checkFinite=*/true);
    KAON_RETURN_IF_ERROR(all.status());
    momentumStep(expected, plan, 0.25f, 0.5f);
    KAON_RETURN_IF_ERROR((*executor)->synchronize());
    if (model.memory != expected.memory) {
      return Status::failure("rows ", padding, " apart: wrong results");
    }
    if (padding != 1) {
      continue;
    }
    std::vector<std::vector<float>> before = model.memory;
    model.buffers[4].data = nullptr; // The gradient of the second matrix.
    momentumStep(expected, plan, 0.25f, 0.5f);
    for (size_t i : {3, 5}) {
      expected.memory[i] = before[i];
    }
    Result<int64_t> most = step(**executor, model, 2, {0.25, 0.5});
    KAON_RETURN_IF_ERROR(most.status());
    KAON_RETURN_IF_ERROR((*executor)->synchronize());
    if (model.memory != expected.memory) {
      return Status::failure("without a gradient: wrong results");
    }
  }
  return Status::success();
}

/// A gradient that is not finite, and then is.
static Status runCheck(bool graphs) {
  StepPlan plan = momentumPlan();
  Result<std::unique_ptr<Executor>> executor = makeExecutor(plan, graphs);
  KAON_RETURN_IF_ERROR(executor.status());
  HostModel model(plan);
  float &element = model.memory[1][17];
  float kept = element;
  for (bool isFinite : {false, true, false}) {
    element = isFinite ? kept : INFINITY;
    Result<int64_t> found =
        step(**executor, model, 1, {0.25, 0.5}, nullptr, /*checkFinite=*/true);
    KAON_RETURN_IF_ERROR(found.status());
    if (*found != (isFinite ? 0 : 1)) {
      return Status::failure("check: found ", *found, " gradients");
    }
    KAON_RETURN_IF_ERROR((*executor)->synchronize());
  }
  return Status::success();
}

/// Questions of another thread while steps make tables anew.
static Status runQuestions(bool graphs) {
  StepPlan plan = momentumPlan();
  CudaOptions options;
  options.graphs = graphs;
  auto owned =
      std::make_unique<CudaBackend>(openFake(), declareKernels(), options);
  CudaBackend &backend = *owned;
  Result<std::unique_ptr<Executor>> executor =
      Executor::create(plan, std::move(owned));
  KAON_RETURN_IF_ERROR(executor.status());
  std::atomic<bool> isDone = false;
  bool isOdd = false;
  std::thread asking([&] {
    while (!isDone) {
      Result<std::vector<std::string_view>> kernels = backend.kernelsOf(0);
      isOdd |= !kernels.ok() || kernels->size() != 1 ||
               backend.numGraphLaunches() > backend.numKernelLaunches() ||
               backend.tableBytes() <= 0;
    }
  });
  HostModel near(plan, 0), far(plan, 3);
  Status status = Status::success();
  for (int64_t count = 1; count <= 4 && status.ok(); ++count) {
    status =
        step(**executor, count % 2 ? near : far, count, {0.25, 0.5}).status();
  }
  isDone = true;
  asking.join();
  KAON_RETURN_IF_ERROR(status);
  KAON_RETURN_IF_ERROR((*executor)->synchronize());
  return isOdd ? Status::failure("questions: an answer in between")
               : Status::success();
}

std::string runScenarios(uint32_t seed, bool graphs) {
  const FakeControls &fake = FakeControls::get();
  fake.set_delays(seed, seed == 0 ? 0 : 300);
  std::string wrong;
  for (auto *scenario :
       {runManySteps, runTwoStreams, runChanges, runCheck, runQuestions}) {
    Status status = scenario(graphs);
    wrong += status.ok() ? "" : status.message() + "\n";
    // A stream may have been left with work for memory that is gone.
    wrong += fake.takeFaults();
    if (!wrong.empty()) {
      break;
    }
  }
  fake.set_delays(0, 0);
  return wrong;
}

} // namespace kaon::test
