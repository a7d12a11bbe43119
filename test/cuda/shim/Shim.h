//===-- Shim.h - runs device kernels on the CPU -----------------*- C++ -*-===//
//
// Runs the text of codegen/cuda/lib without a GPU. The threads of a block are
// fibers of one host thread, blocks run one after another. Barriers and warp
// operations are rendezvous: a thread that arrives is set aside until the
// others have come. Which thread continues is up to the schedule, so kernels
// that depend on an order give different results under different schedules.
//
// What makes mistakes visible:
//   - shared memory starts as NaN;
//   - a copy in the background arrives only when its thread waits for it, and
//     its destination is NaN from its start until then;
//   - divergent barriers, lanes that disagree about a warp operation,
//   misaligned
//     accesses, shared addresses out of range, copies in flight at the end and
//     deadlocks are faults, which name block and thread;
//   - under ThreadSanitizer every device thread is a thread of its own whose
//     only synchronisation is the barrier, so races on global and shared memory
//     are reported whether or not they change a result;
//   - under AddressSanitizer arrays in shared and global memory have bounds.
//
// What it cannot show: mistakes in the PTX itself (PrimitivesHost.cuh has its
// own definitions), memory ordering below the level of barriers, the rounding
// of tensor cores, bank conflicts and speed.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_H
#define KAON_TEST_CUDA_SHIM_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>
#include <string>

namespace kaon::shim {

#if defined(__SANITIZE_THREAD__)
#define KAON_SHIM_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KAON_SHIM_THREAD_SANITIZER 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#define KAON_SHIM_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KAON_SHIM_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef KAON_SHIM_THREAD_SANITIZER
constexpr bool detectsRaces = true;
#else
constexpr bool detectsRaces = false;
#endif

#ifdef KAON_SHIM_ADDRESS_SANITIZER
constexpr bool detectsBounds = true;
#else
constexpr bool detectsBounds = false;
#endif

/// A kernel broke a rule of the machine. It was stopped where it did.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The order in which the threads that can run get their turns: all of the
/// block in rounds, forward, in reverse or shuffled anew for each round; or one
/// warp as far as it gets before the next one, from the first or from the last.
struct Schedule {
  enum Order {
    forward,
    reverse,
    shuffled,
    warpByWarp,
    lastWarpFirst
  } order = forward;
  unsigned seed = 0;

  std::string str() const;
};

/// One of each order.
constexpr Schedule allSchedules[] = {{Schedule::forward},
                                     {Schedule::shuffled, 1},
                                     {Schedule::reverse},
                                     {Schedule::warpByWarp},
                                     {Schedule::lastWarpFirst}};

/// Schedules under which a test of a kernel runs. ThreadSanitizer, which is
/// slow, reports races whatever the order.
constexpr std::span<const Schedule> schedules =
    std::span(allSchedules).first(detectsRaces ? 2 : std::size(allSchedules));

struct LaunchSize {
  uint32_t blocks;
  uint32_t threads;
  size_t sharedBytes = 0;
};

/// Runs `kernel` once for every thread of every block. Throws Fault.
void launch(const LaunchSize &size, const Schedule &schedule,
            const std::function<void()> &kernel);

/// Whether an address is of the running thread's stack, of the block's shared
/// memory, or of what warp operations exchange: memory that a GPU has on chip.
bool isOnChip(const void *pointer);

/// How many accesses there were by their bytes.
using AccessCounts = std::map<uint32_t, size_t>;

/// The accesses of several elements at a time to memory that is not on the chip
/// since the last call: loads and stores of words, but no copies in the
/// background.
AccessCounts takeAccesses();

/// Lets `observe` know the address and size of what copies in the background
/// read.
void setCopyObserver(void (*observe)(const void *, size_t));

/// Races that ThreadSanitizer has reported since the last call, which it does
/// once for every pair of places in the program; 0 in other builds.
int takeRaceReports();

/// Races that are reported while `run` runs; the reports are not printed.
int countRaces(const std::function<void()> &run);

} // namespace kaon::shim

#endif // KAON_TEST_CUDA_SHIM_H
