//===-- PlanLaunch.cpp - how the CPU runs an op ---------------------------===//
//
// The grain of a launch is decided here and nowhere else; the runtime obeys it.
//
//===----------------------------------------------------------------------===//

#include "codegen/LaunchPlan.h"
#include "codegen/cpu/LibraryCalls.h"
#include "codegen/cpu/PackedLayout.h"
#include "dialect/Kaon.h"
#include "runtime/KernelAbi.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;

// How much work one thread takes at a time: some ten microseconds, against
// which the cost of taking it, about one, is little, and which is short enough
// for threads to end together.
static constexpr int64_t grainBytes = int64_t(1) << 18;
static constexpr int64_t grainFlops = int64_t(1) << 20;

// Columns that one thread takes at a time at least, so that it reads whole
// cache lines and leaves those of others alone.
static constexpr int64_t grainColumns = 64;

/// Items that one thread takes at a time, given the work of all.
static int64_t chooseGrain(const LaunchPlan &plan) {
  auto enough = [&](int64_t amount, int64_t wanted) {
    return amount == 0 ? plan.items
                       : std::max<int64_t>(1, wanted * plan.items / amount);
  };
  int64_t grain = std::min(enough(plan.work.bytes, grainBytes),
                           enough(plan.work.flops, grainFlops));
  if (plan.kernel.schedule == runtime::Schedule::Columns) {
    return llvm::alignTo(grain, grainColumns);
  }
  return std::min(grain, plan.items);
}

static FailureOr<CpuTargetAttr> getTarget(Operation *op) {
  auto module = op->getParentOfType<ModuleOp>();
  if (auto target =
          module->getAttrOfType<CpuTargetAttr>(KaonDialect::getCpuAttrName())) {
    return target;
  }
  return op->emitOpError() << "needs " << KaonDialect::getCpuAttrName()
                           << " on the module";
}

/// Width of a sliver.
static int64_t getTile(CpuTargetAttr target, PackSide side,
                       RankedTensorType type) {
  return side == PackSide::Lhs
             ? target.getMr()
             : cpu::tileColumns(target.getNr(), type.getElementTypeBitWidth());
}

/// Verifies that slivers of `extent` vectors of length `depth` have exactly the
/// room that the target's kernels write and read.
static LogicalResult verifySlivers(Operation *op, StringRef what, Value packed,
                                   CpuTargetAttr target, PackSide side,
                                   int64_t extent, int64_t depth) {
  auto type = cast<RankedTensorType>(packed.getType());
  int64_t tile = getTile(target, side, type);
  auto expected =
      RankedTensorType::get({cpu::packedSlivers(extent, tile),
                             cpu::roundUp(depth, cpu::packedDepthUnit) * tile},
                            type.getElementType());
  if (type == expected) {
    return success();
  }
  return op->emitOpError() << "expects " << what << " of type " << expected
                           << " for the module's "
                           << KaonDialect::getCpuAttrName() << ", but got "
                           << type;
}

/// The dialect's schedules have the runtime's keywords; the runtime knows more.
static runtime::Schedule convertSchedule(Schedule schedule) {
  return *runtime::parseSchedule(stringifyEnum(schedule));
}

static FailureOr<LaunchPlan> plan(LaunchOp op) {
  std::array<int64_t, 2> sizes = getLaunchSizes(op);
  Schedule schedule = *getKernelSchedule(getKernel(op));
  LaunchPlan plan;
  plan.kernel.name = op.getKernel().str();
  plan.kernel.schedule = convertSchedule(schedule);
  plan.sizes.assign(sizes.begin(), sizes.end());
  plan.items = sizes[schedule == Schedule::Columns];
  return plan;
}

/// The library kernel of an op.
static runtime::KernelPlan describeKernel(Operation *op,
                                          runtime::Schedule schedule) {
  runtime::KernelPlan kernel;
  kernel.name = cpu::getLibraryCall(op)->symbol();
  kernel.schedule = schedule;
  return kernel;
}

static FailureOr<LaunchPlan> plan(PackOp op) {
  FailureOr<CpuTargetAttr> target = getTarget(op);
  if (failed(target)) {
    return failure();
  }
  int64_t extent = op.getOuterSize();
  if (failed(verifySlivers(op, "slivers", op.getResult(), *target, op.getSide(),
                           extent, op.getDepth()))) {
    return failure();
  }
  int64_t tile = getTile(*target, op.getSide(), op.getInput().getType());
  LaunchPlan plan;
  plan.kernel = describeKernel(op, runtime::Schedule::Pack);
  plan.kernel.tiles = {tile};
  // The right matrix is k x n as it is.
  plan.kernel.transposeA = op.getTranspose() == (op.getSide() == PackSide::Lhs);
  plan.sizes = {extent, op.getDepth()};
  plan.items = cpu::packedSlivers(extent, tile);
  return plan;
}

static FailureOr<LaunchPlan> plan(MatmulOp op) {
  if (!op.isPacked()) {
    return op.emitOpError() << "reads operands that are not packed; "
                               "kaon-pack-operands comes first";
  }
  FailureOr<CpuTargetAttr> target = getTarget(op);
  if (failed(target)) {
    return failure();
  }
  auto [m, n, k] = op.getProductSizes();
  if (failed(verifySlivers(op, "left slivers", op.getLhs(), *target,
                           PackSide::Lhs, m, k)) ||
      failed(verifySlivers(op, "right slivers", op.getRhs(), *target,
                           PackSide::Rhs, n, k))) {
    return failure();
  }
  LaunchPlan plan;
  RankedTensorType packed = op.getLhs().getType();
  plan.kernel = describeKernel(op, runtime::Schedule::Matmul);
  plan.kernel.tiles = {getTile(*target, PackSide::Lhs, packed),
                       getTile(*target, PackSide::Rhs, packed),
                       target->getBlock()};
  plan.kernel.symmetric = op.getSymmetric();
  plan.sizes = {m, n, k};
  plan.items = cpu::matmulItems(m, n, target->getBlock(), op.getSymmetric());
  return plan;
}

static FailureOr<LaunchPlan> plan(TransposeOp op) {
  RankedTensorType type = op.getInput().getType();
  LaunchPlan plan;
  plan.kernel = describeKernel(op, runtime::Schedule::Transpose);
  plan.sizes = {type.getDimSize(0), type.getDimSize(1)};
  plan.items = runtime::ceilDiv(plan.sizes[0], KAON_TRANSPOSE_BLOCK);
  return plan;
}

FailureOr<LaunchPlan> cpu::planLaunch(Operation *op, int64_t flops) {
  FailureOr<LaunchPlan> planned =
      llvm::TypeSwitch<Operation *, FailureOr<LaunchPlan>>(op)
          .Case<LaunchOp, PackOp, MatmulOp, TransposeOp>(
              [](auto typed) { return plan(typed); });
  if (succeeded(planned)) {
    planned->work = {flops, getMovedBytes(op)};
    planned->grain = chooseGrain(*planned);
  }
  return planned;
}
