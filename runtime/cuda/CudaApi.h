//===-- CudaApi.h - the part of the driver API that is used -----*- C++ -*-===//
//
// Own declarations of the few types, numbers and functions of the CUDA driver
// that the runtime needs: nothing is included from and nothing is linked to a
// CUDA toolkit. Every function is asked for with the version of the driver API
// that introduced the signature declared here, so that any driver from CUDA
// 12.0 on answers with exactly that.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUDAAPI_H
#define KAON_RUNTIME_CUDA_CUDAAPI_H

#include <cstddef>
#include <cstdint>

namespace kaon::runtime::cuda {

/// What every function returns. The numbers are the driver's.
enum class Code : int {
  Success = 0,
  InvalidValue = 1,
  OutOfMemory = 2,
  NotInitialized = 3,
  StubLibrary = 34,
  OldDriver = 35, // the runtime API's number, seen from drivers too
  NoDevice = 100,
  InvalidDevice = 101,
  InvalidImage = 200,
  InvalidContext = 201,
  NoBinaryForDevice = 209,
  InvalidPtx = 218,
  UnsupportedPtxVersion = 222,
  InvalidHandle = 400,
  NotFound = 500,
  NotReady = 600,
  IllegalAddress = 700,
  LaunchOutOfResources = 701,
  LaunchFailed = 719,
  DriverMismatch = 803,
  CaptureUnsupported = 900,
};

enum class DeviceAttribute : int {
  MaxThreadsPerBlock = 1,
  Multiprocessors = 16,
  L2CacheBytes = 38,
  CapabilityMajor = 75,
  CapabilityMinor = 76,
  SharedBytesPerMultiprocessor = 81,
  SharedBytesPerBlockOptIn = 97,
};

enum class FunctionAttribute : int {
  MaxThreadsPerBlock = 0,
  SharedBytes = 1,
  MaxDynamicSharedBytes = 8,
};

/// Types of elements of a tensor map.
enum class TensorType : int { F16 = 6, BF16 = 9 };

enum class TensorInterleave : int { None = 0 };
enum class TensorSwizzle : int { Bytes128 = 3 };
/// What the L2 cache fetches more of than was asked for.
enum class TensorPromotion : int { Bytes128 = 2 };
/// What lies outside of a tensor.
enum class TensorFill : int { Zero = 0 };

enum class CaptureStatus : int { None = 0, Active = 1, Invalidated = 2 };

/// Options of loading a module: where the compiler of PTX writes its log.
enum class JitOption : int { ErrorLogBuffer = 5, ErrorLogBufferBytes = 6 };

/// Flags of an event that is only waited for.
constexpr unsigned eventDisableTiming = 2;

using Device = int;
using Address = uint64_t; // of device memory
using Context = struct ContextHandle *;
using Module = struct ModuleHandle *;
using Function = struct FunctionHandle *;
using Stream = struct StreamHandle *;
using Event = struct EventHandle *;
using Graph = struct GraphHandle *;
using GraphNode = struct GraphNodeHandle *;
using GraphExec = struct GraphExecHandle *;

/// CUtensorMap: opaque, made by the driver. Drivers ask for 64 bytes of
/// alignment, headers since CUDA 13 for 128.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

/// CUDA_KERNEL_NODE_PARAMS, version 1.
struct KernelNode {
  Function function;
  unsigned gridX, gridY, gridZ;
  unsigned blockX, blockY, blockZ;
  unsigned sharedBytes;
  void **parameters;
  void **extra;
};

/// The one function that is looked up by its symbol: finds all others.
using GetProcAddress = Code(const char *name, void **function, int version,
                            uint64_t flags, int *status);
constexpr const char *getProcAddressSymbol = "cuGetProcAddress_v2";

/// Present in a library that only imitates a driver, for tests.
constexpr const char *fakeMarkerSymbol = "kaon_fake_cuda_marker";

// clang-format off
/// X(member, name, version of the signature, parameters)
#define KAON_CUDA_FUNCTIONS(X)                                                 \
  X(init, "cuInit", 2000, (unsigned flags))                                    \
  X(driverGetVersion, "cuDriverGetVersion", 2020, (int *version))              \
  X(getErrorName, "cuGetErrorName", 6000, (Code code, const char **name))      \
  X(getErrorString, "cuGetErrorString", 6000, (Code code, const char **text))  \
  X(deviceGetCount, "cuDeviceGetCount", 2000, (int *count))                    \
  X(deviceGet, "cuDeviceGet", 2000, (Device *device, int ordinal))             \
  X(deviceGetName, "cuDeviceGetName", 2000,                                    \
    (char *name, int bytes, Device device))                                    \
  X(deviceGetAttribute, "cuDeviceGetAttribute", 2000,                          \
    (int *value, DeviceAttribute attribute, Device device))                    \
  X(deviceTotalMem, "cuDeviceTotalMem", 3020, (size_t *bytes, Device device))  \
  X(primaryContextRetain, "cuDevicePrimaryCtxRetain", 7000,                    \
    (Context *context, Device device))                                         \
  X(primaryContextRelease, "cuDevicePrimaryCtxRelease", 11000,                 \
    (Device device))                                                           \
  X(contextPush, "cuCtxPushCurrent", 4000, (Context context))                  \
  X(contextPop, "cuCtxPopCurrent", 4000, (Context *context))                   \
  X(moduleLoad, "cuModuleLoadDataEx", 2010,                                    \
    (Module *module, const void *image, unsigned numOptions,                   \
     JitOption *options, void **values))                                       \
  X(moduleUnload, "cuModuleUnload", 2000, (Module module))                     \
  X(moduleGetFunction, "cuModuleGetFunction", 2000,                            \
    (Function *function, Module module, const char *name))                     \
  X(functionGetAttribute, "cuFuncGetAttribute", 2020,                          \
    (int *value, FunctionAttribute attribute, Function function))              \
  X(functionSetAttribute, "cuFuncSetAttribute", 9000,                          \
    (Function function, FunctionAttribute attribute, int value))               \
  X(memAlloc, "cuMemAlloc", 3020, (Address *address, size_t bytes))            \
  X(memFree, "cuMemFree", 3020, (Address address))                             \
  X(memHostAlloc, "cuMemHostAlloc", 2020,                                      \
    (void **memory, size_t bytes, unsigned flags))                             \
  X(memFreeHost, "cuMemFreeHost", 2000, (void *memory))                        \
  X(copyToDevice, "cuMemcpyHtoDAsync", 3020,                                   \
    (Address to, const void *from, size_t bytes, Stream stream))               \
  X(copyToHost, "cuMemcpyDtoHAsync", 3020,                                     \
    (void *to, Address from, size_t bytes, Stream stream))                     \
  X(streamSynchronize, "cuStreamSynchronize", 2000, (Stream stream))           \
  X(streamWaitEvent, "cuStreamWaitEvent", 3020,                                \
    (Stream stream, Event event, unsigned flags))                              \
  X(streamIsCapturing, "cuStreamIsCapturing", 10000,                           \
    (Stream stream, CaptureStatus *status))                                    \
  X(eventCreate, "cuEventCreate", 2000, (Event *event, unsigned flags))        \
  X(eventDestroy, "cuEventDestroy", 4000, (Event event))                       \
  X(eventRecord, "cuEventRecord", 2000, (Event event, Stream stream))          \
  X(eventSynchronize, "cuEventSynchronize", 2000, (Event event))               \
  X(launchKernel, "cuLaunchKernel", 4000,                                      \
    (Function function, unsigned gridX, unsigned gridY, unsigned gridZ,        \
     unsigned blockX, unsigned blockY, unsigned blockZ, unsigned sharedBytes,  \
     Stream stream, void **parameters, void **extra))                          \
  X(graphCreate, "cuGraphCreate", 10000, (Graph *graph, unsigned flags))       \
  X(graphAddKernelNode, "cuGraphAddKernelNode", 10000,                         \
    (GraphNode *node, Graph graph, const GraphNode *dependencies,              \
     size_t numDependencies, const KernelNode *kernel))                        \
  X(graphInstantiate, "cuGraphInstantiateWithFlags", 11040,                    \
    (GraphExec *exec, Graph graph, unsigned long long flags))                  \
  X(graphLaunch, "cuGraphLaunch", 10000, (GraphExec exec, Stream stream))      \
  X(graphExecDestroy, "cuGraphExecDestroy", 10000, (GraphExec exec))           \
  X(graphDestroy, "cuGraphDestroy", 10000, (Graph graph))                      \
  X(tensorMapEncode, "cuTensorMapEncodeTiled", 12000,                          \
    (TensorMap *map, TensorType type, uint32_t rank, void *address,            \
     const uint64_t *extents, const uint64_t *strides, const uint32_t *box,    \
     const uint32_t *elementStrides, TensorInterleave interleave,              \
     TensorSwizzle swizzle, TensorPromotion promotion, TensorFill fill))
// clang-format on

/// The functions of a loaded driver.
struct Functions {
// The macro declares a member with the parameters as they are.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define KAON_CUDA_MEMBER(member, name, version, parameters)                    \
  Code(*member) parameters = nullptr;
  KAON_CUDA_FUNCTIONS(KAON_CUDA_MEMBER)
#undef KAON_CUDA_MEMBER
  // NOLINTEND(bugprone-macro-parentheses)
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUDAAPI_H
