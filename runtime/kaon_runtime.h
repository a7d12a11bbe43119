/*===-- kaon_runtime.h - the runtime's C interface --------------*- C -*-===*\
 *
 * Runs compiled packages: a step plan (JSON) and its kernels, from wherever
 * their code was loaded. Plain C, no LLVM, no Python. docs/runtime.md has an
 * example.
 *
 * Functions that can fail return KAON_OK or KAON_FAILURE and, when it is not
 * null, fill the caller's KaonError; a null pointer where something is needed
 * is such a failure. No exception leaves them. Nothing here is changed by a
 * failed call. The others do not fail, and take plans and executors that are
 * not null; those that destroy take null as well.
 *
\*===----------------------------------------------------------------------===*/

#ifndef KAON_RUNTIME_KAON_RUNTIME_H
#define KAON_RUNTIME_KAON_RUNTIME_H

#include "runtime/KernelAbi.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KAON_EXPORT __attribute__((visibility("default")))
#else
#define KAON_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { KAON_OK = 0, KAON_FAILURE = 1 };

/* Why a call failed: lower case, naming the thing, the wish and the finding. */
typedef struct KaonError {
  char message[1024];
} KaonError;

/* A kernel's code, which must stay loaded while an executor uses it. */
typedef struct KaonKernel {
  const char *name;
  KaonKernelFn function;
} KaonKernel;

/* Values of one scalar set, in the order of its names in the plan. */
typedef struct KaonScalars {
  const double *values;
  int64_t count;
} KaonScalars;

/* What one step works on. */
typedef struct KaonStep {
  /* The step count, 1 at the first step; decides the phase. */
  int64_t step;
  /* For each parameter of the plan: parameter, gradient, then its states. A
   * gradient whose data is null leaves the parameter and its states alone. */
  const KaonBuffer *buffers;
  int64_t num_buffers;
  /* One per scalar set of the plan. */
  const KaonScalars *scalars;
  int64_t num_scalars;
  /* Not zero: look for infinities and NaNs in all gradients first, and change
   * nothing when there are any. */
  int32_t check_finite;
} KaonStep;

typedef struct KaonPlan KaonPlan;
typedef struct KaonExecutor KaonExecutor;

/* Reads and checks a plan. */
KAON_EXPORT int kaon_plan_from_json(const char *json, size_t length,
                                    KaonPlan **plan, KaonError *error);
KAON_EXPORT void kaon_plan_destroy(KaonPlan *plan);

/* Number of phases; of buffers and of scalar sets that a step takes. */
KAON_EXPORT int64_t kaon_plan_period(const KaonPlan *plan);
KAON_EXPORT int64_t kaon_plan_num_buffers(const KaonPlan *plan);
KAON_EXPORT int64_t kaon_plan_num_scalar_sets(const KaonPlan *plan);

/* Names of the kernels that the plan needs; null from the end on. */
KAON_EXPORT const char *kaon_plan_kernel_name(const KaonPlan *plan,
                                              int64_t index);

/* Makes an executor on the host: finds the plan's kernels by name, allocates
 * the workspace and starts the worker threads. `threads` counts the calling
 * thread; 0 stands for all that kaon_set_pool_threads allows. The plan may be
 * destroyed afterwards. */
KAON_EXPORT int kaon_executor_create(const KaonPlan *plan,
                                     const KaonKernel *kernels,
                                     size_t num_kernels, int32_t threads,
                                     KaonExecutor **executor, KaonError *error);

/* Code of a kernel for a GPU: a CUBIN or the text of PTX. Copied. */
typedef struct KaonImage {
  const char *name;
  const void *data;
  size_t size;
} KaonImage;

typedef struct KaonCudaOptions {
  /* A file or a name for the loader; null stands for libcuda.so.1. */
  const char *driver;
  int32_t device;
  /* Not zero: the kernels of a phase are launched as one CUDA graph. */
  int32_t use_graphs;
  /* Gives device memory, aligned to 256 bytes, that stays until after the
   * executor is destroyed, or null if there is none. If the function is null,
   * memory comes from the driver. */
  void *(*allocate)(void *context, int64_t size);
  void *context;
} KaonCudaOptions;

/* Makes an executor on a GPU: opens the driver, loads an image for each of the
 * plan's kernels (and, where there are, of check_finite_<type> for steps that
 * check gradients) and takes memory. No options stand for all zeros. */
KAON_EXPORT int
kaon_cuda_executor_create(const KaonPlan *plan, const KaonImage *images,
                          size_t num_images, const KaonCudaOptions *options,
                          KaonExecutor **executor, KaonError *error);

/* Waits for its steps. */
KAON_EXPORT void kaon_executor_destroy(KaonExecutor *executor);

/* Bytes of workspace that the executor holds. */
KAON_EXPORT int64_t kaon_executor_workspace_bytes(const KaonExecutor *executor);

/* Runs a step. `num_non_finite` gets the number of gradients with infinities or
 * NaNs; when it is not 0, nothing was changed. Allocates nothing. Calls from
 * several threads take turns. */
KAON_EXPORT int kaon_executor_step(KaonExecutor *executor, const KaonStep *step,
                                   int64_t *num_non_finite, KaonError *error);

/* The same on a CUDA stream (a CUstream), after what is in it. Returns before
 * the work is done; only a check of gradients waits. A failure of the device
 * may be reported by a later call. */
KAON_EXPORT int kaon_executor_step_on_stream(KaonExecutor *executor,
                                             const KaonStep *step, void *stream,
                                             int64_t *num_non_finite,
                                             KaonError *error);

/* Waits until all steps are done. */
KAON_EXPORT int kaon_executor_synchronize(KaonExecutor *executor,
                                          KaonError *error);

/* Threads that steps may use at most in this process, the calling one included;
 * 0 restores the number of processors. Waits for a running step. */
KAON_EXPORT int kaon_set_pool_threads(int32_t threads, KaonError *error);

#ifdef __cplusplus
}
#endif

#endif /* KAON_RUNTIME_KAON_RUNTIME_H */
