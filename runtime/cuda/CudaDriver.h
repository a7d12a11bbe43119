//===-- CudaDriver.h - the CUDA driver, found at run time -------*- C++ -*-===//
//
// Opens libcuda by name or path and looks its functions up. A process needs no
// CUDA to load the runtime; whoever asks for a driver and cannot have it gets
// one message that says what was tried and what helps.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUDADRIVER_H
#define KAON_RUNTIME_CUDA_CUDADRIVER_H

#include "runtime/Status.h"
#include "runtime/cuda/CudaApi.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace kaon::runtime::cuda {

/// What is known about a device.
struct DeviceInfo {
  std::string name;
  int major = 0;
  int minor = 0; // of its compute capability
  int multiprocessors = 0;
  int threadsPerBlock = 0;
  int64_t sharedBytes = 0; // that one block may opt in to
  int64_t sharedBytesPerMultiprocessor = 0;
  int64_t cacheBytes = 0; // of level 2
  int64_t memoryBytes = 0;

  /// The name that compilers give its architecture, sm_90a for instance.
  std::string architecture() const;
};

class CudaDriver {
public:
  static constexpr std::string_view defaultPath = "libcuda.so.1";

  /// Opens and initialises the driver `path`, a name for the loader or a file.
  static Result<std::shared_ptr<CudaDriver>> open(std::string path);

  CudaDriver(const CudaDriver &) = delete;
  CudaDriver &operator=(const CudaDriver &) = delete;

  const Functions &functions() const { return table; }
  const Functions *operator->() const { return &table; }

  const std::string &path() const { return libraryPath; }

  /// The version of CUDA it implements, 13000 for 13.0.
  int version() const { return driverVersion; }

  /// Whether the library only imitates a driver.
  bool isFake() const { return fake; }

  int deviceCount() const { return numDevices; }
  Result<DeviceInfo> deviceInfo(int ordinal) const;

  /// Success, or "<what>: <the driver's name and text of the error>".
  template <typename... Args>
  Status check(Code code, const Args &...what) const {
    return code == Code::Success ? Status::success()
                                 : describe(code, concat(what...));
  }

private:
  explicit CudaDriver(std::string path) : libraryPath(std::move(path)) {}

  Status load();
  Status initialize();
  Status describe(Code code, const std::string &what) const;

  std::string libraryPath;
  Functions table;
  int driverVersion = 0;
  int numDevices = 0;
  bool fake = false;
};

/// Makes a context current for the calling thread as long as it lives.
class ContextScope {
public:
  ContextScope(const CudaDriver &driver, Context context)
      : driver(driver),
        pushed(driver.check(driver->contextPush(context), "cuCtxPushCurrent")) {
  }
  ~ContextScope() {
    if (pushed.ok()) {
      Context popped = nullptr;
      driver->contextPop(&popped);
    }
  }
  ContextScope(const ContextScope &) = delete;
  ContextScope &operator=(const ContextScope &) = delete;

  /// Whether the context is current.
  const Status &status() const { return pushed; }

private:
  const CudaDriver &driver;
  Status pushed;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUDADRIVER_H
