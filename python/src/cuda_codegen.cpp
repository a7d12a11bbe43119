//===-- cuda_codegen.cpp - CUDA code generation in kaon._C ----------------===//
//
// The text of CUDA kernels, and of the device library that they include.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/DeviceLibrary.h"
#include "codegen/cuda/EmitCuda.h"
#include "dialect/Kaon.h"
#include "python/src/Bindings.h"

namespace py = pybind11;
using namespace mlir;

namespace kaon::python {

static py::dict getLibrary() {
  py::dict headers;
  for (const cuda::DeviceHeader &header : cuda::getDeviceLibrary()) {
    headers[py::str(header.name.data(), header.name.size())] =
        py::str(header.text.data(), header.text.size());
  }
  return headers;
}

static std::string emitCuda(const std::string &text, bool lines) {
  py::gil_scoped_release release;
  static const DialectRegistry registry = [] {
    DialectRegistry all;
    registerAllDialects(all);
    return all;
  }();
  // A context of its own, so that kernels are emitted side by side.
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  OwningOpRef<ModuleOp> module =
      parseModule(&context, text, "<kernel>", "a kernel");
  DiagnosticCollector collector(&context);
  std::string source;
  llvm::raw_string_ostream os(source);
  if (failed(cuda::emitCuda(*module, os, {lines}))) {
    collector.raise("cannot generate CUDA code for a kernel");
  }
  return source;
}

void bindCudaCodegen(py::module_ &m) {
  m.def("emit_cuda", &emitCuda, py::arg("text"), py::arg("lines") = true,
        "The CUDA C++ of a kernel of a module for CUDA. Releases the GIL.");
  m.def("cuda_library", &getLibrary,
        "The headers that CUDA kernels include: name -> text.");
}

} // namespace kaon::python
