//===-- CudaResources.h - memory, events and graphs with owners -*- C++ -*-===//
//
// What a backend takes from the driver and gives back. A context must be
// current wherever something is taken or destroyed.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUDARESOURCES_H
#define KAON_RUNTIME_CUDA_CUDARESOURCES_H

#include "runtime/cuda/CudaDriver.h"

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kaon::runtime::cuda {

/// Gives device memory that lives as long as the backend. Who passes one keeps
/// the memory, and frees it after the backend is gone.
using Allocate = std::function<Result<Address>(int64_t bytes)>;

/// Device memory, all of it kept until the end.
class DeviceMemory {
public:
  /// Alignment of every allocation, which kernels rely on.
  static constexpr int64_t alignment = 256;

  /// Without `allocate`, memory comes from the driver.
  DeviceMemory(std::shared_ptr<CudaDriver> driver, Allocate allocate)
      : driver(std::move(driver)), allocate(std::move(allocate)) {}
  DeviceMemory(const DeviceMemory &) = delete;
  DeviceMemory &operator=(const DeviceMemory &) = delete;
  ~DeviceMemory();

  /// `bytes` of memory for `purpose`; 0 bytes are at address 0.
  Result<Address> take(int64_t bytes, std::string_view purpose);

private:
  std::shared_ptr<CudaDriver> driver;
  Allocate allocate;
  std::vector<Address> owned;
};

/// Host memory that the device copies from and to by itself.
class PinnedMemory {
public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory &&other) noexcept { swap(other); }
  PinnedMemory &operator=(PinnedMemory &&other) noexcept {
    swap(other);
    return *this;
  }
  ~PinnedMemory();

  static Result<PinnedMemory> create(std::shared_ptr<CudaDriver> driver,
                                     int64_t bytes);

  std::byte *data() const { return memory; }

private:
  void swap(PinnedMemory &other) noexcept {
    std::swap(driver, other.driver);
    std::swap(memory, other.memory);
  }

  std::shared_ptr<CudaDriver> driver;
  std::byte *memory = nullptr;
};

/// A point in a stream.
class CudaEvent {
public:
  CudaEvent() = default;
  CudaEvent(CudaEvent &&other) noexcept { swap(other); }
  CudaEvent &operator=(CudaEvent &&other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaEvent();

  static Result<CudaEvent> create(std::shared_ptr<CudaDriver> driver);

  /// The point after everything that `stream` has now.
  Status record(Stream stream);
  /// Waits until the point is reached; at once if none was recorded.
  Status synchronize();
  /// Lets `stream` wait for the point before it goes on.
  Status holdBack(Stream stream);

private:
  void swap(CudaEvent &other) noexcept {
    std::swap(driver, other.driver);
    std::swap(event, other.event);
  }

  std::shared_ptr<CudaDriver> driver;
  Event event = nullptr;
};

/// Kernels in a fixed order, launched at once.
class CudaGraph {
public:
  CudaGraph() = default;
  CudaGraph(CudaGraph &&other) noexcept { swap(other); }
  CudaGraph &operator=(CudaGraph &&other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaGraph();

  static Result<CudaGraph> create(std::shared_ptr<CudaDriver> driver,
                                  std::span<const KernelNode> kernels);

  explicit operator bool() const { return exec; }
  Status launch(Stream stream);

private:
  void swap(CudaGraph &other) noexcept {
    std::swap(driver, other.driver);
    std::swap(exec, other.exec);
  }

  std::shared_ptr<CudaDriver> driver;
  GraphExec exec = nullptr;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUDARESOURCES_H
