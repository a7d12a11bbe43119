//===-- DLPack.h - the part of DLPack that is used --------------*- C++ -*-===//
//
// Own declarations of the C interface by which a tensor library describes its
// tensors without making anything (DLPack 1.2 and later; torch 2.10 and later
// has it as `torch.Tensor.__dlpack_c_exchange_api__`). Within a major version
// what is declared here stays as it is; another one is not looked into.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_DLPACK_H
#define KAON_PYTHON_SRC_DLPACK_H

#include <cstddef>
#include <cstdint>

namespace kaon::python::dlpack {

constexpr uint32_t majorVersion = 1;
constexpr const char *capsuleName = "dlpack_exchange_api";

struct Device {
  int32_t type;
  int32_t id;
  bool operator==(const Device &) const = default;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  bool operator==(const DataType &) const = default;
};

/// A tensor; whoever described it owns the arrays.
struct Tensor {
  void *data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t *shape;
  int64_t *strides; // in elements
  uint64_t byteOffset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct ExchangeHeader {
  Version version;
  ExchangeHeader *previous; // of an older version, or null
};

struct Exchange {
  ExchangeHeader header;
  /// Functions that make tensors or give them away.
  void (*unused[3])();
  /// Describes a Python object of the library's own type, until control is
  /// returned. 0, or -1 with a Python exception. May be null.
  int (*describe)(void *object, Tensor *tensor);
};

static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24);
static_assert(offsetof(Exchange, describe) == 40);

} // namespace kaon::python::dlpack

#endif // KAON_PYTHON_SRC_DLPACK_H
