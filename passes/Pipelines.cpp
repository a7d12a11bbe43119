//===-- Pipelines.cpp - passes in order -----------------------------------===//
//
// Canonicalization and CSE between passes make results smaller and faster; no
// pass needs them to be correct.
//
//===----------------------------------------------------------------------===//

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"
#include "passes/Passes.h"

using namespace mlir;

namespace kaon {

void addSimplifyPipeline(OpPassManager &pm,
                         const SimplifyPipelineOptions &options) {
  // What the front end or a hand-edited dump got wrong is reported before
  // anything has changed, in terms of what was written.
  pm.addPass(createVerifyProgramPass());
  // Phases are split first: everything after it then sees one straight line of
  // ops, and does no work for a branch that is not taken.
  SplitPhasesPassOptions split;
  split.maxPeriod = options.maxPeriod;
  pm.addPass(createSplitPhasesPass(split));
  // Before the steps are written out. Leaves modules for the CPU alone.
  pm.addNestedPass<func::FuncOp>(createGramNewtonSchulzPass());
  pm.addNestedPass<func::FuncOp>(createExpandUpdatesPass());
  // Equal products become one, which the passes below then need not orient or
  // mark twice.
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
  // Orientation comes before symmetry, because it builds new products, and both
  // come before epilogues are folded, after which a product is no longer a mere
  // polynomial.
  pm.addNestedPass<func::FuncOp>(createOrientProductsPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
  pm.addNestedPass<func::FuncOp>(createMarkSymmetricPass());
  pm.addNestedPass<func::FuncOp>(createFoldMatmulEpiloguePass());
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
}

void addSchedulePipeline(OpPassManager &pm,
                         const SchedulePipelineOptions &options) {
  BucketPassOptions bucket;
  bucket.maxConcurrentBytes = options.maxConcurrentBytes;
  pm.addPass(createBucketPass(bucket));
  pm.addNestedPass<func::FuncOp>(createFuseKernelsPass());
  // Kernels are what fusion leaves of the elementwise ops between products:
  // what is packed is known only now.
  pm.addNestedPass<func::FuncOp>(createPackOperandsPass());
  pm.addPass(createOutlineKernelsPass());
  // Last, since it counts on every op being one launch: lives of values are
  // counted in launches.
  pm.addPass(createPlanMemoryPass());
}

void addCpuPipeline(OpPassManager &pm, const CpuPipelineOptions &options) {
  SimplifyPipelineOptions simplify;
  simplify.maxPeriod = options.maxPeriod;
  addSimplifyPipeline(pm, simplify);
  SchedulePipelineOptions schedule;
  schedule.maxConcurrentBytes = options.maxConcurrentBytes;
  addSchedulePipeline(pm, schedule);
}

void addCudaSchedulePipeline(OpPassManager &pm,
                             const CudaSchedulePipelineOptions &options) {
  pm.addNestedPass<func::FuncOp>(createNarrowProductsPass());
  // Roundings that meet a widening of the same value go, and equal ones merge.
  pm.addNestedPass<func::FuncOp>(createCanonicalizerPass());
  pm.addNestedPass<func::FuncOp>(createCSEPass());
  // All products that read a rounded matrix are known now.
  pm.addNestedPass<func::FuncOp>(createFoldNormsPass());
  BucketPassOptions bucket;
  bucket.maxConcurrentBytes = options.maxConcurrentBytes;
  pm.addPass(createBucketPass(bucket));
  pm.addNestedPass<func::FuncOp>(createFuseKernelsPass());
  // What an epilogue takes is a whole kernel: it comes after they are formed.
  pm.addPass(createFuseProductEpiloguePass());
  pm.addPass(createOutlineKernelsPass());
  pm.addPass(createPlanMemoryPass());
  // Kernels have their names and workspaces their sizes by now.
  GroupBucketsPassOptions group;
  group.maxWorkspaceBytes = options.maxGroupWorkspaceBytes;
  pm.addPass(createGroupBucketsPass(group));
}

void addCudaPipeline(OpPassManager &pm, const CudaPipelineOptions &options) {
  SimplifyPipelineOptions simplify;
  simplify.maxPeriod = options.maxPeriod;
  addSimplifyPipeline(pm, simplify);
  CudaSchedulePipelineOptions schedule;
  schedule.maxConcurrentBytes = options.maxConcurrentBytes;
  schedule.maxGroupWorkspaceBytes = options.maxGroupWorkspaceBytes;
  addCudaSchedulePipeline(pm, schedule);
}

#define GEN_PASS_REGISTRATION
#include "passes/Passes.h.inc"

void registerAllPasses() {
  registerKaonPasses();
  mlir::registerTransformsPasses();
  PassPipelineRegistration<SimplifyPipelineOptions>(
      "kaon-simplify-pipeline", "Expand, split and simplify updates",
      addSimplifyPipeline);
  PassPipelineRegistration<SchedulePipelineOptions>(
      "kaon-schedule-pipeline", "Bucket, fuse, outline and plan memory",
      addSchedulePipeline);
  PassPipelineRegistration<CpuPipelineOptions>(
      "kaon-cpu-pipeline",
      "From updates to kernels of the CPU and their memory", addCpuPipeline);
  PassPipelineRegistration<CudaSchedulePipelineOptions>(
      "kaon-cuda-schedule-pipeline",
      "Narrow products, fold norms, bucket, fuse, outline and plan memory for "
      "a GPU",
      addCudaSchedulePipeline);
  PassPipelineRegistration<CudaPipelineOptions>(
      "kaon-cuda-pipeline", "From updates to kernels of a GPU and their memory",
      addCudaPipeline);
}

} // namespace kaon
