//===-- Executor.h - replays a step plan ------------------------*- C++ -*-===//
//
// Binds the plan's operands to the model's memory and launches its kernels,
// phase by phase. Everything a step needs is allocated when the executor is
// made.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_EXECUTOR_H
#define KAON_RUNTIME_EXECUTOR_H

#include "runtime/Backend.h"
#include "runtime/Status.h"
#include "runtime/StepPlan.h"
#include "runtime/kaon_runtime.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kaon::runtime {

class Executor {
public:
  /// Checks the plan and gets `backend` ready for it.
  static Result<std::unique_ptr<Executor>>
  create(StepPlan plan, std::unique_ptr<Backend> backend);

  const StepPlan &plan() const { return stepPlan; }

  /// Buffers that a step takes: parameter, gradient and states of each matrix.
  int64_t numBuffers() const { return firstBuffer.back(); }

  /// Runs one step, as kaon_runtime.h describes. Returns the number of
  /// gradients that are not finite; when it is not 0, nothing was changed. A
  /// failure is found before anything is changed, too.
  /// On a device, `stream` is what the step runs on, and the step may return
  /// before it is done.
  Result<int64_t> step(const KaonStep &arguments, void *stream = nullptr);

  /// Waits until all steps are done.
  Status synchronize() { return backend->synchronize(); }

  /// Where kernels run.
  const Backend &device() const { return *backend; }

  /// How many matrices kernel number `kernel` of the plan ran on so far.
  int64_t matrixCount(size_t kernel) const {
    return matrixCounts[kernel].load(std::memory_order_relaxed);
  }

private:
  /// One evaluation of a scalar program.
  struct Evaluation {
    int32_t sequence;
    int32_t scalarSet;
    int64_t firstScalar; // of its launches, in launchScalars
  };

  struct PhaseBucket {
    const Bucket *bucket;
    std::vector<int32_t> evaluations; // one per member, into Phase::evaluations
    std::vector<int32_t> active; // positions of the members with a gradient
  };

  struct PhaseGroup {
    const BucketGroup *group;
    std::vector<PhaseBucket> buckets;
  };

  struct Phase {
    std::vector<Evaluation> evaluations;
    std::vector<PhaseGroup> groups;
    /// Which parameters had a gradient when the schedule was made.
    std::vector<bool> active;
  };

  Executor(StepPlan plan, std::unique_ptr<Backend> backend);

  void prepareBuffers();
  void noteRowViews(const Bucket &bucket);
  void preparePhases();
  Phase preparePhase(const PhasePlan &planned,
                     std::span<const int64_t> numScalars);

  Status checkArguments(const KaonStep &arguments) const;
  Status checkBuffers(const KaonBuffer *buffers) const;
  Status checkBuffer(const KaonBuffer &buffer, int64_t index, int64_t rows,
                     int64_t cols, ElementType type) const;
  std::string describeBuffer(int64_t index) const;

  bool isActive(int32_t parameter, const KaonBuffer *buffers) const {
    return buffers[firstBuffer[parameter] + 1].data;
  }
  Result<int64_t> runStep(const KaonStep &arguments);
  Result<int64_t> countNonFinite(const KaonBuffer *buffers);
  void evaluateScalars(const Phase &phase, const KaonStep &arguments);

  /// Makes the schedule anew if other parameters have gradients than last time.
  void updateSchedule(size_t index, const KaonBuffer *buffers);
  void makeSchedule(size_t index);
  void scheduleRound(const Phase &phase, const PhaseGroup &group, int64_t round,
                     PhaseSchedule &schedule);
  void schedulePart(const Phase &phase, const PhaseBucket &bucket,
                    int32_t index, int64_t round, PhaseSchedule &schedule);
  OperandBinding bind(const Operand &operand, int32_t parameter,
                      int64_t slot) const;

  StepPlan stepPlan;
  std::unique_ptr<Backend> backend;
  std::vector<Phase> phases;            // that differ from each other
  std::vector<PhaseSchedule> schedules; // of phases
  std::vector<size_t> phaseIndices;     // of the plan's phases, into phases
  std::vector<int64_t>
      firstBuffer; // of each parameter; then the number of buffers
  // Buffers that a launch sees as the transpose of a column.
  std::vector<bool> isViewedAsRow;
  // Where the scalars of each launch of a sequence start, after Evaluation's.
  std::vector<std::vector<int64_t>> scalarOffsets;

  // Filled anew by every step.
  std::vector<double> registers;
  std::vector<double> launchScalars;
  std::vector<BoundGradient> gradients;

  std::unique_ptr<std::atomic<int64_t>[]> matrixCounts;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_EXECUTOR_H
