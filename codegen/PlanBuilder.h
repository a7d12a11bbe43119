//===-- PlanBuilder.h - from a planned module to a step plan ----*- C++ -*-===//
//
// The last step of the compiler: what `kaon-plan-memory` leaves of a module
// becomes the data that the runtime replays.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_PLANBUILDER_H
#define KAON_CODEGEN_PLANBUILDER_H

#include "mlir/IR/BuiltinOps.h"
#include "runtime/StepPlan.h"

namespace kaon {

/// The plan of the module's one program. Kernels are referred to by name:
/// on the CPU outlined ones by their symbol and library ones as
/// codegen/cpu/PackedLayout.h calls them, on CUDA as codegen/cuda/LaunchShape.h
/// says. Emits an error at the op that has no place in a plan.
mlir::FailureOr<runtime::StepPlan> buildStepPlan(mlir::ModuleOp module);

} // namespace kaon

#endif // KAON_CODEGEN_PLANBUILDER_H
