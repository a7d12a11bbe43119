//===-- TorchShim.h - torch's C interface to tensors ------------*- C++ -*-===//
//
// Own declarations of the functions by which torch's library of the processor
// describes a tensor (torch/csrc/inductor/aoti_torch/c/shim.h, which torch
// keeps as it is from version to version), found in the library that is loaded
// already. They take the address of an `at::Tensor`, which torch's Python
// objects begin with. Where they do is not promised: it is found out from a
// handle that torch itself makes, and without proof nothing of this is used.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_TORCHSHIM_H
#define KAON_PYTHON_SRC_TORCHSHIM_H

#include <cstdint>
#include <pybind11/pybind11.h>

namespace kaon::python {

/// A tensor as torch describes it; `sizes` and `strides` are torch's.
struct ShimDescription {
  void *data;
  int64_t ndim;
  int64_t *sizes, *strides;
  /// torch's numbers: of the dtype, the type of the device and its index.
  int32_t dtype, deviceType, deviceIndex;
};

class TorchShim {
public:
  TorchShim() = default;
  /// `tensorType` is torch.Tensor. `makeHandles` gives a list of capsules for a
  /// list of tensors (torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors), or
  /// is None where torch has no such function.
  TorchShim(const pybind11::type &tensorType,
            const pybind11::object &makeHandles);

  /// Whether tensors can be described.
  explicit operator bool() const { return isProven; }

  /// Describes a Python object that is a torch.Tensor. False where it is not
  /// strided, or torch does not say.
  bool describe(PyObject *tensor, ShimDescription &description) const {
    void *handle = handleOf(tensor);
    // Objects whose tensor is gone have none.
    return *static_cast<void **>(handle) && ask(handle, description);
  }

private:
  using Get = int32_t(void *, int32_t *);
  /// Zero is success.
  struct Functions {
    Get *layout, *dtype, *deviceType, *deviceIndex;
    int32_t (*dataPtr)(void *, void **);
    int32_t (*dim)(void *, int64_t *);
    int32_t (*sizes)(void *, int64_t **);
    int32_t (*strides)(void *, int64_t **);
    int32_t (*destroy)(void *);
    int32_t (*layoutStrided)();
  };

  static void *handleOf(PyObject *tensor) { return tensor + 1; }
  bool findFunctions();
  bool ask(void *handle, ShimDescription &description) const;
  bool prove(const pybind11::object &probe,
             const pybind11::object &makeHandles) const;

  Functions functions = {};
  int32_t strided = 0; // torch's number of that layout
  bool isProven = false;
};

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_TORCHSHIM_H
