//===-- TensorReader.h - where torch's tensors lie --------------*- C++ -*-===//
//
// Tells whether a tensor is where it was and as it was, for as little as
// possible, since a step asks it of every parameter, gradient and state. Knows
// torch as Python objects only and links nothing of it.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_TENSORREADER_H
#define KAON_PYTHON_SRC_TENSORREADER_H

#include "python/src/DLPack.h"
#include "python/src/TorchShim.h"

#include <array>
#include <cstdint>
#include <pybind11/pybind11.h>
#include <vector>

namespace kaon::python {

/// A tensor as it was when it was read. Keeps nothing of it alive; the address
/// is for comparing.
struct TensorLayout {
  uintptr_t data = 0;
  // What the exchange interface says, sizes before strides.
  dlpack::Device device = {};
  dlpack::DataType dtype = {};
  std::vector<int64_t> extents;
  /// Whether the elements are the negatives of those in memory.
  bool isNegated = false;
  /// Whether some elements follow each other. Then it is not asked again
  /// whether they are negated, which takes as long as all the rest: torch does
  /// that to imaginary parts only, which are every other number in memory.
  bool hasNeighbours = false;
  /// The type of the object, if torch's C functions say the same as the
  /// exchange interface; then dtype and device are also as these say them.
  PyTypeObject *shimType = nullptr;
  std::array<int32_t, 3> shimNumbers = {};
  // What attributes say, where there is no such interface: layout, dtype,
  // device, shape and strides.
  std::array<pybind11::object, 5> attributes;
};

/// An attribute that torch's tensors have, read without looking it up for each.
class TensorAttribute {
public:
  TensorAttribute(const pybind11::type &tensorType, const char *name);

  /// Looks again which types have torch's own attribute.
  void forgetTypes() { known = nullptr; }
  /// The attribute of `object`, which may be anything.
  pybind11::object operator()(PyObject *object);

private:
  pybind11::object name; // interned
  pybind11::object descriptor;
  PyTypeObject *known = nullptr; // a type whose attribute is torch's own
};

class TensorReader {
public:
  /// What became of a tensor.
  enum class Change : uint8_t {
    None,
    Moved, // the same elsewhere
    Other, // of another layout or sign, or it does not say
  };

  /// `tensorType` is torch.Tensor, `exchange` its capsule, or None where torch
  /// has none. Capsules of unknown versions are left alone. `makeHandles` is
  /// as for TorchShim, which needs the exchange interface beside it.
  TensorReader(const pybind11::type &tensorType,
               const pybind11::object &exchange,
               const pybind11::object &makeHandles);

  /// Whether tensors are read through the exchange interface.
  bool usesExchange() const { return describe; }
  /// Whether they are compared by torch's C functions where these can tell.
  bool usesShim() const { return static_cast<bool>(shim); }

  /// Reads `tensor`. False where it is no tensor, or refuses to say where it
  /// lies: sparse tensors, tensors without memory, subclasses that answer
  /// something else.
  bool read(PyObject *tensor, TensorLayout &layout);

  /// Compares `tensor` with what it was.
  Change compare(PyObject *tensor, const TensorLayout &layout, uintptr_t &data);

  /// Looks again which types have torch's own attributes.
  void forgetTypes();

private:
  bool isTensor(PyObject *object) const {
    return PyObject_TypeCheck(object,
                              reinterpret_cast<PyTypeObject *>(type.ptr()));
  }
  bool describeTensor(PyObject *object, dlpack::Tensor &tensor) const;
  bool readDescription(PyObject *tensor, TensorLayout &layout) const;
  void readShim(PyObject *tensor, TensorLayout &layout) const;
  bool isKnownToShim(PyObject *tensor, const TensorLayout &layout,
                     uintptr_t &data) const;
  bool isDescribedAs(PyObject *tensor, const TensorLayout &layout,
                     uintptr_t &data) const;
  bool readAttributes(PyObject *tensor, uintptr_t &data,
                      std::array<pybind11::object, 5> &values);
  bool readAttributes(PyObject *tensor, TensorLayout &layout);
  bool hasAttributes(PyObject *tensor, const TensorLayout &layout,
                     uintptr_t &data);
  bool isNegated(PyObject *tensor) const;

  pybind11::object type;
  pybind11::object isNegative, dataPtr, stride; // methods of torch.Tensor
  std::array<TensorAttribute, 4> attributes;    // layout, dtype, device, shape
  int (*describe)(void *, dlpack::Tensor *) = nullptr;
  TorchShim shim;
};

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_TENSORREADER_H
