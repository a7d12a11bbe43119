//===-- TensorReader.cpp - where torch's tensors lie ----------------------===//
//
// By DLPack's exchange interface, or by attributes.
//
//===----------------------------------------------------------------------===//

#include "python/src/TensorReader.h"

#include <algorithm>

namespace py = pybind11;
using namespace kaon::python;

/// The interface in `exchange`, or an older one that it leads to; null if there
/// is none of a version that is known.
static const dlpack::Exchange *findExchange(const py::object &exchange) {
  if (!PyCapsule_IsValid(exchange.ptr(), dlpack::capsuleName)) {
    return nullptr;
  }
  auto *header = static_cast<dlpack::ExchangeHeader *>(
      PyCapsule_GetPointer(exchange.ptr(), dlpack::capsuleName));
  while (header && header->version.major != dlpack::majorVersion) {
    header = header->previous;
  }
  return reinterpret_cast<const dlpack::Exchange *>(header);
}

TensorReader::TensorReader(const py::type &tensorType,
                           const py::object &exchange)
    : type(tensorType), isNegative(tensorType.attr("is_neg")) {
  if (const dlpack::Exchange *found = findExchange(exchange)) {
    describe = found->describe;
  }
}

/// Forgets what torch raised to refuse; what has nothing to do with the tensor,
/// such as an interrupt, goes on.
static void forgetRefusal() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) {
    throw py::error_already_set();
  }
  PyErr_Clear();
}

bool TensorReader::describeTensor(PyObject *object,
                                  dlpack::Tensor &tensor) const {
  if (describe(object, &tensor) != 0) {
    forgetRefusal();
    return false;
  }
  return tensor.data || std::find(tensor.shape, tensor.shape + tensor.ndim,
                                  0) != tensor.shape + tensor.ndim;
}

static uintptr_t addressOf(const dlpack::Tensor &tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) + tensor.byteOffset;
}

bool TensorReader::readAttributes(PyObject *tensor, uintptr_t &data,
                                  py::object &attributes) const {
  try {
    py::handle object(tensor);
    data = object.attr("data_ptr")().cast<uintptr_t>();
    attributes = py::make_tuple(object.attr("layout"), object.attr("dtype"),
                                object.attr("device"), object.attr("shape"),
                                object.attr("stride")());
    return data != 0 || object.attr("numel")().cast<int64_t>() == 0;
  } catch (py::error_already_set &error) {
    if (!error.matches(PyExc_Exception)) {
      throw;
    }
    return false;
  }
}

bool TensorReader::read(PyObject *tensor, TensorLayout &layout) const {
  if (!isTensor(tensor)) {
    return false;
  }
  if (!describe) {
    return readAttributes(tensor, layout.data, layout.attributes);
  }
  dlpack::Tensor described = {};
  if (!describeTensor(tensor, described)) {
    return false;
  }
  layout.data = addressOf(described);
  layout.device = described.device;
  layout.dtype = described.dtype;
  layout.extents.assign(described.shape, described.shape + described.ndim);
  layout.extents.insert(layout.extents.end(), described.strides,
                        described.strides + described.ndim);
  return true;
}

TensorReader::Change TensorReader::compare(PyObject *tensor,
                                           const TensorLayout &layout,
                                           uintptr_t &data) const {
  if (!isTensor(tensor)) {
    return Change::Other;
  }
  bool isAlike = false;
  if (describe) {
    dlpack::Tensor described = {};
    if (!describeTensor(tensor, described)) {
      return Change::Other;
    }
    data = addressOf(described);
    auto ndim = static_cast<size_t>(described.ndim);
    const int64_t *sizes = layout.extents.data();
    isAlike = described.device == layout.device &&
              described.dtype == layout.dtype &&
              2 * ndim == layout.extents.size() &&
              std::equal(sizes, sizes + ndim, described.shape) &&
              std::equal(sizes + ndim, sizes + 2 * ndim, described.strides);
  } else {
    py::object attributes;
    isAlike = readAttributes(tensor, data, attributes) && layout.attributes &&
              attributes.equal(layout.attributes);
  }
  if (!isAlike) {
    return Change::Other;
  }
  return data == layout.data ? Change::None : Change::Moved;
}

bool TensorReader::isNegated(PyObject *tensor) const {
  auto answer = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(isNegative.ptr(), tensor, nullptr));
  if (!answer) {
    throw py::error_already_set();
  }
  return answer.ptr() == Py_True;
}
