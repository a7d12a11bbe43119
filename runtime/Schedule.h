//===-- Schedule.h - what the launches of a phase work on -------*- C++ -*-===//
//
// A phase with some of its gradients missing is a fixed list of launches over
// fixed matrices, in which only pointers and scalars change from step to step.
// The executor makes that list anew when the set of gradients changes; backends
// replay it.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_SCHEDULE_H
#define KAON_RUNTIME_SCHEDULE_H

#include "runtime/KernelAbi.h"
#include "runtime/StepPlan.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kaon::runtime {

/// Where an operand of one matrix lies in every step.
struct OperandBinding {
  static constexpr int32_t workspace = -1;

  int32_t buffer = workspace; // of the step's buffers
  bool hasOwnStride = false;  // rows are as far apart as in the step's buffer
  int64_t offset = 0;         // bytes from the start of the workspace
  int64_t stride = 0;         // between rows, unless it is the buffer's

  /// The operand in a step with these buffers.
  KaonBuffer resolve(std::byte *workspaceStart,
                     const KaonBuffer *buffers) const {
    if (buffer == workspace) {
      return {workspaceStart + offset, stride};
    }
    const KaonBuffer &own = buffers[buffer];
    return {own.data, hasOwnStride ? own.row_stride : stride};
  }
};

/// One matrix of a launch of the device.
struct ScheduledMatrix {
  const Launch *launch; // of its bucket's sequence
  size_t firstBinding;  // of one per operand
  size_t firstScalar;   // in the scalars of the step
};

/// A launch of the device. It has matrices: those without a gradient are left
/// out, and what is left empty by that.
struct ScheduledLaunch {
  int32_t kernel; // of the plan
  size_t firstMatrix;
  size_t numMatrices;
};

struct PhaseSchedule {
  std::vector<ScheduledLaunch> launches; // in order
  std::vector<ScheduledMatrix> matrices;
  std::vector<OperandBinding> bindings;
  size_t numScalars = 0; // of a step
  /// Grows whenever the lists change.
  uint64_t version = 0;

  std::span<const ScheduledMatrix>
  matricesOf(const ScheduledLaunch &launch) const {
    return std::span(matrices).subspan(launch.firstMatrix, launch.numMatrices);
  }
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_SCHEDULE_H
