//===-- TensorReader.cpp - where torch's tensors lie ----------------------===//
//
// By DLPack's exchange interface, or by attributes. What the former has told is
// compared by torch's own C functions where they can be used, which take a
// third of the time; whatever these do not confirm is asked again.
//
//===----------------------------------------------------------------------===//

#include "python/src/TensorReader.h"

#include <algorithm>
#include <pybind11/stl.h>
#include <utility>

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
                           const py::object &exchange,
                           const py::object &makeHandles)
    : type(tensorType), isNegative(tensorType.attr("is_neg")),
      dataPtr(tensorType.attr("data_ptr")), stride(tensorType.attr("stride")),
      attributes{TensorAttribute(tensorType, "layout"),
                 TensorAttribute(tensorType, "dtype"),
                 TensorAttribute(tensorType, "device"),
                 TensorAttribute(tensorType, "shape")} {
  if (const dlpack::Exchange *found = findExchange(exchange)) {
    describe = found->describe;
  }
  if (describe) {
    shim = TorchShim(tensorType, makeHandles);
  }
}

TensorAttribute::TensorAttribute(const py::type &tensorType, const char *name)
    : name(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name))),
      descriptor(tensorType.attr(name)) {}

py::object TensorAttribute::operator()(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  descrgetfunc get = Py_TYPE(descriptor.ptr())->tp_descr_get;
  if (type != known && get) {
    py::object found =
        py::handle(reinterpret_cast<PyObject *>(type)).attr(name);
    known = found.is(descriptor) ? type : nullptr;
  }
  auto value = py::reinterpret_steal<py::object>(
      type == known
          ? get(descriptor.ptr(), object, reinterpret_cast<PyObject *>(type))
          : PyObject_GetAttr(object, name.ptr()));
  if (!value) {
    throw py::error_already_set();
  }
  return value;
}

/// The answer of `read`; false where the tensor refuses one, or its answers are
/// not of the types that they should be. What has nothing to do with the
/// tensor, such as an interrupt, goes on.
template <typename Read> static bool unlessRefused(Read read) {
  try {
    return read();
  } catch (py::error_already_set &error) {
    if (!error.matches(PyExc_Exception)) {
      throw;
    }
  } catch (py::cast_error &) { // NOLINT(bugprone-empty-catch)
  }
  return false;
}

bool TensorReader::describeTensor(PyObject *object,
                                  dlpack::Tensor &tensor) const {
  if (describe(object, &tensor) != 0) {
    throw py::error_already_set();
  }
  // Before DLPack 1.2 tensors without gaps need not have strides.
  if (tensor.ndim < 0 || (tensor.ndim > 0 && !tensor.strides)) {
    return false;
  }
  return tensor.data || std::find(tensor.shape, tensor.shape + tensor.ndim,
                                  0) != tensor.shape + tensor.ndim;
}

static uintptr_t addressOf(const dlpack::Tensor &tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) + tensor.byteOffset;
}

void TensorReader::forgetTypes() {
  for (TensorAttribute &attribute : attributes) {
    attribute.forgetTypes();
  }
}

/// The result of a method of torch.Tensor.
static py::object callMethod(const py::object &method, PyObject *tensor) {
  auto result = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(method.ptr(), tensor, nullptr));
  if (!result) {
    throw py::error_already_set();
  }
  return result;
}

bool TensorReader::readAttributes(PyObject *tensor, uintptr_t &data,
                                  std::array<py::object, 5> &values) {
  data = callMethod(dataPtr, tensor).cast<uintptr_t>();
  for (size_t i = 0; i < attributes.size(); ++i) {
    values[i] = attributes[i](tensor);
  }
  values.back() = callMethod(stride, tensor);
  return data != 0 || py::handle(tensor).attr("numel")().cast<int64_t>() == 0;
}

/// Whether a dimension has several elements, next to each other.
static bool findNeighbours(const std::vector<int64_t> &sizes,
                           const std::vector<int64_t> &strides) {
  for (size_t i = 0; i < std::min(sizes.size(), strides.size()); ++i) {
    if (sizes[i] > 1 && strides[i] == 1) {
      return true;
    }
  }
  return false;
}

bool TensorReader::readDescription(PyObject *tensor,
                                   TensorLayout &layout) const {
  dlpack::Tensor described = {};
  if (!describeTensor(tensor, described)) {
    return false;
  }
  std::vector<int64_t> sizes(described.shape, described.shape + described.ndim);
  std::vector<int64_t> strides(described.strides,
                               described.strides + described.ndim);
  layout.data = addressOf(described);
  layout.device = described.device;
  layout.dtype = described.dtype;
  layout.hasNeighbours = findNeighbours(sizes, strides);
  layout.extents = std::move(sizes);
  layout.extents.insert(layout.extents.end(), strides.begin(), strides.end());
  readShim(tensor, layout);
  return true;
}

static std::array<int32_t, 3> numbersOf(const ShimDescription &description) {
  return {description.dtype, description.deviceType, description.deviceIndex};
}

/// Whether a tensor is as large as it was, and its rows as far apart.
static bool hasExtents(const TensorLayout &layout, size_t ndim,
                       const int64_t *sizes, const int64_t *strides) {
  const int64_t *known = layout.extents.data();
  if (2 * ndim != layout.extents.size()) {
    return false;
  }
  for (size_t i = 0; i < ndim; ++i) { // few, for which a call takes longer
    if (known[i] != sizes[i] || known[ndim + i] != strides[i]) {
      return false;
    }
  }
  return true;
}

/// Notes what torch's functions say where that is what was read.
void TensorReader::readShim(PyObject *tensor, TensorLayout &layout) const {
  layout.shimType = nullptr;
  ShimDescription said = {};
  if (shim && shim.describe(tensor, said) &&
      reinterpret_cast<uintptr_t>(said.data) == layout.data &&
      hasExtents(layout, static_cast<size_t>(said.ndim), said.sizes,
                 said.strides)) {
    layout.shimType = Py_TYPE(tensor);
    layout.shimNumbers = numbersOf(said);
  }
}

/// Whether torch's functions say what they said of an object of this class;
/// those of another are left to DLPack.
bool TensorReader::isKnownToShim(PyObject *tensor, const TensorLayout &layout,
                                 uintptr_t &data) const {
  ShimDescription said = {};
  if (Py_TYPE(tensor) != layout.shimType || !shim.describe(tensor, said)) {
    return false;
  }
  data = reinterpret_cast<uintptr_t>(said.data);
  return data != 0 && numbersOf(said) == layout.shimNumbers &&
         hasExtents(layout, static_cast<size_t>(said.ndim), said.sizes,
                    said.strides);
}

bool TensorReader::readAttributes(PyObject *tensor, TensorLayout &layout) {
  bool isRead = readAttributes(tensor, layout.data, layout.attributes);
  layout.hasNeighbours =
      isRead &&
      findNeighbours(layout.attributes[3].cast<std::vector<int64_t>>(),
                     layout.attributes[4].cast<std::vector<int64_t>>());
  return isRead;
}

bool TensorReader::read(PyObject *tensor, TensorLayout &layout) {
  if (!isTensor(tensor)) {
    return false;
  }
  return unlessRefused([&] {
    bool isRead = describe ? readDescription(tensor, layout)
                           : readAttributes(tensor, layout);
    layout.isNegated = isRead && isNegated(tensor);
    return isRead;
  });
}

bool TensorReader::isDescribedAs(PyObject *tensor, const TensorLayout &layout,
                                 uintptr_t &data) const {
  dlpack::Tensor described = {};
  if (!describeTensor(tensor, described)) {
    return false;
  }
  data = addressOf(described);
  return described.device == layout.device && described.dtype == layout.dtype &&
         hasExtents(layout, static_cast<size_t>(described.ndim),
                    described.shape, described.strides);
}

bool TensorReader::hasAttributes(PyObject *tensor, const TensorLayout &layout,
                                 uintptr_t &data) {
  std::array<py::object, 5> values;
  auto equal = [](const py::object &a, const py::object &b) {
    return b && (a.is(b) || a.equal(b));
  };
  return readAttributes(tensor, data, values) &&
         std::ranges::equal(values, layout.attributes, equal);
}

TensorReader::Change TensorReader::compare(PyObject *tensor,
                                           const TensorLayout &layout,
                                           uintptr_t &data) {
  if (!isTensor(tensor)) {
    return Change::Other;
  }
  bool isSignKnown = layout.hasNeighbours && !layout.isNegated;
  if (isSignKnown && isKnownToShim(tensor, layout, data)) {
    return data == layout.data ? Change::None : Change::Moved;
  }
  bool isAlike = unlessRefused([&] {
    bool hasLayout = describe ? isDescribedAs(tensor, layout, data)
                              : hasAttributes(tensor, layout, data);
    return hasLayout && (isSignKnown || isNegated(tensor) == layout.isNegated);
  });
  if (!isAlike) {
    return Change::Other;
  }
  return data == layout.data ? Change::None : Change::Moved;
}

bool TensorReader::isNegated(PyObject *tensor) const {
  return callMethod(isNegative, tensor).ptr() == Py_True;
}
