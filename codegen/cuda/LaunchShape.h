//===-- LaunchShape.h - kernels of a launch and their blocks ----*- C++ -*-===//
//
// Which CUDA kernel runs an op of a planned module, and how its blocks are cut.
// Printing a module's kernels, planning its launches and deciding which of them
// buckets share all ask here, so that a plan names just the kernels that exist.
// What is decided here, and why, is decided nowhere else; the device library's
// own numbers are repeated, and a unit test compares them with the library.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LAUNCHSHAPE_H
#define KAON_CODEGEN_CUDA_LAUNCHSHAPE_H

#include "dialect/Kaon.h"
#include "runtime/StepPlan.h"

#include <optional>
#include <string>

namespace kaon::cuda {

/// How a kernel with the `rows` schedule handles rows.
struct RowShape {
  /// Threads of a block; they share one row.
  int64_t threads = 0;
  /// Groups of eight columns whose kept values a thread has in registers; those
  /// of the others are in shared memory.
  int64_t registerGroups = 1;
  /// f32 values of each column that stay on the chip between passes.
  int64_t kept = 0;
  /// Of all passes.
  int64_t reductions = 0;
  /// Rows do not fit on the chip: every pass reads them again.
  bool streaming = false;
  /// Dynamic shared memory of a block.
  int64_t sharedBytes = 0;
};

/// The shape for rows of `columns` columns. `kernel` carries the `rows`
/// schedule, `target` says how much shared memory there is.
RowShape getRowShape(mlir::func::FuncOp kernel, int64_t columns,
                     CudaTargetAttr target);

/// Says in the plan of a kernel what `shape` tells of its threads and its
/// shared memory.
void describeRows(const RowShape &shape, runtime::KernelPlan &kernel);

/// One launch for one matrix.
struct LaunchShape {
  /// Name of the kernel, which is its entry, too.
  std::string name;
  runtime::Schedule schedule = runtime::Schedule::Elementwise;
  /// Threads of a block.
  int64_t threads = 0;
  /// As StepPlan.h says.
  llvm::SmallVector<int64_t, 3> sizes;
  int64_t items = 0;
  int64_t grain = 1;
  /// Read from and written to memory: of every operand and result its bytes
  /// once, and once for every pass over an operand that memory is read in.
  /// Values per row, per column and single ones count once, since they are in a
  /// cache from then on; so do the operands of a product, of which tiles share
  /// strips in the L2 cache.
  int64_t bytes = 0;
  /// Dynamic shared memory of a block.
  int64_t sharedBytes = 0;
  /// Whether a product takes tensor maps in the place of its operands, which is
  /// what the main loop of sm_90a does.
  bool tensorMaps = false;
  /// Reductions of a kernel over columns.
  int64_t reductions = 0;
  /// Of a kernel with the `rows` schedule.
  std::optional<RowShape> rows;
  /// The result lies over the argument that an elementwise kernel keeps
  /// (findArgumentKeptInPlace): blocks look whether it is kept before anything
  /// else.
  bool isInPlace = false;
};

/// The launch of a `kaon.launch`, a `kaon.matmul` or a `kaon.transpose` of a
/// module for CUDA; none for a transpose that is a view, and for all other ops.
std::optional<LaunchShape> getLaunchShape(mlir::Operation *op);

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_LAUNCHSHAPE_H
