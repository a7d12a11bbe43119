//===-- Shim.cpp - runs device kernels on the CPU -------------------------===//

#include "test/cuda/shim/Shim.h"

#include "codegen/cuda/lib/PrimitivesHost.cuh"
#include "test/cuda/shim/Machine.h"
#include "test/cuda/shim/Sanitizers.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

using namespace kaon;
using namespace kaon::shim;

//===----------------------------------------------------------------------===//
// Changing stacks
//===----------------------------------------------------------------------===//

#if !defined(__x86_64__) || !defined(__ELF__)
#error "the shim changes stacks with instructions of x86-64 ELF systems"
#endif

/// Saves the registers that a call preserves on the running stack and its top
/// in `*from`, then continues on the stack `to`.
extern "C" void kaonShimSwitchStack(void **from, void *to);
asm(R"(
.text
.globl kaonShimSwitchStack
.type kaonShimSwitchStack, @function
kaonShimSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kaonShimSwitchStack, .-kaonShimSwitchStack
)");

namespace {

constexpr int savedRegisters = 6;
constexpr int numLanes = 32;
constexpr size_t stackBytes = 128 << 10;
constexpr size_t sharedAlignment = 1024;
constexpr size_t accessBytes = 16;
constexpr int notANumberByte = 0xff;

struct Free {
  void operator()(char *memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory allocate(size_t alignment, size_t bytes) {
  void *memory = nullptr;
  if (posix_memalign(&memory, alignment, std::max<size_t>(bytes, 1)) != 0) {
    throw std::bad_alloc();
  }
  return Memory(static_cast<char *>(memory));
}

/// Whether stacks and shared memory are used again by later threads and blocks.
/// ThreadSanitizer has to see where one use ends and the next begins, and
/// AddressSanitizer where shared memory ends.
constexpr bool reusesStacks = !detectsRaces;
constexpr bool reusesSharedMemory = !detectsRaces && !detectsBounds;

//===----------------------------------------------------------------------===//
// The state of a block
//===----------------------------------------------------------------------===//

/// A copy into shared memory that has been started and not waited for.
struct PendingCopy {
  char *shared;
  const void *global;
  uint32_t validBytes;
};

struct Thread {
  uint32_t index = 0;
  bool done = false;
  /// Where it waits, and the generation that it waits to end.
  const Rendezvous *waitsAt = nullptr;
  unsigned waitsFor = 0;
  /// Copies in flight in the order of their start, the sizes of their closed
  /// groups, and how many are in none.
  std::vector<PendingCopy> copies;
  std::vector<size_t> groups;
  size_t ungrouped = 0;

  /// Null until the thread has started, and after it has ended.
  Memory stack;
  void *stackTop = nullptr;
  SanitizedStack sanitized;

  bool canRun() const {
    return !done && !(waitsAt && waitsAt->generation == waitsFor);
  }

  void reset(uint32_t newIndex) {
    index = newIndex;
    done = false;
    waitsAt = nullptr;
    copies.clear();
    groups.clear();
    ungrouped = 0;
    stack.reset();
    stackTop = nullptr;
    sanitized = SanitizedStack();
  }
};

struct Warp {
  Rendezvous rendezvous;
  machine::WarpInput input;
  machine::WarpOutput output;
  int exited = 0;
};

/// Where threads of a block meet.
struct BlockBarrier {
  Rendezvous place;
  /// Of this barrier and the next, in turn: a thread may come to the next one
  /// before another has left this one, which must not order the two. New for
  /// every block, or their barriers would order blocks.
  std::unique_ptr<OrderingPoint[]> order;

  void reset() {
    place = Rendezvous();
    order = std::make_unique<OrderingPoint[]>(2);
  }
};

/// The block that runs. There is one at a time, whose memory later ones use
/// again.
struct Block {
  uint32_t index = 0;
  size_t sharedBytes = 0, sharedCapacity = 0;
  Memory shared;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  /// Of all threads, and of the first `groupThreads`.
  BlockBarrier barrier, group;
  uint32_t groupThreads = 0;
  size_t exited = 0;
  /// What went wrong; empty while nothing has.
  std::string fault;
  const std::function<void()> *kernel = nullptr;

  void reset(uint32_t newIndex, const LaunchSize &size) {
    index = newIndex;
    sharedBytes = size.sharedBytes;
    if (!reusesSharedMemory || !shared || sharedCapacity < sharedBytes) {
      shared = allocate(sharedAlignment, sharedBytes);
      sharedCapacity = sharedBytes;
    }
    std::memset(shared.get(), notANumberByte, sharedBytes);
    threads.resize(size.threads);
    for (uint32_t i = 0; i < size.threads; ++i) {
      threads[i].reset(i);
    }
    warps.resize(size.threads / numLanes);
    for (Warp &warp : warps) {
      warp.rendezvous = Rendezvous();
      warp.exited = 0;
    }
    barrier.reset();
    group.reset();
    groupThreads = 0;
    exited = 0;
    fault.clear();
  }
};

/// Launches of several host threads take turns.
std::mutex machineMutex;
Block theBlock;
Block *const block = &theBlock;
/// The running device thread; the scheduler while it runs.
Thread *current = nullptr;
Thread scheduler;
OrderingPoint launchEnd;
/// Stacks that no thread uses.
std::vector<Memory> freeStacks;
void (*copyObserver)(const void *, size_t) = nullptr;
AccessCounts accesses;

std::atomic<int> raceReports = 0;

/// A value that belongs to the shim.
template <typename T> T readQuietly(const T &value) {
  Quiet quiet;
  return value;
}

//===----------------------------------------------------------------------===//
// Threads taking turns
//===----------------------------------------------------------------------===//

#define KAON_NOT_INSTRUMENTED __attribute__((no_sanitize("thread"), noinline))

KAON_NOT_INSTRUMENTED void switchTo(Thread &next, bool last = false) {
  Thread &self = *current;
  self.sanitized.leave(next.sanitized, last);
  current = &next;
  kaonShimSwitchStack(&self.stackTop, next.stackTop);
  self.sanitized.enter(scheduler.sanitized);
}

/// Unwinds the stack of a device thread whose launch has failed.
struct Stopped {};

} // namespace

void shim::fail(const std::string &message) {
  block->fault = "block " + std::to_string(block->index) + ", thread " +
                 std::to_string(current->index) + ": " + message;
  throw Stopped();
}

void shim::waitAt(const Rendezvous &place) {
  current->waitsFor = place.generation;
  current->waitsAt = &place;
  switchTo(scheduler);
  current->waitsAt = nullptr;
  if (!block->fault.empty()) {
    throw Stopped();
  }
}

namespace {

Warp &currentWarp() { return block->warps[current->index / numLanes]; }

void checkExit() {
  Quiet quiet;
  if (!current->copies.empty() || !current->groups.empty()) {
    fail("the kernel ended with copies in flight");
  }
  if (block->barrier.place.arrived > 0) {
    fail("the thread exited while others wait at " +
         block->barrier.place.what.str());
  }
  if (block->group.place.arrived > 0 && current->index < block->groupThreads) {
    fail("the thread exited while others of its group wait at " +
         block->group.place.what.str());
  }
  checkThreadEnd(current->index);
  if (currentWarp().rendezvous.arrived > 0) {
    fail("the thread exited while lanes of its warp wait at " +
         currentWarp().rendezvous.what.str());
  }
}

void runThread() {
  try {
    if (block->fault.empty()) {
      (*block->kernel)();
      checkExit();
    }
  } catch (const Stopped &) {
  }
  launchEnd.release();
  Quiet quiet;
  current->done = true;
  ++currentWarp().exited;
  ++block->exited;
}

/// The bottom of a device thread's stack.
KAON_NOT_INSTRUMENTED void threadMain() {
  current->sanitized.enter(scheduler.sanitized);
  runThread();
  switchTo(scheduler, /*last=*/true);
  std::abort(); // Nobody resumes a thread that is done.
}

/// Gives a thread that has not run a stack whose top it continues on.
void start(Thread &thread) {
  if (freeStacks.empty()) {
    thread.stack = allocate(accessBytes, stackBytes);
  } else {
    thread.stack = std::move(freeStacks.back());
    freeStacks.pop_back();
  }
  void **top = reinterpret_cast<void **>(thread.stack.get() + stackBytes);
  // A function is entered with its return address on an aligned stack.
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(threadMain);
  top -= savedRegisters;
  std::fill_n(top, savedRegisters, nullptr);
  thread.stackTop = top;
  thread.sanitized.create(thread.stack.get(), stackBytes);
}

/// Lets `thread` run until it waits or ends.
void giveTurn(Thread &thread) {
  if (!thread.stack) {
    start(thread);
  }
  switchTo(thread);
  if (reusesStacks && thread.done) {
    freeStacks.push_back(std::move(thread.stack));
  }
}

std::string describeDeadlock() {
  std::string message = "block " + std::to_string(block->index) +
                        ": deadlock: every thread waits:";
  for (const Thread &thread : block->threads) {
    if (thread.done) {
      continue;
    }
    message += " " + std::to_string(thread.index) + " at " +
               thread.waitsAt->what.str() + ";";
  }
  return message;
}

/// Lets the threads of a failed block unwind their stacks.
void unwindThreads() {
  for (Thread &thread : block->threads) {
    if (thread.stack && !thread.done) {
      giveTurn(thread);
    }
  }
}

using Threads = std::vector<Thread *>;

/// Gives one turn to each of the threads that can run; false if none can.
bool giveTurns(Threads::iterator begin, Threads::iterator end) {
  bool progress = false;
  for (auto thread = begin; thread != end; ++thread) {
    if ((*thread)->canRun() && block->fault.empty()) {
      giveTurn(**thread);
      progress = true;
    }
  }
  return progress;
}

/// One round over the block; false if no thread can run.
bool giveRound(Threads &threads, Schedule::Order order,
               std::minstd_rand &random) {
  if (order == Schedule::shuffled) {
    std::shuffle(threads.begin(), threads.end(), random);
  }
  if (order != Schedule::warpByWarp && order != Schedule::lastWarpFirst) {
    return giveTurns(threads.begin(), threads.end());
  }
  bool progress = false;
  auto numWarps = static_cast<ptrdiff_t>(threads.size()) / numLanes;
  for (ptrdiff_t i = 0; i < numWarps; ++i) {
    ptrdiff_t warp = order == Schedule::warpByWarp ? i : numWarps - 1 - i;
    auto first = threads.begin() + warp * numLanes;
    while (giveTurns(first, first + numLanes)) {
      progress = true;
    }
  }
  return progress;
}

/// Gives turns until all threads have ended or one has failed.
void runThreads(const Schedule &schedule, std::minstd_rand &random) {
  static Threads threads;
  threads.clear();
  for (Thread &thread : block->threads) {
    threads.push_back(&thread);
  }
  if (schedule.order == Schedule::reverse) {
    std::reverse(threads.begin(), threads.end());
  }
  while (block->exited < threads.size() && block->fault.empty()) {
    bool progress = giveRound(threads, schedule.order, random);
    if (!progress && !letCopyArrive() && block->fault.empty()) {
      block->fault = describeDeadlock();
    }
  }
  if (block->fault.empty() && letCopyArrive()) {
    block->fault = "block " + std::to_string(block->index) +
                   ": the kernel ended with copies of boxes in flight";
  }
  unwindThreads();
}

} // namespace

//===----------------------------------------------------------------------===//
// The machine that PrimitivesHost.cuh asks
//===----------------------------------------------------------------------===//

uint32_t machine::threadIndex() {
  Quiet quiet;
  return current->index;
}

uint32_t machine::blockIndex() {
  Quiet quiet;
  return block->index;
}

char *machine::sharedMemory() {
  Quiet quiet;
  return block->shared.get();
}

uint32_t machine::sharedAddress(const void *pointer) {
  Quiet quiet;
  return sharedWindow +
         static_cast<uint32_t>(static_cast<const char *>(pointer) -
                               block->shared.get());
}

/// Waits for `count` threads.
static void meet(BlockBarrier &barrier, uint32_t count, const Action &what) {
  Rendezvous &place = barrier.place;
  if (place.arrived > 0 && !(place.what == what)) {
    fail("waits at " + what.str() + ", but others of the block at " +
         place.what.str());
  }
  place.what = what;
  OrderingPoint &order = barrier.order[place.generation % 2];
  order.release();
  if (++place.arrived == static_cast<int>(count)) {
    place.arrived = 0;
    ++place.generation;
  } else {
    waitAt(place);
  }
  order.acquire();
}

void machine::barrier(int line) {
  Quiet quiet;
  Action what = {"the barrier", line};
  if (block->exited > 0) {
    fail("waits at " + what.str() + ", but a thread of the block has exited");
  }
  meet(block->barrier, static_cast<uint32_t>(block->threads.size()), what);
}

void machine::groupBarrier(int threads, int line) {
  Quiet quiet;
  Action what = {"the group's barrier", line};
  auto count = static_cast<uint32_t>(threads);
  if (current->index >= count || count > block->threads.size()) {
    fail("waits at " + what.str() + ", which is for the first " +
         std::to_string(threads) + " threads");
  }
  block->groupThreads = count;
  meet(block->group, count, what);
}

void machine::exchange(const char *name, const uint32_t *input, int inputWords,
                       uint32_t *output, int outputWords,
                       void (*compute)(const WarpInput &, WarpOutput &)) {
  Quiet quiet;
  Warp &warp = currentWarp();
  Rendezvous &place = warp.rendezvous;
  Action what = {name};
  if (warp.exited > 0) {
    fail(std::string("calls ") + name + ", but a lane of its warp has exited");
  }
  if (place.arrived > 0 && !(place.what == what)) {
    fail(std::string("calls ") + name + ", but other lanes of its warp call " +
         place.what.str());
  }
  int lane = current->index % numLanes;
  place.what = what;
  std::copy_n(input, inputWords, warp.input[lane]);
  if (++place.arrived == numLanes) {
    compute(warp.input, warp.output);
    place.arrived = 0;
    ++place.generation;
  } else {
    waitAt(place);
  }
  std::copy_n(warp.output[lane], outputWords, output);
}

void machine::checkAligned(const char *name, const void *pointer,
                           uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
    Quiet quiet;
    fail(std::string(name) + " expects an address aligned to " +
         std::to_string(bytes) + " bytes");
  }
}

void machine::countAccess(const char *name, const void *pointer,
                          uint32_t bytes) {
  checkAligned(name, pointer, bytes);
  Quiet quiet;
  if (!isOnChip(pointer)) {
    ++accesses[bytes];
  }
}

void machine::checkShared(const char *name, const void *pointer) {
  Quiet quiet;
  checkAligned(name, pointer, accessBytes);
  // As numbers: the pointer may belong to any object.
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto begin = reinterpret_cast<uintptr_t>(block->shared.get());
  if (address < begin || address + accessBytes > begin + block->sharedBytes) {
    fail(std::string(name) + " expects an address in shared memory");
  }
}

void machine::copyAsync(void *shared, const void *global, uint32_t validBytes) {
  std::memset(shared, notANumberByte, accessBytes);
  Quiet quiet;
  current->copies.push_back({static_cast<char *>(shared), global, validBytes});
  ++current->ungrouped;
}

void machine::copyAsyncCommit() {
  Quiet quiet;
  current->groups.push_back(current->ungrouped);
  current->ungrouped = 0;
}

void machine::copyAsyncWait(int pending) {
  auto &copies = current->copies;
  size_t arrived = 0;
  {
    Quiet quiet;
    auto &groups = current->groups;
    auto end = groups.end() - std::min<ptrdiff_t>(pending, groups.size());
    arrived = std::accumulate(groups.begin(), end, size_t(0));
    groups.erase(groups.begin(), end);
  }
  for (size_t i = 0; i < arrived; ++i) {
    PendingCopy copy = readQuietly(copies[i]);
    observeCopy(copy.global, copy.validBytes);
    std::memcpy(copy.shared, copy.global, copy.validBytes);
    std::memset(copy.shared + copy.validBytes, 0,
                accessBytes - copy.validBytes);
  }
  Quiet quiet;
  copies.erase(copies.begin(),
               copies.begin() + static_cast<ptrdiff_t>(arrived));
}

//===----------------------------------------------------------------------===//
// Observing
//===----------------------------------------------------------------------===//

/// Whether an address is one of `size` bytes from `begin` on.
static bool isWithin(const void *pointer, const void *begin, size_t size) {
  // As numbers: the pointer may belong to any object.
  return reinterpret_cast<uintptr_t>(pointer) -
             reinterpret_cast<uintptr_t>(begin) <
         size;
}

bool shim::isOnChip(const void *pointer) {
  return isWithin(pointer, current->stack.get(), stackBytes) ||
         isWithin(pointer, block->shared.get(), block->sharedBytes) ||
         isWithin(pointer, block->warps.data(),
                  block->warps.size() * sizeof(Warp));
}

void shim::observeCopy(const void *global, size_t bytes) {
  if (copyObserver) {
    copyObserver(global, bytes);
  }
}

AccessCounts shim::takeAccesses() { return std::exchange(accesses, {}); }

void shim::setCopyObserver(void (*observe)(const void *, size_t)) {
  copyObserver = observe;
}

//===----------------------------------------------------------------------===//
// Launching
//===----------------------------------------------------------------------===//

std::string Schedule::str() const {
  switch (order) {
  case forward:
    return "forward";
  case reverse:
    return "reverse";
  case shuffled:
    return "shuffled " + std::to_string(seed);
  case warpByWarp:
    return "warp by warp";
  case lastWarpFirst:
    return "last warp first";
  }
  return "unknown";
}

void shim::launch(const LaunchSize &size, const Schedule &schedule,
                  const std::function<void()> &kernel) {
  if (size.threads == 0 || size.threads % numLanes != 0) {
    throw Fault("expects blocks of whole warps, but got " +
                std::to_string(size.threads) + " threads");
  }
  std::lock_guard lock(machineMutex);
  std::minstd_rand random(schedule.seed);
  scheduler.sanitized.adoptCurrent();
  current = &scheduler;
  // ThreadSanitizer gives the identity of a destroyed thread to the next one,
  // and would take accesses of two blocks for accesses of one thread.
  std::vector<SanitizedStack> finished;
  std::string fault;
  {
    Quiet quiet;
    block->kernel = &kernel;
    for (uint32_t index = 0; index < size.blocks && fault.empty(); ++index) {
      block->reset(index, size);
      resetBackground({block->shared.get(), size.sharedBytes, size.threads},
                      schedule);
      runThreads(schedule, random);
      if (detectsRaces) {
        for (Thread &thread : block->threads) {
          if (thread.stack) {
            finished.push_back(thread.sanitized);
          }
        }
      }
      fault = block->fault;
    }
  }
  for (SanitizedStack &stack : finished) {
    stack.destroy();
  }
  launchEnd.acquire();
  if (!fault.empty()) {
    throw Fault(fault);
  }
}

int shim::takeRaceReports() { return raceReports.exchange(0); }

int shim::countRaces(const std::function<void()> &run) {
  takeRaceReports();
  muteReports(true);
  run();
  muteReports(false);
  return takeRaceReports();
}

#ifdef KAON_SHIM_THREAD_SANITIZER
/// Called by ThreadSanitizer for every report.
extern "C" void __tsan_on_report(void *) { ++raceReports; }

/// Tests count reports themselves.
extern "C" const char *__tsan_default_options() { return "exitcode=0"; }
#endif
