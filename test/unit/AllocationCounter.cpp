//===-- AllocationCounter.cpp - counts allocations of all threads ---------===//
//
// Stands in for glibc's allocation functions in the test binary. operator new
// calls malloc.
//
//===----------------------------------------------------------------------===//

#include "AllocationCounter.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||     \
    __has_feature(memory_sanitizer)
#define KAON_HAS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||           \
    !defined(__GLIBC__)
#define KAON_HAS_SANITIZER
#endif

static std::atomic<int64_t> allocations{0};

int64_t kaon::runtime::test::numAllocations() { return allocations.load(); }

#ifdef KAON_HAS_SANITIZER

// Tests ask for more memory than there is, and fork while they have threads.
// Poison: see cmake/SanitizerOptions.cpp.
extern "C" {
__attribute__((visibility("default"))) const char *__asan_default_options() {
  return "allocator_may_return_null=1:allow_user_poisoning=0";
}
__attribute__((visibility("default"))) const char *__tsan_default_options() {
  return "allocator_may_return_null=1:die_after_fork=0";
}
}

const bool kaon::runtime::test::canCountAllocations = false;

#else

const bool kaon::runtime::test::canCountAllocations = true;

extern "C" {

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

__attribute__((visibility("default"))) void *malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t count,
                                                    size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *pointer,
                                                     size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(pointer, bytes);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment,
                                                           size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) int
posix_memalign(void **pointer, size_t alignment, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *pointer = __libc_memalign(alignment, bytes);
  return *pointer ? 0 : ENOMEM;
}

} // extern "C"

#endif
