//===-- Arena.h - aligned memory with an owner ------------------*- C++ -*-===//
//
// An executor takes its workspace once, when it is made, so that a step
// allocates nothing. The compiler has already decided what lies
// where in it (StepPlan offsets).
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_ARENA_H
#define KAON_RUNTIME_ARENA_H

#include "runtime/Status.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kaon::runtime {

class Arena {
public:
  Arena() = default;

  /// Memory of `bytes`, aligned for kernels; where there is much of it, on huge
  /// pages. Its contents are undefined.
  static Result<Arena> create(int64_t bytes);

  std::byte *data() const { return memory.get(); }
  int64_t bytes() const { return numBytes; }

private:
  struct Free {
    void operator()(std::byte *pointer) const;
  };
  std::unique_ptr<std::byte, Free> memory;
  int64_t numBytes = 0;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_ARENA_H
