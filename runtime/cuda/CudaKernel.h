//===-- CudaKernel.h - a kernel that is ready to launch ---------*- C++ -*-===//
//
// Loads the image of a kernel and checks everything about it that can be
// checked before it runs: architecture, entry, parameters, threads, shared
// memory.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUDAKERNEL_H
#define KAON_RUNTIME_CUDA_CUDAKERNEL_H

#include "runtime/cuda/Cubin.h"
#include "runtime/cuda/CudaDriver.h"

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kaon::runtime::cuda {

/// Code of kernels by name, each a CUBIN or the text of PTX.
using Images = std::map<std::string, std::vector<std::byte>, std::less<>>;

/// How a kernel is going to be launched.
struct KernelUse {
  std::span<const CubinParameter> parameters;
  int64_t threads = 0;     // of a block
  int64_t sharedBytes = 0; // dynamic, at most
};

class CudaKernel {
public:
  CudaKernel() = default;
  CudaKernel(CudaKernel &&other) noexcept { swap(other); }
  CudaKernel &operator=(CudaKernel &&other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaKernel();

  /// Loads the image called `name` for the current context, which is on the
  /// device that `info` describes.
  static Result<CudaKernel> load(std::shared_ptr<CudaDriver> driver,
                                 const DeviceInfo &info, const Images &images,
                                 std::string_view name, const KernelUse &use);

  const std::string &name() const { return kernelName; }
  Function function() const { return entry; }

private:
  Status loadImage(std::span<const std::byte> image);
  Status checkCubin(const DeviceInfo &info, std::span<const std::byte> image,
                    const KernelUse &use) const;
  Status checkPtx(std::span<const std::byte> image, const KernelUse &use) const;
  Status checkThreads(int64_t threads, const KernelUse &use) const;
  Status allow(const DeviceInfo &info, const KernelUse &use);

  void swap(CudaKernel &other) noexcept {
    std::swap(driver, other.driver);
    std::swap(kernelName, other.kernelName);
    std::swap(module, other.module);
    std::swap(entry, other.entry);
  }

  std::shared_ptr<CudaDriver> driver;
  std::string kernelName;
  Module module = nullptr;
  Function entry = nullptr;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUDAKERNEL_H
