//===-- module.cpp - the extension module kaon._C -------------------------===//

#include "python/src/RuntimeBindings.h"

#ifdef KAON_HAS_COMPILER
#include "codegen/cpu/Passes.h"
#include "codegen/cuda/Passes.h"
#include "passes/Passes.h"
#include "python/src/Bindings.h"

static void bindCompiler(pybind11::module_ &m) {
  // The registry of passes is global: once per process, whatever imports us.
  static const bool registered =
      (kaon::registerAllPasses(), kaon::cpu::registerCpuPasses(),
       kaon::cuda::registerCudaPasses(), true);
  (void)registered;
  kaon::python::bindIr(m);
  kaon::python::bindCodegen(m);
  kaon::python::bindCudaCodegen(m);
  kaon::python::bindNvrtc(m);
}
#endif

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kaon's compiler and runtime.";
  kaon::python::bindStepInputs(m);
  kaon::python::bindRuntime(m);
  kaon::python::bindCudaRuntime(m);
#ifdef KAON_HAS_COMPILER
  bindCompiler(m);
  m.attr("has_compiler") = true;
#else
  m.attr("has_compiler") = false;
#endif
}
