//===-- CudaDriver.cpp - the CUDA driver, found at run time ---------------===//
//
// Loading, and the messages for everything that is usually wrong with it.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/CudaDriver.h"

#include <array>
#include <dlfcn.h>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

std::string DeviceInfo::architecture() const {
  // From 9.0 on, tensor core and copy instructions belong to one chip only,
  // and so does code that uses them.
  return concat("sm_", major, minor, major >= 9 ? "a" : "");
}

Result<std::shared_ptr<CudaDriver>> CudaDriver::open(std::string path) {
  std::shared_ptr<CudaDriver> driver(new CudaDriver(std::move(path)));
  KAON_RETURN_IF_ERROR(driver->load());
  KAON_RETURN_IF_ERROR(driver->initialize());
  return driver;
}

/// What is wrong with a driver that answers with `code`, where that is known.
static std::string_view explain(Code code) {
  switch (code) {
  case Code::StubLibrary:
    return "it is the stub that a CUDA toolkit has for linking, not a driver: "
           "take its folder out of the library path, or name the driver's "
           "libcuda.so.1";
  case Code::NoDevice:
    return "the machine has no GPU that this process may use: look at "
           "nvidia-smi, at CUDA_VISIBLE_DEVICES and at the container's "
           "devices";
  case Code::OldDriver:
    return "the kernel driver is too old for this libcuda: update the NVIDIA "
           "driver";
  case Code::DriverMismatch:
    return "libcuda and the kernel driver are of different versions: restart "
           "after updating the NVIDIA driver, and keep compatibility "
           "libraries that the hardware does not support out of the library "
           "path";
  default:
    return "";
  }
}

Status CudaDriver::load() {
  // Never closed: a driver has threads, and others in the process may use it.
  void *library = dlopen(libraryPath.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    return Status::deviceFailure(
        "cuda driver '", libraryPath, "': expects a library that can be ",
        "opened, but got: ", reason ? reason : "no reason",
        "; it comes with the NVIDIA driver of a machine with a GPU");
  }
  fake = dlsym(library, fakeMarkerSymbol) != nullptr;
  auto *getProcAddress =
      reinterpret_cast<GetProcAddress *>(dlsym(library, getProcAddressSymbol));
  if (!getProcAddress) {
    return Status::deviceFailure("cuda driver '", libraryPath,
                                 "': expects a driver of CUDA 12.0 or ",
                                 "newer, but it has no ", getProcAddressSymbol,
                                 "; install a newer NVIDIA driver");
  }
#define KAON_CUDA_LOAD(member, name, version, parameters)                      \
  {                                                                            \
    void *found = nullptr;                                                     \
    Code code = getProcAddress(name, &found, version, /*flags=*/0, nullptr);   \
    if (code == Code::StubLibrary) {                                           \
      return Status::deviceFailure("cuda driver '", libraryPath,               \
                                   "': ", explain(code));                      \
    }                                                                          \
    if (code != Code::Success || !found) {                                     \
      return Status::deviceFailure(                                            \
          "cuda driver '", libraryPath, "': expects the function ", name,      \
          " of version ", version, ", but it has none (error ",                \
          static_cast<int>(code), "); install a newer NVIDIA driver");         \
    }                                                                          \
    table.member = reinterpret_cast<decltype(table.member)>(found);            \
  }
  KAON_CUDA_FUNCTIONS(KAON_CUDA_LOAD)
#undef KAON_CUDA_LOAD
  return Status::success();
}

Status CudaDriver::initialize() {
  Code code = table.init(0);
  if (code != Code::Success) {
    std::string_view explanation = explain(code);
    Status status =
        check(code, "cuda driver '", libraryPath, "': cuInit failed");
    return explanation.empty()
               ? status
               : Status::deviceFailure(status.message(), ": ", explanation);
  }
  KAON_RETURN_IF_ERROR(check(table.driverGetVersion(&driverVersion),
                             "cuda driver '", libraryPath,
                             "': cuDriverGetVersion failed"));
  KAON_RETURN_IF_ERROR(check(table.deviceGetCount(&numDevices), "cuda driver '",
                             libraryPath, "': cuDeviceGetCount failed"));
  if (numDevices == 0) {
    return Status::deviceFailure(
        "cuda driver '", libraryPath,
        "': expects a device, but it has none: ", explain(Code::NoDevice));
  }
  return Status::success();
}

Result<DeviceInfo> CudaDriver::deviceInfo(int ordinal) const {
  if (ordinal < 0 || ordinal >= numDevices) {
    return Status::failure("device: expects a number from 0 to ",
                           numDevices - 1, ", but got ", ordinal);
  }
  Device device = 0;
  KAON_RETURN_IF_ERROR(
      check(table.deviceGet(&device, ordinal), "device ", ordinal));
  DeviceInfo info;
  std::array<char, 256> name = {};
  KAON_RETURN_IF_ERROR(
      check(table.deviceGetName(name.data(), name.size(), device), "device ",
            ordinal, ": cuDeviceGetName failed"));
  info.name = name.data();
  int sharedBytes = 0, sharedBytesPerMultiprocessor = 0, cacheBytes = 0;
  const std::pair<DeviceAttribute, int *> attributes[] = {
      {DeviceAttribute::CapabilityMajor, &info.major},
      {DeviceAttribute::CapabilityMinor, &info.minor},
      {DeviceAttribute::Multiprocessors, &info.multiprocessors},
      {DeviceAttribute::MaxThreadsPerBlock, &info.threadsPerBlock},
      {DeviceAttribute::SharedBytesPerBlockOptIn, &sharedBytes},
      {DeviceAttribute::SharedBytesPerMultiprocessor,
       &sharedBytesPerMultiprocessor},
      {DeviceAttribute::L2CacheBytes, &cacheBytes},
  };
  for (auto [attribute, value] : attributes) {
    KAON_RETURN_IF_ERROR(check(
        table.deviceGetAttribute(value, attribute, device), "device ", ordinal,
        ": cuDeviceGetAttribute ", static_cast<int>(attribute), " failed"));
  }
  size_t memoryBytes = 0;
  KAON_RETURN_IF_ERROR(check(table.deviceTotalMem(&memoryBytes, device),
                             "device ", ordinal, ": cuDeviceTotalMem failed"));
  info.sharedBytes = sharedBytes;
  info.sharedBytesPerMultiprocessor = sharedBytesPerMultiprocessor;
  info.cacheBytes = cacheBytes;
  info.memoryBytes = static_cast<int64_t>(memoryBytes);
  return info;
}

Status CudaDriver::describe(Code code, const std::string &what) const {
  const char *name = nullptr, *text = nullptr;
  table.getErrorName(code, &name);
  table.getErrorString(code, &text);
  return Status::deviceFailure(what, ": ", name ? name : "unknown error", " (",
                               static_cast<int>(code), text ? ", " : "",
                               text ? text : "", ")");
}
