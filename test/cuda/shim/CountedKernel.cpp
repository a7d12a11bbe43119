//===-- CountedKernel.cpp - one kernel whose accesses are counted ---------===//
//
// As KernelLibrary.cpp; compiled with -fsanitize=thread, and linked with the
// shim and Traffic.cpp without it.
//
//===----------------------------------------------------------------------===//

#include KAON_KERNEL_TEXT
#include "test/cuda/shim/Traffic.h"

#define KAON_RUN_COUNTED(kernel, ...)                                          \
  kaon::shim::runCounted<kernel>(#kernel, __VA_ARGS__)

KAON_SHIM_EXPORT_KERNEL_BY(KAON_KERNEL_NAME, KAON_RUN_COUNTED)
