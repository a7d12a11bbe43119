//===-- LaunchTables.h - a phase as launches over tables --------*- C++ -*-===//
//
// Kernels find out from tables in device memory which matrices they work on.
// Most of a phase's tables never changes; what does (addresses of the model's
// memory, scalars) lies together, so that a step writes it into page-locked
// memory and sends it with one copy:
//
//   device memory       constants | changing
//   page-locked memory  constants | changing, slot 0 | changing, slot 1
//
// Slots take turns. A slot is written only after its last copy is done, so a
// host that is up to two steps ahead of the device does not wait.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_LAUNCHTABLES_H
#define KAON_RUNTIME_CUDA_LAUNCHTABLES_H

#include "runtime/KernelAbi.h"
#include "runtime/Schedule.h"
#include "runtime/StepPlan.h"
#include "runtime/cuda/CudaKernel.h"
#include "runtime/cuda/CudaResources.h"
#include "runtime/cuda/DeviceTables.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kaon::runtime::cuda {

/// A launch before it has tables.
struct LaunchRequest {
  const CudaKernel *kernel;
  Schedule schedule;
  int64_t threads;
  int64_t sharedBytes;
  /// Operands that the kernel takes tensor maps of in their place, from the
  /// first: in the workspace, whose addresses do not change.
  int32_t mappedOperands = 0;
};

/// One matrix of it.
struct MatrixRequest {
  std::span<const Operand> operands;
  std::span<const int64_t> sizes; // as KernelAbi.h says for the schedule
  int64_t blocks;                 // that it takes
  int64_t grain;                  // what one of them covers
  std::span<const OperandBinding> bindings;
  size_t firstScalar;
  bool hasFactor = false; // of a product
};

class LaunchTables {
public:
  /// `workspace` is what bindings to the workspace are relative to.
  LaunchTables(std::shared_ptr<CudaDriver> driver, DeviceMemory &memory,
               Address workspace)
      : driver(std::move(driver)), memory(memory), workspace(workspace) {}

  /// Starts the tables of a schedule anew.
  void clear(size_t numScalars);
  /// Adds a launch to those that follow each other. `buffers` are those that
  /// bindings refer to, of which only the strides are looked at.
  Status add(const LaunchRequest &request,
             std::span<const MatrixRequest> matrices,
             const KaonBuffer *buffers);
  /// Gives kernels, in the place of scalars, one flag for each entry of their
  /// tables, which is 0 when they start.
  void useFlags();
  /// Takes the memory that is needed, if it is not there yet, and makes the
  /// tables ready to be sent.
  Status finish();

  /// Whether rows are as far apart as they were for `add`.
  bool fits(const KaonBuffer *buffers) const;

  /// Sends the tables of a step.
  Status send(const KaonBuffer *buffers, std::span<const double> scalars,
              Stream stream);
  /// Launches everything, in order.
  Status launch(Stream stream);
  /// The same by a graph, which is made when it is worth it.
  Status replay(Stream stream);
  /// Launches one kernel `count` times more, on the tables that were sent last:
  /// the memory whose addresses they hold must still be there.
  Status repeat(size_t index, int64_t count, Stream stream);

  /// The kernels of all launches, in order.
  std::vector<std::string_view> kernels() const;
  /// Kernels that were launched so far, alone or as nodes of graphs.
  int64_t numKernelLaunches() const { return kernelLaunches; }
  /// Graphs that were.
  int64_t numGraphLaunches() const { return graphLaunches; }

  /// Where kernels leave flags, after `useFlags`.
  Address flags() const { return changingAddress() + flagsOffset; }
  /// One for each matrix of each launch; those between launches stay 0.
  size_t numFlags() const { return numEntries; }

  /// Bytes of device memory.
  int64_t deviceBytes() const { return constantsCapacity + changingCapacity; }

private:
  static constexpr int numSlots = 2;

  /// An address that a step fills in.
  struct Patch {
    int32_t buffer;
    uint32_t offset; // in `changing`
  };
  /// The address of a tensor map, which is known when the tables are finished.
  struct MapAddress {
    bool changes; // whether it is in `changing`, or in `constants`
    size_t offset;
    size_t map; // among `maps`
  };
  struct Stride {
    int32_t buffer;
    int64_t elements;
  };
  struct Place {
    bool changes;
    size_t offset;
  };
  /// A launch whose tables have their places.
  struct PreparedLaunch {
    const CudaKernel *kernel;
    uint32_t grid, threads, sharedBytes;
    Place table, blocks;
    bool isProduct;
    uint32_t numMatrices, tilesPerMatrix;
    size_t firstEntry; // among those of all launches
    // What the kernel gets, and pointers to it.
    std::array<Address, 3> addresses;
    ProductList products;
    std::array<void *, 3> parameters;
  };

  template <typename T> void append(std::vector<std::byte> &region, T value);
  void appendAddress(std::vector<std::byte> &region,
                     const OperandBinding &binding);
  void addMatrix(std::vector<std::byte> &region, const MatrixRequest &matrix,
                 const KaonBuffer *buffers);
  void addBlocks(const LaunchRequest &request, const MatrixRequest &matrix,
                 uint32_t index);
  Status addProduct(std::vector<std::byte> &region,
                    const LaunchRequest &request, const MatrixRequest &matrix,
                    uint32_t firstTile, const KaonBuffer *buffers);
  Status appendMap(std::vector<std::byte> &region, const LaunchRequest &request,
                   const Operand &operand, const OperandBinding &binding);
  void placeMaps();
  void fillMapAddresses();
  void noteStrides(const MatrixRequest &matrix, const KaonBuffer *buffers);
  Status launchOne(PreparedLaunch &launch, Stream stream);
  Status reserve();
  void placeArguments();
  Status makeGraph();

  Address constantsAddress() const { return device; }
  Address changingAddress() const {
    return device + static_cast<Address>(constantsCapacity);
  }
  Address addressOf(const Place &place) const {
    return (place.changes ? changingAddress() : constantsAddress()) +
           place.offset;
  }
  std::byte *slotMemory(int slot) const {
    return pinned.data() + constantsCapacity + slot * changingCapacity;
  }

  std::shared_ptr<CudaDriver> driver;
  DeviceMemory &memory;
  Address workspace;

  std::vector<std::byte> constants, changing;
  std::vector<TensorMap> maps;
  std::vector<MapAddress> mapAddresses;
  size_t mapsOffset = 0; // in `constants`
  std::vector<Patch> patches;
  std::vector<Stride> strides;
  std::vector<PreparedLaunch> launches;
  size_t numScalars = 0;
  size_t numEntries = 0; // of the tables of all launches, and gaps between
  size_t flagsOffset = 0;
  bool usesFlags = false;

  int64_t constantsCapacity = 0, changingCapacity = 0;
  Address device = 0;
  PinnedMemory pinned;
  std::array<CudaEvent, numSlots> sent;
  int nextSlot = 0;
  bool constantsAreSent = false;
  bool isSent = false; // All of the present tables.

  CudaGraph graph;
  int64_t numBuilds = 0;
  int64_t numReplays = 0; // of the present tables
  int64_t kernelLaunches = 0;
  int64_t graphLaunches = 0;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_LAUNCHTABLES_H
