//===-- CudaBackend.cpp - running kernels on a GPU ------------------------===//
//
// Whatever touches the driver runs with the device's primary context current.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/CudaBackend.h"

#include "runtime/Math.h"

#include <algorithm>
#include <cassert>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

// What kernels take: two tables and scalars, or a list of products and scalars.
static constexpr std::array<CubinParameter, 3> tableParameters = {
    {{0, 8}, {8, 8}, {16, 8}}};
static constexpr std::array<CubinParameter, 2> productParameters = {
    {{0, sizeof(ProductList)}, {sizeof(ProductList), 8}}};

// Threads of a block that looks at gradients.
static constexpr int64_t checkThreads = 256;

CudaBackend::CudaBackend(std::shared_ptr<CudaDriver> driver, Images images,
                         CudaOptions options)
    : driver(std::move(driver)), images(std::move(images)),
      options(std::move(options)) {}

CudaBackend::~CudaBackend() {
  if (!context) {
    return;
  }
  ContextScope scope(*driver, context);
  if (scope.status().ok()) {
    (void)done.synchronize();
  }
  // In the order in which they need each other, with the context there.
  check.reset();
  phases.clear();
  flags = PinnedMemory();
  done = CudaEvent();
  finiteChecks.clear();
  kernels.clear();
  memory.reset();
  (*driver)->primaryContextRelease(device);
}

//===----------------------------------------------------------------------===//
// Getting ready
//===----------------------------------------------------------------------===//

Status CudaBackend::prepare(const StepPlan &stepPlan,
                            std::span<const PhaseSchedule> schedules) {
  KAON_RETURN_IF_ERROR(stepPlan.requireTarget(Target::Cuda));
  plan = &stepPlan;
  Result<DeviceInfo> found = driver->deviceInfo(options.device);
  KAON_RETURN_IF_ERROR(found.status());
  info = *found;
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->deviceGet(&device, options.device), "device ",
                    options.device, ": cuDeviceGet failed"));
  KAON_RETURN_IF_ERROR(driver->check(
      (*driver)->primaryContextRetain(&context, device), "device ",
      options.device, " (", info.name, "): cuDevicePrimaryCtxRetain failed"));
  ContextScope scope(*driver, context);
  KAON_RETURN_IF_ERROR(scope.status());

  memory.emplace(driver, options.allocate);
  Result<CudaEvent> event = CudaEvent::create(driver);
  KAON_RETURN_IF_ERROR(event.status());
  done = std::move(*event);
  KAON_RETURN_IF_ERROR(loadKernels());
  KAON_RETURN_IF_ERROR(loadFiniteChecks());
  Result<Address> taken = memory->take(plan->workspaceBytes, "workspace");
  KAON_RETURN_IF_ERROR(taken.status());
  workspace = *taken;
  KAON_RETURN_IF_ERROR(preparePhases(schedules));
  images.clear();
  return Status::success();
}

Status CudaBackend::loadKernels() {
  std::vector<int64_t> sharedBytes(plan->kernels.size(), 0);
  for (const Sequence &sequence : plan->sequences) {
    for (const Launch &launch : sequence.launches) {
      sharedBytes[launch.kernel] =
          std::max(sharedBytes[launch.kernel], launch.sharedBytes);
    }
  }
  for (size_t i = 0; i < plan->kernels.size(); ++i) {
    const KernelPlan &kernel = plan->kernels[i];
    KernelUse use{tableParameters, kernel.threads, sharedBytes[i]};
    if (kernel.schedule == Schedule::Matmul) {
      use.parameters = productParameters;
    }
    Result<CudaKernel> loaded =
        CudaKernel::load(driver, info, images, kernel.name, use);
    KAON_RETURN_IF_ERROR(loaded.status());
    kernels.push_back(std::move(*loaded));
  }
  return Status::success();
}

static std::string nameOfCheck(ElementType type) {
  return concat("check_finite_", stringify(type));
}

Status CudaBackend::loadFiniteChecks() {
  for (ElementType type : {ElementType::F16, ElementType::BF16,
                           ElementType::F32, ElementType::F64}) {
    std::string name = nameOfCheck(type);
    bool isNeeded =
        std::any_of(plan->parameters.begin(), plan->parameters.end(),
                    [&](const ParameterPlan &p) { return p.gradType == type; });
    if (!isNeeded || !images.contains(name)) {
      continue;
    }
    Result<CudaKernel> loaded = CudaKernel::load(
        driver, info, images, name, {tableParameters, checkThreads, 0});
    KAON_RETURN_IF_ERROR(loaded.status());
    finiteChecks.push_back({type, std::move(*loaded)});
  }
  check.emplace(driver, *memory, workspace);
  return Status::success();
}

Status CudaBackend::preparePhases(std::span<const PhaseSchedule> schedules) {
  // The model's memory is not there yet; most of the time it has no gaps.
  std::vector<KaonBuffer> contiguous;
  for (const ParameterPlan &parameter : plan->parameters) {
    contiguous.insert(contiguous.end(), 2, {nullptr, parameter.cols});
    for (const StatePlan &state : parameter.states) {
      contiguous.push_back({nullptr, state.cols});
    }
  }
  phases.reserve(schedules.size());
  for (const PhaseSchedule &schedule : schedules) {
    Phase &phase =
        phases.emplace_back(Phase{LaunchTables(driver, *memory, workspace), 0});
    KAON_RETURN_IF_ERROR(
        build(phase, schedule, contiguous.data(), schedule.numScalars));
  }
  return Status::success();
}

Status CudaBackend::build(Phase &phase, const PhaseSchedule &schedule,
                          const KaonBuffer *buffers, size_t numScalars) {
  phase.version = 0; // Of no schedule, until the tables are there.
  phase.tables.clear(numScalars);
  for (const ScheduledLaunch &scheduled : schedule.launches) {
    requests.clear();
    // Of matrices of several shapes, the one that needs most decides.
    int64_t sharedBytes = 0;
    for (const ScheduledMatrix &matrix : schedule.matricesOf(scheduled)) {
      const Launch &launch = *matrix.launch;
      sharedBytes = std::max(sharedBytes, launch.sharedBytes);
      requests.push_back(
          {launch.operands, launch.sizes, launch.items, launch.grain,
           std::span(schedule.bindings)
               .subspan(matrix.firstBinding, launch.operands.size()),
           matrix.firstScalar, launch.hasFactor});
    }
    const KernelPlan &kernel = plan->kernels[scheduled.kernel];
    KAON_RETURN_IF_ERROR(
        phase.tables.add({&kernels[scheduled.kernel], kernel.schedule,
                          kernel.threads, sharedBytes, kernel.mappedOperands},
                         requests, buffers));
  }
  KAON_RETURN_IF_ERROR(phase.tables.finish());
  phase.version = schedule.version;
  return Status::success();
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

Status CudaBackend::beginStep(void *handle) {
  std::unique_lock<std::mutex> lock(mutex);
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->contextPush(context), "cuCtxPushCurrent"));
  auto begin = [&]() -> Status {
    auto *next = static_cast<Stream>(handle);
    CaptureStatus capture = CaptureStatus::None;
    KAON_RETURN_IF_ERROR(driver->check(
        (*driver)->streamIsCapturing(next, &capture), "cuStreamIsCapturing"));
    if (capture != CaptureStatus::None) {
      return Status::failure("step: expects a stream that is not being "
                             "captured: a graph would replay the scalars of "
                             "one step for ever");
    }
    // Tables and workspace are those of the last step. The same handle does not
    // mean the same stream: a new one may have the handle of one that is gone,
    // and each thread has its own default stream under one handle.
    if (hasRun) {
      KAON_RETURN_IF_ERROR(done.holdBack(next));
    }
    stream = next;
    return Status::success();
  };
  Status status = begin();
  if (!status.ok()) {
    Context popped = nullptr;
    (*driver)->contextPop(&popped);
    return status;
  }
  lock.release(); // endStep unlocks.
  return status;
}

Status CudaBackend::endStep() {
  std::unique_lock<std::mutex> lock(mutex, std::adopt_lock);
  hasRun = true;
  Status status = done.record(stream);
  Context popped = nullptr;
  (*driver)->contextPop(&popped);
  return status;
}

Status CudaBackend::runPhase(const PhaseRun &run) {
  Phase &phase = phases[run.index];
  if (phase.version != run.schedule.version ||
      !phase.tables.fits(run.buffers)) {
    KAON_RETURN_IF_ERROR(
        build(phase, run.schedule, run.buffers, run.scalars.size()));
  }
  KAON_RETURN_IF_ERROR(phase.tables.send(run.buffers, run.scalars, stream));
  return options.graphs ? phase.tables.replay(stream)
                        : phase.tables.launch(stream);
}

Status CudaBackend::synchronize() {
  std::lock_guard<std::mutex> lock(mutex);
  ContextScope scope(*driver, context);
  KAON_RETURN_IF_ERROR(scope.status());
  return done.synchronize();
}

//===----------------------------------------------------------------------===//
// Gradients that are not finite
//===----------------------------------------------------------------------===//

bool CudaBackend::checkFits(std::span<const BoundGradient> gradients) const {
  auto isAlike = [](const BoundGradient &a, const CheckedGradient &b) {
    return a.type == b.operand.type && a.rows == b.operand.rows &&
           a.cols == b.operand.cols;
  };
  return std::equal(gradients.begin(), gradients.end(), checked.begin(),
                    checked.end(), isAlike) &&
         check->fits(checkedBuffers.data());
}

Status CudaBackend::buildCheck(std::span<const BoundGradient> gradients) {
  checked.clear(); // Until the tables are there.
  std::vector<CheckedGradient> next(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const BoundGradient &gradient = gradients[i];
    CheckedGradient &added = next[i];
    added.operand.kind = BufferKind::Grad;
    added.operand.rows = gradient.rows;
    added.operand.cols = gradient.cols;
    added.operand.type = gradient.type;
    added.sizes = {gradient.rows, gradient.cols};
    added.binding = {static_cast<int32_t>(i), gradient.rows > 1, 0,
                     gradient.cols};
    bool hasCode = std::any_of(
        finiteChecks.begin(), finiteChecks.end(),
        [&](const FiniteCheck &c) { return c.type == gradient.type; });
    if (!hasCode) {
      return Status::failure("check_finite: expects code for the kernel '",
                             nameOfCheck(gradient.type),
                             "', but there is none");
    }
  }

  check->clear(/*numScalars=*/0);
  for (const FiniteCheck &finiteCheck : finiteChecks) {
    requests.clear();
    for (size_t i = 0; i < next.size(); ++i) {
      const CheckedGradient &gradient = next[i];
      if (gradient.operand.type == finiteCheck.type) {
        int64_t size = gradient.sizes[0] * gradient.sizes[1];
        requests.push_back({std::span(&gradient.operand, 1), gradient.sizes,
                            ceilDiv(size, cudaElementwiseGrain),
                            cudaElementwiseGrain,
                            std::span(&gradient.binding, 1), 0});
      }
    }
    if (!requests.empty()) {
      KAON_RETURN_IF_ERROR(check->add(
          {&finiteCheck.kernel, Schedule::Elementwise, checkThreads, 0},
          requests, checkedBuffers.data()));
    }
  }
  check->useFlags();
  KAON_RETURN_IF_ERROR(check->finish());
  size_t numFlags = check->numFlags();
  if (numFlags > flagsCapacity) {
    Result<PinnedMemory> taken = PinnedMemory::create(
        driver, static_cast<int64_t>(numFlags * sizeof(uint32_t)));
    KAON_RETURN_IF_ERROR(taken.status());
    flags = std::move(*taken);
    flagsCapacity = numFlags;
  }
  checked = std::move(next);
  return Status::success();
}

Result<int64_t>
CudaBackend::countNonFinite(std::span<const BoundGradient> gradients) {
  if (gradients.empty()) {
    return int64_t(0);
  }
  checkedBuffers.clear();
  for (const BoundGradient &gradient : gradients) {
    checkedBuffers.push_back(gradient.buffer);
  }
  if (!checkFits(gradients)) {
    KAON_RETURN_IF_ERROR(buildCheck(gradients));
  }
  KAON_RETURN_IF_ERROR(check->send(checkedBuffers.data(), {}, stream));
  KAON_RETURN_IF_ERROR(check->launch(stream));
  return countFlagged();
}

Result<int64_t> CudaBackend::countFlagged() {
  size_t numFlags = check->numFlags();
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->copyToHost(flags.data(), check->flags(),
                                          numFlags * sizeof(uint32_t), stream),
                    "cuMemcpyDtoHAsync: reading what was found in gradients"));
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->streamSynchronize(stream),
                    "waiting for what was found in gradients"));
  const auto *found = reinterpret_cast<const uint32_t *>(flags.data());
  return std::count_if(found, found + numFlags,
                       [](uint32_t flag) { return flag != 0; });
}

int64_t CudaBackend::tableBytes() const {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t bytes = check ? check->deviceBytes() : 0;
  for (const Phase &phase : phases) {
    bytes += phase.tables.deviceBytes();
  }
  return bytes;
}

//===----------------------------------------------------------------------===//
// What was launched, and measurements
//===----------------------------------------------------------------------===//

int64_t CudaBackend::numKernelLaunches() const {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t count = 0;
  for (const Phase &phase : phases) {
    count += phase.tables.numKernelLaunches();
  }
  return count;
}

int64_t CudaBackend::numGraphLaunches() const {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t count = 0;
  for (const Phase &phase : phases) {
    count += phase.tables.numGraphLaunches();
  }
  return count;
}

Status CudaBackend::checkPhase(size_t phase) const {
  if (phase >= phases.size()) {
    return Status::failure("cuda: expects a phase below ", phases.size(),
                           ", but got ", phase);
  }
  return Status::success();
}

Result<std::vector<std::string_view>>
CudaBackend::kernelsOf(size_t phase) const {
  KAON_RETURN_IF_ERROR(checkPhase(phase));
  std::lock_guard<std::mutex> lock(mutex);
  return phases[phase].tables.kernels();
}

Status CudaBackend::repeat(size_t phase, size_t launch, int64_t count,
                           void *handle) {
  KAON_RETURN_IF_ERROR(checkPhase(phase));
  KAON_RETURN_IF_ERROR(beginStep(handle));
  Status status = phases[phase].tables.repeat(launch, count, stream);
  Status ended = endStep();
  return status.ok() ? ended : status;
}
