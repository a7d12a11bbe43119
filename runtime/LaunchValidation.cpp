//===-- LaunchValidation.cpp - whether launches fit their kernels ---------===//
//
// Code cannot be asked what it reads and writes. Kernels say in the plan what
// they were made for, and launches are held to it: they have just the operands,
// shapes, blocks and shared memory for which the code stays within its buffers
// and leaves none of its results out.
//
//===----------------------------------------------------------------------===//

#include "runtime/KernelAbi.h"
#include "runtime/Math.h"
#include "runtime/PlanChecks.h"

#include <algorithm>
#include <limits>
#include <utility>

using namespace kaon::runtime;

// More shared memory than a block has anywhere.
static constexpr int64_t maxSharedBytes = int64_t(1) << 20;

// More than any kernel has of what is counted in its plan, so that products of
// these numbers stay far from the end of int64_t.
static constexpr int64_t maxOfKernel = 4096;

static bool isLibraryKernel(Schedule schedule) {
  return schedule == Schedule::Transpose || schedule == Schedule::Pack ||
         schedule == Schedule::Matmul;
}

static std::string forSchedule(Schedule schedule) {
  return concat(" for the schedule ", stringify(schedule));
}

static Status checkCount(const std::string &path, std::string_view what,
                         Schedule schedule, size_t count, size_t least,
                         size_t most) {
  if (count >= least && count <= most) {
    return Status::success();
  }
  return Status::failure(path, ": expects ", least,
                         most == least ? "" : concat(" or ", most), " ", what,
                         forSchedule(schedule), ", but got ", count);
}

static Status checkUnset(const std::string &path, bool isSet,
                         Schedule schedule) {
  if (!isSet) {
    return Status::success();
  }
  return Status::failure(path, ": expects false", forSchedule(schedule),
                         ", but got true");
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

static Status checkThreads(const std::string &path, Target target,
                           const KernelPlan &kernel) {
  if (target == Target::Cpu) {
    return checkEqual(path, kernel.threads, 0);
  }
  if (kernel.schedule == Schedule::Rows) {
    // Code for rows is made for as many threads as suit them.
    constexpr int64_t warp = 32, most = 1024;
    if (kernel.threads >= warp && kernel.threads <= most &&
        kernel.threads % warp == 0) {
      return Status::success();
    }
    return Status::failure(path, ": expects a multiple of ", warp, " from ",
                           warp, " to ", most, ", but got ", kernel.threads);
  }
  if (kernel.mappedOperands > 0) {
    return checkEqual(path, kernel.threads, cudaWarpgroupThreads,
                      " for a product of mapped operands");
  }
  return checkEqual(path, kernel.threads, cudaBlockThreads,
                    forSchedule(kernel.schedule));
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

static Status checkTiles(const std::string &path, Target target,
                         const KernelPlan &kernel) {
  bool isOnCpu = target == Target::Cpu;
  size_t wanted = !isOnCpu                              ? 0
                  : kernel.schedule == Schedule::Pack   ? 1
                  : kernel.schedule == Schedule::Matmul ? 3
                                                        : 0;
  KAON_RETURN_IF_ERROR(checkCount(path, "sizes of tiles", kernel.schedule,
                                  kernel.tiles.size(), wanted, wanted));
  for (size_t i = 0; i < wanted; ++i) {
    KAON_RETURN_IF_ERROR(checkBetween(concat(path, "[", i, "]"),
                                      kernel.tiles[i], 1, maxOfKernel));
  }
  return Status::success();
}

/// Checks that what says how products and packs read their matrices is said of
/// no other kernel.
static Status checkMatrices(const std::string &path, Target target,
                            const KernelPlan &kernel) {
  bool isProduct = kernel.schedule == Schedule::Matmul;
  bool isOnCuda = target == Target::Cuda;
  KAON_RETURN_IF_ERROR(checkUnset(
      path + ".symmetric", kernel.symmetric && !isProduct, kernel.schedule));
  bool mayTurnA = isProduct ? isOnCuda : kernel.schedule == Schedule::Pack;
  KAON_RETURN_IF_ERROR(checkUnset(
      path + ".transposeA", kernel.transposeA && !mayTurnA, kernel.schedule));
  return checkUnset(path + ".transposeB",
                    kernel.transposeB && !(isProduct && isOnCuda),
                    kernel.schedule);
}

/// Checks what says how much shared memory the code takes.
static Status checkShares(const std::string &path, Target target,
                          const KernelPlan &kernel) {
  bool isRows = target == Target::Cuda && kernel.schedule == Schedule::Rows;
  bool reduces = isRows || (target == Target::Cuda &&
                            kernel.schedule == Schedule::Columns);
  KAON_RETURN_IF_ERROR(checkBetween(path + ".reductions", kernel.reductions, 0,
                                    reduces ? maxOfKernel : 0));
  KAON_RETURN_IF_ERROR(
      checkBetween(path + ".kept", kernel.kept, 0, isRows ? maxOfKernel : 0));
  bool keeps = kernel.kept > 0;
  return checkBetween(path + ".registerGroups", kernel.registerGroups,
                      keeps ? 1 : 0, keeps ? maxOfKernel : 0);
}

/// Checks that a product on CUDA reads matrices of one 16-bit type.
static Status checkProductTypes(const std::string &path,
                                const Signature &signature) {
  ElementType half = signature.types[0];
  for (int32_t i = 0; i < signature.numInputs; ++i) {
    ElementType type = signature.types[i];
    if (type != half || byteSize(type) != 2) {
      return Status::failure(path, ".operands[", i,
                             "]: expects all of bf16 or all of f16 for "
                             "what a product multiplies and adds, but got ",
                             stringify(type), " beside ", stringify(half));
    }
  }
  return Status::success();
}

/// Scalars of a product: alpha and beta. On CUDA beta is there if an addend is,
/// and those of an epilogue may follow.
static Status checkProductScalars(const std::string &path, Target target,
                                  const Signature &signature) {
  if (target == Target::Cpu) {
    return checkEqual(path + ".scalars", signature.numScalars, 2,
                      forSchedule(Schedule::Matmul));
  }
  KAON_RETURN_IF_ERROR(checkProductTypes(path, signature));
  return checkAtLeast(path + ".scalars", signature.numScalars,
                      signature.numInputs == 3 ? 2 : 1);
}

/// Library kernels have a fixed number of operands and scalars.
static Status checkSignature(const std::string &path, Target target,
                             const KernelPlan &kernel) {
  const Signature &signature = kernel.signature;
  auto numOperands = static_cast<int64_t>(signature.types.size());
  if (signature.numInputs < 0 || signature.numInputs >= numOperands) {
    return Status::failure(
        path, ".inputs: expects at least one operand to be written, but got ",
        signature.numInputs, " read of ", numOperands);
  }
  KAON_RETURN_IF_ERROR(
      checkAtLeast(path + ".scalars", signature.numScalars, 0));
  if (!isLibraryKernel(kernel.schedule)) {
    return Status::success();
  }
  bool isProduct = kernel.schedule == Schedule::Matmul;
  KAON_RETURN_IF_ERROR(checkCount(path + ".operands", "operands",
                                  kernel.schedule, signature.types.size(),
                                  isProduct ? 3 : 2, isProduct ? 4 : 2));
  KAON_RETURN_IF_ERROR(checkEqual(path + ".inputs", signature.numInputs,
                                  numOperands - 1,
                                  forSchedule(kernel.schedule)));
  return isProduct ? checkProductScalars(path, target, signature)
                   : checkEqual(path + ".scalars", signature.numScalars, 0,
                                forSchedule(kernel.schedule));
}

Status kaon::runtime::validateKernel(const std::string &path, Target target,
                                     const KernelPlan &kernel) {
  if (kernel.name.empty()) {
    return Status::failure(path, ".name: expects a name, but got none");
  }
  if (target == Target::Cuda && kernel.schedule == Schedule::Pack) {
    return Status::failure(path, ".schedule: expects one of the target ",
                           stringify(target), ", but got ",
                           stringify(kernel.schedule));
  }
  KAON_RETURN_IF_ERROR(
      checkMappedOperands(path + ".mappedOperands", target, kernel));
  KAON_RETURN_IF_ERROR(checkThreads(path + ".threads", target, kernel));
  KAON_RETURN_IF_ERROR(checkTiles(path + ".tiles", target, kernel));
  KAON_RETURN_IF_ERROR(checkMatrices(path, target, kernel));
  KAON_RETURN_IF_ERROR(checkShares(path, target, kernel));
  return checkSignature(path, target, kernel);
}

//===----------------------------------------------------------------------===//
// Operands of a launch
//===----------------------------------------------------------------------===//

/// Checks that a launch has as many operands and scalars as its kernel takes,
/// of the same types.
static Status checkTakes(const std::string &path, Target target,
                         const KernelPlan &kernel, const Launch &launch) {
  if (launch.hasFactor &&
      (target != Target::Cuda || kernel.schedule != Schedule::Matmul)) {
    return Status::failure(path,
                           ".factor: expects none but for products on cuda, "
                           "but got one");
  }
  const Signature &signature = kernel.signature;
  int64_t numFactors = launch.hasFactor ? 1 : 0;
  std::string why = concat(" for the kernel '", kernel.name, "'",
                           launch.hasFactor ? " and a factor" : "");
  auto numTypes = static_cast<int64_t>(signature.types.size());
  KAON_RETURN_IF_ERROR(checkEqual(path + ".operands",
                                  static_cast<int64_t>(launch.operands.size()),
                                  numTypes + numFactors, why));
  KAON_RETURN_IF_ERROR(checkEqual(path + ".inputs", launch.numInputs,
                                  signature.numInputs + numFactors, why));
  KAON_RETURN_IF_ERROR(checkEqual(path + ".scalars",
                                  static_cast<int64_t>(launch.scalars.size()),
                                  signature.numScalars, why));
  size_t known = 0;
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    bool isFactor =
        launch.hasFactor && static_cast<int64_t>(i) == signature.numInputs;
    ElementType wanted = isFactor ? ElementType::F32 : signature.types[known++];
    if (launch.operands[i].type != wanted) {
      return Status::failure(path, ".operands[", i, "].type: expects ",
                             stringify(wanted),
                             isFactor ? " for a factor" : why, ", but got ",
                             stringify(launch.operands[i].type));
    }
  }
  return Status::success();
}

/// The shape in memory of matrix number `index` (A, B) of a product on CUDA, or
/// of what a `pack` reads.
static std::pair<int64_t, int64_t>
shapeOfFactor(const KernelPlan &kernel, const Launch &launch, size_t index) {
  int64_t extent = launch.sizes[index], k = launch.sizes.back();
  // B is k x n as it is.
  bool isTurned = index == 0 ? kernel.transposeA : !kernel.transposeB;
  return isTurned ? std::pair(k, extent) : std::pair(extent, k);
}

/// The shape of `extent` vectors of length `k`, packed in slivers of `tile`.
static std::pair<int64_t, int64_t> shapeOfSlivers(int64_t extent, int64_t k,
                                                  int64_t tile) {
  return {ceilDiv(extent, tile), roundUp(k, KAON_PACKED_DEPTH_UNIT) * tile};
}

/// The shape that operand number `index` of a library kernel must have.
static std::pair<int64_t, int64_t> shapeOf(Target target,
                                           const KernelPlan &kernel,
                                           const Launch &launch, size_t index) {
  const std::vector<int64_t> &sizes = launch.sizes;
  switch (kernel.schedule) {
  case Schedule::Transpose:
    return index == 0 ? std::pair(sizes[0], sizes[1])
                      : std::pair(sizes[1], sizes[0]);
  case Schedule::Pack:
    return index == 0 ? shapeOfFactor(kernel, launch, index)
                      : shapeOfSlivers(sizes[0], sizes[1], kernel.tiles[0]);
  default:
    break;
  }
  if (index < 2) {
    return target == Target::Cuda
               ? shapeOfFactor(kernel, launch, index)
               : shapeOfSlivers(sizes[index], sizes[2], kernel.tiles[index]);
  }
  bool isFactor =
      index ==
      ProductExtras::of(launch.operands.size(), launch.hasFactor).factor;
  return isFactor ? std::pair(int64_t(1), int64_t(1))
                  : std::pair(sizes[0], sizes[1]);
}

/// Kernels know their matrices by the launch's sizes alone: checks that operand
/// number `index` has a shape that follows from them.
static Status checkOperandShape(const std::string &path, Target target,
                                const KernelPlan &kernel, const Launch &launch,
                                size_t index) {
  const Operand &operand = launch.operands[index];
  const std::vector<int64_t> &sizes = launch.sizes;
  std::pair own(operand.rows, operand.cols);
  bool isResult = static_cast<int64_t>(index) >= launch.numInputs;
  bool fits = true;
  // Of what several rows or columns share, only one may be written.
  switch (kernel.schedule) {
  case Schedule::Elementwise:
    fits = own == std::pair(sizes[0], sizes[1]) ||
           (own == std::pair(int64_t(1), int64_t(1)) && !isResult);
    break;
  case Schedule::Rows:
    fits = (own.first == sizes[0] || (own.first == 1 && !isResult)) &&
           (own.second == sizes[1] || own.second == 1);
    break;
  case Schedule::Columns:
    fits = (own.first == sizes[0] || own.first == 1) &&
           (own.second == sizes[1] || (own.second == 1 && !isResult));
    break;
  case Schedule::Transpose:
  case Schedule::Pack:
  case Schedule::Matmul:
    fits = own == shapeOf(target, kernel, launch, index);
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
                         stringify(kernel.schedule), " and sizes ", list,
                         ", but got ", operand.rows, "x", operand.cols);
}

/// Checks that a launch over rows or columns has no more of them than any of
/// its operands.
static Status checkExtents(const std::string &path, Schedule schedule,
                           const Launch &launch) {
  if (isLibraryKernel(schedule)) {
    return Status::success(); // Shapes follow from the sizes.
  }
  for (size_t i = 0; i < launch.sizes.size(); ++i) {
    int64_t most = 1;
    for (const Operand &operand : launch.operands) {
      most = std::max(most, i == 0 ? operand.rows : operand.cols);
    }
    KAON_RETURN_IF_ERROR(checkEqual(concat(path, ".sizes[", i, "]"),
                                    launch.sizes[i], most,
                                    " as the largest operand has"));
  }
  return Status::success();
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

/// A product on CUDA copies what it multiplies and adds in pieces of 16 bytes,
/// or by a tensor map, which is made once: rows have to be aligned.
static Status checkAligned(const std::string &path, const KernelPlan &kernel,
                           const Launch &launch, size_t index) {
  auto [addend, factor] =
      ProductExtras::of(launch.operands.size(), launch.hasFactor);
  const Operand &operand = launch.operands[index];
  bool isCopied = index < 2 || index == addend;
  if (kernel.schedule != Schedule::Matmul || !isCopied ||
      operand.kind == BufferKind::Workspace) {
    return Status::success();
  }
  return Status::failure(path,
                         ".kind: expects a matrix of the workspace, "
                         "where rows are aligned, but got ",
                         stringify(operand.kind));
}

static Status validateOperands(const std::string &path, const Launch &launch,
                               const Sequence &sequence, Target target,
                               const KernelPlan &kernel) {
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    std::string operandPath = concat(path, ".operands[", i, "]");
    bool isResult = static_cast<int64_t>(i) >= launch.numInputs;
    KAON_RETURN_IF_ERROR(validateOperand(
        operandPath, target, launch.operands[i], sequence, isResult));
    KAON_RETURN_IF_ERROR(
        checkOperandShape(operandPath, target, kernel, launch, i));
    if (target == Target::Cuda) {
      KAON_RETURN_IF_ERROR(checkAligned(operandPath, kernel, launch, i));
    }
  }
  return Status::success();
}

//===----------------------------------------------------------------------===//
// Work items and blocks of a launch
//===----------------------------------------------------------------------===//

/// Tiles of a product of `size` rows and columns: a grid, or its triangle.
static int64_t countTiles(const KernelPlan &kernel, const Launch &launch,
                          int64_t size) {
  int64_t rows = ceilDiv(launch.sizes[0], size);
  return kernel.symmetric ? rows * (rows + 1) / 2
                          : rows * ceilDiv(launch.sizes[1], size);
}

static int64_t countCpuItems(const KernelPlan &kernel, const Launch &launch) {
  switch (kernel.schedule) {
  case Schedule::Elementwise:
  case Schedule::Rows:
    return launch.sizes[0];
  case Schedule::Columns:
    return launch.sizes[1];
  case Schedule::Transpose:
    return ceilDiv(launch.sizes[0], KAON_TRANSPOSE_BLOCK);
  case Schedule::Pack:
    return ceilDiv(launch.sizes[0], kernel.tiles[0]);
  case Schedule::Matmul:
    break;
  }
  return countTiles(kernel, launch, kernel.tiles[2]);
}

/// Blocks of one matrix on CUDA.
static int64_t countBlocks(const KernelPlan &kernel, const Launch &launch) {
  switch (kernel.schedule) {
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
  return countTiles(kernel, launch, cudaTileSize);
}

static Status checkItems(const std::string &path, Target target,
                         const KernelPlan &kernel, const Launch &launch) {
  bool isProduct = kernel.schedule == Schedule::Matmul;
  if (kernel.symmetric && launch.sizes[0] != launch.sizes[1]) {
    return Status::failure(path,
                           ".sizes: expects a square result of the "
                           "symmetric product '",
                           kernel.name, "', but got ", launch.sizes[0], "x",
                           launch.sizes[1]);
  }
  int64_t wanted = target == Target::Cpu ? countCpuItems(kernel, launch)
                                         : countBlocks(kernel, launch);
  return checkEqual(path + ".items", launch.items, wanted,
                    concat(forSchedule(kernel.schedule), " and sizes ",
                           launch.sizes[0], "x", launch.sizes[1],
                           !isProduct ? ""
                           : kernel.symmetric
                               ? " of a symmetric product"
                               : " of a product that is not symmetric"));
}

/// Kernels on CUDA count columns of a row or a block, everything of a product,
/// and the rows at which blocks start, in 32 bits.
static Status checkCudaSizes(const std::string &path, Schedule schedule,
                             const Launch &launch) {
  if (schedule == Schedule::Elementwise || schedule == Schedule::Transpose) {
    return Status::success();
  }
  for (size_t i = 0; i < launch.sizes.size(); ++i) {
    int64_t most = std::numeric_limits<int32_t>::max();
    if (i == 0 && schedule == Schedule::Rows) {
      most = std::numeric_limits<uint32_t>::max();
    }
    // Lanes visit the rows of a column one by one.
    bool isBounded = i != 0 || schedule != Schedule::Columns;
    if (isBounded && launch.sizes[i] > most) {
      return Status::failure(path, ".sizes[", i, "]: expects at most ", most,
                             forSchedule(schedule), " on cuda, but got ",
                             launch.sizes[i]);
    }
  }
  return Status::success();
}

/// What a block covers on CUDA is fixed, but for rows.
static Status checkGrain(const std::string &path, Target target,
                         const KernelPlan &kernel, const Launch &launch) {
  if (target == Target::Cuda) {
    switch (kernel.schedule) {
    case Schedule::Elementwise:
      return checkEqual(path, launch.grain, cudaElementwiseGrain);
    case Schedule::Columns:
      return checkEqual(path, launch.grain, cudaColumnGrain);
    case Schedule::Transpose:
    case Schedule::Matmul:
    case Schedule::Pack:
      return checkEqual(path, launch.grain, 1);
    case Schedule::Rows:
      // Far less than a chunk of single elements, for which these blocks would
      // be too few.
      return checkBetween(path, launch.grain, 1, cudaMaxRowGrain);
    }
  }
  return checkBetween(path, launch.grain, 1, maxElements);
}

/// Dynamic shared memory that a block takes on CUDA.
static int64_t sharedBytesOf(const KernelPlan &kernel, const Launch &launch) {
  switch (kernel.schedule) {
  case Schedule::Rows:
    return rowSharedBytes(kernel, launch.sizes[1]);
  case Schedule::Columns:
    return kernel.reductions * cudaColumnReductionBytes;
  case Schedule::Transpose:
    return cudaTransposeSharedElements * byteSize(kernel.signature.types[0]);
  case Schedule::Matmul:
    return kernel.mappedOperands > 0 ? cudaWarpgroupSharedBytes
                                     : cudaProductSharedBytes;
  case Schedule::Elementwise:
  case Schedule::Pack:
    break;
  }
  return 0;
}

static Status checkShared(const std::string &path, Target target,
                          const KernelPlan &kernel, const Launch &launch) {
  int64_t wanted = target == Target::Cpu ? 0 : sharedBytesOf(kernel, launch);
  KAON_RETURN_IF_ERROR(checkEqual(path, launch.sharedBytes, wanted));
  return checkBetween(path, launch.sharedBytes, 0, maxSharedBytes);
}

/// Checks how the work of a launch is cut.
static Status checkWork(const std::string &path, Target target,
                        const KernelPlan &kernel, const Launch &launch) {
  KAON_RETURN_IF_ERROR(checkGrain(path + ".grain", target, kernel, launch));
  if (target == Target::Cuda) {
    KAON_RETURN_IF_ERROR(checkCudaSizes(path, kernel.schedule, launch));
  }
  KAON_RETURN_IF_ERROR(checkItems(path, target, kernel, launch));
  KAON_RETURN_IF_ERROR(
      checkShared(path + ".sharedBytes", target, kernel, launch));
  KAON_RETURN_IF_ERROR(checkAtLeast(path + ".flops", launch.flops, 0));
  return checkAtLeast(path + ".bytes", launch.bytes, 0);
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

static Status checkSizes(const std::string &path, Schedule schedule,
                         const Launch &launch) {
  size_t count = schedule == Schedule::Matmul ? 3 : 2;
  KAON_RETURN_IF_ERROR(
      checkCount(path, "sizes", schedule, launch.sizes.size(), count, count));
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      KAON_RETURN_IF_ERROR(checkShape(path, launch.sizes[j], launch.sizes[i]));
    }
  }
  return Status::success();
}

Status kaon::runtime::validateLaunch(const std::string &path,
                                     const Launch &launch,
                                     const Sequence &sequence,
                                     const StepPlan &plan) {
  KAON_RETURN_IF_ERROR(checkIndex(path + ".kernel", "kernel", launch.kernel,
                                  plan.kernels.size()));
  const KernelPlan &kernel = plan.kernels[launch.kernel];
  KAON_RETURN_IF_ERROR(checkTakes(path, plan.target, kernel, launch));
  KAON_RETURN_IF_ERROR(checkSizes(path + ".sizes", kernel.schedule, launch));
  KAON_RETURN_IF_ERROR(checkWork(path, plan.target, kernel, launch));
  KAON_RETURN_IF_ERROR(
      validateOperands(path, launch, sequence, plan.target, kernel));
  KAON_RETURN_IF_ERROR(checkExtents(path, kernel.schedule, launch));
  for (size_t i = 0; i < launch.scalars.size(); ++i) {
    KAON_RETURN_IF_ERROR(checkIndex(concat(path, ".scalars[", i, "]"),
                                    "register", launch.scalars[i],
                                    sequence.program.instructions().size()));
  }
  return Status::success();
}

//===----------------------------------------------------------------------===//
// Launches of one kernel
//===----------------------------------------------------------------------===//

/// For the rows and the columns of each operand of a launch, whether there is
/// one for all of the launch's; none where the launch has one itself.
using Sharing = std::vector<std::optional<bool>>;

static Sharing sharingOf(const Launch &launch) {
  Sharing sharing;
  for (const Operand &operand : launch.operands) {
    for (auto [own, all] : {std::pair(operand.rows, launch.sizes[0]),
                            std::pair(operand.cols, launch.sizes[1])}) {
      sharing.push_back(all > 1 ? std::optional(own == 1) : std::nullopt);
    }
  }
  return sharing;
}

/// Checks that a launch of `kernel` shares what `known`, of the launches
/// before, says, and adds what it alone tells.
static Status checkAlike(const std::string &path, const KernelPlan &kernel,
                         const Sharing &own, Sharing &known) {
  for (size_t i = 0; i < own.size(); ++i) {
    known[i] = known[i] ? known[i] : own[i];
    if (own[i] && own[i] != known[i]) {
      const char *words[] = {"one for each of the launch", "one for all"};
      return Status::failure(path, ".operands[", i / 2,
                             i % 2 ? "].cols" : "].rows", ": expects ",
                             words[*known[i]], ", as the launches before of '",
                             kernel.name, "' have, but got ", words[*own[i]]);
    }
  }
  return Status::success();
}

Status kaon::runtime::checkLaunchesAgree(const StepPlan &plan) {
  std::vector<Sharing> known(plan.kernels.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const std::vector<Launch> &launches = plan.sequences[i].launches;
    for (size_t j = 0; j < launches.size(); ++j) {
      const KernelPlan &kernel = plan.kernels[launches[j].kernel];
      if (isLibraryKernel(kernel.schedule)) {
        continue; // Its operands share nothing.
      }
      Sharing own = sharingOf(launches[j]);
      Sharing &before = known[launches[j].kernel];
      before.resize(own.size());
      KAON_RETURN_IF_ERROR(checkAlike(
          concat("sequences[", i, "].launches[", j, "]"), kernel, own, before));
    }
  }
  return Status::success();
}
