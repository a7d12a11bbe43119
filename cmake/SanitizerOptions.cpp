//===-- SanitizerOptions.cpp - AddressSanitizer beside LLVM ---------------===//
//
// LLVM's headers poison the memory of their allocators where they are compiled
// with AddressSanitizer. The shared libraries are compiled without: they use
// the same allocators and take no poison away.
//
//===----------------------------------------------------------------------===//

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" const char *__asan_default_options();

// NOLINTNEXTLINE(bugprone-reserved-identifier): AddressSanitizer's own name
const char *__asan_default_options() { return "allow_user_poisoning=0"; }
