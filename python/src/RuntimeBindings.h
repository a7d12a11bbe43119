//===-- RuntimeBindings.h - the extension without a compiler ----*- C++ -*-===//
//
// What the runtime's parts of `kaon._C` share. They include nothing of LLVM:
// with KAON_COMPILER=OFF they are the whole extension.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_RUNTIMEBINDINGS_H
#define KAON_PYTHON_SRC_RUNTIMEBINDINGS_H

#include "python/src/StepInputs.h"
#include "runtime/Executor.h"
#include "runtime/KernelTable.h"
#include "runtime/Status.h"
#include "runtime/StepPlan.h"
#include "runtime/kaon_runtime.h"

#include <cstdint>
#include <memory>
#include <pybind11/pybind11.h>
#include <utility>
#include <vector>

namespace kaon::python {

/// Raises the exception that a failure is for Python: ValueError for wrong
/// arguments, `kaon._C.CudaError` for a device or its driver.
[[noreturn]] void raise(const runtime::Status &status);

/// Nothing, or the exception of a failure.
inline void check(const runtime::Status &status) {
  if (!status.ok()) {
    raise(status);
  }
}

/// The value of a result; a failure becomes an exception.
template <typename T> T unwrap(runtime::Result<T> result) {
  check(result.status());
  return std::move(*result);
}

/// An address that Python says as an integer, as the pointer that it is.
template <typename Pointer> Pointer pointerTo(uintptr_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<Pointer>(address);
}

/// A step as Python gives it, and the memory that it takes.
class StepArguments {
public:
  StepArguments(int64_t count, const pybind11::sequence &parameters,
                const pybind11::sequence &scalars, bool checkFinite);
  StepArguments(int64_t count, const StepInputs &inputs, bool checkFinite);
  StepArguments(const StepArguments &) = delete;
  StepArguments &operator=(const StepArguments &) = delete;

  const KaonStep &step() const { return arguments; }

private:
  void point(int64_t count, bool checkFinite);

  std::vector<KaonBuffer> buffers;
  std::vector<std::vector<double>> values; // or all in one
  std::vector<KaonScalars> sets;
  KaonStep arguments;
};

/// For each kernel by name, how many matrices it ran on.
pybind11::dict getMatrixCounts(const runtime::Executor &executor);

/// An executor on the host. Copies the table.
std::unique_ptr<runtime::Executor>
makeHostExecutor(const runtime::StepPlan &plan,
                 const runtime::KernelTable &table, int threads);

void bindRuntime(pybind11::module_ &m);
void bindCudaRuntime(pybind11::module_ &m);
void bindStepInputs(pybind11::module_ &m);

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_RUNTIMEBINDINGS_H
