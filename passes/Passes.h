//===-- Passes.h - passes and pipelines -------------------------*- C++ -*-===//
//
// Constructors of every pass, the pipelines made of them, and their
// registration. What a pass does is written in Passes.td.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PASSES_PASSES_H
#define KAON_PASSES_PASSES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassOptions.h"

namespace kaon {

#define GEN_PASS_DECL
#include "passes/Passes.h.inc"

/// Options of `kaon-simplify-pipeline`.
struct SimplifyPipelineOptions
    : mlir::PassPipelineOptions<SimplifyPipelineOptions> {
  Option<int64_t> maxPeriod{
      *this, "max-period",
      llvm::cl::desc("Largest number of kinds of steps a program may have"),
      llvm::cl::init(SplitPhasesPassOptions().maxPeriod)};
};

/// Options of `kaon-schedule-pipeline`.
struct SchedulePipelineOptions
    : mlir::PassPipelineOptions<SchedulePipelineOptions> {
  Option<int64_t> maxConcurrentBytes{
      *this, "max-concurrent-bytes",
      llvm::cl::desc("Bytes of matrices that may be in flight at once"),
      llvm::cl::init(BucketPassOptions().maxConcurrentBytes)};
};

/// Options of `kaon-cpu-pipeline`: those of both parts.
struct CpuPipelineOptions : mlir::PassPipelineOptions<CpuPipelineOptions> {
  Option<int64_t> maxPeriod{
      *this, "max-period",
      llvm::cl::desc("Largest number of kinds of steps a program may have"),
      llvm::cl::init(SplitPhasesPassOptions().maxPeriod)};
  Option<int64_t> maxConcurrentBytes{
      *this, "max-concurrent-bytes",
      llvm::cl::desc("Bytes of matrices that may be in flight at once"),
      llvm::cl::init(BucketPassOptions().maxConcurrentBytes)};
};

/// Matrices that may be in flight at once on a GPU: together they fill all
/// multiprocessors in as few launches as possible, and its memory is large.
inline constexpr int64_t cudaMaxConcurrentBytes = int64_t(1) << 30;

/// Options of `kaon-cuda-schedule-pipeline`.
struct CudaSchedulePipelineOptions
    : mlir::PassPipelineOptions<CudaSchedulePipelineOptions> {
  Option<int64_t> maxConcurrentBytes{
      *this, "max-concurrent-bytes",
      llvm::cl::desc("Bytes of matrices that may be in flight at once"),
      llvm::cl::init(cudaMaxConcurrentBytes)};
  Option<int64_t> maxGroupWorkspaceBytes{
      *this, "max-group-workspace-bytes",
      llvm::cl::desc("Bytes of workspace that buckets may take to share "
                     "launches"),
      llvm::cl::init(GroupBucketsPassOptions().maxWorkspaceBytes)};
};

/// Options of `kaon-cuda-pipeline`: those of both parts.
struct CudaPipelineOptions : mlir::PassPipelineOptions<CudaPipelineOptions> {
  Option<int64_t> maxPeriod{
      *this, "max-period",
      llvm::cl::desc("Largest number of kinds of steps a program may have"),
      llvm::cl::init(SplitPhasesPassOptions().maxPeriod)};
  Option<int64_t> maxConcurrentBytes{
      *this, "max-concurrent-bytes",
      llvm::cl::desc("Bytes of matrices that may be in flight at once"),
      llvm::cl::init(cudaMaxConcurrentBytes)};
  Option<int64_t> maxGroupWorkspaceBytes{
      *this, "max-group-workspace-bytes",
      llvm::cl::desc("Bytes of workspace that buckets may take to share "
                     "launches"),
      llvm::cl::init(GroupBucketsPassOptions().maxWorkspaceBytes)};
};

/// From what the front end wrote to one simplified function per kind of step.
void addSimplifyPipeline(mlir::OpPassManager &pm,
                         const SimplifyPipelineOptions &options);

/// From simplified functions to outlined kernels with planned memory. Needs the
/// module attribute `kaon.cpu` if there is any matrix product.
void addSchedulePipeline(mlir::OpPassManager &pm,
                         const SchedulePipelineOptions &options);

/// Both of the above.
void addCpuPipeline(mlir::OpPassManager &pm, const CpuPipelineOptions &options);

/// From simplified functions to outlined kernels of a GPU with planned memory.
/// Needs the module attribute `kaon.cuda`.
void addCudaSchedulePipeline(mlir::OpPassManager &pm,
                             const CudaSchedulePipelineOptions &options);

/// Simplifies and schedules for a GPU.
void addCudaPipeline(mlir::OpPassManager &pm,
                     const CudaPipelineOptions &options);

/// Registers every pass and pipeline under its command line name. May be called
/// more than once.
void registerAllPasses();

} // namespace kaon

#endif // KAON_PASSES_PASSES_H
