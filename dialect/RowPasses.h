//===-- RowPasses.h - walks over a row that a kernel takes ------*- C++ -*-===//
//
// A kernel that reduces along rows cannot finish an element before it has seen
// the whole row: it walks over the row several times. What each walk loads,
// computes and stores, and which values stay on the chip from one to the next,
// is decided here, for whoever generates such kernels and for whoever places
// their operands in memory. Kernels with the `columns` schedule walk over
// columns in the same way; below, a row is what one walk covers.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_ROWPASSES_H
#define KAON_DIALECT_ROWPASSES_H

#include "dialect/Kaon.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"

#include <vector>

namespace kaon {

/// One walk over a row. Lists are in the order of the kernel's text.
struct RowPass {
  /// Arguments whose elements are read from memory.
  llvm::SmallVector<mlir::BlockArgument> loads;
  /// Values that an earlier pass has kept.
  llvm::SmallVector<mlir::Value> restored;
  /// Ops to run for each element. Ops on uniform values are not among them.
  llvm::SmallVector<mlir::Operation *> ops;
  /// Reductions whose input the pass has; they are known after it.
  llvm::SmallVector<ReduceOp> reductions;
  /// Positions of the results that are stored.
  llvm::SmallVector<unsigned> stores;
  /// Values that stay on the chip for later passes.
  llvm::SmallVector<mlir::Value> kept;
};

/// The passes of a kernel.
class RowPasses {
public:
  /// How passes share values.
  enum class Mode : uint8_t {
    /// Everything is loaded once and stored as soon as it is known; what later
    /// passes need is kept.
    Keep,
    /// For rows that do not fit on the chip: every pass loads and computes what
    /// it needs again, and the last one stores all results.
    Stream,
  };

  /// `kernel` carries the `rows` or the `columns` schedule.
  RowPasses(mlir::func::FuncOp kernel, Mode mode);

  llvm::ArrayRef<RowPass> getPasses() const { return passes; }

  /// All values that are kept, in order.
  llvm::ArrayRef<mlir::Value> getKept() const { return kept.getArrayRef(); }

  /// Whether all that has to be kept can be: as one f32 per column.
  bool isKeepable() const { return keepable; }

  /// Whether a value is the same for all elements of a row: a host scalar, a
  /// reduction, a splat, or computed from such.
  bool isUniform(mlir::Value value) const { return !varying.contains(value); }

  /// The first pass before which a uniform value is known, or in which another
  /// one can be computed.
  unsigned getLevel(mlir::Value value) const { return levels.lookup(value); }

  /// Whether result number `result` may lie where argument number `argument`
  /// does: what a pass stores, no later pass loads.
  bool mayStoreOver(unsigned result, unsigned argument) const;

private:
  /// Whether a value has as many elements as a row. They may all be equal.
  bool isAlongRow(mlir::Value value);
  void analyzeLevels();
  void addPass(unsigned level, bool storesAll);
  void visit(mlir::Value value, RowPass &pass);
  void recomputeFromRestored(RowPass &pass);
  mlir::Operation *getTerminator() {
    return kernel.getBody().front().getTerminator();
  }

  mlir::func::FuncOp kernel;
  Mode mode;
  bool keepable = true;
  unsigned numPasses = 1;
  // Looked up only, never iterated.
  llvm::DenseMap<mlir::Value, unsigned> levels;
  llvm::DenseSet<mlir::Value> varying;
  /// Values that a pass has loaded or computed; of the passes so far, and of
  /// the one at hand.
  llvm::DenseSet<mlir::Value> known, current;
  llvm::SmallSetVector<mlir::Value, 4> kept;
  std::vector<RowPass> passes;
};

} // namespace kaon

#endif // KAON_DIALECT_ROWPASSES_H
