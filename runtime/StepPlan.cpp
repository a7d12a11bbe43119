//===-- StepPlan.cpp - what a step executes, as data ----------------------===//
//
// Costs and printing of plans. StepPlanJson.cpp reads and writes them,
// StepPlanValidation.cpp checks them.
//
//===----------------------------------------------------------------------===//

#include "runtime/StepPlan.h"

#include "runtime/KernelAbi.h"
#include "runtime/Math.h"
#include "runtime/PlanChecks.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <limits>
#include <utility>

using namespace kaon::runtime;

// Keywords in the order of the enumerations.
static constexpr std::string_view elementTypes[] = {"f16", "bf16", "f32",
                                                    "f64"};
static constexpr std::string_view targets[] = {"cpu", "cuda"};
static constexpr std::string_view schedules[] = {
    "elementwise", "rows", "columns", "transpose", "pack", "matmul"};
static constexpr std::string_view bufferKinds[] = {"param", "grad", "state",
                                                   "workspace"};

template <typename Enum, size_t n>
static std::optional<Enum> parseKeyword(const std::string_view (&keywords)[n],
                                        std::string_view keyword) {
  const std::string_view *found =
      std::find(std::begin(keywords), std::end(keywords), keyword);
  if (found == std::end(keywords)) {
    return std::nullopt;
  }
  return static_cast<Enum>(found - std::begin(keywords));
}

ProductExtras ProductExtras::of(size_t numOperands, bool hasFactor) {
  // A, B[, C][, factor], D.
  ProductExtras extras;
  if (hasFactor && numOperands >= 4) {
    extras.factor = numOperands - 2;
  }
  if (numOperands >= (extras.factor ? 5 : 4)) {
    extras.addend = 2;
  }
  return extras;
}

Signature Signature::of(const Launch &launch) {
  Signature signature;
  signature.numInputs = launch.numInputs - (launch.hasFactor ? 1 : 0);
  signature.numScalars = static_cast<int32_t>(launch.scalars.size());
  for (const Operand &operand : launch.operands) {
    signature.types.push_back(operand.type);
  }
  if (launch.hasFactor) {
    signature.types.erase(signature.types.begin() + signature.numInputs);
  }
  return signature;
}

int64_t kaon::runtime::rowSharedBytes(const KernelPlan &kernel,
                                      int64_t columns) {
  int64_t groups =
      ceilDiv(ceilDiv(columns, cudaGroupSize), int64_t(kernel.threads));
  int64_t spilled = std::max<int64_t>(0, groups - kernel.registerGroups);
  return kernel.reductions * cudaRowReductionBytes +
         spilled * kernel.threads * cudaGroupSize * kernel.kept *
             static_cast<int64_t>(sizeof(float));
}

/// "1.5 M" for 1500000.
static std::string printCount(int64_t count) {
  static constexpr struct {
    double size;
    const char *suffix;
  } scales[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  for (const auto &scale : scales) {
    if (static_cast<double>(count) >= scale.size) {
      std::ostringstream stream;
      stream << std::setprecision(3) << static_cast<double>(count) / scale.size
             << scale.suffix;
      return std::move(stream).str();
    }
  }
  return concat(count, ' ');
}

static std::string printOperand(const Operand &operand,
                                const ParameterPlan *parameter) {
  std::ostringstream stream;
  stream << stringify(operand.kind);
  if (operand.kind == BufferKind::State) {
    if (parameter &&
        static_cast<size_t>(operand.index) < parameter->states.size() &&
        !parameter->states[operand.index].name.empty()) {
      stream << ' ' << parameter->states[operand.index].name;
    } else {
      stream << ' ' << operand.index;
    }
  }
  if (operand.kind == BufferKind::Workspace) {
    stream << '+' << operand.offset;
  }
  stream << ": " << operand.rows << 'x' << operand.cols << 'x'
         << stringify(operand.type);
  if (operand.pitch > operand.cols) {
    stream << " pitch " << operand.pitch;
  }
  return std::move(stream).str();
}

/// A parameter that the sequence handles, to name the states by; null if there
/// is none.
static const ParameterPlan *findParameter(const StepPlan &plan, size_t index) {
  for (const PhasePlan &phase : plan.phases) {
    for (const BucketGroup &group : phase) {
      for (const Bucket &bucket : group.buckets) {
        if (bucket.sequence == static_cast<int32_t>(index) &&
            !bucket.members.empty()) {
          return &plan.parameters[bucket.members.front()];
        }
      }
    }
  }
  return nullptr;
}

static void printSequence(std::ostream &stream, const StepPlan &plan,
                          size_t index) {
  const Sequence &sequence = plan.sequences[index];
  const ParameterPlan *parameter = findParameter(plan, index);
  stream << "sequence " << index << " @" << sequence.name << ": "
         << sequence.launches.size() << " launches, "
         << printCount(sequence.workspaceBytes) << "B workspace\n"
         << sequence.program.print("  ");
  for (const Launch &launch : sequence.launches) {
    const KernelPlan &kernel = plan.kernels[launch.kernel];
    stream << "  launch " << stringify(kernel.schedule) << " @" << kernel.name
           << " [";
    for (size_t i = 0; i < launch.sizes.size(); ++i) {
      stream << (i ? "x" : "") << launch.sizes[i];
    }
    stream << "] (";
    for (size_t i = 0; i < launch.operands.size(); ++i) {
      if (i) {
        stream << (static_cast<int32_t>(i) == launch.numInputs ? ") -> ("
                                                               : ", ");
      } else if (launch.numInputs == 0) {
        stream << ") -> (";
      }
      stream << printOperand(launch.operands[i], parameter);
    }
    stream << ")";
    if (!launch.scalars.empty()) {
      stream << " scalars(";
      for (size_t i = 0; i < launch.scalars.size(); ++i) {
        stream << (i ? ", %" : "%") << launch.scalars[i];
      }
      stream << ")";
    }
    stream << " items " << launch.items << " grain " << launch.grain << ", ";
    if (plan.target == Target::Cuda) {
      stream << kernel.threads << " threads, " << printCount(launch.sharedBytes)
             << "B shared, ";
    }
    stream << printCount(launch.flops) << "FLOP, " << printCount(launch.bytes)
           << "B\n";
  }
}

static void printBucket(std::ostream &stream, const StepPlan &plan,
                        const Bucket &bucket) {
  stream << "bucket @" << plan.sequences[bucket.sequence].name << " concurrent "
         << bucket.concurrent << " parameters [";
  for (size_t i = 0; i < bucket.members.size(); ++i) {
    stream << (i ? ", " : "") << bucket.members[i];
  }
  stream << ']';
}

/// A bucket, or several with the launches that they share.
static void printGroup(std::ostream &stream, const StepPlan &plan,
                       const BucketGroup &group) {
  if (group.buckets.size() == 1) {
    stream << "  ";
    printBucket(stream, plan, group.buckets.front());
    stream << '\n';
    return;
  }
  stream << "  group of " << group.buckets.size() << " buckets, "
         << group.launches.size() << " launches\n";
  for (const Bucket &bucket : group.buckets) {
    stream << "    ";
    printBucket(stream, plan, bucket);
    stream << " workspace+" << bucket.workspaceOffset << '\n';
  }
  for (const std::vector<LaunchPart> &parts : group.launches) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const Sequence &sequence =
          plan.sequences[group.buckets[parts[i].bucket].sequence];
      if (i == 0) {
        int32_t kernel = sequence.launches[parts[i].launch].kernel;
        stream << "    launch @" << plan.kernels[kernel].name << ':';
      }
      stream << (i ? ", " : " ") << "bucket " << parts[i].bucket << " launch "
             << parts[i].launch;
    }
    stream << '\n';
  }
}

std::string_view kaon::runtime::stringify(ElementType type) {
  return elementTypes[static_cast<size_t>(type)];
}

std::string_view kaon::runtime::stringify(Target target) {
  return targets[static_cast<size_t>(target)];
}

std::string_view kaon::runtime::stringify(Schedule schedule) {
  return schedules[static_cast<size_t>(schedule)];
}

std::string_view kaon::runtime::stringify(BufferKind kind) {
  return bufferKinds[static_cast<size_t>(kind)];
}

std::optional<ElementType>
kaon::runtime::parseElementType(std::string_view keyword) {
  return parseKeyword<ElementType>(elementTypes, keyword);
}

std::optional<Target> kaon::runtime::parseTarget(std::string_view keyword) {
  return parseKeyword<Target>(targets, keyword);
}

std::optional<Schedule> kaon::runtime::parseSchedule(std::string_view keyword) {
  return parseKeyword<Schedule>(schedules, keyword);
}

std::optional<BufferKind>
kaon::runtime::parseBufferKind(std::string_view keyword) {
  return parseKeyword<BufferKind>(bufferKinds, keyword);
}

int64_t kaon::runtime::byteSize(ElementType type) {
  switch (type) {
  case ElementType::F16:
  case ElementType::BF16:
    return 2;
  case ElementType::F32:
    return 4;
  case ElementType::F64:
    return 8;
  }
  return 0;
}

int64_t kaon::runtime::bufferAlignment(Target target) {
  // A cache line of the CPU, and what a GPU loads in one go.
  return target == Target::Cpu ? KAON_BUFFER_ALIGNMENT : 256;
}

int64_t kaon::runtime::pitchUnit(Target target, ElementType type) {
  constexpr int64_t rowAlignment = 16;
  return target == Target::Cuda && byteSize(type) == 2
             ? rowAlignment / byteSize(type)
             : 1;
}

int64_t Bucket::rounds() const {
  return ceilDiv(static_cast<int64_t>(members.size()), int64_t(concurrent));
}

int64_t StepPlan::requiredWorkspaceBytes() const {
  int64_t bytes = 0;
  for (const PhasePlan &phase : phases) {
    for (const BucketGroup &group : phase) {
      for (const Bucket &bucket : group.buckets) {
        int64_t own = slotBytes(bucket);
        bytes = std::max(bytes, own > 0 ? bucket.workspaceOffset + own : 0);
      }
    }
  }
  return bytes;
}

BucketGroup StepPlan::alone(Bucket bucket) const {
  BucketGroup group;
  size_t count = sequences[bucket.sequence].launches.size();
  for (size_t i = 0; i < count; ++i) {
    group.launches.push_back({{0, static_cast<int32_t>(i)}});
  }
  group.buckets.push_back(std::move(bucket));
  return group;
}

/// Adds `amount` times `count` to `sum`, which stays at the largest number
/// where it does not fit.
static void addProduct(int64_t &sum, int64_t amount, int64_t count) {
  int64_t product = 0;
  if (__builtin_mul_overflow(amount, count, &product) ||
      __builtin_add_overflow(sum, product, &sum)) {
    sum = std::numeric_limits<int64_t>::max();
  }
}

Cost StepPlan::cost(int64_t phase) const {
  Cost cost;
  for (const BucketGroup &group : phases[phase]) {
    int64_t rounds = 0;
    for (const Bucket &bucket : group.buckets) {
      auto numMembers = static_cast<int64_t>(bucket.members.size());
      for (const Launch &launch : sequences[bucket.sequence].launches) {
        addProduct(cost.flops, launch.flops, numMembers);
        addProduct(cost.bytes, launch.bytes, numMembers);
      }
      rounds = std::max(rounds, bucket.rounds());
    }
    cost.launches += rounds * static_cast<int64_t>(group.launches.size());
  }
  return cost;
}

Status StepPlan::requireTarget(Target expected) const {
  if (target == expected) {
    return Status::success();
  }
  return Status::failure("target: expects a plan for ", stringify(expected),
                         ", but got one for ", stringify(target));
}

std::string StepPlan::print() const {
  std::ostringstream stream;
  stream << "step plan version " << version << " for " << stringify(target)
         << ", period " << period() << ", " << parameters.size()
         << " parameters, " << kernels.size() << " kernels, "
         << printCount(workspaceBytes) << "B workspace\n";
  for (size_t i = 0; i < scalarSets.size(); ++i) {
    stream << "scalar set " << i << ":";
    for (const std::string &name : scalarSets[i].names) {
      stream << ' ' << name;
    }
    stream << '\n';
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterPlan &parameter = parameters[i];
    stream << "parameter " << i << " \"" << parameter.name << "\": "
           << describeShape(parameter.rows, parameter.cols, parameter.paramType)
           << ", gradient " << stringify(parameter.gradType) << ", scalar set "
           << parameter.scalarSet;
    for (const StatePlan &state : parameter.states) {
      stream << ", state " << state.name << ": "
             << describeShape(state.rows, state.cols, state.type);
    }
    stream << '\n';
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    printSequence(stream, *this, i);
  }
  for (int64_t i = 0; i < period(); ++i) {
    Cost total = cost(i);
    stream << "phase " << i << ": " << printCount(total.flops) << "FLOP, "
           << printCount(total.bytes) << "B, " << total.launches
           << " launches\n";
    for (const BucketGroup &group : phases[i]) {
      printGroup(stream, *this, group);
    }
  }
  return std::move(stream).str();
}
