//===-- LaunchTables.cpp - a phase as launches over tables ----------------===//
//
// Tables are written as bytes in the layout of DeviceTables.h.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/LaunchTables.h"

#include "runtime/Math.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

// Every table starts at a multiple of this many bytes.
static constexpr size_t tableAlignment = 16;

static void align(std::vector<std::byte> &region) {
  region.resize(roundUp(static_cast<int64_t>(region.size()), tableAlignment));
}

//===----------------------------------------------------------------------===//
// Building
//===----------------------------------------------------------------------===//

void LaunchTables::clear(size_t scalars) {
  constants.clear();
  changing.assign(scalars * sizeof(double), std::byte(0));
  maps.clear();
  mapAddresses.clear();
  patches.clear();
  strides.clear();
  launches.clear();
  numEntries = 0;
  numScalars = scalars;
  usesFlags = false;
  isSent = false;
}

template <typename T>
void LaunchTables::append(std::vector<std::byte> &region, T value) {
  const auto *bytes = reinterpret_cast<const std::byte *>(&value);
  region.insert(region.end(), bytes, bytes + sizeof(T));
}

void LaunchTables::appendAddress(std::vector<std::byte> &region,
                                 const OperandBinding &binding) {
  if (binding.buffer == OperandBinding::workspace) {
    return append(region, workspace + static_cast<Address>(binding.offset));
  }
  assert(&region == &changing && "the model's memory may move");
  patches.push_back({binding.buffer, static_cast<uint32_t>(region.size())});
  append(region, Address(0));
}

/// Elements from a row of the operand to the next.
static int64_t strideOf(const OperandBinding &binding,
                        const KaonBuffer *buffers) {
  return binding.hasOwnStride ? buffers[binding.buffer].row_stride
                              : binding.stride;
}

void LaunchTables::addMatrix(std::vector<std::byte> &region,
                             const MatrixRequest &matrix,
                             const KaonBuffer *buffers) {
  for (const OperandBinding &binding : matrix.bindings) {
    appendAddress(region, binding);
  }
  for (size_t i = 0; i < matrix.operands.size(); ++i) {
    append(region, matrix.operands[i].rows > 1
                       ? strideOf(matrix.bindings[i], buffers)
                       : int64_t(0));
  }
  append(region, MatrixShape{matrix.sizes[0], matrix.sizes[1],
                             static_cast<int64_t>(matrix.firstScalar)});
}

void LaunchTables::addBlocks(const LaunchRequest &request,
                             const MatrixRequest &matrix, uint32_t index) {
  // Rows and columns are counted, chunks and parts are numbered.
  bool counts = request.schedule == Schedule::Rows ||
                request.schedule == Schedule::Columns;
  int64_t extent = matrix.sizes[request.schedule == Schedule::Columns ? 1 : 0];
  for (int64_t block = 0; block < matrix.blocks; ++block) {
    int64_t first = counts ? block * matrix.grain : block;
    int64_t size = counts ? std::min(matrix.grain, extent - first) : 1;
    append(constants, Block{index, static_cast<uint32_t>(first),
                            static_cast<uint32_t>(size)});
  }
}

Status LaunchTables::appendMap(std::vector<std::byte> &region,
                               const LaunchRequest &request,
                               const Operand &operand,
                               const OperandBinding &binding) {
  assert(binding.buffer == OperandBinding::workspace &&
         "the model's memory may move");
  Address address = workspace + static_cast<Address>(binding.offset);
  // The dimension that is contiguous comes first and has no stride.
  std::array<uint64_t, 2> extents = {static_cast<uint64_t>(operand.cols),
                                     static_cast<uint64_t>(operand.rows)};
  std::array<uint64_t, 1> strides = {
      static_cast<uint64_t>(binding.stride * byteSize(operand.type))};
  std::array<uint32_t, 2> box = {tensorBoxSize, tensorBoxSize};
  std::array<uint32_t, 2> elementStrides = {1, 1};
  TensorMap map = {};
  KAON_RETURN_IF_ERROR(driver->check(
      (*driver)->tensorMapEncode(
          &map,
          operand.type == ElementType::F16 ? TensorType::F16 : TensorType::BF16,
          extents.size(),
          // NOLINTNEXTLINE(performance-no-int-to-ptr)
          reinterpret_cast<void *>(address), extents.data(), strides.data(),
          box.data(), elementStrides.data(), TensorInterleave::None,
          TensorSwizzle::Bytes128, TensorPromotion::Bytes128, TensorFill::Zero),
      "kernel '", request.kernel->name(), "': encoding the map of a ",
      operand.rows, "x", operand.cols, " operand"));
  mapAddresses.push_back({&region == &changing, region.size(), maps.size()});
  maps.push_back(map);
  append(region, Address(0));
  return Status::success();
}

Status LaunchTables::addProduct(std::vector<std::byte> &region,
                                const LaunchRequest &request,
                                const MatrixRequest &matrix, uint32_t firstTile,
                                const KaonBuffer *buffers) {
  size_t result = matrix.operands.size() - 1;
  auto [addend, factor] =
      ProductExtras::of(matrix.operands.size(), matrix.hasFactor);
  auto pitch = [&](size_t operand) {
    return static_cast<int32_t>(strideOf(matrix.bindings[operand], buffers));
  };
  auto appendOptional = [&](std::optional<size_t> operand) {
    if (operand) {
      appendAddress(region, matrix.bindings[*operand]);
    } else {
      append(region, Address(0));
    }
  };
  for (size_t i = 0; i < 2; ++i) {
    if (static_cast<int32_t>(i) < request.mappedOperands) {
      KAON_RETURN_IF_ERROR(
          appendMap(region, request, matrix.operands[i], matrix.bindings[i]));
    } else {
      appendAddress(region, matrix.bindings[i]);
    }
  }
  appendOptional(addend);
  appendAddress(region, matrix.bindings[result]);
  appendOptional(factor);
  Product product = {};
  product.m = static_cast<int32_t>(matrix.sizes[0]);
  product.n = static_cast<int32_t>(matrix.sizes[1]);
  product.k = static_cast<int32_t>(matrix.sizes[2]);
  product.pitchA = pitch(0);
  product.pitchB = pitch(1);
  product.pitchC = addend ? pitch(*addend) : 0;
  product.pitchD = pitch(result);
  product.firstTile = firstTile;
  product.firstScalar = static_cast<uint32_t>(matrix.firstScalar);
  const auto *bytes = reinterpret_cast<const std::byte *>(&product);
  region.insert(region.end(), bytes + offsetof(Product, m),
                bytes + sizeof(Product));
  return Status::success();
}

void LaunchTables::noteStrides(const MatrixRequest &matrix,
                               const KaonBuffer *buffers) {
  for (const OperandBinding &binding : matrix.bindings) {
    if (binding.hasOwnStride) {
      strides.push_back({binding.buffer, buffers[binding.buffer].row_stride});
    }
  }
}

/// Products count in 32 bits; their sizes are the plan's, which is checked.
static Status checkPitches(const LaunchRequest &request,
                           const MatrixRequest &matrix,
                           const KaonBuffer *buffers) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  for (const OperandBinding &binding : matrix.bindings) {
    int64_t stride = strideOf(binding, buffers);
    if (stride > most) {
      return Status::failure("kernel '", request.kernel->name(),
                             "': expects rows that are at most ", most,
                             " elements apart, but got ", stride);
    }
  }
  return Status::success();
}

/// Blocks of a launch are numbered in 31 bits.
static Status checkGrid(const LaunchRequest &request,
                        std::span<const MatrixRequest> matrices) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t grid = 0;
  for (const MatrixRequest &matrix : matrices) {
    if (matrix.blocks > most - grid) {
      return Status::failure("kernel '", request.kernel->name(),
                             "': expects at most ", most,
                             " blocks, but its matrices take more: one of ",
                             matrix.blocks, " comes after ", grid);
    }
    grid += matrix.blocks;
  }
  return Status::success();
}

Status LaunchTables::add(const LaunchRequest &request,
                         std::span<const MatrixRequest> matrices,
                         const KaonBuffer *buffers) {
  KAON_RETURN_IF_ERROR(checkGrid(request, matrices));
  bool isProduct = request.schedule == Schedule::Matmul;
  bool changes = false;
  for (const MatrixRequest &matrix : matrices) {
    if (isProduct) {
      KAON_RETURN_IF_ERROR(checkPitches(request, matrix, buffers));
    }
    noteStrides(matrix, buffers);
    for (const OperandBinding &binding : matrix.bindings) {
      changes |= binding.buffer != OperandBinding::workspace;
    }
  }
  std::vector<std::byte> &region = changes ? changing : constants;
  align(region);
  PreparedLaunch launch = {};
  launch.kernel = request.kernel;
  launch.threads = static_cast<uint32_t>(request.threads);
  launch.sharedBytes = static_cast<uint32_t>(request.sharedBytes);
  launch.table = {changes, region.size()};
  launch.isProduct = isProduct;
  launch.numMatrices = static_cast<uint32_t>(matrices.size());
  // Flags start at a multiple of 8 bytes, as every address that kernels get.
  numEntries = roundUp(numEntries, 2);
  launch.firstEntry = numEntries;
  launch.tilesPerMatrix = static_cast<uint32_t>(matrices[0].blocks);

  // Tables first: blocks are constants, as tables may be.
  int64_t grid = 0;
  for (const MatrixRequest &matrix : matrices) {
    // 0 where they differ: kernels look the product of a tile up then.
    if (matrix.blocks != matrices[0].blocks) {
      launch.tilesPerMatrix = 0;
    }
    if (isProduct) {
      KAON_RETURN_IF_ERROR(addProduct(region, request, matrix,
                                      static_cast<uint32_t>(grid), buffers));
    } else {
      addMatrix(region, matrix, buffers);
    }
    grid += matrix.blocks;
  }
  align(constants);
  launch.blocks = {false, constants.size()};
  for (size_t i = 0; i < matrices.size() && !isProduct; ++i) {
    addBlocks(request, matrices[i], static_cast<uint32_t>(i));
  }
  launch.grid = static_cast<uint32_t>(grid);
  numEntries += matrices.size();
  launches.push_back(launch);
  return Status::success();
}

void LaunchTables::useFlags() {
  align(changing);
  usesFlags = true;
  flagsOffset = changing.size();
  changing.resize(changing.size() + numEntries * sizeof(uint32_t));
}

void LaunchTables::placeMaps() {
  if (maps.empty()) {
    return;
  }
  mapsOffset =
      roundUp(static_cast<int64_t>(constants.size()), alignof(TensorMap));
  constants.resize(mapsOffset + maps.size() * sizeof(TensorMap));
  std::memcpy(constants.data() + mapsOffset, maps.data(),
              maps.size() * sizeof(TensorMap));
}

void LaunchTables::fillMapAddresses() {
  for (const MapAddress &place : mapAddresses) {
    Address address =
        constantsAddress() + mapsOffset + place.map * sizeof(TensorMap);
    std::vector<std::byte> &region = place.changes ? changing : constants;
    std::memcpy(region.data() + place.offset, &address, sizeof(address));
  }
}

Status LaunchTables::finish() {
  align(constants);
  placeMaps();
  align(changing);
  if (changing.empty() && !launches.empty()) {
    // Kernels without scalars get an address all the same.
    changing.resize(tableAlignment);
  }
  std::sort(strides.begin(), strides.end(),
            [](const auto &a, const auto &b) { return a.buffer < b.buffer; });
  strides.erase(std::unique(strides.begin(), strides.end(),
                            [](const auto &a, const auto &b) {
                              return a.buffer == b.buffer;
                            }),
                strides.end());
  // Slots may be on their way still.
  for (CudaEvent &event : sent) {
    KAON_RETURN_IF_ERROR(event.synchronize());
  }
  KAON_RETURN_IF_ERROR(reserve());
  fillMapAddresses();
  std::copy(constants.begin(), constants.end(), pinned.data());
  for (int slot = 0; slot < numSlots; ++slot) {
    std::copy(changing.begin(), changing.end(), slotMemory(slot));
  }
  constantsAreSent = constants.empty();
  placeArguments();
  graph = CudaGraph();
  ++numBuilds;
  numReplays = 0;
  return Status::success();
}

Status LaunchTables::reserve() {
  auto constantBytes = static_cast<int64_t>(constants.size());
  auto changingBytes = static_cast<int64_t>(changing.size());
  if (pinned.data() && constantBytes <= constantsCapacity &&
      changingBytes <= changingCapacity) {
    return Status::success();
  }
  // What is too small is not given back before the end, so grow by a factor.
  auto grow = [](int64_t capacity, int64_t bytes) {
    return bytes <= capacity ? capacity
                             : roundUp(std::max(bytes, 2 * capacity),
                                       DeviceMemory::alignment);
  };
  int64_t newConstants = grow(constantsCapacity, constantBytes);
  int64_t newChanging = grow(changingCapacity, changingBytes);
  int64_t deviceBytes = newConstants + newChanging;
  if (deviceBytes == 0) {
    return Status::success();
  }
  Result<Address> taken = memory.take(deviceBytes, "tables");
  KAON_RETURN_IF_ERROR(taken.status());
  Result<PinnedMemory> staging =
      PinnedMemory::create(driver, newConstants + numSlots * newChanging);
  KAON_RETURN_IF_ERROR(staging.status());
  for (CudaEvent &event : sent) {
    Result<CudaEvent> created = CudaEvent::create(driver);
    KAON_RETURN_IF_ERROR(created.status());
    event = std::move(*created);
  }
  device = *taken;
  pinned = std::move(*staging);
  constantsCapacity = newConstants;
  changingCapacity = newChanging;
  return Status::success();
}

void LaunchTables::placeArguments() {
  for (PreparedLaunch &launch : launches) {
    // Scalars come first in what changes; flags take their place.
    Address last = usesFlags ? flags() + launch.firstEntry * sizeof(uint32_t)
                             : changingAddress();
    if (launch.isProduct) {
      launch.products = {addressOf(launch.table), launch.numMatrices,
                         launch.tilesPerMatrix};
      launch.addresses[0] = last;
      launch.parameters = {&launch.products, launch.addresses.data(), nullptr};
    } else {
      launch.addresses = {addressOf(launch.table), addressOf(launch.blocks),
                          last};
      launch.parameters = {&launch.addresses[0], &launch.addresses[1],
                           &launch.addresses[2]};
    }
  }
}

//===----------------------------------------------------------------------===//
// Steps
//===----------------------------------------------------------------------===//

bool LaunchTables::fits(const KaonBuffer *buffers) const {
  return std::all_of(strides.begin(), strides.end(), [&](const Stride &stride) {
    return buffers[stride.buffer].row_stride == stride.elements;
  });
}

Status LaunchTables::send(const KaonBuffer *buffers,
                          std::span<const double> scalars, Stream stream) {
  assert(scalars.size() == numScalars && "tables are for a schedule");
  isSent = false; // Until all of it is on its way.
  if (changing.empty()) {
    isSent = true;
    return Status::success();
  }
  CudaEvent &event = sent[nextSlot];
  KAON_RETURN_IF_ERROR(event.synchronize());
  std::byte *slot = slotMemory(nextSlot);
  std::ranges::copy(std::as_bytes(scalars), slot);
  for (const Patch &patch : patches) {
    auto address = reinterpret_cast<Address>(buffers[patch.buffer].data);
    std::memcpy(slot + patch.offset, &address, sizeof(address));
  }
  if (!constantsAreSent) {
    KAON_RETURN_IF_ERROR(
        driver->check((*driver)->copyToDevice(constantsAddress(), pinned.data(),
                                              constants.size(), stream),
                      "cuMemcpyHtoDAsync: sending tables"));
    constantsAreSent = true;
  }
  KAON_RETURN_IF_ERROR(driver->check(
      (*driver)->copyToDevice(changingAddress(), slot, changing.size(), stream),
      "cuMemcpyHtoDAsync: sending tables"));
  nextSlot = (nextSlot + 1) % numSlots;
  isSent = true;
  return event.record(stream);
}

Status LaunchTables::launchOne(PreparedLaunch &launch, Stream stream) {
  KAON_RETURN_IF_ERROR(driver->check(
      (*driver)->launchKernel(launch.kernel->function(), launch.grid, 1, 1,
                              launch.threads, 1, 1, launch.sharedBytes, stream,
                              launch.parameters.data(), nullptr),
      "kernel '", launch.kernel->name(), "': launching ", launch.grid,
      " blocks of ", launch.threads, " threads with ", launch.sharedBytes,
      " bytes of shared memory failed"));
  ++kernelLaunches;
  return Status::success();
}

Status LaunchTables::launch(Stream stream) {
  for (PreparedLaunch &launch : launches) {
    KAON_RETURN_IF_ERROR(launchOne(launch, stream));
  }
  return Status::success();
}

Status LaunchTables::repeat(size_t index, int64_t count, Stream stream) {
  if (!isSent) {
    return Status::failure("repeat: expects a phase of which a step has run, "
                           "but none has since its tables were made");
  }
  if (count < 0) {
    return Status::failure("count: expects at least 0, but got ", count);
  }
  if (index >= launches.size()) {
    return Status::failure("repeat: expects a launch below ", launches.size(),
                           ", but got ", index);
  }
  for (int64_t i = 0; i < count; ++i) {
    KAON_RETURN_IF_ERROR(launchOne(launches[index], stream));
  }
  return Status::success();
}

std::vector<std::string_view> LaunchTables::kernels() const {
  std::vector<std::string_view> names;
  names.reserve(launches.size());
  for (const PreparedLaunch &launch : launches) {
    names.push_back(launch.kernel->name());
  }
  return names;
}

Status LaunchTables::replay(Stream stream) {
  if (launches.empty()) {
    return Status::success();
  }
  // The first tables are likely to stay. Later ones are there because the
  // gradients change, and get a graph once they have been seen twice.
  bool isWorthIt = numBuilds == 1 || numReplays > 0;
  ++numReplays;
  if (!isWorthIt) {
    return launch(stream);
  }
  if (!graph) {
    KAON_RETURN_IF_ERROR(makeGraph());
  }
  KAON_RETURN_IF_ERROR(graph.launch(stream));
  kernelLaunches += static_cast<int64_t>(launches.size());
  ++graphLaunches;
  return Status::success();
}

Status LaunchTables::makeGraph() {
  std::vector<KernelNode> nodes;
  nodes.reserve(launches.size());
  for (PreparedLaunch &launch : launches) {
    nodes.push_back({launch.kernel->function(), launch.grid, 1, 1,
                     launch.threads, 1, 1, launch.sharedBytes,
                     launch.parameters.data(), nullptr});
  }
  Result<CudaGraph> made = CudaGraph::create(driver, nodes);
  KAON_RETURN_IF_ERROR(made.status());
  graph = std::move(*made);
  return Status::success();
}
