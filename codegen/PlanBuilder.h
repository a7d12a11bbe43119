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
/// outlined ones by their symbol, library ones as codegen/cpu/PackedLayout.h
/// calls them. Emits an error at the op that has no place in a plan.
mlir::FailureOr<runtime::StepPlan> buildStepPlan(mlir::ModuleOp module);

} // namespace kaon

#endif // KAON_CODEGEN_PLANBUILDER_H
