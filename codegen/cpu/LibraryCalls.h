//===-- LibraryCalls.h - ops that library kernels compute -------*- C++ -*-===//
//
// Which library kernel computes an op. Listing a module's kernels and planning
// its launches both ask here, so that a plan names just the kernels that exist.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_LIBRARYCALLS_H
#define KAON_CODEGEN_CPU_LIBRARYCALLS_H

#include "mlir/IR/Operation.h"
#include "mlir/IR/Types.h"

#include <optional>
#include <string>

namespace kaon::cpu {

struct LibraryCall {
  /// The kernel without its element: `matmul_symmetric`, see PackedLayout.h.
  std::string library;
  mlir::Type element;
  /// How many matrices it reads.
  unsigned numInputs = 1;
  /// Whether its code depends on the module's `kaon.cpu`.
  bool needsTile = true;

  /// The symbol of the kernel: `matmul_symmetric_f32`.
  std::string symbol() const;
};

/// The library kernel of `op`, if one computes it.
std::optional<LibraryCall> getLibraryCall(mlir::Operation *op);

/// The keyword of a type: `f32`.
std::string getKeyword(mlir::Type type);

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_LIBRARYCALLS_H
