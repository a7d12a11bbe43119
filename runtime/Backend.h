//===-- Backend.h - where an executor runs kernels --------------*- C++ -*-===//
//
// What an executor asks of a device. The executor decides what runs on which
// matrices and where their operands lie; the backend owns memory and threads.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_BACKEND_H
#define KAON_RUNTIME_BACKEND_H

#include "runtime/KernelAbi.h"
#include "runtime/Status.h"
#include "runtime/StepPlan.h"

#include <cstdint>
#include <memory>
#include <span>

namespace kaon::runtime {

/// One matrix of a launch.
struct BoundLaunch {
  const KaonBuffer *buffers; // one per operand
  const double *scalars;
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

  /// Gets ready for a validated plan: finds its kernels and takes all memory
  /// that its steps need. Called once; the plan must outlive the backend.
  virtual Status prepare(const StepPlan &plan) = 0;

  /// The workspace, plan.workspaceBytes long.
  virtual std::byte *workspace() const = 0;

  /// Brackets a step. Steps of a process take turns.
  virtual void beginStep() = 0;
  virtual void endStep() = 0;

  /// Runs a launch of the plan on some matrices and waits for it.
  virtual void run(const Launch &launch,
                   std::span<const BoundLaunch> matrices) = 0;

  /// Counts the gradients with an infinity or a NaN.
  virtual int64_t countNonFinite(std::span<const BoundGradient> gradients) = 0;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_BACKEND_H
