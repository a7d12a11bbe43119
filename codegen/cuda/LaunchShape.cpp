//===-- LaunchShape.cpp - kernels of a launch and their blocks ------------===//

#include "codegen/cuda/LaunchShape.h"

#include "dialect/RowPasses.h"
#include "runtime/Math.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;
using namespace kaon::cuda;

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

namespace {
/// Threads of a block, and how many groups of which one value is kept fit into
/// the registers of each beside what a step needs.
struct RowClass {
  int64_t threads, registerGroups;
};
} // namespace

/// Launch bounds leave a thread 128 registers.
static constexpr RowClass longRows = {512, 4};

/// Fewer threads have 168 registers each and need no more for themselves: more
/// of a row fits into them.
static constexpr RowClass longestRows = {384, 9};

/// A row is worth as many threads as keep it in few enough registers, and no
/// more: each takes part in every reduction.
static RowClass chooseRowClass(int64_t columns) {
  static constexpr struct {
    int64_t columns;
    RowClass chosen;
  } classes[] = {{256, {32, 4}}, {2048, {128, 4}}, {8192, {256, 4}}};
  for (const auto &[limit, chosen] : classes) {
    if (columns <= limit) {
      return chosen;
    }
  }
  return longRows;
}

/// Beyond as many kept values, registers and shared memory hold too little of a
/// row for keeping to pay.
static constexpr int64_t maxKept = 4;

/// Rows of one block: enough elements for each thread to be worth starting it.
static int64_t chooseRowsOfBlock(int64_t threads, int64_t columns) {
  constexpr int64_t elementsOfThread = 32;
  return std::clamp<int64_t>(threads * elementsOfThread / columns, 1,
                             runtime::cudaMaxRowGrain);
}

/// Reductions of all passes of a kernel.
static int64_t countReductions(const RowPasses &passes) {
  int64_t count = 0;
  for (const RowPass &pass : passes.getPasses()) {
    count += static_cast<int64_t>(pass.reductions.size());
  }
  return count;
}

void kaon::cuda::describeRows(const RowShape &shape,
                              runtime::KernelPlan &kernel) {
  kernel.threads = static_cast<int32_t>(shape.threads);
  kernel.reductions = static_cast<int32_t>(shape.reductions);
  kernel.kept = static_cast<int32_t>(shape.kept);
  // Of nothing that is kept, nothing is in registers.
  kernel.registerGroups =
      shape.kept > 0 ? static_cast<int32_t>(shape.registerGroups) : 0;
}

static RowShape makeRowShape(RowClass chosen, int64_t columns, int64_t kept,
                             int64_t reductions) {
  RowShape shape;
  shape.threads = chosen.threads;
  shape.registerGroups =
      std::max<int64_t>(1, chosen.registerGroups / std::max<int64_t>(1, kept));
  shape.kept = kept;
  shape.reductions = reductions;
  runtime::KernelPlan kernel;
  describeRows(shape, kernel);
  shape.sharedBytes = runtime::rowSharedBytes(kernel, columns);
  return shape;
}

RowShape kaon::cuda::getRowShape(func::FuncOp kernel, int64_t columns,
                                 CudaTargetAttr target) {
  RowPasses passes(kernel, RowPasses::Mode::Keep);
  int64_t reductions = countReductions(passes);
  auto kept = static_cast<int64_t>(passes.getKept().size());
  RowClass chosen = chooseRowClass(columns);
  if (passes.isKeepable() && kept <= maxKept) {
    for (RowClass candidate : {chosen, longestRows}) {
      RowShape shape = makeRowShape(candidate, columns, kept, reductions);
      if (kept == 0 || shape.sharedBytes <= target.getSharedBytes()) {
        return shape;
      }
    }
  }
  chosen.registerGroups = 1;
  RowShape shape = makeRowShape(chosen, columns, /*kept=*/0, reductions);
  shape.streaming = true;
  return shape;
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

/// `bf16`, `f32`.
static std::string getKeyword(Type element) {
  std::string keyword;
  llvm::raw_string_ostream(keyword) << element;
  return keyword;
}

/// Bytes that a launch moves whose passes all read memory.
static int64_t getStreamedBytes(LaunchOp op, const RowPasses &passes) {
  std::array<int64_t, 2> sizes = getLaunchSizes(op);
  int64_t bytes = getMovedBytes(op);
  llvm::SmallDenseSet<Value> loaded;
  for (const RowPass &pass : passes.getPasses()) {
    for (BlockArgument argument : pass.loads) {
      auto type = cast<RankedTensorType>(
          op.getInputs()[argument.getArgNumber()].getType());
      bool isWhole = type.getShape() == ArrayRef<int64_t>(sizes);
      if (!loaded.insert(argument).second && isWhole) {
        bytes += getMatrixBytes(type);
      }
    }
  }
  return bytes;
}

static std::optional<LaunchShape> getShape(LaunchOp op) {
  func::FuncOp kernel = getKernel(op);
  std::optional<Schedule> schedule =
      kernel ? getKernelSchedule(kernel) : std::nullopt;
  CudaTargetAttr target = getCudaTarget(op);
  if (!schedule || !target) {
    return std::nullopt;
  }
  auto [rows, columns] = getLaunchSizes(op);
  LaunchShape shape;
  shape.name = op.getKernel().str();
  shape.sizes = {rows, columns};
  shape.threads = runtime::cudaBlockThreads;
  shape.bytes = getMovedBytes(op);
  switch (*schedule) {
  case Schedule::Elementwise:
    shape.schedule = runtime::Schedule::Elementwise;
    shape.grain = runtime::cudaElementwiseGrain;
    shape.items = runtime::ceilDiv(rows * columns, shape.grain);
    shape.isInPlace = findArgumentKeptInPlace(op).has_value();
    if (shape.isInPlace) {
      shape.name += "_in_place";
    }
    break;
  case Schedule::Rows:
    shape.schedule = runtime::Schedule::Rows;
    shape.rows = getRowShape(kernel, columns, target);
    shape.threads = shape.rows->threads;
    shape.sharedBytes = shape.rows->sharedBytes;
    shape.name += "_t" + std::to_string(shape.threads);
    if (shape.rows->streaming) {
      shape.name += "_streaming";
      shape.bytes =
          getStreamedBytes(op, RowPasses(kernel, RowPasses::Mode::Stream));
    }
    shape.grain = chooseRowsOfBlock(shape.threads, columns);
    shape.items = runtime::ceilDiv(rows, shape.grain);
    break;
  case Schedule::Columns: {
    RowPasses passes(kernel, RowPasses::Mode::Stream);
    shape.schedule = runtime::Schedule::Columns;
    shape.grain = runtime::cudaColumnGrain;
    shape.items = runtime::ceilDiv(columns, shape.grain);
    shape.bytes = getStreamedBytes(op, passes);
    shape.reductions = countReductions(passes);
    shape.sharedBytes = shape.reductions * runtime::cudaColumnReductionBytes;
    break;
  }
  }
  return shape;
}

/// Whether a matrix of a planned module is in the workspace: there it is
/// aligned and stays where it is.
static bool isInWorkspace(Value matrix) {
  BufferAttr buffer = getBuffer(matrix);
  return buffer && buffer.getKind() == BufferKind::Workspace;
}

/// Tensor maps are made once, of addresses that do not change. Products of the
/// model's own memory keep the loop that every architecture has.
static bool takesTensorMaps(MatmulOp op) {
  CudaTargetAttr target = getCudaTarget(op);
  return target && target.getMainLoop() == MainLoop::Wgmma &&
         isInWorkspace(op.getLhs()) && isInWorkspace(op.getRhs());
}

/// `matmul_bf16_transposed_rhs_symmetric_add`, `matmul_wgmma_bf16`; with an
/// epilogue its hash comes last.
static std::string getProductName(MatmulOp op, bool tensorMaps) {
  std::string name = tensorMaps ? "matmul_wgmma_" : "matmul_";
  name += getKeyword(op.getLhs().getType().getElementType());
  auto append = [&](bool applies, StringRef part) {
    if (applies) {
      name += "_" + part.str();
    }
  };
  append(op.getTransposeA(), "transposed_lhs");
  append(op.getTransposeB(), "transposed_rhs");
  append(op.getSymmetric(), "symmetric");
  append(static_cast<bool>(op.getAddend()), "add");
  if (op.getEpilogue()) {
    StringRef epilogue = *op.getEpilogue();
    epilogue.consume_front("kernel_");
    append(true, epilogue);
  }
  return name;
}

static std::optional<LaunchShape> getShape(MatmulOp op) {
  auto [m, n, k] = op.getProductSizes();
  LaunchShape shape;
  shape.tensorMaps = takesTensorMaps(op);
  shape.name = getProductName(op, shape.tensorMaps);
  shape.schedule = runtime::Schedule::Matmul;
  shape.threads = shape.tensorMaps ? runtime::cudaWarpgroupThreads
                                   : runtime::cudaBlockThreads;
  shape.sizes = {m, n, k};
  shape.bytes = getMovedBytes(op);
  int64_t rows = runtime::ceilDiv(m, runtime::cudaTileSize),
          columns = runtime::ceilDiv(n, runtime::cudaTileSize);
  shape.items = op.getSymmetric() ? rows * (rows + 1) / 2 : rows * columns;
  shape.sharedBytes = shape.tensorMaps ? runtime::cudaWarpgroupSharedBytes
                                       : runtime::cudaProductSharedBytes;
  return shape;
}

static std::optional<LaunchShape> getShape(TransposeOp op) {
  if (op.isView()) {
    return std::nullopt;
  }
  RankedTensorType type = op.getInput().getType();
  LaunchShape shape;
  shape.name = "transpose_" + getKeyword(type.getElementType());
  shape.schedule = runtime::Schedule::Transpose;
  shape.threads = runtime::cudaBlockThreads;
  shape.sizes = {type.getDimSize(0), type.getDimSize(1)};
  shape.bytes = getMovedBytes(op);
  shape.items = runtime::ceilDiv(shape.sizes[0], runtime::cudaTransposeRows) *
                runtime::ceilDiv(shape.sizes[1], runtime::cudaTransposeColumns);
  shape.sharedBytes = runtime::cudaTransposeSharedElements *
                      (type.getElementTypeBitWidth() / 8);
  return shape;
}

std::optional<LaunchShape> kaon::cuda::getLaunchShape(Operation *op) {
  return llvm::TypeSwitch<Operation *, std::optional<LaunchShape>>(op)
      .Case<LaunchOp, MatmulOp, TransposeOp>(
          [](auto typed) { return getShape(typed); })
      .Default(std::optional<LaunchShape>());
}
