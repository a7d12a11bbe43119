//===-- Fake.h - inside the imitated CUDA driver ----------------*- C++ -*-===//
//
// State and parts of the fake. Entry points hold one lock except while they
// wait. Streams do not take it: ThreadSanitizer sees the order that streams and
// events give to copies and kernels, and no other.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_FAKE_FAKE_H
#define KAON_TEST_CUDA_FAKE_FAKE_H

#include "runtime/cuda/CudaApi.h"
#include "test/cuda/fake/FakeCuda.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kaon::fake {

namespace cuda = kaon::runtime::cuda;
using cuda::Code;

template <typename... Args> std::string concat(const Args &...args) {
  std::ostringstream stream;
  (stream << ... << args);
  return std::move(stream).str();
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

/// Notes a fault, and returns `code` for the caller to return. Needs no lock.
Code fault(Code code, const std::string &text);

/// Notes a fault of work that a stream runs: from now on every call fails with
/// `code`, as a device would that has lost its context.
void asynchronousFault(Code code, const std::string &text);

/// The code of the first asynchronous fault, or success.
Code stickyCode();

/// The faults since the last call; the device works again.
std::vector<std::string> takeFaults();

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

enum class MemoryKind { Device, PageLocked };

/// Memory between pages that nobody may touch. Its end is where the right one
/// of those starts, so that already the first byte behind it is out of bounds
/// when the size is a multiple of 256; other sizes leave a rest, whose content
/// is checked. Freed memory may never be touched again.
class Memory {
public:
  static char *allocate(MemoryKind kind, size_t bytes);
  /// Frees what `allocate` gave.
  static Code release(MemoryKind kind, const void *begin);
  /// Whether the bytes lie in one piece of memory that is not freed; otherwise
  /// `why` says what they are.
  static bool contains(MemoryKind kind, const void *begin, size_t bytes,
                       std::string *why);
  /// Counts copies under way that touch a piece of memory.
  static void pin(const void *begin, int change);
  static int64_t allocatedBytes();
  /// Looks at the rests of all memory.
  static void checkRests();
};

//===----------------------------------------------------------------------===//
// Streams and events
//===----------------------------------------------------------------------===//

class FakeStream {
public:
  explicit FakeStream(int device);
  ~FakeStream();

  void enqueue(std::function<void()> work);
  /// Waits until everything is done that the stream has now.
  void synchronize();
  void block(bool on);

  const int device;
  bool isCapturing = false;

private:
  void run();

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t enqueued = 0, finished = 0;
  bool isBlocked = false, ends = false;
  std::mt19937 random;
  std::thread thread;
};

class FakeEvent {
public:
  explicit FakeEvent(int device) : device(device) {}

  /// A point that `complete` will be told of.
  uint64_t record();
  void complete(uint64_t point);
  /// The last point that was recorded; 0 if none was.
  uint64_t last();
  void wait(uint64_t point);

  const int device;

private:
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
};

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// What a kernel's .so exports: test/cuda/shim/KernelLibrary.h.
using ShimLaunch = int(uint32_t blocks, uint32_t threads, size_t sharedBytes,
                       void **parameters, unsigned schedule, char *fault,
                       size_t faultBytes);

struct ParameterPlace {
  int32_t offset, bytes;
};

struct FakeModule;

struct FakeFunction {
  std::string name;
  FakeModule *module = nullptr;
  std::vector<ParameterPlace> parameters;
  int maxThreads = 1024;
  int sharedLimit = 48 << 10;
  ShimLaunch *code = nullptr;
};

struct FakeModule {
  int device = 0;
  std::map<std::string, std::unique_ptr<FakeFunction>> functions;
  std::atomic<int> pending = 0; // launches under way
};

/// A launch that has been checked, with copies of its arguments.
struct FakeLaunch {
  FakeFunction *function = nullptr;
  uint32_t blocks = 0, threads = 0, sharedBytes = 0;
  std::vector<std::vector<std::byte>> arguments;

  void run() const;
};

/// Reads a CUBIN or PTX.
Code loadModule(int device, const void *image,
                std::unique_ptr<FakeModule> &module, std::string &log);
Code findFunction(FakeModule &module, const char *name,
                  FakeFunction *&function);
/// Checks a launch; `launch` is filled if it is fine.
Code checkLaunch(const cuda::KernelNode &node, FakeLaunch &launch);

struct FakeNode {
  FakeLaunch launch;
  std::vector<const FakeNode *> dependencies;
};

struct FakeGraph {
  std::vector<std::unique_ptr<FakeNode>> nodes;
};

struct FakeGraphExec {
  /// Shared with launches under way.
  std::shared_ptr<const FakeGraph> graph;
  int device = 0;
};

//===----------------------------------------------------------------------===//
// All of it
//===----------------------------------------------------------------------===//

struct Failure {
  int code = 0;
  int64_t call = 0;
};

struct State {
  std::mutex mutex; // of all but atomic members

  std::string kernelDirectory;
  int deviceCount = 1, major = 9, minor = 0, version = 13000;
  // Streams read these without the lock, which would order what they do.
  std::atomic<uint32_t> seed = 0, delay = 0;
  uint64_t numStreams = 0;

  std::map<std::string, int64_t, std::less<>> calls;
  bool notesLaunches = false;
  std::string launches; // a line for each
  std::map<std::string, Failure, std::less<>> failures;
  std::set<std::string, std::less<>> hidden;

  bool isInitialized = false;
  std::map<int, int> contexts; // device -> how often retained
  std::map<int, std::unique_ptr<FakeStream>> defaultStreams; // by device
  std::set<FakeStream *> streams;
  std::set<FakeEvent *> events;
  /// Destroyed ones, for which streams may still wait, as they may.
  std::vector<std::unique_ptr<FakeEvent>> pastEvents;
  std::set<FakeModule *> modules;
  std::set<FakeFunction *> functions;
  std::map<FakeGraph *, std::shared_ptr<FakeGraph>> graphs;
  std::set<FakeGraphExec *> graphExecs;
};

/// Never destroyed: streams run until the process ends.
State &state();

using Lock = std::unique_lock<std::mutex>;

} // namespace kaon::fake

#endif // KAON_TEST_CUDA_FAKE_FAKE_H
