//===-- FakeDriver.cpp - the functions of the imitated driver -------------===//
//
// Every function checks what it is given, strictly, before it does anything.
//
//===----------------------------------------------------------------------===//

#include "test/cuda/fake/Fake.h"
#include "test/cuda/shim/TensorMap.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <utility>

using namespace kaon::fake;
namespace shim = kaon::shim;

const int kaon_fake_cuda_marker = 1;

//===----------------------------------------------------------------------===//
// State, faults and calls
//===----------------------------------------------------------------------===//

State &kaon::fake::state() {
  static auto *fake = new State;
  return *fake;
}

namespace {
struct Faults {
  std::mutex mutex;
  std::vector<std::string> texts;
  Code sticky = Code::Success;
};

Faults &faults() {
  static auto *all = new Faults;
  return *all;
}

/// The contexts of the calling thread, by their devices; the last is current.
thread_local std::vector<int> contextStack;

cuda::Context contextOf(int device) {
  return reinterpret_cast<cuda::Context>(static_cast<uintptr_t>(device) + 1);
}

/// What a function needs before it looks at its arguments.
enum class Needs { Nothing, Driver, Context };

/// The lock of an entry point, and what it may go on with.
struct Entry {
  Entry(const char *name, Needs needs)
      : lock(state().mutex), code(check(name, needs)) {}

  static Code check(const char *name, Needs needs) {
    State &fake = state();
    ++fake.calls[name];
    auto failure = fake.failures.find(name);
    if (failure != fake.failures.end() && --failure->second.call == 0) {
      auto code = static_cast<Code>(failure->second.code);
      fake.failures.erase(failure);
      return code;
    }
    if (needs != Needs::Nothing && !fake.isInitialized) {
      return fault(Code::NotInitialized, concat(name, " before cuInit"));
    }
    if (needs == Needs::Context) {
      if (contextStack.empty()) {
        return fault(Code::InvalidContext,
                     concat(name, " without a current context"));
      }
      return stickyCode();
    }
    return Code::Success;
  }

  bool ok() const { return code == Code::Success; }

  Lock lock;
  Code code;
};
} // namespace

Code kaon::fake::fault(Code code, const std::string &text) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().texts.push_back(text);
  return code;
}

void kaon::fake::asynchronousFault(Code code, const std::string &text) {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().texts.push_back(text);
  if (faults().sticky == Code::Success) {
    faults().sticky = code;
  }
}

Code kaon::fake::stickyCode() {
  std::lock_guard<std::mutex> lock(faults().mutex);
  return faults().sticky;
}

std::vector<std::string> kaon::fake::takeFaults() {
  std::lock_guard<std::mutex> lock(faults().mutex);
  faults().sticky = Code::Success;
  return std::exchange(faults().texts, {});
}

/// The stream that a handle stands for, if it belongs to the current context.
static FakeStream *findStream(cuda::Stream handle, Code &code) {
  State &fake = state();
  int device = contextStack.back();
  if (!handle) {
    std::unique_ptr<FakeStream> &stream = fake.defaultStreams[device];
    if (!stream) {
      stream = std::make_unique<FakeStream>(device);
    }
    return stream.get();
  }
  auto *stream = reinterpret_cast<FakeStream *>(handle);
  if (!fake.streams.contains(stream)) {
    code = fault(Code::InvalidHandle, "uses something that is no stream");
    return nullptr;
  }
  if (stream->device != device) {
    code = fault(Code::InvalidContext, "uses a stream of another context");
    return nullptr;
  }
  return stream;
}

static FakeEvent *findEvent(cuda::Event handle, Code &code) {
  auto *event = reinterpret_cast<FakeEvent *>(handle);
  if (!state().events.contains(event)) {
    code = fault(Code::InvalidHandle, "uses something that is no event");
    return nullptr;
  }
  if (event->device != contextStack.back()) {
    code = fault(Code::InvalidContext, "uses an event of another context");
    return nullptr;
  }
  return event;
}

/// Work may not be added to a stream that somebody captures.
static Code checkNotCapturing(const FakeStream &stream, const char *what) {
  return stream.isCapturing
             ? fault(Code::CaptureUnsupported,
                     concat(what, " on a stream that is being captured"))
             : Code::Success;
}

//===----------------------------------------------------------------------===//
// Driver and devices
//===----------------------------------------------------------------------===//

namespace {

Code init(unsigned flags) {
  Entry entry("cuInit", Needs::Nothing);
  if (!entry.ok()) {
    return entry.code;
  }
  if (flags != 0) {
    return fault(Code::InvalidValue, "cuInit with flags");
  }
  state().isInitialized = true;
  return state().deviceCount > 0 ? Code::Success : Code::NoDevice;
}

Code driverGetVersion(int *version) {
  Entry entry("cuDriverGetVersion", Needs::Nothing);
  *version = state().version;
  return entry.code;
}

struct ErrorText {
  Code code;
  const char *name, *text;
};
constexpr ErrorText errorTexts[] = {
    {Code::Success, "CUDA_SUCCESS", "no error"},
    {Code::InvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {Code::OutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {Code::NotInitialized, "CUDA_ERROR_NOT_INITIALIZED",
     "initialization error"},
    {Code::StubLibrary, "CUDA_ERROR_STUB_LIBRARY",
     "CUDA driver is a stub library"},
    {Code::NoDevice, "CUDA_ERROR_NO_DEVICE",
     "no CUDA-capable device is detected"},
    {Code::InvalidDevice, "CUDA_ERROR_INVALID_DEVICE",
     "invalid device ordinal"},
    {Code::InvalidImage, "CUDA_ERROR_INVALID_IMAGE",
     "device kernel image is invalid"},
    {Code::InvalidContext, "CUDA_ERROR_INVALID_CONTEXT",
     "invalid device context"},
    {Code::NoBinaryForDevice, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {Code::InvalidPtx, "CUDA_ERROR_INVALID_PTX",
     "a PTX JIT compilation failed"},
    {Code::UnsupportedPtxVersion, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {Code::InvalidHandle, "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {Code::NotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {Code::NotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {Code::IllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {Code::LaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {Code::LaunchFailed, "CUDA_ERROR_LAUNCH_FAILED",
     "unspecified launch failure"},
    {Code::DriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {Code::CaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
};

/// Gives `text` the name or the description of an error.
Code findError(Code code, const char **text, const char *ErrorText::*member) {
  for (const ErrorText &known : errorTexts) {
    if (known.code == code) {
      *text = known.*member;
      return Code::Success;
    }
  }
  *text = nullptr;
  return Code::InvalidValue;
}
Code getErrorName(Code code, const char **name) {
  return findError(code, name, &ErrorText::name);
}
Code getErrorString(Code code, const char **text) {
  return findError(code, text, &ErrorText::text);
}

bool isDevice(int device) {
  return device >= 0 && device < state().deviceCount;
}

Code deviceGetCount(int *count) {
  Entry entry("cuDeviceGetCount", Needs::Driver);
  *count = state().deviceCount;
  return entry.code;
}

Code deviceGet(cuda::Device *device, int ordinal) {
  Entry entry("cuDeviceGet", Needs::Driver);
  if (entry.ok() && !isDevice(ordinal)) {
    return fault(Code::InvalidDevice, "cuDeviceGet of no device");
  }
  *device = ordinal;
  return entry.code;
}

Code deviceGetName(char *name, int bytes, cuda::Device device) {
  Entry entry("cuDeviceGetName", Needs::Driver);
  if (entry.ok() && (!isDevice(device) || bytes < 1)) {
    return fault(Code::InvalidValue, "cuDeviceGetName of no device");
  }
  constexpr std::string_view text = "Kaon fake GPU (runs on the CPU)";
  size_t length = std::min(text.size(), static_cast<size_t>(bytes - 1));
  std::memcpy(name, text.data(), length);
  name[length] = '\0';
  return entry.code;
}

Code deviceGetAttribute(int *value, cuda::DeviceAttribute attribute,
                        cuda::Device device) {
  Entry entry("cuDeviceGetAttribute", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  if (!isDevice(device)) {
    return fault(Code::InvalidDevice, "cuDeviceGetAttribute of no device");
  }
  State &fake = state();
  // As on the cards that have this compute capability.
  int sharedBytes = fake.major == 8   ? (fake.minor == 0 ? 163 : 99) << 10
                    : fake.major < 12 ? 227 << 10
                                      : 99 << 10;
  switch (attribute) {
  case cuda::DeviceAttribute::MaxThreadsPerBlock:
    *value = 1024;
    return Code::Success;
  case cuda::DeviceAttribute::Multiprocessors:
    *value = 4;
    return Code::Success;
  case cuda::DeviceAttribute::L2CacheBytes:
    *value = 1 << 20;
    return Code::Success;
  case cuda::DeviceAttribute::CapabilityMajor:
    *value = fake.major;
    return Code::Success;
  case cuda::DeviceAttribute::CapabilityMinor:
    *value = fake.minor;
    return Code::Success;
  case cuda::DeviceAttribute::SharedBytesPerMultiprocessor:
    *value = sharedBytes + (1 << 10);
    return Code::Success;
  case cuda::DeviceAttribute::SharedBytesPerBlockOptIn:
    *value = sharedBytes;
    return Code::Success;
  }
  return fault(Code::InvalidValue, "cuDeviceGetAttribute of what is not known");
}

Code deviceTotalMem(size_t *bytes, cuda::Device device) {
  Entry entry("cuDeviceTotalMem", Needs::Driver);
  *bytes = size_t(1) << 30;
  return entry.code;
}

//===----------------------------------------------------------------------===//
// Contexts
//===----------------------------------------------------------------------===//

Code primaryContextRetain(cuda::Context *context, cuda::Device device) {
  Entry entry("cuDevicePrimaryCtxRetain", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  if (!isDevice(device)) {
    return fault(Code::InvalidDevice, "cuDevicePrimaryCtxRetain of no device");
  }
  ++state().contexts[device];
  *context = contextOf(device);
  return Code::Success;
}

Code primaryContextRelease(cuda::Device device) {
  Entry entry("cuDevicePrimaryCtxRelease", Needs::Driver);
  if (entry.ok() && state().contexts[device] == 0) {
    return fault(Code::InvalidContext,
                 "cuDevicePrimaryCtxRelease of a context that nobody has");
  }
  --state().contexts[device];
  return entry.code;
}

Code contextPush(cuda::Context context) {
  Entry entry("cuCtxPushCurrent", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  int device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  if (!isDevice(device) || state().contexts[device] == 0) {
    return fault(Code::InvalidContext,
                 "cuCtxPushCurrent of a context that nobody has");
  }
  contextStack.push_back(device);
  return Code::Success;
}

Code contextPop(cuda::Context *context) {
  Entry entry("cuCtxPopCurrent", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  if (contextStack.empty()) {
    return fault(Code::InvalidContext, "cuCtxPopCurrent of no context");
  }
  *context = contextOf(contextStack.back());
  contextStack.pop_back();
  return Code::Success;
}

//===----------------------------------------------------------------------===//
// Memory and copies
//===----------------------------------------------------------------------===//

Code memAlloc(cuda::Address *address, size_t bytes) {
  Entry entry("cuMemAlloc", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  if (bytes == 0) {
    return fault(Code::InvalidValue, "cuMemAlloc of no bytes");
  }
  char *memory = Memory::allocate(MemoryKind::Device, bytes);
  *address = reinterpret_cast<cuda::Address>(memory);
  return memory ? Code::Success : Code::OutOfMemory;
}

Code memFree(cuda::Address address) {
  Entry entry("cuMemFree", Needs::Context);
  return entry.ok() ? Memory::release(MemoryKind::Device,
                                      reinterpret_cast<void *>(address))
                    : entry.code;
}

Code memHostAlloc(void **memory, size_t bytes, unsigned flags) {
  Entry entry("cuMemHostAlloc", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  if (bytes == 0 || flags != 0) {
    return fault(Code::InvalidValue,
                 "cuMemHostAlloc of no bytes or with flags");
  }
  *memory = Memory::allocate(MemoryKind::PageLocked, bytes);
  return *memory ? Code::Success : Code::OutOfMemory;
}

Code memFreeHost(void *memory) {
  Entry entry("cuMemFreeHost", Needs::Context);
  return entry.ok() ? Memory::release(MemoryKind::PageLocked, memory)
                    : entry.code;
}

/// Adds a copy to a stream, after both sides have been checked.
Code copy(const char *name, void *to, MemoryKind toKind, const void *from,
          MemoryKind fromKind, size_t bytes, cuda::Stream handle) {
  Entry entry(name, Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  std::string why;
  if (!Memory::contains(toKind, to, bytes, &why)) {
    return fault(Code::InvalidValue, concat(name, " to ", why));
  }
  if (!Memory::contains(fromKind, from, bytes, &why)) {
    return fault(Code::InvalidValue, concat(name, " from ", why));
  }
  Code code = Code::Success;
  FakeStream *stream = findStream(handle, code);
  if (!stream) {
    return code;
  }
  code = checkNotCapturing(*stream, name);
  if (code != Code::Success) {
    return code;
  }
  // Page-locked memory is read when the stream comes to the copy. Until then
  // it must stay as it is.
  std::vector<char> expected;
  if (fromKind == MemoryKind::PageLocked) {
    expected.assign(static_cast<const char *>(from),
                    static_cast<const char *>(from) + bytes);
  }
  Memory::pin(to, 1);
  Memory::pin(from, 1);
  stream->enqueue([=, expected = std::move(expected)] {
    std::memcpy(to, from, bytes);
    if (!expected.empty() && std::memcmp(to, expected.data(), bytes) != 0) {
      asynchronousFault(Code::IllegalAddress,
                        concat("page-locked memory at ", from, " (", bytes,
                               " bytes) was changed while a copy from it was "
                               "pending"));
    }
    Memory::pin(to, -1);
    Memory::pin(from, -1);
  });
  return Code::Success;
}

Code copyToDevice(cuda::Address to, const void *from, size_t bytes,
                  cuda::Stream stream) {
  return copy("cuMemcpyHtoDAsync", reinterpret_cast<void *>(to),
              MemoryKind::Device, from, MemoryKind::PageLocked, bytes, stream);
}

Code copyToHost(void *to, cuda::Address from, size_t bytes,
                cuda::Stream stream) {
  return copy("cuMemcpyDtoHAsync", to, MemoryKind::PageLocked,
              reinterpret_cast<const void *>(from), MemoryKind::Device, bytes,
              stream);
}

//===----------------------------------------------------------------------===//
// Streams and events
//===----------------------------------------------------------------------===//

Code streamSynchronize(cuda::Stream handle) {
  Code code = Code::Success;
  FakeStream *stream;
  {
    Entry entry("cuStreamSynchronize", Needs::Context);
    if (!entry.ok()) {
      return entry.code;
    }
    stream = findStream(handle, code);
    if (!stream) {
      return code;
    }
    code = checkNotCapturing(*stream, "cuStreamSynchronize");
  }
  if (code == Code::Success) {
    stream->synchronize();
    code = stickyCode();
  }
  return code;
}

Code streamWaitEvent(cuda::Stream handle, cuda::Event eventHandle,
                     unsigned flags) {
  Entry entry("cuStreamWaitEvent", Needs::Context);
  Code code = entry.code;
  if (!entry.ok()) {
    return code;
  }
  FakeStream *stream = findStream(handle, code);
  FakeEvent *event = stream ? findEvent(eventHandle, code) : nullptr;
  if (!event) {
    return code;
  }
  if (flags != 0) {
    return fault(Code::InvalidValue, "cuStreamWaitEvent with flags");
  }
  uint64_t point = event->last();
  stream->enqueue([=] { event->wait(point); });
  return Code::Success;
}

Code streamIsCapturing(cuda::Stream handle, cuda::CaptureStatus *status) {
  Entry entry("cuStreamIsCapturing", Needs::Context);
  Code code = entry.code;
  FakeStream *stream = entry.ok() ? findStream(handle, code) : nullptr;
  if (!stream) {
    return code;
  }
  *status = stream->isCapturing ? cuda::CaptureStatus::Active
                                : cuda::CaptureStatus::None;
  return Code::Success;
}

Code eventCreate(cuda::Event *handle, unsigned flags) {
  Entry entry("cuEventCreate", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  if (flags != cuda::eventDisableTiming) {
    return fault(Code::InvalidValue, "cuEventCreate of an event with a clock");
  }
  auto *event = new FakeEvent(contextStack.back());
  state().events.insert(event);
  *handle = reinterpret_cast<cuda::Event>(event);
  return Code::Success;
}

Code eventDestroy(cuda::Event handle) {
  Entry entry("cuEventDestroy", Needs::Context);
  Code code = entry.code;
  FakeEvent *event = entry.ok() ? findEvent(handle, code) : nullptr;
  if (event) {
    state().events.erase(event);
    state().pastEvents.emplace_back(event);
  }
  return code;
}

Code eventRecord(cuda::Event eventHandle, cuda::Stream handle) {
  Entry entry("cuEventRecord", Needs::Context);
  Code code = entry.code;
  if (!entry.ok()) {
    return code;
  }
  FakeStream *stream = findStream(handle, code);
  FakeEvent *event = stream ? findEvent(eventHandle, code) : nullptr;
  if (!event) {
    return code;
  }
  uint64_t point = event->record();
  stream->enqueue([=] { event->complete(point); });
  return Code::Success;
}

Code eventSynchronize(cuda::Event handle) {
  Code code = Code::Success;
  FakeEvent *event;
  {
    Entry entry("cuEventSynchronize", Needs::Context);
    if (!entry.ok()) {
      return entry.code;
    }
    event = findEvent(handle, code);
  }
  if (event) {
    event->wait(event->last());
    code = stickyCode();
  }
  return code;
}

//===----------------------------------------------------------------------===//
// Modules and kernels
//===----------------------------------------------------------------------===//

Code moduleLoad(cuda::Module *handle, const void *image, unsigned numOptions,
                cuda::JitOption *options, void **values) {
  Entry entry("cuModuleLoadDataEx", Needs::Context);
  std::string log;
  std::unique_ptr<FakeModule> module;
  Code code = entry.ok() ? loadModule(contextStack.back(), image, module, log)
                         : entry.code;
  if (code == Code::Success) {
    state().modules.insert(module.get());
    *handle = reinterpret_cast<cuda::Module>(module.release());
    return code;
  }
  char *buffer = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < numOptions; ++i) {
    if (options[i] == cuda::JitOption::ErrorLogBuffer) {
      buffer = static_cast<char *>(values[i]);
    } else if (options[i] == cuda::JitOption::ErrorLogBufferBytes) {
      bytes = reinterpret_cast<size_t>(values[i]);
    }
  }
  if (buffer && bytes > 0) {
    size_t length = std::min(log.size(), bytes - 1);
    std::memcpy(buffer, log.data(), length);
    buffer[length] = '\0';
  }
  return code;
}

Code moduleUnload(cuda::Module handle) {
  Entry entry("cuModuleUnload", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *module = reinterpret_cast<FakeModule *>(handle);
  if (!state().modules.contains(module)) {
    return fault(Code::InvalidHandle, "cuModuleUnload of no module");
  }
  if (module->pending > 0) {
    return fault(Code::InvalidHandle,
                 "cuModuleUnload while a kernel of the module is pending");
  }
  for (auto &[name, function] : module->functions) {
    state().functions.erase(function.get());
  }
  state().modules.erase(module);
  delete module;
  return Code::Success;
}

Code moduleGetFunction(cuda::Function *handle, cuda::Module moduleHandle,
                       const char *name) {
  Entry entry("cuModuleGetFunction", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *module = reinterpret_cast<FakeModule *>(moduleHandle);
  if (!state().modules.contains(module)) {
    return fault(Code::InvalidHandle, "cuModuleGetFunction of no module");
  }
  FakeFunction *function = nullptr;
  Code code = findFunction(*module, name, function);
  if (code == Code::Success) {
    state().functions.insert(function);
    *handle = reinterpret_cast<cuda::Function>(function);
  }
  return code;
}

Code functionGetAttribute(int *value, cuda::FunctionAttribute attribute,
                          cuda::Function handle) {
  Entry entry("cuFuncGetAttribute", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *function = reinterpret_cast<FakeFunction *>(handle);
  if (!state().functions.contains(function)) {
    return fault(Code::InvalidHandle, "cuFuncGetAttribute of no kernel");
  }
  switch (attribute) {
  case cuda::FunctionAttribute::MaxThreadsPerBlock:
    *value = function->maxThreads;
    return Code::Success;
  case cuda::FunctionAttribute::SharedBytes:
    *value = 0;
    return Code::Success;
  case cuda::FunctionAttribute::MaxDynamicSharedBytes:
    *value = function->sharedLimit;
    return Code::Success;
  }
  return fault(Code::InvalidValue, "cuFuncGetAttribute of what is not known");
}

Code functionSetAttribute(cuda::Function handle,
                          cuda::FunctionAttribute attribute, int value) {
  Entry entry("cuFuncSetAttribute", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *function = reinterpret_cast<FakeFunction *>(handle);
  if (!state().functions.contains(function)) {
    return fault(Code::InvalidHandle, "cuFuncSetAttribute of no kernel");
  }
  if (attribute != cuda::FunctionAttribute::MaxDynamicSharedBytes ||
      value < 0 || value > 227 << 10) {
    return fault(Code::InvalidValue, concat("cuFuncSetAttribute of '",
                                            function->name, "' to ", value));
  }
  function->sharedLimit = value;
  return Code::Success;
}

/// Adds a line to the notes, if they are wanted.
void noteLaunch(const FakeLaunch &launch) {
  State &fake = state();
  if (!fake.notesLaunches) {
    return;
  }
  std::ostringstream line;
  line << launch.function->name << ' ' << launch.blocks << ' ' << std::hex
       << std::setfill('0');
  for (std::byte byte : launch.arguments.front()) {
    line << std::setw(2) << static_cast<unsigned>(byte);
  }
  fake.launches += line.str() + "\n";
}

Code launchKernel(cuda::Function function, unsigned gridX, unsigned gridY,
                  unsigned gridZ, unsigned blockX, unsigned blockY,
                  unsigned blockZ, unsigned sharedBytes, cuda::Stream handle,
                  void **parameters, void **extra) {
  Entry entry("cuLaunchKernel", Needs::Context);
  Code code = entry.code;
  FakeStream *stream = entry.ok() ? findStream(handle, code) : nullptr;
  if (!stream) {
    return code;
  }
  code = checkNotCapturing(*stream, "cuLaunchKernel");
  FakeLaunch launch;
  if (code == Code::Success) {
    code = checkLaunch({function, gridX, gridY, gridZ, blockX, blockY, blockZ,
                        sharedBytes, parameters, extra},
                       launch);
  }
  if (code != Code::Success) {
    return code;
  }
  if (launch.function->module->device != stream->device) {
    return fault(Code::InvalidContext, "launches a kernel of another context");
  }
  noteLaunch(launch);
  ++launch.function->module->pending;
  stream->enqueue([launch = std::move(launch)] { launch.run(); });
  return Code::Success;
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

Code graphCreate(cuda::Graph *handle, unsigned flags) {
  Entry entry("cuGraphCreate", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  auto graph = std::make_shared<FakeGraph>();
  *handle = reinterpret_cast<cuda::Graph>(graph.get());
  state().graphs.emplace(graph.get(), graph);
  return Code::Success;
}

Code graphAddKernelNode(cuda::GraphNode *handle, cuda::Graph graphHandle,
                        const cuda::GraphNode *dependencies,
                        size_t numDependencies,
                        const cuda::KernelNode *kernel) {
  Entry entry("cuGraphAddKernelNode", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *graph = reinterpret_cast<FakeGraph *>(graphHandle);
  if (!state().graphs.contains(graph)) {
    return fault(Code::InvalidHandle, "cuGraphAddKernelNode to no graph");
  }
  auto node = std::make_unique<FakeNode>();
  Code code = checkLaunch(*kernel, node->launch);
  if (code != Code::Success) {
    return code;
  }
  for (size_t i = 0; i < numDependencies; ++i) {
    const auto *dependency =
        reinterpret_cast<const FakeNode *>(dependencies[i]);
    if (std::none_of(
            graph->nodes.begin(), graph->nodes.end(),
            [&](const auto &other) { return other.get() == dependency; })) {
      return fault(Code::InvalidValue,
                   "cuGraphAddKernelNode after a node that is not there");
    }
    node->dependencies.push_back(dependency);
  }
  *handle = reinterpret_cast<cuda::GraphNode>(node.get());
  graph->nodes.push_back(std::move(node));
  return Code::Success;
}

Code graphInstantiate(cuda::GraphExec *handle, cuda::Graph graphHandle,
                      unsigned long long flags) {
  Entry entry("cuGraphInstantiateWithFlags", Needs::Context);
  if (!entry.ok()) {
    return entry.code;
  }
  auto *graph = reinterpret_cast<FakeGraph *>(graphHandle);
  if (!state().graphs.contains(graph) || flags != 0) {
    return fault(Code::InvalidValue, "instantiates no graph, or with flags");
  }
  auto *exec = new FakeGraphExec;
  exec->device = contextStack.back();
  exec->graph = state().graphs[graph];
  state().graphExecs.insert(exec);
  *handle = reinterpret_cast<cuda::GraphExec>(exec);
  return Code::Success;
}

Code tensorMapEncode(cuda::TensorMap *map, cuda::TensorType type, uint32_t rank,
                     void *address, const uint64_t *extents,
                     const uint64_t *strides, const uint32_t *box,
                     const uint32_t *elementStrides,
                     cuda::TensorInterleave interleave,
                     cuda::TensorSwizzle swizzle,
                     cuda::TensorPromotion promotion, cuda::TensorFill fill) {
  Entry entry("cuTensorMapEncodeTiled", Needs::Driver);
  if (!entry.ok()) {
    return entry.code;
  }
  // What the shim's copies can do.
  if (rank != 2 || elementStrides[0] != 1 || elementStrides[1] != 1 ||
      (type != cuda::TensorType::F16 && type != cuda::TensorType::BF16) ||
      interleave != cuda::TensorInterleave::None ||
      swizzle != cuda::TensorSwizzle::Bytes128 ||
      promotion != cuda::TensorPromotion::Bytes128 ||
      fill != cuda::TensorFill::Zero) {
    return fault(Code::InvalidValue,
                 "encodes a map of a kind that is not imitated");
  }
  shim::TensorMapContent content;
  content.address = reinterpret_cast<uint64_t>(address);
  content.columns = extents[0];
  content.rows = extents[1];
  content.pitchBytes = strides[0];
  content.boxColumns = box[0];
  content.boxRows = box[1];
  content.elementBytes = sizeof(uint16_t);
  content.swizzle = 3;
  if (std::string wrong = shim::checkTensorMap(map, content); !wrong.empty()) {
    return fault(Code::InvalidValue, wrong);
  }
  shim::writeTensorMap(map, content);
  return Code::Success;
}

/// Nodes in an order that their dependencies allow, another for each seed.
std::vector<const FakeNode *> orderNodes(const FakeGraph &graph,
                                         uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<const FakeNode *> order;
  std::set<const FakeNode *> done;
  while (order.size() < graph.nodes.size()) {
    std::vector<const FakeNode *> ready;
    for (const auto &node : graph.nodes) {
      bool isReady =
          !done.contains(node.get()) &&
          std::all_of(node->dependencies.begin(), node->dependencies.end(),
                      [&](auto *other) { return done.contains(other); });
      if (isReady) {
        ready.push_back(node.get());
      }
    }
    order.push_back(ready[random() % ready.size()]);
    done.insert(order.back());
  }
  return order;
}

Code graphLaunch(cuda::GraphExec execHandle, cuda::Stream handle) {
  Entry entry("cuGraphLaunch", Needs::Context);
  Code code = entry.code;
  FakeStream *stream = entry.ok() ? findStream(handle, code) : nullptr;
  if (!stream) {
    return code;
  }
  code = checkNotCapturing(*stream, "cuGraphLaunch");
  auto *exec = reinterpret_cast<FakeGraphExec *>(execHandle);
  if (code == Code::Success && !state().graphExecs.contains(exec)) {
    code = fault(Code::InvalidHandle, "cuGraphLaunch of no graph");
  }
  if (code != Code::Success) {
    return code;
  }
  if (exec->device != stream->device) {
    return fault(Code::InvalidContext, "launches a graph of another context");
  }
  for (const FakeNode *node : orderNodes(*exec->graph, state().seed)) {
    ++node->launch.function->module->pending;
    stream->enqueue([graph = exec->graph, node] { node->launch.run(); });
  }
  return Code::Success;
}

Code graphExecDestroy(cuda::GraphExec handle) {
  Entry entry("cuGraphExecDestroy", Needs::Driver);
  auto *exec = reinterpret_cast<FakeGraphExec *>(handle);
  if (entry.ok() && state().graphExecs.erase(exec) == 0) {
    return fault(Code::InvalidHandle, "cuGraphExecDestroy of no graph");
  }
  delete exec;
  return entry.code;
}

Code graphDestroy(cuda::Graph handle) {
  Entry entry("cuGraphDestroy", Needs::Driver);
  auto *graph = reinterpret_cast<FakeGraph *>(handle);
  if (entry.ok() && state().graphs.erase(graph) == 0) {
    return fault(Code::InvalidHandle, "cuGraphDestroy of no graph");
  }
  return entry.code;
}

//===----------------------------------------------------------------------===//
// Looking functions up
//===----------------------------------------------------------------------===//

struct Known {
  const char *name;
  int version; // that introduced this signature
  void *function;
};

template <typename F> Known known(const char *name, int version, F *function) {
  return {name, version, reinterpret_cast<void *>(function)};
}

const Known knownFunctions[] = {
    known("cuInit", 2000, init),
    known("cuDriverGetVersion", 2020, driverGetVersion),
    known("cuGetErrorName", 6000, getErrorName),
    known("cuGetErrorString", 6000, getErrorString),
    known("cuDeviceGetCount", 2000, deviceGetCount),
    known("cuDeviceGet", 2000, deviceGet),
    known("cuDeviceGetName", 2000, deviceGetName),
    known("cuDeviceGetAttribute", 2000, deviceGetAttribute),
    known("cuDeviceTotalMem", 3020, deviceTotalMem),
    known("cuDevicePrimaryCtxRetain", 7000, primaryContextRetain),
    known("cuDevicePrimaryCtxRelease", 11000, primaryContextRelease),
    known("cuCtxPushCurrent", 4000, contextPush),
    known("cuCtxPopCurrent", 4000, contextPop),
    known("cuModuleLoadDataEx", 2010, moduleLoad),
    known("cuModuleUnload", 2000, moduleUnload),
    known("cuModuleGetFunction", 2000, moduleGetFunction),
    known("cuFuncGetAttribute", 2020, functionGetAttribute),
    known("cuFuncSetAttribute", 9000, functionSetAttribute),
    known("cuMemAlloc", 3020, memAlloc),
    known("cuMemFree", 3020, memFree),
    known("cuMemHostAlloc", 2020, memHostAlloc),
    known("cuMemFreeHost", 2000, memFreeHost),
    known("cuMemcpyHtoDAsync", 3020, copyToDevice),
    known("cuMemcpyDtoHAsync", 3020, copyToHost),
    known("cuStreamSynchronize", 2000, streamSynchronize),
    known("cuStreamWaitEvent", 3020, streamWaitEvent),
    known("cuStreamIsCapturing", 10000, streamIsCapturing),
    known("cuEventCreate", 2000, eventCreate),
    known("cuEventDestroy", 4000, eventDestroy),
    known("cuEventRecord", 2000, eventRecord),
    known("cuEventSynchronize", 2000, eventSynchronize),
    known("cuLaunchKernel", 4000, launchKernel),
    known("cuGraphCreate", 10000, graphCreate),
    known("cuGraphAddKernelNode", 10000, graphAddKernelNode),
    known("cuGraphInstantiateWithFlags", 11040, graphInstantiate),
    known("cuGraphLaunch", 10000, graphLaunch),
    known("cuGraphExecDestroy", 10000, graphExecDestroy),
    known("cuGraphDestroy", 10000, graphDestroy),
    known("cuTensorMapEncodeTiled", 12000, tensorMapEncode),
};

} // namespace

extern "C" KAON_FAKE_EXPORT Code cuGetProcAddress_v2(const char *name,
                                                     void **function,
                                                     int version,
                                                     uint64_t flags,
                                                     int *status) {
  Lock lock(state().mutex);
  *function = nullptr;
  for (const Known &entry : knownFunctions) {
    if (std::string_view(name) == entry.name) {
      if (version != entry.version || flags != 0) {
        return fault(Code::NotFound, concat("has another signature of ", name,
                                            " in version ", version));
      }
      if (state().hidden.contains(name)) {
        return Code::NotFound;
      }
      *function = entry.function;
      return Code::Success;
    }
  }
  return fault(Code::NotFound, concat("has no function ", name));
}

//===----------------------------------------------------------------------===//
// Controls
//===----------------------------------------------------------------------===//

void kaon_fake_cuda_set_kernel_directory(const char *path) {
  Lock lock(state().mutex);
  state().kernelDirectory = path;
}

void kaon_fake_cuda_set_devices(int count, int major, int minor) {
  Lock lock(state().mutex);
  state().deviceCount = count;
  state().major = major;
  state().minor = minor;
}

void kaon_fake_cuda_set_version(int version) {
  Lock lock(state().mutex);
  state().version = version;
}

void kaon_fake_cuda_set_delays(uint32_t seed, uint32_t microseconds) {
  state().seed = seed;
  state().delay = microseconds;
}

void kaon_fake_cuda_fail(const char *function, int code, int call) {
  Lock lock(state().mutex);
  if (code == 0) {
    state().failures.erase(function);
  } else {
    state().failures[function] = {code, call};
  }
}

void kaon_fake_cuda_hide(const char *function, int hidden) {
  Lock lock(state().mutex);
  if (hidden) {
    state().hidden.insert(function);
  } else {
    state().hidden.erase(function);
  }
}

int64_t kaon_fake_cuda_calls(const char *function) {
  Lock lock(state().mutex);
  auto found = state().calls.find(function);
  return found == state().calls.end() ? 0 : found->second;
}

void kaon_fake_cuda_reset_calls() {
  Lock lock(state().mutex);
  state().calls.clear();
}

/// Every stream there is.
static std::vector<FakeStream *> allStreams() {
  Lock lock(state().mutex);
  std::vector<FakeStream *> streams(state().streams.begin(),
                                    state().streams.end());
  for (auto &[device, stream] : state().defaultStreams) {
    streams.push_back(stream.get());
  }
  return streams;
}

/// Copies as much of a text as there is room for.
static void copyText(const std::string &from, char *text, size_t bytes) {
  if (bytes > 0) {
    size_t length = std::min(from.size(), bytes - 1);
    std::memcpy(text, from.data(), length);
    text[length] = '\0';
  }
}

void kaon_fake_cuda_record_launches(int on) {
  Lock lock(state().mutex);
  state().notesLaunches = on != 0;
  state().launches.clear();
}

int64_t kaon_fake_cuda_launches(char *text, size_t bytes) {
  Lock lock(state().mutex);
  copyText(state().launches, text, bytes);
  return static_cast<int64_t>(state().launches.size());
}

int64_t kaon_fake_cuda_take_faults(char *text, size_t bytes) {
  for (FakeStream *stream : allStreams()) {
    stream->synchronize();
  }
  Memory::checkRests();
  std::vector<std::string> taken = takeFaults();
  std::string joined;
  for (const std::string &one : taken) {
    joined += one + "\n";
  }
  copyText(joined, text, bytes);
  return static_cast<int64_t>(taken.size());
}

int64_t kaon_fake_cuda_allocated_bytes() { return Memory::allocatedBytes(); }

void *kaon_fake_cuda_stream_create() {
  Lock lock(state().mutex);
  auto *stream = new FakeStream(contextStack.empty() ? 0 : contextStack.back());
  state().streams.insert(stream);
  return stream;
}

void kaon_fake_cuda_stream_destroy(void *handle) {
  auto *stream = static_cast<FakeStream *>(handle);
  {
    Lock lock(state().mutex);
    state().streams.erase(stream);
  }
  delete stream; // Does what it has, first.
}

void kaon_fake_cuda_stream_set_capturing(void *handle, int capturing) {
  Lock lock(state().mutex);
  static_cast<FakeStream *>(handle)->isCapturing = capturing;
}

void kaon_fake_cuda_stream_block(void *stream) {
  static_cast<FakeStream *>(stream)->block(true);
}

void kaon_fake_cuda_stream_unblock(void *stream) {
  static_cast<FakeStream *>(stream)->block(false);
}

void *kaon_fake_cuda_memory_create(size_t bytes) {
  return Memory::allocate(MemoryKind::Device, bytes);
}

void kaon_fake_cuda_memory_destroy(void *memory) {
  (void)Memory::release(MemoryKind::Device, memory);
}
