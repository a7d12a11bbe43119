/*===-- package_host.c - a program that runs a compiled package -----------===*\
 *
 * Plain C against libkaon_runtime alone: reads a plan, loads its kernels from a
 * shared object and trains with them. Ends with 0 when everything is as it
 * should be. usage: kaon-package-host plan.json kernels.so
 *
\*===----------------------------------------------------------------------===*/

#include "runtime/kaon_runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *message) {
  fprintf(stderr, "%s: %s\n", what, message);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    return fail("usage", "kaon-package-host plan.json kernels.so");
  }
  static char text[65536];
  FILE *file = fopen(argv[1], "rb");
  if (!file) {
    return fail(argv[1], "cannot be opened");
  }
  size_t length = fread(text, 1, sizeof(text), file);
  fclose(file);

  KaonError error;
  KaonPlan *plan = NULL;
  if (kaon_plan_from_json("{", 1, &plan, &error) != KAON_FAILURE ||
      !strstr(error.message, "valid JSON")) {
    return fail("a broken plan", "is taken");
  }
  if (kaon_plan_from_json(text, length, &plan, &error) != KAON_OK) {
    return fail(argv[1], error.message);
  }
  if (kaon_plan_period(plan) != 1 || kaon_plan_num_buffers(plan) != 2 ||
      kaon_plan_num_scalar_sets(plan) != 1) {
    return fail(argv[1], "is another plan than expected");
  }

  void *library = dlopen(argv[2], RTLD_NOW);
  if (!library) {
    return fail(argv[2], dlerror());
  }
  KaonKernel kernels[8];
  size_t num_kernels = 0;
  for (const char *name;
       (name = kaon_plan_kernel_name(plan, (int64_t)num_kernels));
       ++num_kernels) {
    KaonKernel kernel = {name, NULL};
    void *symbol = dlsym(library, name);
    memcpy(&kernel.function, &symbol, sizeof(symbol));
    kernels[num_kernels] = kernel;
  }
  KaonExecutor *executor = NULL;
  if (kaon_executor_create(plan, kernels, 0, 2, &executor, &error) !=
          KAON_FAILURE ||
      !strstr(error.message,
              "expects code for the kernel 'kaon_test_descend'")) {
    return fail("an executor without kernels", "is made");
  }
  KaonKernel unnamed = {NULL, kernels[0].function};
  if (kaon_executor_create(plan, &unnamed, 1, 2, &executor, &error) !=
          KAON_FAILURE ||
      strcmp(error.message, "kernels[0].name: expects a name, but got null") !=
          0 ||
      kaon_executor_create(plan, NULL, 1, 2, &executor, &error) !=
          KAON_FAILURE ||
      strcmp(error.message, "kernels: expects a pointer, but got null") != 0 ||
      kaon_executor_create(NULL, kernels, num_kernels, 2, &executor, &error) !=
          KAON_FAILURE ||
      strcmp(error.message, "plan: expects a pointer, but got null") != 0 ||
      kaon_plan_from_json(NULL, 0, &plan, &error) != KAON_FAILURE ||
      kaon_executor_step(NULL, NULL, NULL, &error) != KAON_FAILURE) {
    return fail("a null pointer", error.message);
  }
  if (kaon_executor_create(plan, kernels, num_kernels, -1, &executor, &error) !=
          KAON_FAILURE ||
      strcmp(error.message, "threads: expects at least 0, but got -1") != 0 ||
      kaon_set_pool_threads(-2, &error) != KAON_FAILURE ||
      strcmp(error.message, "threads: expects at least 0, but got -2") != 0 ||
      kaon_set_pool_threads(3, &error) != KAON_OK ||
      kaon_set_pool_threads(0, NULL) != KAON_OK) {
    return fail("a number of threads", error.message);
  }
  if (kaon_executor_create(plan, kernels, num_kernels, 2, &executor, &error) !=
      KAON_OK) {
    return fail("executor", error.message);
  }
  kaon_plan_destroy(plan);

  enum { rows = 300, cols = 70 };
  static float w[rows * cols], g[rows * cols];
  for (int i = 0; i < rows * cols; ++i) {
    w[i] = (float)i;
    g[i] = (float)(i % 7);
  }
  const double rate = 0.5;
  KaonBuffer buffers[] = {{w, cols}, {g, cols}};
  KaonScalars scalars = {&rate, 1};
  KaonStep step = {1, buffers, 2, &scalars, 1, 1};
  int64_t num_non_finite = -1;
  for (; step.step <= 3; ++step.step) {
    if (kaon_executor_step(executor, &step, &num_non_finite, &error) !=
        KAON_OK) {
      return fail("step", error.message);
    }
    if (num_non_finite != 0) {
      return fail("step", "found a gradient that is not finite");
    }
  }
  for (int i = 0; i < rows * cols; ++i) {
    if (w[i] != (float)i - 1.5f * (float)(i % 7)) {
      fprintf(stderr, "element %d: expects %g, but got %g\n", i,
              (float)i - 1.5f * (float)(i % 7), w[i]);
      return 1;
    }
  }
  buffers[0].row_stride = 3;
  if (kaon_executor_step(executor, &step, &num_non_finite, &error) !=
          KAON_FAILURE ||
      !strstr(error.message, "parameter 'w': expects a row stride of at least "
                             "the 70 columns, but got 3")) {
    return fail("a wrong stride", "is taken");
  }
  kaon_executor_destroy(executor);
  dlclose(library);
  printf("package ran\n");
  return 0;
}
