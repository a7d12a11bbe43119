//===-- Machine.h - what the parts of the shim share ------------*- C++ -*-===//
//
// Shim.cpp lets threads take turns. Background.cpp does what happens beside
// them on sm_90a: barriers in shared memory, copies of boxes and products of
// warpgroups.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_MACHINE_H
#define KAON_TEST_CUDA_SHIM_MACHINE_H

#include "test/cuda/shim/Sanitizers.h"
#include "test/cuda/shim/Shim.h"

#include <cstring>

namespace kaon::shim {

/// Where shared memory begins among addresses of 32 bits. On a GPU the first
/// 1024 bytes belong to the system.
constexpr uint32_t sharedWindow = 1024;

/// What threads do when they meet: a name, and a line for what has many places.
struct Action {
  const char *name = nullptr;
  int line = 0;

  bool operator==(const Action &other) const {
    return line == other.line &&
           (name == other.name || std::strcmp(name, other.name) == 0);
  }
  std::string str() const {
    return line == 0 ? name : name + (" in line " + std::to_string(line));
  }
};

/// A place where threads wait for each other.
struct Rendezvous {
  int arrived = 0;
  /// Counts how often all have met here.
  unsigned generation = 0;
  Action what;
};

/// Marks accesses in its scope as the shim's own.
class Quiet {
public:
  Quiet() { SanitizedStack::ignoreAccesses(true); }
  ~Quiet() { SanitizedStack::ignoreAccesses(false); }
  Quiet(const Quiet &) = delete;
  Quiet &operator=(const Quiet &) = delete;
};

//===----------------------------------------------------------------------===//
// Defined by Shim.cpp
//===----------------------------------------------------------------------===//

/// Ends the launch because the running thread broke a rule.
[[noreturn]] void fail(const std::string &message);

/// Sets the running thread aside until the others have come to `place`.
void waitAt(const Rendezvous &place);

/// Tells whoever wants to know (setCopyObserver) what a copy in the background
/// reads.
void observeCopy(const void *global, size_t bytes);

//===----------------------------------------------------------------------===//
// Defined by Background.cpp
//===----------------------------------------------------------------------===//

/// The block that begins.
struct BackgroundBlock {
  char *shared;
  size_t sharedBytes;
  uint32_t threads;
};

void resetBackground(const BackgroundBlock &block, const Schedule &schedule);

/// Lets one copy of a box arrive; false if none is in flight.
bool letCopyArrive();

/// Fails if `thread`, which ends, has started products that it has not waited
/// for.
void checkThreadEnd(uint32_t thread);

} // namespace kaon::shim

#endif // KAON_TEST_CUDA_SHIM_MACHINE_H
