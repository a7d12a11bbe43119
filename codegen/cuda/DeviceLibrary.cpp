//===-- DeviceLibrary.cpp - the device library's text ---------------------===//

#include "codegen/cuda/DeviceLibrary.h"

namespace kaon::cuda {

const std::vector<DeviceHeader> &getDeviceLibrary() {
  static const std::vector<DeviceHeader> headers = {
#include "codegen/cuda/DeviceLibrary.inc"
  };
  return headers;
}

} // namespace kaon::cuda
