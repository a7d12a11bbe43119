//===-- Scenarios.h - the launcher on the imitated driver -------*- C++ -*-===//
//
// Plans by hand, run by the launcher with kernels in the shim. Shared by the
// tests and by the mutants of the launcher, which the same scenarios must
// notice.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_FAKE_SCENARIOS_H
#define KAON_TEST_CUDA_FAKE_SCENARIOS_H

#include "runtime/Executor.h"
#include "runtime/StepPlan.h"
#include "runtime/cuda/CudaBackend.h"
#include "test/cuda/fake/FakeCuda.h"

#include <memory>
#include <string>
#include <vector>

namespace kaon::test {

/// ThreadSanitizer keeps much for each of the thousands of threads of a launch,
/// so with it there is less of everything.
#if defined(__SANITIZE_THREAD__)
constexpr bool hasThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool hasThreadSanitizer = true;
#else
constexpr bool hasThreadSanitizer = false;
#endif
#else
constexpr bool hasThreadSanitizer = false;
#endif

/// The fake's controls, found in the library that the driver is.
struct FakeControls {
  static const FakeControls &get();

#define KAON_FAKE_CONTROL(name) decltype(&kaon_fake_cuda_##name) name = nullptr
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

  /// Everything that was wrong since the last call, one per line.
  std::string takeFaults() const;
};

/// The fake, as a driver.
std::shared_ptr<runtime::cuda::CudaDriver> openFake();

/// PTX that declares the kernels of this folder. The fake looks for nothing
/// else in it.
runtime::cuda::Images declareKernels();

/// Momentum descent on matrices of two shapes: one launch in all.
runtime::StepPlan momentumPlan();
/// Descent by a gradient that goes through the workspace twice: every launch
/// needs the one before.
runtime::StepPlan detourPlan();

/// Parameters, gradients and states for a plan.
struct HostModel {
  explicit HostModel(const runtime::StepPlan &plan, int64_t padding = 0);

  std::vector<std::vector<float>> memory;
  std::vector<KaonBuffer> buffers;
};

/// What a step of either plan does, in plain loops.
void momentumStep(HostModel &model, const runtime::StepPlan &plan, float rate,
                  float mu);
void descentStep(HostModel &model, const runtime::StepPlan &plan, float rate);

runtime::Result<int64_t> step(runtime::Executor &executor,
                              const HostModel &model, int64_t count,
                              const std::vector<double> &values,
                              void *stream = nullptr, bool checkFinite = false);

/// Runs all scenarios with one seed; the first thing that was wrong, or
/// nothing.
std::string runScenarios(uint32_t seed, bool graphs);

} // namespace kaon::test

#endif // KAON_TEST_CUDA_FAKE_SCENARIOS_H
