//===-- CudaBackend.h - running kernels on a GPU ----------------*- C++ -*-===//
//
// Replays schedules as launches over tables (LaunchTables.h). Steps return as
// soon as their work is in the stream; only a look at the gradients waits.
// Memory and tables are taken when the backend is prepared. After that a step
// takes memory only for the first look at gradients, and when a graph is made
// of a phase's kernels at its first step.
//
// Graphs are built from kernel nodes, not captured from a stream: a capture
// would break those that the program around us has under way, and be broken by
// allocations of other threads.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUDABACKEND_H
#define KAON_RUNTIME_CUDA_CUDABACKEND_H

#include "runtime/Backend.h"
#include "runtime/cuda/CudaDriver.h"
#include "runtime/cuda/CudaKernel.h"
#include "runtime/cuda/CudaResources.h"
#include "runtime/cuda/LaunchTables.h"

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace kaon::runtime::cuda {

struct CudaOptions {
  int device = 0;
  /// Where memory comes from; the driver, if empty.
  Allocate allocate;
  /// Whether the kernels of a phase are launched as one graph.
  bool graphs = true;
};

class CudaBackend final : public Backend {
public:
  /// Code for `check_finite_<type>` of the gradients' types is needed only by
  /// steps that look at them.
  CudaBackend(std::shared_ptr<CudaDriver> driver, Images images,
              CudaOptions options);
  ~CudaBackend() override;

  Status prepare(const StepPlan &plan,
                 std::span<const PhaseSchedule> schedules) override;
  Status beginStep(void *stream) override;
  Status endStep() override;
  Status runPhase(const PhaseRun &run) override;
  Result<int64_t>
  countNonFinite(std::span<const BoundGradient> gradients) override;
  Status synchronize() override;

  const CudaDriver &cudaDriver() const { return *driver; }

  // What follows may be asked while another thread runs a step, and waits until
  // it has been started. A step may ask `allocate` for memory meanwhile:
  // whoever asks must hold no lock that this needs.

  /// Bytes of device memory that tables take.
  int64_t tableBytes() const;
  /// Kernels of the plan that were launched so far, alone or as nodes of
  /// graphs, and graphs that were. One launch is one, however many matrices it
  /// covers.
  int64_t numKernelLaunches() const;
  int64_t numGraphLaunches() const;

  /// The kernels that a step of the phase launches, in order.
  Result<std::vector<std::string_view>> kernelsOf(size_t phase) const;
  /// Launches one of them `count` times more, on what the last step left in
  /// tables and workspace: for measurements of one kernel alone. The model's
  /// memory of that step must still be there.
  Status repeat(size_t phase, size_t launch, int64_t count, void *stream);

private:
  /// The tables of a phase, and the schedule that they are of.
  struct Phase {
    LaunchTables tables;
    uint64_t version = 0;
  };

  /// The kernel that looks at gradients of one type.
  struct FiniteCheck {
    ElementType type;
    CudaKernel kernel;
  };

  /// A gradient that is looked at, seen as the operand of a launch.
  struct CheckedGradient {
    Operand operand;
    std::array<int64_t, 2> sizes;
    OperandBinding binding;
  };

  Status checkPhase(size_t phase) const;
  Status loadKernels();
  Status loadFiniteChecks();
  Status preparePhases(std::span<const PhaseSchedule> schedules);
  Status build(Phase &phase, const PhaseSchedule &schedule,
               const KaonBuffer *buffers, size_t numScalars);
  Status buildCheck(std::span<const BoundGradient> gradients);
  bool checkFits(std::span<const BoundGradient> gradients) const;
  Result<int64_t> countFlagged();

  std::shared_ptr<CudaDriver> driver;
  Images images;
  CudaOptions options;
  const StepPlan *plan = nullptr;

  DeviceInfo info;
  Device device = 0;
  Context context = nullptr;
  Address workspace = 0;
  std::vector<CudaKernel> kernels; // of the plan
  std::optional<DeviceMemory> memory;
  std::vector<Phase> phases;
  std::vector<MatrixRequest> requests; // of the launch whose tables are built

  std::vector<FiniteCheck> finiteChecks;
  std::optional<LaunchTables> check;
  std::vector<CheckedGradient> checked;   // what `check` is made for
  std::vector<KaonBuffer> checkedBuffers; // of the step
  PinnedMemory flags;
  size_t flagsCapacity = 0;

  // Of the step that runs, held by beginStep until endStep.
  mutable std::mutex mutex;
  Stream stream = nullptr;
  // The end of the last step, for those on other streams and for the end.
  CudaEvent done;
  bool hasRun = false;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUDABACKEND_H
