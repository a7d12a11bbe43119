//===-- module.cpp - the extension module kaon._C -------------------------===//

#include "codegen/cpu/Passes.h"
#include "passes/Passes.h"
#include "python/src/Bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kaon's compiler and runtime.";
  // The registry of passes is global: once per process, whatever imports us.
  static const bool registered =
      (kaon::registerAllPasses(), kaon::cpu::registerCpuPasses(), true);
  (void)registered;
  kaon::python::bindIr(m);
  kaon::python::bindCodegen(m);
  kaon::python::bindCudaCodegen(m);
  kaon::python::bindNvrtc(m);
  kaon::python::bindRuntime(m);
}
