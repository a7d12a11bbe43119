//===-- KernelSources.h - the kernels that a module needs -------*- C++ -*-===//

#ifndef KAON_CODEGEN_CPU_KERNELSOURCES_H
#define KAON_CODEGEN_CPU_KERNELSOURCES_H

#include "codegen/cpu/CpuTarget.h"
#include "mlir/IR/BuiltinOps.h"

#include <vector>

namespace kaon::cpu {

/// A kernel as IR text: a module of its own, without locations. Equal kernels
/// have equal texts, so that a text identifies what is compiled from it, save
/// for the processor.
struct KernelSource {
  std::string name, text;
};

/// Every kernel that the updates of a lowered module launch: outlined ones in
/// the order of the module, then library kernels in the order of their names.
/// Products need the module's `kaon.cpu`.
mlir::FailureOr<std::vector<KernelSource>>
collectKernelSources(mlir::ModuleOp module);

/// Sets the module's `kaon.cpu`, which packing of operands depends on. Reports
/// a tile that kernels cannot be made for, and then changes nothing.
mlir::LogicalResult setCpuTarget(mlir::ModuleOp module,
                                 const TileParameters &tile);

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_KERNELSOURCES_H
