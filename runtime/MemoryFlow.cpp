//===-- MemoryFlow.cpp - what launches leave for each other ---------------===//
//
// Runs a sequence on a workspace that knows what lies where. Offsets, pitches
// and the order of launches are free as such; what is not is that one reads
// what another wrote, as it wrote it.
//
//===----------------------------------------------------------------------===//

#include "runtime/PlanChecks.h"

#include <algorithm>

using namespace kaon::runtime;

namespace {

/// A result in the workspace.
struct Written {
  const Operand *operand;
  std::string path;
  size_t index;         // of the launch
  const Launch *launch; // that wrote it
  bool isRead = false;
};

class Workspace {
public:
  Workspace(const std::string &path, const StepPlan &plan)
      : path(path), plan(plan) {}

  Status run(const Sequence &sequence);

private:
  Status read(const std::string &operandPath, const Launch &launch,
              size_t index);
  Status checkPacked(const std::string &operandPath, const Launch &launch,
                     size_t index, const Written &written) const;
  Status write(size_t index, const Launch &launch);
  Status checkWritten(const std::string &operandPath, const Launch &launch,
                      size_t result) const;
  Status checkNeeded(const Written &written) const;

  const std::string &path;
  const StepPlan &plan;
  std::vector<Written> memory; // what is there, apart from each other
};

} // namespace

/// Whether two operands have memory in common.
static bool meet(const Operand &a, const Operand &b) {
  if (a.kind != b.kind) {
    return false;
  }
  switch (a.kind) {
  case BufferKind::Param:
  case BufferKind::Grad:
    return true;
  case BufferKind::State:
    return a.index == b.index;
  case BufferKind::Workspace:
    break;
  }
  return a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

/// Whether two operands are the same matrix in the same memory.
static bool areSame(const Operand &a, const Operand &b) {
  return meet(a, b) && a.offset == b.offset && a.rows == b.rows &&
         a.cols == b.cols && a.type == b.type && a.pitch == b.pitch;
}

/// Whether `a` is the vector `b`, turned, with elements side by side.
static bool isTurned(const Operand &a, const Operand &b) {
  const Operand &column = a.cols == 1 ? a : b;
  return a.rows == b.cols && a.cols == b.rows && a.type == b.type &&
         a.offset == b.offset && (a.rows == 1 || a.cols == 1) &&
         (column.rows == 1 || column.pitch == 1);
}

static std::string describe(const Operand &operand) {
  return concat(describeShape(operand.rows, operand.cols, operand.type),
                " at byte ", operand.offset, " with pitch ", operand.pitch);
}

/// Whether a launch loads each element of an operand before it stores that of a
/// result over it.
static bool mayOverwrite(Schedule schedule, const Launch &launch,
                         size_t operand) {
  return schedule == Schedule::Elementwise || schedule == Schedule::Rows ||
         schedule == Schedule::Columns ||
         (schedule == Schedule::Matmul &&
          operand == ProductExtras::of(launch.operands.size(), launch.hasFactor)
                         .addend);
}

/// A product on the CPU adds up what was packed, from the first to the last:
/// how much that is, the padding of slivers hides.
Status Workspace::checkPacked(const std::string &operandPath,
                              const Launch &launch, size_t index,
                              const Written &written) const {
  bool isPacked = plan.target == Target::Cpu && index < 2 &&
                  plan.kernels[launch.kernel].schedule == Schedule::Matmul;
  if (!isPacked) {
    return Status::success();
  }
  std::vector<int64_t> wanted = {launch.sizes[index], launch.sizes[2]};
  const Launch &pack = *written.launch;
  if (plan.kernels[pack.kernel].schedule == Schedule::Pack &&
      pack.sizes == wanted) {
    return Status::success();
  }
  return Status::failure(operandPath, ": expects slivers of ", wanted[0],
                         " vectors of length ", wanted[1],
                         ", but got those of launch ", written.index, " ('",
                         plan.kernels[pack.kernel].name, "') with sizes ",
                         pack.sizes[0], "x", pack.sizes[1]);
}

Status Workspace::read(const std::string &operandPath, const Launch &launch,
                       size_t index) {
  const Operand &operand = launch.operands[index];
  if (operand.kind != BufferKind::Workspace) {
    return Status::success();
  }
  auto found =
      std::find_if(memory.begin(), memory.end(), [&](const Written &written) {
        return meet(*written.operand, operand);
      });
  if (found == memory.end()) {
    return Status::failure(operandPath,
                           ": expects to read what a launch before wrote, but "
                           "none wrote the ",
                           describe(operand));
  }
  if (!areSame(*found->operand, operand) &&
      !isTurned(*found->operand, operand)) {
    return Status::failure(operandPath, ": expects the ",
                           describe(*found->operand), " that launch ",
                           found->index, " wrote there, but got the ",
                           describe(operand));
  }
  found->isRead = true;
  return checkPacked(operandPath, launch, index, *found);
}

/// Checks that a result lies over nothing that the launch needs otherwise.
Status Workspace::checkWritten(const std::string &operandPath,
                               const Launch &launch, size_t result) const {
  const Operand &operand = launch.operands[result];
  Schedule schedule = plan.kernels[launch.kernel].schedule;
  for (size_t i = 0; i < result; ++i) {
    const Operand &other = launch.operands[i];
    bool isResult = static_cast<int64_t>(i) >= launch.numInputs;
    bool isInPlace = !isResult && areSame(operand, other) &&
                     mayOverwrite(schedule, launch, i);
    if (meet(operand, other) && !isInPlace) {
      return Status::failure(
          operandPath, ": expects memory apart from that of operand ", i,
          isResult ? ", which is written, too"
                   : ", which is still read, or to replace it element by "
                     "element",
          ", but got the ", stringify(operand.kind),
          operand.kind == BufferKind::Workspace
              ? concat("'s ", describe(operand))
              : "");
    }
  }
  return Status::success();
}

/// What nobody reads was meant for somebody.
Status Workspace::checkNeeded(const Written &written) const {
  if (written.isRead) {
    return Status::success();
  }
  return Status::failure(written.path,
                         ": expects a launch that reads it before it is "
                         "overwritten, but there is none");
}

Status Workspace::write(size_t index, const Launch &launch) {
  std::vector<Written> results;
  for (size_t i = launch.numInputs; i < launch.operands.size(); ++i) {
    const Operand &operand = launch.operands[i];
    std::string operandPath =
        concat(path, ".launches[", index, "].operands[", i, "]");
    KAON_RETURN_IF_ERROR(checkWritten(operandPath, launch, i));
    if (operand.kind != BufferKind::Workspace) {
      continue;
    }
    for (const Written &old : memory) {
      if (meet(*old.operand, operand)) {
        KAON_RETURN_IF_ERROR(checkNeeded(old));
      }
    }
    std::erase_if(memory, [&](const Written &old) {
      return meet(*old.operand, operand);
    });
    results.push_back({&operand, std::move(operandPath), index, &launch});
  }
  std::move(results.begin(), results.end(), std::back_inserter(memory));
  return Status::success();
}

Status Workspace::run(const Sequence &sequence) {
  for (size_t i = 0; i < sequence.launches.size(); ++i) {
    const Launch &launch = sequence.launches[i];
    for (int32_t j = 0; j < launch.numInputs; ++j) {
      KAON_RETURN_IF_ERROR(
          read(concat(path, ".launches[", i, "].operands[", j, "]"), launch,
               static_cast<size_t>(j)));
    }
    KAON_RETURN_IF_ERROR(write(i, launch));
  }
  for (const Written &written : memory) {
    KAON_RETURN_IF_ERROR(checkNeeded(written));
  }
  return Status::success();
}

Status kaon::runtime::checkMemoryFlow(const std::string &path,
                                      const StepPlan &plan,
                                      const Sequence &sequence) {
  return Workspace(path, plan).run(sequence);
}
