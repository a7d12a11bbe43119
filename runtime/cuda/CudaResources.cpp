//===-- CudaResources.cpp - memory, events and graphs with owners ---------===//
//
// Failures while something is given back are of no use to anybody and are not
// looked at: at the end of a process the driver may be gone already.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/CudaResources.h"

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

//===----------------------------------------------------------------------===//
// DeviceMemory
//===----------------------------------------------------------------------===//

DeviceMemory::~DeviceMemory() {
  for (Address address : owned) {
    (*driver)->memFree(address);
  }
}

Result<Address> DeviceMemory::take(int64_t bytes, std::string_view purpose) {
  if (bytes == 0) {
    return Address(0);
  }
  Address address = 0;
  if (allocate) {
    Result<Address> given = allocate(bytes);
    KAON_RETURN_IF_ERROR(given.status());
    address = *given;
    if (address == 0 || address % alignment != 0) {
      return Status::deviceFailure(
          "allocate: expects an address that is a multiple of ", alignment,
          " for ", bytes, " bytes of ", purpose, ", but got 0x", std::hex,
          address);
    }
    return address;
  }
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->memAlloc(&address, static_cast<size_t>(bytes)),
                    "cuMemAlloc: ", "expects ", bytes,
                    " free bytes of device memory for ", purpose));
  owned.push_back(address);
  return address;
}

//===----------------------------------------------------------------------===//
// PinnedMemory
//===----------------------------------------------------------------------===//

Result<PinnedMemory> PinnedMemory::create(std::shared_ptr<CudaDriver> driver,
                                          int64_t bytes) {
  PinnedMemory result;
  void *memory = nullptr;
  KAON_RETURN_IF_ERROR(driver->check(
      (*driver)->memHostAlloc(&memory, static_cast<size_t>(bytes), 0),
      "cuMemHostAlloc: expects ", bytes, " bytes of page-locked memory"));
  result.driver = std::move(driver);
  result.memory = static_cast<std::byte *>(memory);
  return result;
}

PinnedMemory::~PinnedMemory() {
  if (memory) {
    (*driver)->memFreeHost(memory);
  }
}

//===----------------------------------------------------------------------===//
// CudaEvent
//===----------------------------------------------------------------------===//

Result<CudaEvent> CudaEvent::create(std::shared_ptr<CudaDriver> driver) {
  CudaEvent result;
  KAON_RETURN_IF_ERROR(
      driver->check((*driver)->eventCreate(&result.event, eventDisableTiming),
                    "cuEventCreate"));
  result.driver = std::move(driver);
  return result;
}

CudaEvent::~CudaEvent() {
  if (event) {
    (*driver)->eventDestroy(event);
  }
}

Status CudaEvent::record(Stream stream) {
  return driver->check((*driver)->eventRecord(event, stream), "cuEventRecord");
}

Status CudaEvent::synchronize() {
  return event ? driver->check((*driver)->eventSynchronize(event),
                               "waiting for an earlier step")
               : Status::success();
}

Status CudaEvent::holdBack(Stream stream) {
  return driver->check((*driver)->streamWaitEvent(stream, event, 0),
                       "cuStreamWaitEvent");
}

//===----------------------------------------------------------------------===//
// CudaGraph
//===----------------------------------------------------------------------===//

Result<CudaGraph> CudaGraph::create(std::shared_ptr<CudaDriver> driver,
                                    std::span<const KernelNode> kernels) {
  const Functions &functions = driver->functions();
  auto what = [&] { return concat("graph of ", kernels.size(), " kernels"); };
  Graph graph = nullptr;
  KAON_RETURN_IF_ERROR(driver->check(functions.graphCreate(&graph, 0), what()));
  CudaGraph result;
  Code code = Code::Success;
  GraphNode last = nullptr;
  for (const KernelNode &kernel : kernels) {
    GraphNode node = nullptr;
    code = functions.graphAddKernelNode(&node, graph, &last, last ? 1 : 0,
                                        &kernel);
    if (code != Code::Success) {
      break;
    }
    last = node;
  }
  if (code == Code::Success) {
    code = functions.graphInstantiate(&result.exec, graph, 0);
  }
  // An instance does not need what it was made from.
  functions.graphDestroy(graph);
  KAON_RETURN_IF_ERROR(driver->check(code, what()));
  result.driver = std::move(driver);
  return result;
}

CudaGraph::~CudaGraph() {
  if (exec) {
    (*driver)->graphExecDestroy(exec);
  }
}

Status CudaGraph::launch(Stream stream) {
  return driver->check((*driver)->graphLaunch(exec, stream), "cuGraphLaunch");
}
