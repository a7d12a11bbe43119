//===-- HostBackend.cpp - running kernels on the processor ----------------===//
//
// Divides launches among threads, and looks for gradients that are not finite.
//
//===----------------------------------------------------------------------===//

#include "runtime/HostBackend.h"

#include "runtime/Math.h"

#include <algorithm>
#include <cassert>

using namespace kaon::runtime;

// Products divide their tiles in turn, so that threads which run side by side
// read the same panels. All other kernels read memory once.
static ThreadPool::Claim claimOf(Schedule schedule) {
  return schedule == Schedule::Matmul ? ThreadPool::Claim::InTurn
                                      : ThreadPool::Claim::InShares;
}

// Elements of a gradient that one thread looks at before it takes more.
static constexpr int64_t finiteCheckElements = 16384;

/// Whether any of `count` elements is an infinity or a NaN. Bits is the
/// unsigned integer of the element's size and `exponentUnit` the lowest bit of
/// its exponent: adding it to the magnitude carries into the sign bit just when
/// all bits of the exponent are set. No branch and no floating point, so that
/// it vectorizes.
template <typename Bits>
static bool hasNonFinite(const void *data, int64_t count, Bits exponentUnit) {
  constexpr Bits signBit = Bits(Bits(1) << (8 * sizeof(Bits) - 1));
  const Bits *elements = static_cast<const Bits *>(data);
  Bits carries = 0;
  for (int64_t i = 0; i < count; ++i) {
    carries |= static_cast<Bits>((elements[i] & static_cast<Bits>(~signBit)) +
                                 exponentUnit);
  }
  return carries & signBit;
}

static bool hasNonFinite(ElementType type, const void *data, int64_t count) {
  switch (type) {
  case ElementType::F16:
    return hasNonFinite<uint16_t>(data, count, uint16_t(1) << 10);
  case ElementType::BF16:
    return hasNonFinite<uint16_t>(data, count, uint16_t(1) << 7);
  case ElementType::F32:
    return hasNonFinite<uint32_t>(data, count, uint32_t(1) << 23);
  case ElementType::F64:
    return hasNonFinite<uint64_t>(data, count, uint64_t(1) << 52);
  }
  return false;
}

static const std::byte *elementAt(const KaonBuffer &buffer, int64_t index,
                                  ElementType type) {
  return static_cast<const std::byte *>(buffer.data) + index * byteSize(type);
}

namespace {
/// A launch on its way to the threads.
struct HostLaunch {
  const Launch &launch;
  KaonKernelFn kernel;
  std::span<const BoundLaunch> matrices;
  std::span<const int64_t> itemEnds;
  /// For each matrix of an elementwise launch that is seen as rows of
  /// elementwiseColumns, its buffers as such, and those of the shorter last
  /// row; null where a matrix is not. Empty for other launches.
  std::span<const KaonBuffer> reshaped;
  int64_t unit; // work items of the kernel per item of the shared range

  void runItems(int64_t begin, int64_t end) const;
  void runMatrix(size_t matrix, int64_t begin, int64_t end) const;
};
} // namespace

/// Whether all full operands of an elementwise launch are contiguous.
static bool isContiguous(const Launch &launch, const KaonBuffer *buffers) {
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const Operand &operand = launch.operands[i];
    if (operand.rows > 1 && buffers[i].row_stride != operand.cols) {
      return false;
    }
  }
  return true;
}

void HostLaunch::runItems(int64_t begin, int64_t end) const {
  size_t matrix = std::upper_bound(itemEnds.begin(), itemEnds.end(), begin) -
                  itemEnds.begin();
  while (begin < end) {
    int64_t first = matrix == 0 ? 0 : itemEnds[matrix - 1];
    int64_t last = std::min(end, itemEnds[matrix]);
    runMatrix(matrix, begin - first, last - first);
    begin = last;
    ++matrix;
  }
}

void HostLaunch::runMatrix(size_t matrix, int64_t begin, int64_t end) const {
  const BoundLaunch &bound = matrices[matrix];
  size_t numOperands = launch.operands.size();
  const KaonBuffer *body =
      reshaped.empty() ? nullptr : &reshaped[2 * matrix * numOperands];
  if (!body || !body->data) {
    return kernel(bound.buffers, bound.scalars, launch.sizes.data(),
                  begin * unit, std::min(end * unit, launch.items));
  }

  constexpr int64_t columns = HostBackend::elementwiseColumns;
  int64_t numElements = launch.sizes[0] * launch.sizes[1];
  int64_t fullRows = numElements / columns;
  if (begin < fullRows) {
    int64_t sizes[] = {fullRows, columns};
    kernel(body, bound.scalars, sizes, begin, std::min(end, fullRows));
  }
  if (end > fullRows) {
    int64_t sizes[] = {1, numElements % columns};
    kernel(body + numOperands, bound.scalars, sizes, 0, 1);
  }
}

/// What all matrices of a launch do: on the CPU they are of one bucket.
static const Launch &launchOf(const PhaseSchedule &schedule,
                              const ScheduledLaunch &launch) {
  return *schedule.matrices[launch.firstMatrix].launch;
}

HostBackend::HostBackend(KernelTable kernels, int threads)
    : table(std::move(kernels)),
      threads(threads > 0 ? std::min(threads, ThreadPool::maxThreads)
                          : ThreadPool::limit()) {}

Status HostBackend::prepare(const StepPlan &stepPlan,
                            std::span<const PhaseSchedule> schedules) {
  KAON_RETURN_IF_ERROR(stepPlan.requireTarget(Target::Cpu));
  plan = &stepPlan;
  for (const KernelPlan &kernel : plan->kernels) {
    KaonKernelFn function = table.find(kernel.name);
    if (!function) {
      return Status::failure(
          "expects code for the kernel '", kernel.name,
          "', but there is none; loaded: ", table.describe());
    }
    kernels.push_back(function);
  }

  size_t mostReshaped = 0;
  for (const Sequence &sequence : plan->sequences) {
    for (const Launch &launch : sequence.launches) {
      if (plan->kernels[launch.kernel].schedule == Schedule::Elementwise) {
        mostReshaped = std::max(mostReshaped, launch.operands.size());
      }
    }
  }
  size_t mostMatrices = 0, mostBindings = 0;
  for (const PhaseSchedule &schedule : schedules) {
    for (const ScheduledLaunch &launch : schedule.launches) {
      mostMatrices = std::max(mostMatrices, launch.numMatrices);
      mostBindings = std::max(mostBindings,
                              launch.numMatrices *
                                  launchOf(schedule, launch).operands.size());
    }
  }
  boundLaunches.resize(mostMatrices);
  bindings.resize(mostBindings);

  Result<Arena> workspace = Arena::create(plan->workspaceBytes);
  KAON_RETURN_IF_ERROR(workspace.status());
  workspaceArena = std::move(*workspace);

  itemEnds.resize(std::max(mostMatrices, plan->parameters.size()));
  reshaped.resize(2 * mostMatrices * mostReshaped);
  isNonFinite = std::make_unique<std::atomic<bool>[]>(plan->parameters.size());
  ThreadPool::warmUp(threads);
  return Status::success();
}

// The session is what keeps two threads apart that step the same executor, so
// that `session` is touched only by the one that holds it.
Status HostBackend::beginStep(void *) {
  ThreadPool::Session acquired(threads);
  session.emplace(std::move(acquired));
  return Status::success();
}

Status HostBackend::endStep() {
  assert(session && "only a step that has begun can end");
  ThreadPool::Session last = std::move(*session);
  session.reset();
  return Status::success();
}

Status HostBackend::runPhase(const PhaseRun &phase) {
  const PhaseSchedule &schedule = phase.schedule;
  for (const ScheduledLaunch &scheduled : schedule.launches) {
    const Launch &launch = launchOf(schedule, scheduled);
    size_t numOperands = launch.operands.size();
    KaonBuffer *binding = bindings.data();
    BoundLaunch *bound = boundLaunches.data();
    for (const ScheduledMatrix &matrix : schedule.matricesOf(scheduled)) {
      *bound++ = {binding, phase.scalars.data() + matrix.firstScalar};
      for (size_t i = 0; i < numOperands; ++i) {
        *binding++ = schedule.bindings[matrix.firstBinding + i].resolve(
            workspaceArena.data(), phase.buffers);
      }
    }
    run(launch, std::span(boundLaunches).first(scheduled.numMatrices));
  }
  return Status::success();
}

void HostBackend::run(const Launch &launch,
                      std::span<const BoundLaunch> matrices) {
  assert(session && "launches belong to a step");
  Schedule schedule = plan->kernels[launch.kernel].schedule;
  int64_t unit = schedule == Schedule::Columns ? columnUnit : 1;
  int64_t grain = ceilDiv(launch.grain, unit);
  bool isElementwise = schedule == Schedule::Elementwise;
  int64_t numElements = isElementwise ? launch.sizes[0] * launch.sizes[1] : 0;
  int64_t reshapedItems = ceilDiv(numElements, elementwiseColumns);
  size_t numOperands = launch.operands.size();

  int64_t numItems = 0;
  for (size_t matrix = 0; matrix < matrices.size(); ++matrix) {
    bool isReshaped =
        isElementwise && isContiguous(launch, matrices[matrix].buffers);
    numItems += isReshaped ? reshapedItems : ceilDiv(launch.items, unit);
    itemEnds[matrix] = numItems;
    if (!isElementwise) {
      continue;
    }
    KaonBuffer *body = &reshaped[2 * matrix * numOperands];
    KaonBuffer *tail = body + numOperands;
    body->data = nullptr;
    if (!isReshaped) {
      continue;
    }
    int64_t tailStart = numElements / elementwiseColumns * elementwiseColumns;
    for (size_t i = 0; i < numOperands; ++i) {
      const Operand &operand = launch.operands[i];
      body[i] = tail[i] = matrices[matrix].buffers[i];
      if (operand.rows * operand.cols == numElements) {
        body[i].row_stride = tail[i].row_stride = elementwiseColumns;
        tail[i].data = static_cast<std::byte *>(tail[i].data) +
                       tailStart * byteSize(operand.type);
      }
    }
    // The plan decides how many elements a thread takes at a time; the grain
    // only says it in other items, which may be short.
    int64_t itemElements = ceilDiv(numElements, reshapedItems);
    grain =
        std::max(grain, ceilDiv(launch.grain * launch.sizes[1], itemElements));
  }

  HostLaunch hostLaunch{launch,
                        kernels[launch.kernel],
                        matrices,
                        std::span(itemEnds).first(matrices.size()),
                        isElementwise ? std::span<const KaonBuffer>(reshaped)
                                      : std::span<const KaonBuffer>(),
                        unit};
  session->run(
      numItems, grain,
      [&](int64_t begin, int64_t end, int) { hostLaunch.runItems(begin, end); },
      claimOf(schedule));
}

Result<int64_t>
HostBackend::countNonFinite(std::span<const BoundGradient> gradients) {
  assert(session && "checks belong to a step");
  auto rowsPerItem = [](const BoundGradient &gradient) {
    return std::max<int64_t>(1, finiteCheckElements / gradient.cols);
  };
  // Contiguous gradients are seen as one row of elements.
  auto isFlat = [](const BoundGradient &gradient) {
    return gradient.rows == 1 || gradient.buffer.row_stride == gradient.cols;
  };
  int64_t numItems = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const BoundGradient &gradient = gradients[i];
    numItems +=
        isFlat(gradient)
            ? ceilDiv(gradient.rows * gradient.cols, finiteCheckElements)
            : ceilDiv(gradient.rows, rowsPerItem(gradient));
    itemEnds[i] = numItems;
    isNonFinite[i].store(false, std::memory_order_relaxed);
  }

  auto checkItem = [&](const BoundGradient &gradient, int64_t item) {
    if (isFlat(gradient)) {
      int64_t begin = item * finiteCheckElements;
      int64_t count =
          std::min(finiteCheckElements, gradient.rows * gradient.cols - begin);
      return hasNonFinite(gradient.type,
                          elementAt(gradient.buffer, begin, gradient.type),
                          count);
    }
    int64_t begin = item * rowsPerItem(gradient);
    int64_t end = std::min(begin + rowsPerItem(gradient), gradient.rows);
    for (int64_t row = begin; row < end; ++row) {
      const std::byte *elements = elementAt(
          gradient.buffer, row * gradient.buffer.row_stride, gradient.type);
      if (hasNonFinite(gradient.type, elements, gradient.cols)) {
        return true;
      }
    }
    return false;
  };
  auto checkItems = [&](int64_t begin, int64_t end, int) {
    auto ends = itemEnds.begin();
    size_t index =
        std::upper_bound(ends, ends + gradients.size(), begin) - ends;
    for (int64_t item = begin; item < end; ++item) {
      while (item >= itemEnds[index]) {
        ++index;
      }
      int64_t first = index == 0 ? 0 : itemEnds[index - 1];
      if (checkItem(gradients[index], item - first)) {
        isNonFinite[index].store(true, std::memory_order_relaxed);
      }
    }
  };
  session->run(numItems, /*grain=*/4, checkItems, ThreadPool::Claim::InShares);

  int64_t count = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    count += isNonFinite[i].load(std::memory_order_relaxed);
  }
  return count;
}
