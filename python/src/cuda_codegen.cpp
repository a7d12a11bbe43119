//===-- cuda_codegen.cpp - CUDA code generation in kaon._C ----------------===//
//
// The text of CUDA kernels, and of the device library that they include.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/DeviceLibrary.h"
#include "python/src/Bindings.h"

namespace py = pybind11;

namespace kaon::python {

static py::dict getLibrary() {
  py::dict headers;
  for (const cuda::DeviceHeader &header : cuda::getDeviceLibrary()) {
    headers[py::str(header.name.data(), header.name.size())] =
        py::str(header.text.data(), header.text.size());
  }
  return headers;
}

void bindCudaCodegen(py::module_ &m) {
  m.def("cuda_library", &getLibrary,
        "The headers that CUDA kernels include: name -> text.");
}

} // namespace kaon::python
