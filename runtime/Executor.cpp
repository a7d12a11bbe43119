//===-- Executor.cpp - replays a step plan --------------------------------===//
//
// Checks the arguments of a step, evaluates its scalars, binds operands and
// hands launches to the backend.
//
//===----------------------------------------------------------------------===//

#include "runtime/Executor.h"

#include "runtime/Math.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

using namespace kaon::runtime;

namespace {
/// A step that has begun, and ends: also when memory runs out in it.
class StepScope {
public:
  explicit StepScope(Backend &backend) : backend(&backend) {}
  ~StepScope() { (void)end(); }
  StepScope(const StepScope &) = delete;
  StepScope &operator=(const StepScope &) = delete;

  Status end() {
    Backend *open = std::exchange(backend, nullptr);
    return open ? open->endStep() : Status::success();
  }

private:
  Backend *backend;
};
} // namespace

Executor::Executor(StepPlan plan, std::unique_ptr<Backend> backend)
    : stepPlan(std::move(plan)), backend(std::move(backend)) {}

Result<std::unique_ptr<Executor>>
Executor::create(StepPlan plan, std::unique_ptr<Backend> backend) {
  KAON_RETURN_IF_ERROR(plan.validate());
  std::unique_ptr<Executor> executor(
      new Executor(std::move(plan), std::move(backend)));
  executor->prepareBuffers();
  executor->preparePhases();
  KAON_RETURN_IF_ERROR(
      executor->backend->prepare(executor->stepPlan, executor->schedules));
  return executor;
}

void Executor::prepareBuffers() {
  int64_t numBuffers = 0;
  for (const ParameterPlan &parameter : stepPlan.parameters) {
    firstBuffer.push_back(numBuffers);
    numBuffers += 2 + static_cast<int64_t>(parameter.states.size());
  }
  firstBuffer.push_back(numBuffers);

  isViewedAsRow.assign(numBuffers, false);
  for (const PhasePlan &phase : stepPlan.phases) {
    for (const BucketGroup &group : phase) {
      for (const Bucket &bucket : group.buckets) {
        noteRowViews(bucket);
      }
    }
  }
  gradients.reserve(stepPlan.parameters.size());
}

void Executor::noteRowViews(const Bucket &bucket) {
  for (const Launch &launch : stepPlan.sequences[bucket.sequence].launches) {
    for (const Operand &operand : launch.operands) {
      if (operand.kind == BufferKind::Workspace || operand.rows != 1 ||
          operand.cols == 1) {
        continue;
      }
      for (int32_t member : bucket.members) {
        const ParameterPlan &parameter = stepPlan.parameters[member];
        int64_t first = firstBuffer[member];
        if (operand.kind == BufferKind::State) {
          if (parameter.states[operand.index].rows != 1) {
            isViewedAsRow[first + 2 + operand.index] = true;
          }
        } else if (parameter.rows != 1) {
          isViewedAsRow[first + (operand.kind == BufferKind::Grad)] = true;
        }
      }
    }
  }
}

void Executor::preparePhases() {
  size_t mostRegisters = 0;
  std::vector<int64_t> numScalars; // of a sequence
  for (const Sequence &sequence : stepPlan.sequences) {
    std::vector<int64_t> &offsets = scalarOffsets.emplace_back();
    int64_t offset = 0;
    for (const Launch &launch : sequence.launches) {
      offsets.push_back(offset);
      offset += static_cast<int64_t>(launch.scalars.size());
    }
    numScalars.push_back(offset);
    mostRegisters =
        std::max(mostRegisters, sequence.program.instructions().size());
  }

  // Most phases of a long period are alike.
  std::vector<size_t> firstAlike; // in the plan, of each of `phases`
  for (size_t i = 0; i < stepPlan.phases.size(); ++i) {
    auto alike =
        std::find_if(firstAlike.begin(), firstAlike.end(), [&](size_t first) {
          return stepPlan.phases[first] == stepPlan.phases[i];
        });
    phaseIndices.push_back(alike - firstAlike.begin());
    if (alike == firstAlike.end()) {
      firstAlike.push_back(i);
      phases.push_back(preparePhase(stepPlan.phases[i], numScalars));
    }
  }

  for (size_t i = 0; i < phases.size(); ++i) {
    makeSchedule(i);
  }
  registers.resize(mostRegisters);
  matrixCounts =
      std::make_unique<std::atomic<int64_t>[]>(stepPlan.kernels.size());
}

Executor::Phase Executor::preparePhase(const PhasePlan &planned,
                                       std::span<const int64_t> numScalars) {
  Phase phase;
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  int64_t firstScalar = 0;
  auto evaluationOf = [&](int32_t sequence, int32_t scalarSet) {
    auto [found, isNew] = known.try_emplace(
        {sequence, scalarSet}, static_cast<int32_t>(phase.evaluations.size()));
    if (isNew) {
      phase.evaluations.push_back({sequence, scalarSet, firstScalar});
      firstScalar += numScalars[sequence];
    }
    return found->second;
  };
  for (const BucketGroup &group : planned) {
    PhaseGroup &addedGroup = phase.groups.emplace_back();
    addedGroup.group = &group;
    for (const Bucket &bucket : group.buckets) {
      PhaseBucket &added = addedGroup.buckets.emplace_back();
      added.bucket = &bucket;
      added.active.reserve(bucket.members.size());
      for (int32_t member : bucket.members) {
        added.evaluations.push_back(evaluationOf(
            bucket.sequence, stepPlan.parameters[member].scalarSet));
      }
    }
  }
  launchScalars.resize(
      std::max(launchScalars.size(), static_cast<size_t>(firstScalar)));
  schedules.emplace_back().numScalars = static_cast<size_t>(firstScalar);
  phase.active.assign(stepPlan.parameters.size(), true);
  return phase;
}

//===----------------------------------------------------------------------===//
// Schedules
//===----------------------------------------------------------------------===//

void Executor::updateSchedule(size_t index, const KaonBuffer *buffers) {
  std::vector<bool> &active = phases[index].active;
  bool hasChanged = false;
  for (size_t i = 0; i < active.size(); ++i) {
    bool now = isActive(static_cast<int32_t>(i), buffers);
    hasChanged |= active[i] != now;
    active[i] = now;
  }
  if (hasChanged) {
    makeSchedule(index);
  }
}

// The first call is with all parameters and takes the most memory; later ones
// take none.
void Executor::makeSchedule(size_t index) {
  Phase &phase = phases[index];
  PhaseSchedule &schedule = schedules[index];
  schedule.launches.clear();
  schedule.matrices.clear();
  schedule.bindings.clear();
  ++schedule.version;
  for (PhaseGroup &group : phase.groups) {
    int64_t rounds = 0;
    for (PhaseBucket &bucket : group.buckets) {
      const std::vector<int32_t> &members = bucket.bucket->members;
      bucket.active.clear();
      for (size_t i = 0; i < members.size(); ++i) {
        if (phase.active[members[i]]) {
          bucket.active.push_back(static_cast<int32_t>(i));
        }
      }
      rounds =
          std::max(rounds, ceilDiv(static_cast<int64_t>(bucket.active.size()),
                                   bucket.bucket->concurrent));
    }
    for (int64_t round = 0; round < rounds; ++round) {
      scheduleRound(phase, group, round, schedule);
    }
  }
}

void Executor::scheduleRound(const Phase &phase, const PhaseGroup &group,
                             int64_t round, PhaseSchedule &schedule) {
  for (const std::vector<LaunchPart> &parts : group.group->launches) {
    size_t first = schedule.matrices.size();
    for (const LaunchPart &part : parts) {
      schedulePart(phase, group.buckets[part.bucket], part.launch, round,
                   schedule);
    }
    if (schedule.matrices.size() > first) {
      schedule.launches.push_back({schedule.matrices[first].launch->kernel,
                                   first, schedule.matrices.size() - first});
    }
  }
}

void Executor::schedulePart(const Phase &phase, const PhaseBucket &bucket,
                            int32_t index, int64_t round,
                            PhaseSchedule &schedule) {
  const Bucket &planned = *bucket.bucket;
  const Sequence &sequence = stepPlan.sequences[planned.sequence];
  const Launch &launch = sequence.launches[index];
  int64_t scalarOffset = scalarOffsets[planned.sequence][index];
  int64_t begin = round * planned.concurrent;
  int64_t end = std::min(begin + planned.concurrent,
                         static_cast<int64_t>(bucket.active.size()));
  for (int64_t i = begin; i < end; ++i) {
    int32_t position = bucket.active[i];
    const Evaluation &evaluation =
        phase.evaluations[bucket.evaluations[position]];
    schedule.matrices.push_back(
        {&launch, schedule.bindings.size(),
         static_cast<size_t>(evaluation.firstScalar + scalarOffset)});
    int64_t slot =
        planned.workspaceOffset + (i - begin) * sequence.workspaceBytes;
    for (const Operand &operand : launch.operands) {
      schedule.bindings.push_back(
          bind(operand, planned.members[position], slot));
    }
  }
}

/// `slot` is where the workspace of the matrix starts, in bytes.
OperandBinding Executor::bind(const Operand &operand, int32_t parameter,
                              int64_t slot) const {
  OperandBinding binding;
  if (operand.kind == BufferKind::Workspace) {
    binding.offset = slot + operand.offset;
    binding.stride = operand.pitch;
    return binding;
  }
  int64_t index = firstBuffer[parameter];
  if (operand.kind == BufferKind::Grad) {
    index += 1;
  }
  if (operand.kind == BufferKind::State) {
    index += 2 + operand.index;
  }
  // The stride of a single row means nothing, and that of a row seen as a
  // column is not the one between its elements.
  const ParameterPlan &plan = stepPlan.parameters[parameter];
  int64_t rows = operand.kind == BufferKind::State
                     ? plan.states[operand.index].rows
                     : plan.rows;
  binding.buffer = static_cast<int32_t>(index);
  binding.hasOwnStride = rows > 1 && operand.rows > 1;
  binding.stride = operand.cols;
  return binding;
}

//===----------------------------------------------------------------------===//
// Checks, before anything is changed
//===----------------------------------------------------------------------===//

std::string Executor::describeBuffer(int64_t index) const {
  size_t parameter =
      std::upper_bound(firstBuffer.begin(), firstBuffer.end(), index) -
      firstBuffer.begin() - 1;
  const ParameterPlan &plan = stepPlan.parameters[parameter];
  int64_t position = index - firstBuffer[parameter];
  if (position == 0) {
    return concat("parameter '", plan.name, "'");
  }
  if (position == 1) {
    return concat("gradient of parameter '", plan.name, "'");
  }
  return concat("state '", plan.states[position - 2].name, "' of parameter '",
                plan.name, "'");
}

Status Executor::checkBuffer(const KaonBuffer &buffer, int64_t index,
                             int64_t rows, int64_t cols,
                             ElementType type) const {
  if (!buffer.data) {
    return Status::failure(describeBuffer(index), ": expects a pointer to ",
                           rows, "x", cols, " elements of ", stringify(type),
                           ", but got null");
  }
  auto address = reinterpret_cast<uintptr_t>(buffer.data);
  // Sizes are powers of two; a division takes as long as the rest of a step's
  // checks.
  if ((address & static_cast<uintptr_t>(byteSize(type) - 1)) != 0) {
    return Status::failure(describeBuffer(index),
                           ": expects a pointer that is a multiple of ",
                           byteSize(type), " for ", stringify(type),
                           ", but got 0x", std::hex, address);
  }
  if (rows > 1 && buffer.row_stride < cols) {
    return Status::failure(describeBuffer(index),
                           ": expects a row stride of at least the ", cols,
                           " columns, but got ", buffer.row_stride);
  }
  if (isViewedAsRow[index] && buffer.row_stride != 1) {
    return Status::failure(
        describeBuffer(index),
        ": expects a row stride of 1, because the update reads the ", rows,
        "x1 column as a row, but got ", buffer.row_stride);
  }
  return Status::success();
}

Status Executor::checkBuffers(const KaonBuffer *buffers) const {
  for (size_t i = 0; i < stepPlan.parameters.size(); ++i) {
    if (!isActive(static_cast<int32_t>(i), buffers)) {
      continue;
    }
    const ParameterPlan &parameter = stepPlan.parameters[i];
    int64_t index = firstBuffer[i];
    KAON_RETURN_IF_ERROR(checkBuffer(buffers[index], index, parameter.rows,
                                     parameter.cols, parameter.paramType));
    ++index;
    KAON_RETURN_IF_ERROR(checkBuffer(buffers[index], index, parameter.rows,
                                     parameter.cols, parameter.gradType));
    for (const StatePlan &state : parameter.states) {
      ++index;
      KAON_RETURN_IF_ERROR(checkBuffer(buffers[index], index, state.rows,
                                       state.cols, state.type));
    }
  }
  return Status::success();
}

Status Executor::checkArguments(const KaonStep &arguments) const {
  if (arguments.step < 1) {
    return Status::failure(
        "step: expects the step count, 1 at the first step, but got ",
        arguments.step);
  }
  if (arguments.num_buffers != numBuffers()) {
    return Status::failure("step: expects ", numBuffers(), " buffers for ",
                           stepPlan.parameters.size(), " parameters, but got ",
                           arguments.num_buffers);
  }
  if (arguments.num_buffers > 0 && !arguments.buffers) {
    return Status::failure("step: expects a pointer to ", numBuffers(),
                           " buffers, but got null");
  }
  if (arguments.num_scalars !=
      static_cast<int64_t>(stepPlan.scalarSets.size())) {
    return Status::failure("step: expects values for ",
                           stepPlan.scalarSets.size(), " scalar sets, but got ",
                           arguments.num_scalars);
  }
  if (arguments.num_scalars > 0 && !arguments.scalars) {
    return Status::failure("step: expects a pointer to ", arguments.num_scalars,
                           " scalar sets, but got null");
  }
  for (int64_t i = 0; i < arguments.num_scalars; ++i) {
    const std::vector<std::string> &names = stepPlan.scalarSets[i].names;
    const KaonScalars &scalars = arguments.scalars[i];
    if (scalars.count == static_cast<int64_t>(names.size()) &&
        (scalars.values || scalars.count == 0)) {
      continue;
    }
    std::string list;
    for (const std::string &name : names) {
      list += (list.empty() ? "" : ", ") + name;
    }
    return Status::failure(
        "scalar set ", i, ": expects ", names.size(), " values (", list,
        "), but got ",
        scalars.values || scalars.count == 0 ? concat(scalars.count) : "null");
  }
  return checkBuffers(arguments.buffers);
}

//===----------------------------------------------------------------------===//
// Running a step
//===----------------------------------------------------------------------===//

Result<int64_t> Executor::step(const KaonStep &arguments, void *stream) {
  KAON_RETURN_IF_ERROR(backend->beginStep(stream));
  StepScope scope(*backend);
  Result<int64_t> result = runStep(arguments);
  Status ended = scope.end();
  return result.ok() && !ended.ok() ? Result<int64_t>(ended) : result;
}

Result<int64_t> Executor::runStep(const KaonStep &arguments) {
  KAON_RETURN_IF_ERROR(checkArguments(arguments));
  if (arguments.check_finite) {
    Result<int64_t> count = countNonFinite(arguments.buffers);
    if (!count.ok() || *count > 0) {
      return count;
    }
  }
  size_t index = phaseIndices[arguments.step % stepPlan.period()];
  const Phase &phase = phases[index];
  evaluateScalars(phase, arguments);
  updateSchedule(index, arguments.buffers);
  const PhaseSchedule &schedule = schedules[index];
  KAON_RETURN_IF_ERROR(backend->runPhase(
      {index, schedule, arguments.buffers,
       std::span<const double>(launchScalars).first(schedule.numScalars)}));
  for (const ScheduledLaunch &scheduled : schedule.launches) {
    matrixCounts[scheduled.kernel].fetch_add(
        static_cast<int64_t>(scheduled.numMatrices), std::memory_order_relaxed);
  }
  return int64_t(0);
}

Result<int64_t> Executor::countNonFinite(const KaonBuffer *buffers) {
  gradients.clear();
  for (size_t i = 0; i < stepPlan.parameters.size(); ++i) {
    const ParameterPlan &parameter = stepPlan.parameters[i];
    if (isActive(static_cast<int32_t>(i), buffers)) {
      gradients.push_back({buffers[firstBuffer[i] + 1], parameter.rows,
                           parameter.cols, parameter.gradType});
    }
  }
  return backend->countNonFinite(gradients);
}

void Executor::evaluateScalars(const Phase &phase, const KaonStep &arguments) {
  // Parameters of one age have the same values, each set for itself.
  const Evaluation *last = nullptr;
  auto equalsLast = [&](const Evaluation &evaluation) {
    if (!last || last->sequence != evaluation.sequence) {
      return false;
    }
    const KaonScalars &a = arguments.scalars[last->scalarSet];
    const KaonScalars &b = arguments.scalars[evaluation.scalarSet];
    return a.count == b.count &&
           std::memcmp(a.values, b.values, a.count * sizeof(double)) == 0;
  };
  for (const Evaluation &evaluation : phase.evaluations) {
    const Sequence &sequence = stepPlan.sequences[evaluation.sequence];
    if (!equalsLast(evaluation)) {
      sequence.program.evaluate(arguments.step,
                                arguments.scalars[evaluation.scalarSet].values,
                                registers.data());
    }
    last = &evaluation;
    double *scalars = launchScalars.data() + evaluation.firstScalar;
    for (const Launch &launch : sequence.launches) {
      for (int32_t source : launch.scalars) {
        *scalars++ = registers[source];
      }
    }
  }
}
