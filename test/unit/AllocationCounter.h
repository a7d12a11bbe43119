//===-- AllocationCounter.h - counts allocations of all threads -*- C++ -*-===//
//
// For tests that something allocates nothing.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_UNIT_ALLOCATIONCOUNTER_H
#define KAON_TEST_UNIT_ALLOCATIONCOUNTER_H

#include <cstdint>

namespace kaon::runtime::test {

/// Whether allocations can be counted: not under a sanitizer, which has an
/// allocator of its own.
extern const bool canCountAllocations;

/// Calls of malloc and its relatives by any thread so far.
int64_t numAllocations();

} // namespace kaon::runtime::test

#endif // KAON_TEST_UNIT_ALLOCATIONCOUNTER_H
