//===-- StepPlanValidation.cpp - whether a plan can be run ----------------===//
//
// Parameters, sequences, and what phases make of them. LaunchValidation.cpp
// checks kernels and launches one by one, MemoryFlow.cpp what those of a
// sequence leave in memory for each other.
//
//===----------------------------------------------------------------------===//

#include "runtime/PlanChecks.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

using namespace kaon::runtime;

/// Checks that the operands of `sequence` are what `parameter` has.
static Status checkMember(const std::string &path, const Sequence &sequence,
                          const ParameterPlan &parameter) {
  for (size_t i = 0; i < sequence.launches.size(); ++i) {
    const std::vector<Operand> &operands = sequence.launches[i].operands;
    for (size_t j = 0; j < operands.size(); ++j) {
      const Operand &operand = operands[j];
      int64_t rows = parameter.rows, cols = parameter.cols;
      ElementType type = operand.kind == BufferKind::Param ? parameter.paramType
                                                           : parameter.gradType;
      if (operand.kind == BufferKind::Workspace) {
        continue;
      }
      if (operand.kind == BufferKind::State) {
        KAON_RETURN_IF_ERROR(checkIndex(
            concat(path, ": launch ", i, " of '", sequence.name, "', operand ",
                   j, " of parameter '", parameter.name, "'"),
            "state", operand.index, parameter.states.size()));
        const StatePlan &state = parameter.states[operand.index];
        rows = state.rows;
        cols = state.cols;
        type = state.type;
      }
      bool isSame = operand.rows == rows && operand.cols == cols;
      bool isVectorView = operand.rows == cols && operand.cols == rows &&
                          (rows == 1 || cols == 1);
      if (!(isSame || isVectorView) || operand.type != type) {
        return Status::failure(
            path, ": parameter '", parameter.name, "' has a ",
            describeShape(rows, cols, type), " ", stringify(operand.kind),
            ", but launch ", i, " of '", sequence.name,
            "' expects its operand ", j, " to be ",
            describeShape(operand.rows, operand.cols, operand.type));
      }
    }
  }
  return Status::success();
}

static Status validateParameters(const StepPlan &plan) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const ParameterPlan &parameter = plan.parameters[i];
    std::string path = concat("parameters[", i, "]");
    KAON_RETURN_IF_ERROR(checkShape(path, parameter.rows, parameter.cols));
    for (size_t j = 0; j < parameter.states.size(); ++j) {
      const StatePlan &state = parameter.states[j];
      std::string statePath = concat(path, ".states[", j, "]");
      if ((state.rows != 1 && state.rows != parameter.rows) ||
          (state.cols != 1 && state.cols != parameter.cols)) {
        return Status::failure(
            statePath, ": expects 1 or ", parameter.rows, " rows and 1 or ",
            parameter.cols, " columns, but got ", state.rows, "x", state.cols);
      }
    }
    KAON_RETURN_IF_ERROR(checkIndex(path + ".scalarSet", "scalar set",
                                    parameter.scalarSet,
                                    plan.scalarSets.size()));
  }
  return Status::success();
}

static Status validateKernels(const StepPlan &plan) {
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const KernelPlan &kernel = plan.kernels[i];
    std::string path = concat("kernels[", i, "]");
    KAON_RETURN_IF_ERROR(validateKernel(path, plan.target, kernel));
    if (!names.insert(kernel.name).second) {
      return Status::failure(path, ".name: expects distinct names, but got '",
                             kernel.name, "' twice");
    }
  }
  return Status::success();
}

static Status validateSequences(const StepPlan &plan) {
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const Sequence &sequence = plan.sequences[i];
    std::string path = concat("sequences[", i, "]");
    if (sequence.workspaceBytes > maxBytes) {
      return Status::failure(path, ".workspaceBytes: expects at most ",
                             maxBytes, " bytes, but got ",
                             sequence.workspaceBytes);
    }
    KAON_RETURN_IF_ERROR(checkMultiple(path + ".workspaceBytes",
                                       sequence.workspaceBytes,
                                       bufferAlignment(plan.target), "bytes"));
    for (size_t j = 0; j < sequence.launches.size(); ++j) {
      KAON_RETURN_IF_ERROR(validateLaunch(concat(path, ".launches[", j, "]"),
                                          sequence.launches[j], sequence,
                                          plan));
    }
    KAON_RETURN_IF_ERROR(checkMemoryFlow(path, plan, sequence));
  }
  return checkLaunchesAgree(plan);
}

static Status validateBucket(const StepPlan &plan, const std::string &path,
                             const Bucket &bucket,
                             std::vector<bool> &isHandled) {
  KAON_RETURN_IF_ERROR(checkIndex(path + ".sequence", "sequence",
                                  bucket.sequence, plan.sequences.size()));
  const Sequence &sequence = plan.sequences[bucket.sequence];
  int64_t numMembers = static_cast<int64_t>(bucket.members.size());
  if (bucket.concurrent < 1 || bucket.concurrent > numMembers) {
    return Status::failure(path,
                           ".concurrent: expects between 1 and the bucket's ",
                           numMembers, " members, but got ", bucket.concurrent);
  }
  if (sequence.workspaceBytes > maxBytes / bucket.concurrent) {
    return Status::failure(path, ".concurrent: expects at most ", maxBytes,
                           " bytes of workspace, but got ", bucket.concurrent,
                           " times ", sequence.workspaceBytes);
  }
  KAON_RETURN_IF_ERROR(checkMultiple(path + ".workspaceOffset",
                                     bucket.workspaceOffset,
                                     bufferAlignment(plan.target), "bytes"));
  if (bucket.workspaceOffset > maxBytes) {
    return Status::failure(path, ".workspaceOffset: expects at most ", maxBytes,
                           " bytes, but got ", bucket.workspaceOffset);
  }
  for (int64_t i = 0; i < numMembers; ++i) {
    std::string memberPath = concat(path, ".members[", i, "]");
    int32_t member = bucket.members[i];
    KAON_RETURN_IF_ERROR(
        checkIndex(memberPath, "parameter", member, plan.parameters.size()));
    const ParameterPlan &parameter = plan.parameters[member];
    if (isHandled[member]) {
      return Status::failure(
          memberPath, ": expects each parameter once per phase, but got '",
          parameter.name, "' twice");
    }
    isHandled[member] = true;
    KAON_RETURN_IF_ERROR(checkMember(memberPath, sequence, parameter));
    Status status = sequence.program.validate(static_cast<int64_t>(
        plan.scalarSets[parameter.scalarSet].names.size()));
    if (!status.ok()) {
      return Status::failure(memberPath, ": scalar program of '", sequence.name,
                             "' with the scalar set ", parameter.scalarSet,
                             " of parameter '", parameter.name,
                             "': ", status.message());
    }
  }
  return Status::success();
}

/// Checks how many buckets run in lock-step, and that all of their matrices do.
static Status checkLockStep(const StepPlan &plan, const std::string &path,
                            const BucketGroup &group) {
  size_t count = group.buckets.size();
  if (count == 0 || (count > 1 && plan.target == Target::Cpu)) {
    return Status::failure(path, ".buckets: expects ",
                           plan.target == Target::Cpu
                               ? "one bucket on the target cpu"
                               : "at least one bucket",
                           ", but got ", count);
  }
  for (size_t i = 0; i < count && count > 1; ++i) {
    const Bucket &bucket = group.buckets[i];
    if (bucket.rounds() > 1) {
      return Status::failure(
          path, ".buckets[", i, "].concurrent: expects all ",
          bucket.members.size(),
          " members of a bucket that is in a group with others, but got ",
          bucket.concurrent);
    }
  }
  return Status::success();
}

/// Checks that workspaces of buckets that run at the same time are apart.
static Status checkWorkspaces(const StepPlan &plan, const std::string &path,
                              const BucketGroup &group) {
  std::vector<size_t> order; // by offset
  for (size_t i = 0; i < group.buckets.size(); ++i) {
    if (plan.slotBytes(group.buckets[i]) > 0) {
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(group.buckets[a].workspaceOffset, a) <
           std::pair(group.buckets[b].workspaceOffset, b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Bucket &before = group.buckets[order[i - 1]];
    const Bucket &bucket = group.buckets[order[i]];
    int64_t end = before.workspaceOffset + plan.slotBytes(before);
    if (bucket.workspaceOffset < end) {
      return Status::failure(
          path, ".buckets[", order[i],
          "].workspaceOffset: expects a workspace apart from that of bucket ",
          order[i - 1], ", which ends at byte ", end, ", but got ",
          bucket.workspaceOffset);
    }
  }
  return Status::success();
}

/// Checks a launch of the device. `next` has, for each bucket of the group, the
/// launch that comes next.
static Status checkParts(const StepPlan &plan, const std::string &path,
                         const BucketGroup &group,
                         const std::vector<LaunchPart> &parts,
                         std::vector<int32_t> &next) {
  if (parts.empty()) {
    return Status::failure(path, ": expects at least one bucket, but got none");
  }
  const KernelPlan *kernel = nullptr;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string partPath = concat(path, "[", i, "]");
    const LaunchPart &part = parts[i];
    KAON_RETURN_IF_ERROR(checkIndex(partPath + ".bucket", "bucket", part.bucket,
                                    group.buckets.size()));
    if (i > 0 && part.bucket <= parts[i - 1].bucket) {
      return Status::failure(partPath,
                             ".bucket: expects ascending buckets, but got ",
                             part.bucket, " after ", parts[i - 1].bucket);
    }
    const std::vector<Launch> &launches =
        plan.sequences[group.buckets[part.bucket].sequence].launches;
    KAON_RETURN_IF_ERROR(checkIndex(partPath + ".launch", "launch", part.launch,
                                    launches.size()));
    if (part.launch != next[part.bucket]) {
      return Status::failure(partPath, ".launch: expects ", next[part.bucket],
                             ", the next one of bucket ", part.bucket,
                             ", but got ", part.launch);
    }
    ++next[part.bucket];
    const KernelPlan &own = plan.kernels[launches[part.launch].kernel];
    if (kernel && kernel != &own) {
      return Status::failure(
          partPath, ".launch: expects a launch of the kernel '", kernel->name,
          "', as the first part is, but got '", own.name, "'");
    }
    kernel = &own;
  }
  return Status::success();
}

/// Checks that every launch of every bucket occurs once, and in order.
static Status checkLaunchOrder(const StepPlan &plan, const std::string &path,
                               const BucketGroup &group) {
  std::vector<int32_t> next(group.buckets.size(), 0);
  for (size_t i = 0; i < group.launches.size(); ++i) {
    KAON_RETURN_IF_ERROR(checkParts(plan, concat(path, ".launches[", i, "]"),
                                    group, group.launches[i], next));
  }
  for (size_t i = 0; i < group.buckets.size(); ++i) {
    const Sequence &sequence = plan.sequences[group.buckets[i].sequence];
    if (next[i] != static_cast<int64_t>(sequence.launches.size())) {
      return Status::failure(path, ".launches: expects all ",
                             sequence.launches.size(), " launches of bucket ",
                             i, " ('", sequence.name, "'), but got ", next[i]);
    }
  }
  return Status::success();
}

static Status validateGroup(const StepPlan &plan, const std::string &path,
                            const BucketGroup &group,
                            std::vector<bool> &isHandled) {
  for (size_t i = 0; i < group.buckets.size(); ++i) {
    KAON_RETURN_IF_ERROR(validateBucket(plan, concat(path, ".buckets[", i, "]"),
                                        group.buckets[i], isHandled));
  }
  KAON_RETURN_IF_ERROR(checkLockStep(plan, path, group));
  KAON_RETURN_IF_ERROR(checkWorkspaces(plan, path, group));
  return checkLaunchOrder(plan, path, group);
}

static Status validatePhases(const StepPlan &plan) {
  if (plan.phases.empty()) {
    return Status::failure("phases: expects at least one phase, but got none");
  }
  for (size_t i = 0; i < plan.phases.size(); ++i) {
    std::vector<bool> isHandled(plan.parameters.size(), false);
    for (size_t j = 0; j < plan.phases[i].size(); ++j) {
      KAON_RETURN_IF_ERROR(validateGroup(plan,
                                         concat("phases[", i, "][", j, "]"),
                                         plan.phases[i][j], isHandled));
    }
    // A parameter that a phase leaves out would silently not train.
    auto missing = std::find(isHandled.begin(), isHandled.end(), false);
    if (missing != isHandled.end()) {
      return Status::failure(
          "phases[", i, "]: expects every parameter in a bucket, but '",
          plan.parameters[missing - isHandled.begin()].name, "' is in none");
    }
  }
  return Status::success();
}

Status StepPlan::validate() const {
  KAON_RETURN_IF_ERROR(validateParameters(*this));
  KAON_RETURN_IF_ERROR(validateKernels(*this));
  KAON_RETURN_IF_ERROR(validateSequences(*this));
  KAON_RETURN_IF_ERROR(validatePhases(*this));
  if (workspaceBytes != requiredWorkspaceBytes()) {
    return Status::failure(
        "workspaceBytes: expects the ", requiredWorkspaceBytes(),
        " bytes that the largest group needs, but got ", workspaceBytes);
  }
  return Status::success();
}
