//===-- Backend.h - where an executor runs kernels --------------*- C++ -*-===//
//
// What an executor asks of a device. The executor decides what runs on which
// matrices and where their operands lie; the backend owns memory, threads and
// streams.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_BACKEND_H
#define KAON_RUNTIME_BACKEND_H

#include "runtime/KernelAbi.h"
#include "runtime/Schedule.h"
#include "runtime/Status.h"
#include "runtime/StepPlan.h"

#include <cstdint>
#include <memory>
#include <span>

namespace kaon::runtime {

/// One step of a phase.
struct PhaseRun {
  /// Which schedule of the executor it is; the same number stands for the same
  /// phase, with whatever gradients it has.
  size_t index;
  const PhaseSchedule &schedule;
  const KaonBuffer *buffers;       // of the step
  std::span<const double> scalars; // that the schedule's matrices point into
};

/// One gradient to look at.
struct BoundGradient {
  KaonBuffer buffer;
  int64_t rows;
  int64_t cols;
  ElementType type;
};

class Backend {
public:
  virtual ~Backend() = default;

  /// Gets ready for a validated plan: finds its kernels and takes the memory
  /// that its steps need. `schedules` are those of all phases with every
  /// gradient there. Called once; the plan must outlive the backend.
  virtual Status prepare(const StepPlan &plan,
                         std::span<const PhaseSchedule> schedules) = 0;

  /// Brackets a step, which runs in order after what `stream` already has; the
  /// host has no streams. Steps of an executor take turns. A step that could
  /// not begin does not end.
  virtual Status beginStep(void *stream) = 0;
  virtual Status endStep() = 0;

  /// Runs a schedule. On a device it may return before the work is done, and a
  /// later step meets its failures.
  virtual Status runPhase(const PhaseRun &run) = 0;

  /// Counts the gradients with an infinity or a NaN; waits for the result.
  virtual Result<int64_t>
  countNonFinite(std::span<const BoundGradient> gradients) = 0;

  /// Waits until everything is done that steps have started.
  virtual Status synchronize() = 0;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_BACKEND_H
