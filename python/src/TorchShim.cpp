//===-- TorchShim.cpp - torch's C interface to tensors --------------------===//
//
// Nothing of torch is linked: symbols are looked up in what is loaded.
//
//===----------------------------------------------------------------------===//

#include "python/src/TorchShim.h"

#include <dlfcn.h>

namespace py = pybind11;
using namespace kaon::python;

bool TorchShim::findFunctions() {
  // Not opened, only asked for: it goes on to belong to torch.
  void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) {
    return false;
  }
  bool areAllThere = true;
  auto find = [&]<typename Function>(const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    areAllThere &= function != nullptr;
  };
  find("aoti_torch_get_layout", functions.layout);
  find("aoti_torch_get_dtype", functions.dtype);
  find("aoti_torch_get_device_type", functions.deviceType);
  find("aoti_torch_get_device_index", functions.deviceIndex);
  find("aoti_torch_get_data_ptr", functions.dataPtr);
  find("aoti_torch_get_dim", functions.dim);
  find("aoti_torch_get_sizes", functions.sizes);
  find("aoti_torch_get_strides", functions.strides);
  find("aoti_torch_delete_tensor_object", functions.destroy);
  find("aoti_torch_layout_strided", functions.layoutStrided);
  dlclose(library); // The count of dlopen; torch keeps its own.
  return areAllThere;
}

bool TorchShim::ask(void *handle, ShimDescription &description) const {
  int32_t layout = 0;
  // Others than strided tensors may have a pointer to something else.
  return functions.layout(handle, &layout) == 0 && layout == strided &&
         functions.dataPtr(handle, &description.data) == 0 &&
         functions.dim(handle, &description.ndim) == 0 &&
         functions.sizes(handle, &description.sizes) == 0 &&
         functions.strides(handle, &description.strides) == 0 &&
         functions.dtype(handle, &description.dtype) == 0 &&
         functions.deviceType(handle, &description.deviceType) == 0 &&
         functions.deviceIndex(handle, &description.deviceIndex) == 0;
}

/// Whether the object of `probe` begins with the same `at::Tensor` as torch's
/// handle of it, and functions describe it.
bool TorchShim::prove(const py::object &probe,
                      const py::object &makeHandles) const {
  py::list tensors;
  tensors.append(probe);
  py::list handles = makeHandles(tensors);
  void *handle = handles.size() == 1 && PyCapsule_CheckExact(handles[0].ptr())
                     ? PyCapsule_GetPointer(handles[0].ptr(), nullptr)
                     : nullptr;
  if (!handle) {
    PyErr_Clear();
    return false;
  }
  void *known = *static_cast<void **>(handle);
  ShimDescription description = {};
  bool isRight = known &&
                 known == *static_cast<void **>(handleOf(probe.ptr())) &&
                 describe(probe.ptr(), description);
  return functions.destroy(handle) == 0 && isRight;
}

TorchShim::TorchShim(const py::type &tensorType,
                     const py::object &makeHandles) {
  auto *type = reinterpret_cast<PyTypeObject *>(tensorType.ptr());
  auto size = static_cast<Py_ssize_t>(sizeof(PyObject) + sizeof(void *));
  if (makeHandles.is_none() || type->tp_basicsize < size || !findFunctions()) {
    return;
  }
  strided = functions.layoutStrided();
  try {
    py::object probe = tensorType(2, 3);
    // Another object of the same tensor's memory, laid out otherwise.
    isProven =
        prove(probe, makeHandles) && prove(probe.attr("t")(), makeHandles);
  } catch (py::error_already_set &error) {
    if (!error.matches(PyExc_Exception)) {
      throw;
    }
  } catch (py::cast_error &) { // NOLINT(bugprone-empty-catch)
  }
}
