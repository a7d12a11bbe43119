//===-- PlanChecks.h - checks that validate plans ---------------*- C++ -*-===//
//
// What the files that validate a plan share. Messages start with the path of a
// field.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_PLANCHECKS_H
#define KAON_RUNTIME_PLANCHECKS_H

#include "runtime/StepPlan.h"

namespace kaon::runtime {

/// Matrices with more elements than this are refused, so that numbers of bytes
/// stay far from the end of int64_t.
inline constexpr int64_t maxElements = int64_t(1) << 48;
inline constexpr int64_t maxBytes = int64_t(1) << 60;

/// `300x70 f32`.
std::string describeShape(int64_t rows, int64_t cols, ElementType type);

/// Whether there is a row and a column, and not too many elements.
bool isValidShape(int64_t rows, int64_t cols);
Status checkShape(const std::string &path, int64_t rows, int64_t cols);

/// Checks that an index is one of `count` of `what`.
Status checkIndex(const std::string &path, std::string_view what, int64_t index,
                  size_t count);

Status checkAtLeast(const std::string &path, int64_t value, int64_t least);
Status checkBetween(const std::string &path, int64_t value, int64_t least,
                    int64_t most);
Status checkMultiple(const std::string &path, int64_t value, int64_t unit,
                     std::string_view what);

/// `why`, if any, follows what is expected: ` for the schedule columns`.
Status checkEqual(const std::string &path, int64_t value, int64_t wanted,
                  std::string_view why = "");

/// Checks a kernel by itself.
Status validateKernel(const std::string &path, Target target,
                      const KernelPlan &kernel);

/// Checks a launch by itself, and against its kernel.
Status validateLaunch(const std::string &path, const Launch &launch,
                      const Sequence &sequence, const StepPlan &plan);

/// Checks what only all launches of a kernel together tell.
Status checkLaunchesAgree(const StepPlan &plan);

/// Checks that launches of `sequence` find in the workspace what one before
/// them wrote there, and overwrite nothing that is read at the same time.
Status checkMemoryFlow(const std::string &path, const StepPlan &plan,
                       const Sequence &sequence);

} // namespace kaon::runtime

#endif // KAON_RUNTIME_PLANCHECKS_H
