//===-- KernelLibrary.h - kernels in shared objects -------------*- C++ -*-===//
//
// A kernel's text, compiled for the CPU into a shared object of its own
// (KernelLibrary.cpp), exports
//
//   int kaon_shim_run_<kernel>(uint32_t blocks, uint32_t threads,
//                              size_t sharedBytes, void **parameters,
//                              unsigned schedule, char *fault,
//                              size_t faultBytes);
//   const uint32_t kaon_shim_parameters_<kernel>[];
//
// The function runs the kernel in the shim. `parameters` points to the
// arguments as for cuLaunchKernel, and `schedule` is any number, of which each
// stands for an order of threads. It returns 0, or 1 if the kernel broke a
// rule: then `fault` holds as much of the message as fits. The array holds the
// sizes of the parameters and ends with a 0.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_KERNELLIBRARY_H
#define KAON_TEST_CUDA_SHIM_KERNELLIBRARY_H

#include "test/cuda/shim/Shim.h"

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kaon::shim {

/// The schedule that a number stands for; 0 is the forward one.
inline Schedule numberedSchedule(unsigned number) {
  Schedule schedule = allSchedules[number % std::size(allSchedules)];
  schedule.seed += number;
  return schedule;
}

/// The sizes of a kernel's parameters, and 0.
template <typename... Parameters>
constexpr std::array<uint32_t, sizeof...(Parameters) + 1>
parameterSizes(void (*)(Parameters...)) {
  return {sizeof(Parameters)..., 0};
}

template <typename... Parameters, size_t... indices>
void callKernel(void (*kernel)(Parameters...), void **parameters,
                std::index_sequence<indices...>) {
  kernel(*static_cast<std::remove_cv_t<Parameters> *>(parameters[indices])...);
}

/// Calls of a kernel in C; see above.
template <typename... Parameters>
int runKernel(void (*kernel)(Parameters...), const LaunchSize &size,
              void **parameters, unsigned schedule, char *fault,
              size_t faultBytes) {
  try {
    launch(size, numberedSchedule(schedule), [=] {
      callKernel(kernel, parameters, std::index_sequence_for<Parameters...>());
    });
    return 0;
  } catch (const Fault &caught) {
    if (faultBytes > 0) {
      std::strncpy(fault, caught.what(), faultBytes - 1);
      fault[faultBytes - 1] = '\0';
    }
    return 1;
  }
}

} // namespace kaon::shim

#define KAON_SHIM_EXPORT __attribute__((visibility("default")))

/// Exports the kernel `name`, which has been declared before; `run` is called
/// as runKernel is.
#define KAON_SHIM_EXPORT_KERNEL(name)                                          \
  KAON_SHIM_EXPORT_KERNEL_BY(name, kaon::shim::runKernel)
#define KAON_SHIM_EXPORT_KERNEL_BY(name, run)                                  \
  KAON_SHIM_EXPORT_KERNEL_NAMED(name, run)
#define KAON_SHIM_EXPORT_KERNEL_NAMED(name, run)                               \
  extern "C" {                                                                 \
  KAON_SHIM_EXPORT int kaon_shim_run_##name(uint32_t blocks, uint32_t threads, \
                                            size_t sharedBytes,                \
                                            void **parameters,                 \
                                            unsigned schedule, char *fault,    \
                                            size_t faultBytes) {               \
    kaon::shim::LaunchSize size = {blocks, threads, sharedBytes};              \
    return run(name, size, parameters, schedule, fault, faultBytes);           \
  }                                                                            \
  KAON_SHIM_EXPORT extern const decltype(kaon::shim::parameterSizes(           \
      name)) kaon_shim_parameters_##name;                                      \
  const decltype(kaon::shim::parameterSizes(                                   \
      name)) kaon_shim_parameters_##name = kaon::shim::parameterSizes(name);   \
  }

#endif // KAON_TEST_CUDA_SHIM_KERNELLIBRARY_H
