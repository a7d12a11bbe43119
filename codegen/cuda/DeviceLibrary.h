//===-- DeviceLibrary.h - the device library's text -------------*- C++ -*-===//
//
// The headers of codegen/cuda/lib, embedded when the compiler is built: NVRTC
// takes them in memory, and compiled packages carry them beside their kernels.
// Needs nothing but C++.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_DEVICELIBRARY_H
#define KAON_CODEGEN_CUDA_DEVICELIBRARY_H

#include <string_view>
#include <vector>

namespace kaon::cuda {

/// A header of the device library: the name by which kernels include it, and
/// its text.
struct DeviceHeader {
  std::string_view name, text;
};

/// All headers, in the order of their names.
const std::vector<DeviceHeader> &getDeviceLibrary();

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_DEVICELIBRARY_H
