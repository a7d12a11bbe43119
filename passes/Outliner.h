//===-- Outliner.h - kernels become functions -------------------*- C++ -*-===//
//
// Shared by the pass that outlines kernels and the one that, planning memory,
// finds that a copy is needed.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PASSES_OUTLINER_H
#define KAON_PASSES_OUTLINER_H

#include "dialect/Kaon.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/SymbolTable.h"

namespace kaon {

/// Replaces kernels by launches of functions without shapes.
class Outliner {
public:
  explicit Outliner(mlir::ModuleOp module) : module(module), symbols(module) {}

  /// What becomes of sizes of one, which tell vectors from matrices.
  enum class Ones : uint8_t {
    Keep,
    /// For kernels all of whose matrices have one shape, whatever that is.
    Erase,
  };

  /// Replaces a kernel by a launch of its function, which is made unless the
  /// module has it.
  LaunchOp outline(KernelOp kernel, Ones ones = Ones::Keep);

private:
  mlir::ModuleOp module;
  mlir::SymbolTable symbols;
};

} // namespace kaon

#endif // KAON_PASSES_OUTLINER_H
