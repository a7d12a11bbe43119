//===-- Sanitizers.h - what the shim tells the sanitizers -------*- C++ -*-===//
//
// ThreadSanitizer and AddressSanitizer have to know when the stack changes. The
// functions here do nothing in builds without the sanitizer in question.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_SANITIZERS_H
#define KAON_TEST_CUDA_SHIM_SANITIZERS_H

#include "test/cuda/shim/Shim.h"

#ifdef KAON_SHIM_THREAD_SANITIZER
#include <fcntl.h>
#include <unistd.h>

extern "C" {
void __sanitizer_set_report_fd(void *descriptor);
void *__tsan_get_current_fiber();
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
}
#endif

#ifdef KAON_SHIM_ADDRESS_SANITIZER
extern "C" {
void __sanitizer_start_switch_fiber(void **fakeStack, const void *bottom,
                                    size_t size);
void __sanitizer_finish_switch_fiber(void *fakeStack, const void **oldBottom,
                                     size_t *oldSize);
void __asan_unpoison_memory_region(const volatile void *address, size_t size);
}
#endif

namespace kaon::shim {

/// A point in the program that orders the accesses before it in one thread
/// and after it in another.
struct OrderingPoint {
  void release() {
#ifdef KAON_SHIM_THREAD_SANITIZER
    __tsan_release(this);
#endif
  }
  void acquire() {
#ifdef KAON_SHIM_THREAD_SANITIZER
    __tsan_acquire(this);
#endif
  }

  char address = 0;
};

/// Whether reports go nowhere or to the standard error stream.
inline void muteReports(bool mute) {
#ifdef KAON_SHIM_THREAD_SANITIZER
  static const int nowhere = open("/dev/null", O_WRONLY);
  __sanitizer_set_report_fd(
      reinterpret_cast<void *>(intptr_t(mute ? nowhere : STDERR_FILENO)));
#endif
}

/// What the sanitizers know about one stack.
class SanitizedStack {
public:
  /// The stack that is running.
  void adoptCurrent() {
#ifdef KAON_SHIM_THREAD_SANITIZER
    thread = __tsan_get_current_fiber();
#endif
  }

  void create(void *newBottom, size_t newSize) {
    bottom = newBottom;
    size = newSize;
#ifdef KAON_SHIM_ADDRESS_SANITIZER
    // The last frames of a thread that used the stack before never returned.
    __asan_unpoison_memory_region(newBottom, newSize);
#endif
#ifdef KAON_SHIM_THREAD_SANITIZER
    thread = __tsan_create_fiber(0);
#endif
  }

  void destroy() {
#ifdef KAON_SHIM_THREAD_SANITIZER
    __tsan_destroy_fiber(thread);
#endif
  }

  /// Right before this stack is left for `next`, for good if `last`. Inlined,
  /// because a function that is entered as one thread must not be left as
  /// another.
  __attribute__((always_inline)) void leave(const SanitizedStack &next,
                                            bool last) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(last ? nullptr : &fakeStack, next.bottom,
                                   next.size);
#endif
#ifdef KAON_SHIM_THREAD_SANITIZER
    constexpr unsigned withoutSynchronisation = 1;
    __tsan_switch_to_fiber(next.thread, withoutSynchronisation);
#endif
  }

  /// Right after this stack was entered from `previous`.
  void enter(SanitizedStack &previous) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fakeStack, &previous.bottom,
                                    &previous.size);
#endif
  }

  /// While on, accesses of the running thread are the shim's own and not the
  /// kernel's.
  static void ignoreAccesses(bool on) {
#ifdef KAON_SHIM_THREAD_SANITIZER
    if (on) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#endif
  }

private:
  const void *bottom = nullptr;
  size_t size = 0;
  [[maybe_unused]] void *fakeStack = nullptr;
  [[maybe_unused]] void *thread = nullptr;
};

} // namespace kaon::shim

#endif // KAON_TEST_CUDA_SHIM_SANITIZERS_H
