//===-- RuntimeBindings.h - the extension without a compiler ----*- C++ -*-===//
//
// What the runtime's parts of `kaon._C` share. They include nothing of LLVM:
// with KAON_COMPILER=OFF they are the whole extension.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_RUNTIMEBINDINGS_H
#define KAON_PYTHON_SRC_RUNTIMEBINDINGS_H

#include "runtime/Executor.h"
#include "runtime/KernelTable.h"
#include "runtime/Status.h"
#include "runtime/StepPlan.h"

#include <memory>
#include <pybind11/pybind11.h>
#include <utility>

namespace kaon::python {

/// The value of a result; a failure becomes a ValueError.
template <typename T> T unwrap(runtime::Result<T> result) {
  if (!result.ok()) {
    throw pybind11::value_error(result.status().message());
  }
  return std::move(*result);
}

/// An executor on the host. Copies the table.
std::unique_ptr<runtime::Executor>
makeHostExecutor(const runtime::StepPlan &plan,
                 const runtime::KernelTable &table, int threads);

void bindRuntime(pybind11::module_ &m);

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_RUNTIMEBINDINGS_H
