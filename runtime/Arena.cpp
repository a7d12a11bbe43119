//===-- Arena.cpp - aligned memory that lives as long as its owner --------===//
//
// Allocates executors' memory.
//
//===----------------------------------------------------------------------===//

#include "runtime/Arena.h"

#include "runtime/KernelAbi.h"

#include <cstdlib>
#include <sys/mman.h>

using namespace kaon::runtime;

// Products walk their packed operands with large strides: fewer, larger pages
// save address translations.
static constexpr int64_t hugePageBytes = int64_t(1) << 21;

void Arena::Free::operator()(std::byte *pointer) const { std::free(pointer); }

Result<Arena> Arena::create(int64_t bytes) {
  Arena arena;
  if (bytes == 0) {
    return arena;
  }
  int64_t alignment =
      bytes >= hugePageBytes ? hugePageBytes : KAON_BUFFER_ALIGNMENT;
  int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void *memory = std::aligned_alloc(static_cast<size_t>(alignment),
                                    static_cast<size_t>(rounded));
  if (!memory) {
    return Status::failure("expects ", bytes,
                           " bytes of free memory for the workspace, but the "
                           "system has not got them");
  }
  if (bytes >= hugePageBytes) {
    // Only a wish: without it everything works, a little slower.
    (void)madvise(memory, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  }
  arena.memory.reset(static_cast<std::byte *>(memory));
  arena.numBytes = bytes;
  return arena;
}
