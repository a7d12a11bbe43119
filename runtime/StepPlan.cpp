//===-- StepPlan.cpp - what a step executes, as data ----------------------===//
//
// Validation and printing of plans. StepPlanJson.cpp reads and writes them.
//
//===----------------------------------------------------------------------===//

#include "runtime/StepPlan.h"

#include "runtime/KernelAbi.h"
#include "runtime/Math.h"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <limits>
#include <unordered_set>
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

// Matrices with more elements than this are refused, so that numbers of bytes
// stay far from the end of int64_t.
static constexpr int64_t maxElements = int64_t(1) << 48;
static constexpr int64_t maxBytes = int64_t(1) << 60;

// More shared memory than a block has anywhere.
static constexpr int64_t maxSharedBytes = int64_t(1) << 20;

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

static std::string shape(int64_t rows, int64_t cols, ElementType type) {
  return concat(rows, 'x', cols, ' ', stringify(type));
}

static bool isValidShape(int64_t rows, int64_t cols) {
  return rows >= 1 && cols >= 1 && rows <= maxElements / cols;
}

static Status checkShape(const std::string &path, int64_t rows, int64_t cols) {
  if (isValidShape(rows, cols)) {
    return Status::success();
  }
  return Status::failure(
      path, ": expects at least one row and one column and at most ",
      maxElements, " elements, but got ", rows, "x", cols);
}

static Status checkIndex(const std::string &path, std::string_view what,
                         int64_t index, size_t count) {
  if (index >= 0 && static_cast<size_t>(index) < count) {
    return Status::success();
  }
  return Status::failure(path, ": expects a ", what, " below ", count,
                         ", but got ", index);
}

static Status checkAtLeast(const std::string &path, int64_t value,
                           int64_t least) {
  if (value >= least) {
    return Status::success();
  }
  return Status::failure(path, ": expects at least ", least, ", but got ",
                         value);
}

static Status checkMultiple(const std::string &path, int64_t value,
                            int64_t unit, std::string_view what) {
  if (value >= 0 && value % unit == 0) {
    return Status::success();
  }
  return Status::failure(path, ": expects a multiple of ", unit, " ", what,
                         ", but got ", value);
}

static Status checkEqual(const std::string &path, int64_t value,
                         int64_t wanted) {
  if (value == wanted) {
    return Status::success();
  }
  return Status::failure(path, ": expects ", wanted, ", but got ", value);
}

ProductExtras ProductExtras::of(std::span<const Operand> operands) {
  // The factor comes last among those read. C is of 16 bits.
  ProductExtras extras;
  if (operands.size() > 3) {
    size_t last = operands.size() - 2;
    bool hasFactor = operands[last].type == ElementType::F32;
    if (hasFactor) {
      extras.factor = last;
    }
    if (!hasFactor || last > 2) {
      extras.addend = 2;
    }
  }
  return extras;
}

/// How many sizes a launch of `schedule` has.
static size_t numSizes(Schedule schedule) {
  return schedule == Schedule::Matmul ? 3 : 2;
}

/// Items of a launch on the CPU; none if they depend on the tile sizes that the
/// kernel was generated for.
static std::optional<int64_t> cpuItems(Schedule schedule,
                                       const Launch &launch) {
  switch (schedule) {
  case Schedule::Elementwise:
  case Schedule::Rows:
    return launch.sizes[0];
  case Schedule::Columns:
    return launch.sizes[1];
  case Schedule::Transpose:
    return ceilDiv(launch.sizes[0], KAON_TRANSPOSE_BLOCK);
  case Schedule::Pack:
  case Schedule::Matmul:
    break;
  }
  return std::nullopt;
}

/// Blocks of one matrix on CUDA; none for a product, which may be symmetric.
static std::optional<int64_t> cudaItems(Schedule schedule,
                                        const Launch &launch) {
  switch (schedule) {
  case Schedule::Elementwise:
    return ceilDiv(launch.sizes[0] * launch.sizes[1], launch.grain);
  case Schedule::Rows:
    return ceilDiv(launch.sizes[0], launch.grain);
  case Schedule::Columns:
    return ceilDiv(launch.sizes[1], launch.grain);
  case Schedule::Transpose:
    return ceilDiv(launch.sizes[0], cudaTransposeRows) *
           ceilDiv(launch.sizes[1], cudaTransposeColumns);
  case Schedule::Pack:
  case Schedule::Matmul:
    break;
  }
  return std::nullopt;
}

static Status checkItems(const std::string &path, Target target,
                         Schedule schedule, const Launch &launch) {
  std::optional<int64_t> wanted = target == Target::Cpu
                                      ? cpuItems(schedule, launch)
                                      : cudaItems(schedule, launch);
  if (!wanted) {
    return checkAtLeast(path + ".items", launch.items, 1);
  }
  if (launch.items == *wanted) {
    return Status::success();
  }
  return Status::failure(path, ".items: expects ", *wanted,
                         " for the schedule ", stringify(schedule),
                         " and sizes ", launch.sizes[0], "x", launch.sizes[1],
                         ", but got ", launch.items);
}

/// Number of tiles of a product on CUDA: a grid, or its lower triangle.
static Status checkTiles(const std::string &path, const Launch &launch) {
  int64_t rows = ceilDiv(launch.sizes[0], cudaTileSize),
          cols = ceilDiv(launch.sizes[1], cudaTileSize);
  int64_t triangle = rows * (rows + 1) / 2;
  if (launch.items == rows * cols ||
      (launch.sizes[0] == launch.sizes[1] && launch.items == triangle)) {
    return Status::success();
  }
  return Status::failure(path, ".items: expects the ", rows * cols,
                         " tiles of a ", launch.sizes[0], "x", launch.sizes[1],
                         " result, or its triangle, but got ", launch.items);
}

/// Kernels on CUDA count columns of a row or a block, everything of a product,
/// and the rows at which blocks start, in 32 bits.
static Status checkCudaSizes(const std::string &path, Schedule schedule,
                             const Launch &launch) {
  for (size_t i = 0; i < launch.sizes.size(); ++i) {
    int64_t most = std::numeric_limits<int32_t>::max();
    if (i == 0 && schedule == Schedule::Rows) {
      most = std::numeric_limits<uint32_t>::max();
    }
    // Lanes visit the rows of a column one by one.
    bool isBounded = i != 0 || schedule != Schedule::Columns;
    if (isBounded && launch.sizes[i] > most) {
      return Status::failure(path, ".sizes[", i, "]: expects at most ", most,
                             " for the schedule ", stringify(schedule),
                             " on cuda, but got ", launch.sizes[i]);
    }
  }
  return Status::success();
}

/// Checks that a block has as much dynamic shared memory as its code uses; only
/// the code knows what rows and columns need.
static Status checkShared(const std::string &path, Schedule schedule,
                          const Launch &launch) {
  KAON_RETURN_IF_ERROR(checkAtLeast(path, launch.sharedBytes, 0));
  if (launch.sharedBytes > maxSharedBytes) {
    return Status::failure(path, ": expects at most ", maxSharedBytes,
                           ", but got ", launch.sharedBytes);
  }
  switch (schedule) {
  case Schedule::Columns:
    return checkMultiple(path, launch.sharedBytes, cudaColumnReductionBytes,
                         "bytes");
  case Schedule::Transpose: {
    // How many operands there are is checked later.
    int64_t bytes =
        launch.operands.empty() ? 0 : byteSize(launch.operands.front().type);
    return checkAtLeast(path, launch.sharedBytes,
                        cudaTransposeSharedElements * bytes);
  }
  case Schedule::Matmul:
    return checkAtLeast(path, launch.sharedBytes, cudaProductSharedBytes);
  case Schedule::Elementwise:
  case Schedule::Rows:
  case Schedule::Pack:
    break;
  }
  return Status::success();
}

/// What CUDA needs to know to start a kernel, and the CPU does not.
static Status checkBlocks(const std::string &path, Target target,
                          const KernelPlan &kernel, const Launch &launch) {
  if (target == Target::Cpu) {
    return checkEqual(path + ".sharedBytes", launch.sharedBytes, 0);
  }
  switch (kernel.schedule) {
  case Schedule::Elementwise:
    KAON_RETURN_IF_ERROR(
        checkEqual(path + ".grain", launch.grain, cudaElementwiseGrain));
    break;
  case Schedule::Columns:
    KAON_RETURN_IF_ERROR(checkCudaSizes(path, kernel.schedule, launch));
    KAON_RETURN_IF_ERROR(
        checkEqual(path + ".grain", launch.grain, cudaColumnGrain));
    break;
  case Schedule::Transpose:
    KAON_RETURN_IF_ERROR(checkEqual(path + ".grain", launch.grain, 1));
    break;
  case Schedule::Matmul:
    KAON_RETURN_IF_ERROR(checkCudaSizes(path, kernel.schedule, launch));
    KAON_RETURN_IF_ERROR(checkEqual(path + ".grain", launch.grain, 1));
    KAON_RETURN_IF_ERROR(checkTiles(path, launch));
    break;
  case Schedule::Pack:
    return Status::failure(path, ".kernel: expects a schedule of the target ",
                           stringify(target), ", but got ",
                           stringify(kernel.schedule));
  case Schedule::Rows:
    KAON_RETURN_IF_ERROR(checkCudaSizes(path, kernel.schedule, launch));
    break;
  }
  return checkShared(path + ".sharedBytes", kernel.schedule, launch);
}

static Status checkCount(const std::string &path, std::string_view what,
                         Schedule schedule, size_t count, size_t least,
                         size_t most) {
  if (count >= least && count <= most) {
    return Status::success();
  }
  return Status::failure(
      path, ": expects ", least,
      most == least ? "" : concat(most == least + 1 ? " or " : " to ", most),
      " ", what, " for the schedule ", stringify(schedule), ", but got ",
      count);
}

/// Kernels know their matrices by the launch's sizes alone: checks that operand
/// number `index` has the shape that follows from them.
static Status checkOperandShape(const std::string &path, Target target,
                                Schedule schedule, const Launch &launch,
                                size_t index) {
  const Operand &operand = launch.operands[index];
  const std::vector<int64_t> &sizes = launch.sizes;
  auto hasShape = [&](int64_t rows, int64_t cols) {
    return operand.rows == rows && operand.cols == cols;
  };
  bool fits = true;
  switch (schedule) {
  case Schedule::Elementwise:
    fits = hasShape(sizes[0], sizes[1]) || hasShape(1, 1);
    break;
  case Schedule::Rows:
  case Schedule::Columns:
    fits = (operand.rows == 1 || operand.rows == sizes[0]) &&
           (operand.cols == 1 || operand.cols == sizes[1]);
    break;
  case Schedule::Transpose:
    fits = index == 0 ? hasShape(sizes[0], sizes[1])
                      : hasShape(sizes[1], sizes[0]);
    break;
  case Schedule::Pack:
    // What is packed has a layout of its own, padded to whole register tiles.
    fits = index == 0
               ? hasShape(sizes[0], sizes[1]) || hasShape(sizes[1], sizes[0])
               : operand.rows * operand.cols >= sizes[0] * sizes[1];
    break;
  case Schedule::Matmul:
    if (target == Target::Cuda && index < 2) {
      // A as it is or transposed, and B.
      fits =
          hasShape(sizes[index], sizes[2]) || hasShape(sizes[2], sizes[index]);
      break;
    }
    if (target == Target::Cuda &&
        index == ProductExtras::of(launch.operands).factor) {
      fits = hasShape(1, 1);
      break;
    }
    fits = index == 0   ? operand.rows * operand.cols >= sizes[0] * sizes[2]
           : index == 1 ? operand.rows * operand.cols >= sizes[1] * sizes[2]
                        : hasShape(sizes[0], sizes[1]);
    break;
  }
  if (fits) {
    return Status::success();
  }
  std::string list;
  for (int64_t size : sizes) {
    list += concat(list.empty() ? "" : "x", size);
  }
  return Status::failure(path, ": expects a shape that goes with the schedule ",
                         stringify(schedule), " and sizes ", list, ", but got ",
                         operand.rows, "x", operand.cols);
}

/// Scalars of a product. On CUDA those of an epilogue may follow.
static Status checkProductScalars(const std::string &path, Target target,
                                  const Launch &launch) {
  if (target == Target::Cpu) {
    return checkCount(path, "scalars", Schedule::Matmul, launch.scalars.size(),
                      2, 2);
  }
  // alpha, and beta of an addend
  int64_t least = ProductExtras::of(launch.operands).addend ? 2 : 1;
  auto count = static_cast<int64_t>(launch.scalars.size());
  if (count >= least) {
    return Status::success();
  }
  return Status::failure(path, ": expects at least ", least,
                         " scalars for a product with ", launch.numInputs,
                         " inputs, but got ", count);
}

/// What a product on CUDA reads beside the factor has the 16-bit type of A.
static Status checkProductTypes(const std::string &path, const Launch &launch) {
  std::optional<size_t> factor = ProductExtras::of(launch.operands).factor;
  ElementType half = launch.operands[0].type;
  for (size_t i = 0; i + 1 < launch.operands.size(); ++i) {
    ElementType type = launch.operands[i].type;
    if (i != factor && (type != half || byteSize(type) != 2)) {
      return Status::failure(path, ".operands[", i,
                             "].type: expects all of bf16 or all of f16 for "
                             "what a product multiplies and adds, but got ",
                             stringify(type), " beside ", stringify(half));
    }
  }
  return Status::success();
}

/// Library kernels have a fixed number of operands and scalars.
static Status checkSignature(const std::string &path, Target target,
                             Schedule schedule, const Launch &launch) {
  bool isMatmul = schedule == Schedule::Matmul;
  if (!isMatmul && schedule != Schedule::Pack &&
      schedule != Schedule::Transpose) {
    return Status::success();
  }
  size_t most = !isMatmul ? 2 : target == Target::Cuda ? 5 : 4;
  KAON_RETURN_IF_ERROR(checkCount(path + ".operands", "operands", schedule,
                                  launch.operands.size(), isMatmul ? 3 : 2,
                                  most));
  size_t numInputs = launch.operands.size() - 1;
  KAON_RETURN_IF_ERROR(checkCount(path + ".inputs", "operands to read",
                                  schedule, launch.numInputs, numInputs,
                                  numInputs));
  if (isMatmul && target == Target::Cuda) {
    KAON_RETURN_IF_ERROR(checkProductTypes(path, launch));
  }
  if (isMatmul) {
    return checkProductScalars(path + ".scalars", target, launch);
  }
  return checkCount(path + ".scalars", "scalars", schedule,
                    launch.scalars.size(), 0, 0);
}

/// Checks where a matrix of the workspace lies.
static Status validatePlace(const std::string &path, Target target,
                            const Operand &operand, const Sequence &sequence) {
  KAON_RETURN_IF_ERROR(checkMultiple(path + ".offset", operand.offset,
                                     bufferAlignment(target), "bytes"));
  if (operand.pitch < operand.cols ||
      !isValidShape(operand.rows, operand.pitch)) {
    return Status::failure(path, ".pitch: expects at least the ", operand.cols,
                           " columns and at most ", maxElements,
                           " elements in all, but got ", operand.pitch);
  }
  if (target == Target::Cpu) {
    KAON_RETURN_IF_ERROR(
        checkEqual(path + ".pitch", operand.pitch, operand.cols));
  }
  KAON_RETURN_IF_ERROR(checkMultiple(path + ".pitch", operand.pitch,
                                     pitchUnit(target, operand.type),
                                     "elements"));
  if (operand.offset > sequence.workspaceBytes ||
      operand.bytes() > sequence.workspaceBytes - operand.offset) {
    return Status::failure(
        path, ": expects to end within the sequence's workspace of ",
        sequence.workspaceBytes, " bytes, but ends at ",
        operand.offset + operand.bytes());
  }
  return Status::success();
}

static Status validateOperand(const std::string &path, Target target,
                              const Operand &operand, const Sequence &sequence,
                              bool isResult) {
  KAON_RETURN_IF_ERROR(checkShape(path, operand.rows, operand.cols));
  if (operand.kind != BufferKind::Workspace) {
    KAON_RETURN_IF_ERROR(checkEqual(path + ".pitch", operand.pitch, 0));
  }
  switch (operand.kind) {
  case BufferKind::Param:
    return Status::success();
  case BufferKind::Grad:
    if (isResult) {
      return Status::failure(path, ".kind: expects a result outside the "
                                   "gradient, which a step never changes");
    }
    return Status::success();
  case BufferKind::State:
    return checkAtLeast(path + ".index", operand.index, 0);
  case BufferKind::Workspace:
    break;
  }
  return validatePlace(path, target, operand, sequence);
}

/// A tensor map is made once, of aligned rows in half precision.
static Status checkMapped(const std::string &path, const Operand &operand) {
  constexpr int64_t rowAlignment = 16;
  if (operand.kind != BufferKind::Workspace || byteSize(operand.type) != 2) {
    return Status::failure(path, ": expects a half-precision matrix of the "
                                 "workspace, of which there is a tensor map");
  }
  return checkMultiple(path + ".pitch", operand.pitch * byteSize(operand.type),
                       rowAlignment, "bytes");
}

static Status validateLaunch(const std::string &path, const Launch &launch,
                             const Sequence &sequence, const StepPlan &plan) {
  KAON_RETURN_IF_ERROR(checkIndex(path + ".kernel", "kernel", launch.kernel,
                                  plan.kernels.size()));
  const KernelPlan &kernel = plan.kernels[launch.kernel];
  Schedule schedule = kernel.schedule;

  if (launch.sizes.size() != numSizes(schedule)) {
    return Status::failure(path, ".sizes: expects ", numSizes(schedule),
                           " sizes for the schedule ", stringify(schedule),
                           ", but got ", launch.sizes.size());
  }
  for (size_t i = 0; i < launch.sizes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      KAON_RETURN_IF_ERROR(
          checkShape(path + ".sizes", launch.sizes[j], launch.sizes[i]));
    }
  }
  KAON_RETURN_IF_ERROR(checkAtLeast(path + ".grain", launch.grain, 1));
  KAON_RETURN_IF_ERROR(checkItems(path, plan.target, schedule, launch));
  KAON_RETURN_IF_ERROR(checkBlocks(path, plan.target, kernel, launch));
  KAON_RETURN_IF_ERROR(checkAtLeast(path + ".flops", launch.flops, 0));
  KAON_RETURN_IF_ERROR(checkAtLeast(path + ".bytes", launch.bytes, 0));

  int64_t numOperands = static_cast<int64_t>(launch.operands.size());
  if (launch.numInputs < 0 || launch.numInputs >= numOperands) {
    return Status::failure(
        path, ".inputs: expects at least one operand to be written, but got ",
        launch.numInputs, " read of ", numOperands);
  }
  KAON_RETURN_IF_ERROR(checkSignature(path, plan.target, schedule, launch));
  for (int64_t i = 0; i < numOperands; ++i) {
    std::string operandPath = concat(path, ".operands[", i, "]");
    KAON_RETURN_IF_ERROR(validateOperand(operandPath, plan.target,
                                         launch.operands[i], sequence,
                                         i >= launch.numInputs));
    KAON_RETURN_IF_ERROR(checkOperandShape(operandPath, plan.target, schedule,
                                           launch, static_cast<size_t>(i)));
    if (i < kernel.mappedOperands) {
      KAON_RETURN_IF_ERROR(checkMapped(operandPath, launch.operands[i]));
    }
  }
  for (size_t i = 0; i < launch.scalars.size(); ++i) {
    KAON_RETURN_IF_ERROR(checkIndex(concat(path, ".scalars[", i, "]"),
                                    "register", launch.scalars[i],
                                    sequence.program.instructions().size()));
  }
  return Status::success();
}

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
        return Status::failure(path, ": parameter '", parameter.name,
                               "' has a ", shape(rows, cols, type), " ",
                               stringify(operand.kind), ", but launch ", i,
                               " of '", sequence.name, "' expects its operand ",
                               j, " to be ",
                               shape(operand.rows, operand.cols, operand.type));
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

static Status checkThreads(const std::string &path, Target target,
                           const KernelPlan &kernel) {
  if (target == Target::Cpu) {
    return checkEqual(path, kernel.threads, 0);
  }
  constexpr int64_t warp = 32, most = 1024;
  if (kernel.threads < warp || kernel.threads > most ||
      kernel.threads % warp != 0) {
    return Status::failure(path, ": expects a multiple of ", warp, " from ",
                           warp, " to ", most, ", but got ", kernel.threads);
  }
  // Code for rows is made for as many threads as suit them, and main loops of
  // products may have more.
  if (kernel.schedule == Schedule::Rows || kernel.threads == cudaBlockThreads ||
      (kernel.schedule == Schedule::Matmul &&
       kernel.threads > cudaBlockThreads)) {
    return Status::success();
  }
  return Status::failure(path, ": expects ",
                         kernel.schedule == Schedule::Matmul ? "at least " : "",
                         cudaBlockThreads, " for the schedule ",
                         stringify(kernel.schedule), ", but got ",
                         kernel.threads);
}

static Status checkMappedOperands(const std::string &path, Target target,
                                  const KernelPlan &kernel) {
  bool mayHaveMaps =
      target == Target::Cuda && kernel.schedule == Schedule::Matmul;
  if (kernel.mappedOperands == 0 ||
      (mayHaveMaps && kernel.mappedOperands == 2)) {
    return Status::success();
  }
  return Status::failure(path,
                         ": expects 0, or 2 for a product on CUDA, but "
                         "got ",
                         kernel.mappedOperands);
}

static Status validateKernels(const StepPlan &plan) {
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const std::string &name = plan.kernels[i].name;
    if (name.empty()) {
      return Status::failure("kernels[", i,
                             "].name: expects a name, but got none");
    }
    KAON_RETURN_IF_ERROR(checkThreads(concat("kernels[", i, "].threads"),
                                      plan.target, plan.kernels[i]));
    KAON_RETURN_IF_ERROR(
        checkMappedOperands(concat("kernels[", i, "].mappedOperands"),
                            plan.target, plan.kernels[i]));
    if (!names.insert(name).second) {
      return Status::failure("kernels[", i,
                             "].name: expects distinct names, but got '", name,
                             "' twice");
    }
  }
  return Status::success();
}

namespace {

/// What all launches of one kernel have in common: its code relies on it, and
/// on CUDA their matrices share one table, whose rows have one size.
struct Signature {
  std::vector<ElementType> types; // of operands, without a product's factor
  int32_t numInputs = 0;          // of them
  size_t numScalars = 0;
  /// For the rows and the columns of each operand whether there is one for all
  /// of the launch's; none where the launch has one itself.
  std::vector<std::optional<bool>> isShared;
  /// Whether a product on CUDA computes a triangle; none of a single tile,
  /// which is both.
  std::optional<bool> isTriangle;

  static Signature of(Target target, Schedule schedule, const Launch &launch);
};

} // namespace

Signature Signature::of(Target target, Schedule schedule,
                        const Launch &launch) {
  Signature signature;
  signature.numInputs = launch.numInputs;
  signature.numScalars = launch.scalars.size();
  bool isCudaProduct = target == Target::Cuda && schedule == Schedule::Matmul;
  std::optional<size_t> factor;
  if (isCudaProduct) {
    // A null pointer where there is none.
    factor = ProductExtras::of(launch.operands).factor;
    signature.numInputs -= factor ? 1 : 0;
    if (ceilDiv(launch.sizes[0], cudaTileSize) > 1 ||
        launch.sizes[0] != launch.sizes[1]) {
      signature.isTriangle =
          launch.items < ceilDiv(launch.sizes[0], cudaTileSize) *
                             ceilDiv(launch.sizes[1], cudaTileSize);
    }
  }
  bool hasShared = schedule == Schedule::Elementwise ||
                   schedule == Schedule::Rows || schedule == Schedule::Columns;
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const Operand &operand = launch.operands[i];
    if (i == factor) {
      continue;
    }
    signature.types.push_back(operand.type);
    if (hasShared) {
      for (auto [own, all] : {std::pair(operand.rows, launch.sizes[0]),
                              std::pair(operand.cols, launch.sizes[1])}) {
        signature.isShared.push_back(all > 1 ? std::optional(own == 1)
                                             : std::nullopt);
      }
    }
  }
  return signature;
}

/// Checks that a launch of `kernel` takes what `known`, of the launches before,
/// says, and adds what it alone tells.
static Status checkAlike(const std::string &path, const KernelPlan &kernel,
                         const Signature &own, Signature &known) {
  auto failure = [&](const auto &field, const auto &wanted, const auto &found) {
    return Status::failure(path, field, ": expects ", wanted,
                           ", as the launches before of '", kernel.name,
                           "' have, but got ", found);
  };
  if (own.types.size() != known.types.size()) {
    return failure(".operands", concat(known.types.size(), " operands"),
                   own.types.size());
  }
  if (own.numInputs != known.numInputs) {
    return failure(".inputs", known.numInputs, own.numInputs);
  }
  if (own.numScalars != known.numScalars) {
    return failure(".scalars", concat(known.numScalars, " scalars"),
                   own.numScalars);
  }
  for (size_t i = 0; i < own.types.size(); ++i) {
    if (own.types[i] != known.types[i]) {
      return failure(concat(".operands[", i, "].type"),
                     stringify(known.types[i]), stringify(own.types[i]));
    }
  }
  for (size_t i = 0; i < own.isShared.size(); ++i) {
    std::optional<bool> &shared = known.isShared[i];
    shared = shared ? shared : own.isShared[i];
    if (own.isShared[i] && own.isShared[i] != shared) {
      const char *words[] = {"one for each of the launch", "one for all"};
      return failure(concat(".operands[", i / 2, i % 2 ? "].cols" : "].rows"),
                     words[*shared], words[*own.isShared[i]]);
    }
  }
  known.isTriangle = known.isTriangle ? known.isTriangle : own.isTriangle;
  if (own.isTriangle && own.isTriangle != known.isTriangle) {
    const char *words[] = {"all tiles", "tiles of the triangle"};
    return failure(".items", words[*known.isTriangle], words[*own.isTriangle]);
  }
  return Status::success();
}

/// Checks that all launches of each kernel have one signature.
static Status checkSignatures(const StepPlan &plan) {
  std::vector<std::optional<Signature>> known(plan.kernels.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const std::vector<Launch> &launches = plan.sequences[i].launches;
    for (size_t j = 0; j < launches.size(); ++j) {
      const KernelPlan &kernel = plan.kernels[launches[j].kernel];
      Signature own = Signature::of(plan.target, kernel.schedule, launches[j]);
      std::optional<Signature> &before = known[launches[j].kernel];
      if (!before) {
        before = std::move(own);
        continue;
      }
      KAON_RETURN_IF_ERROR(
          checkAlike(concat("sequences[", i, "].launches[", j, "]"), kernel,
                     own, *before));
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
  }
  return checkSignatures(plan);
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
           << shape(parameter.rows, parameter.cols, parameter.paramType)
           << ", gradient " << stringify(parameter.gradType) << ", scalar set "
           << parameter.scalarSet;
    for (const StatePlan &state : parameter.states) {
      stream << ", state " << state.name << ": "
             << shape(state.rows, state.cols, state.type);
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
