//===-- PlanLaunch.cpp - how CUDA runs an op ------------------------------===//

#include "codegen/LaunchPlan.h"
#include "codegen/cuda/LaunchShape.h"

using namespace mlir;
using namespace kaon;

/// Verifies that products are what the device library has: half precision, and
/// what an epilogue does not hide.
static LogicalResult verifyProduct(MatmulOp op) {
  if (op.isPacked()) {
    return op.emitOpError()
           << "reads packed operands, which only products of the CPU do";
  }
  Type half = getCudaTarget(op).getHalfType();
  if (op.getLhs().getType().getElementType() != half) {
    return op.emitOpError() << "expects operands of the module's " << half
                            << "; kaon-narrow-products comes first";
  }
  return success();
}

/// The work of a launch that finds its result in place: it reads what its
/// condition is made of, which are single elements.
static Work getWorkIfKept(Operation *op) {
  Work work;
  for (Value operand : op->getOperands()) {
    auto type = dyn_cast<RankedTensorType>(operand.getType());
    if (type && type.getNumElements() == 1) {
      work.bytes += getMatrixBytes(type);
    }
  }
  return work;
}

/// What the plan says of a kernel, but for its operands and scalars.
static runtime::KernelPlan describeKernel(Operation *op,
                                          const cuda::LaunchShape &shape) {
  runtime::KernelPlan kernel;
  kernel.name = shape.name;
  kernel.schedule = shape.schedule;
  kernel.threads = static_cast<int32_t>(shape.threads);
  kernel.mappedOperands = shape.tensorMaps ? 2 : 0;
  kernel.reductions = static_cast<int32_t>(shape.reductions);
  if (shape.rows) {
    cuda::describeRows(*shape.rows, kernel);
  }
  if (auto product = dyn_cast<MatmulOp>(op)) {
    kernel.symmetric = product.getSymmetric();
    kernel.transposeA = product.getTransposeA();
    kernel.transposeB = product.getTransposeB();
  }
  return kernel;
}

FailureOr<LaunchPlan> cuda::planLaunch(Operation *op, int64_t flops) {
  if (auto product = dyn_cast<MatmulOp>(op)) {
    if (failed(verifyProduct(product))) {
      return failure();
    }
  }
  std::optional<LaunchShape> shape = getLaunchShape(op);
  if (!shape) {
    return op->emitOpError() << "has no kernel on CUDA";
  }
  LaunchPlan plan;
  plan.kernel = describeKernel(op, *shape);
  plan.sizes = shape->sizes;
  plan.items = shape->items;
  plan.grain = shape->grain;
  plan.work = shape->isInPlace ? getWorkIfKept(op) : Work{flops, shape->bytes};
  plan.sharedBytes = shape->sharedBytes;
  return plan;
}
