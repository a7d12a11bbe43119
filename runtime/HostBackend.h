//===-- HostBackend.h - running kernels on the processor --------*- C++ -*-===//
//
// Runs launches on the process's thread pool. The items of all matrices of a
// launch form one range that threads share, so that many small matrices cost
// one launch. Elementwise kernels on contiguous matrices see them as rows of
// elementwiseColumns elements and a tail, whatever their shape is.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_HOSTBACKEND_H
#define KAON_RUNTIME_HOSTBACKEND_H

#include "runtime/Arena.h"
#include "runtime/Backend.h"
#include "runtime/KernelTable.h"
#include "runtime/ThreadPool.h"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace kaon::runtime {

/// One matrix of a launch.
struct BoundLaunch {
  const KaonBuffer *buffers; // one per operand
  const double *scalars;
};

class HostBackend final : public Backend {
public:
  /// Row length that elementwise kernels see: 32 KiB of f32 per operand.
  static constexpr int64_t elementwiseColumns = 8192;

  /// Work items of a `columns` kernel that stay together: two cache lines of
  /// f32, so that threads read whole lines and leave those of others alone.
  static constexpr int64_t columnUnit = 32;

  /// `threads` counts the calling thread; 0 stands for the pool's limit.
  HostBackend(KernelTable kernels, int threads);

  Status prepare(const StepPlan &plan,
                 std::span<const PhaseSchedule> schedules) override;
  Status beginStep(void *stream) override;
  Status endStep() override;
  Status runPhase(const PhaseRun &run) override;
  Result<int64_t>
  countNonFinite(std::span<const BoundGradient> gradients) override;
  /// A step of the host is done when it returns.
  Status synchronize() override { return Status::success(); }

private:
  /// Runs a launch on some matrices and waits for it.
  void run(const Launch &launch, std::span<const BoundLaunch> matrices);

  const KernelTable table;
  const int threads;
  const StepPlan *plan = nullptr;
  std::vector<KaonKernelFn> kernels; // of the plan
  Arena workspaceArena;
  // Of the launch that runs.
  std::vector<KaonBuffer> bindings;
  std::vector<BoundLaunch> boundLaunches;
  // For each matrix of a launch or gradient check, where its items end in the
  // range that threads share.
  std::vector<int64_t> itemEnds;
  std::vector<KaonBuffer>
      reshaped; // buffers of elementwise launches; see HostLaunch
  std::unique_ptr<std::atomic<bool>[]> isNonFinite;
  std::optional<ThreadPool::Session> session; // of the step that runs
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_HOSTBACKEND_H
