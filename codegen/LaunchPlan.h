//===-- LaunchPlan.h - how a target runs an op ------------------*- C++ -*-===//
//
// What the plan of an update asks each target: which kernel runs an op of a
// planned module, over which sizes, and how the work is cut.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_LAUNCHPLAN_H
#define KAON_CODEGEN_LAUNCHPLAN_H

#include "mlir/IR/Operation.h"
#include "runtime/StepPlan.h"

#include "llvm/ADT/SmallVector.h"

namespace kaon {

/// The work of nearly all launches of an op, for one matrix.
struct Work {
  int64_t flops = 0;
  int64_t bytes = 0;
};

/// A launch and its kernel, but for operands and scalars; see runtime::Launch.
struct LaunchPlan {
  runtime::KernelPlan kernel;
  llvm::SmallVector<int64_t, 3> sizes;
  int64_t items = 0;
  int64_t grain = 1;
  Work work;
  int64_t sharedBytes = 0;
};

namespace cpu {
/// The launch of a `kaon.launch`, `kaon.pack`, `kaon.matmul` or
/// `kaon.transpose` that is no view, which has `flops` of one matrix. Emits an
/// error if there is none.
mlir::FailureOr<LaunchPlan> planLaunch(mlir::Operation *op, int64_t flops);
} // namespace cpu

namespace cuda {
/// The same on CUDA, which has no `kaon.pack`.
mlir::FailureOr<LaunchPlan> planLaunch(mlir::Operation *op, int64_t flops);
} // namespace cuda

} // namespace kaon

#endif // KAON_CODEGEN_LAUNCHPLAN_H
