//===-- TestMemory.h - device memory of tests -------------------*- C++ -*-===//
//
// Arrays with guards around them: reads of a guard give NaN, writes to it are
// noticed, and AddressSanitizer reports both.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_TESTMEMORY_H
#define KAON_TEST_CUDA_TESTMEMORY_H

#include "test/cuda/shim/Shim.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <vector>

#ifdef KAON_SHIM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size)                             \
  ((void)(address), (void)(size))
#endif

namespace kaon::test {

/// `size` elements, initially NaN, that start `offset` elements after an
/// address aligned to 256 bytes.
template <typename T> class DeviceArray {
public:
  explicit DeviceArray(size_t size, size_t offset = 0)
      : count(size), bytes(2 * guardBytes + (offset + size) * sizeof(T)),
        memory(static_cast<char *>(
                   ::operator new(bytes, std::align_val_t(alignment))),
               Delete{bytes}),
        begin(reinterpret_cast<T *>(memory.get() + guardBytes) + offset) {
    std::memset(memory.get(), notANumberByte, bytes);
    poison(true);
  }
  ~DeviceArray() {
    if (!memory) {
      return;
    }
    poison(false);
    auto isGuard = [](char byte) {
      return static_cast<unsigned char>(byte) == notANumberByte;
    };
    EXPECT_TRUE(std::all_of(memory.get(), firstByte(), isGuard) &&
                std::all_of(lastByte(), memory.get() + bytes, isGuard))
        << "a kernel wrote outside of an array";
  }
  DeviceArray(DeviceArray &&) = default;

  T *data() const { return begin; }
  size_t size() const { return count; }
  T &operator[](size_t index) const { return begin[index]; }

  std::vector<T> values() const { return {begin, begin + count}; }

  template <typename Generator> DeviceArray &&fill(Generator generator) && {
    std::generate_n(begin, count, generator);
    return std::move(*this);
  }

private:
  static constexpr size_t alignment = 256, guardBytes = 4096;
  static constexpr unsigned char notANumberByte = 0xff;

  struct Delete {
    size_t bytes;
    void operator()(char *pointer) const {
      ::operator delete(pointer, bytes, std::align_val_t(alignment));
    }
  };

  char *firstByte() const { return reinterpret_cast<char *>(begin); }
  char *lastByte() const { return reinterpret_cast<char *>(begin + count); }

  void poison(bool on) const {
    if (on) {
      ASAN_POISON_MEMORY_REGION(memory.get(), firstByte() - memory.get());
      ASAN_POISON_MEMORY_REGION(lastByte(), memory.get() + bytes - lastByte());
    } else {
      ASAN_UNPOISON_MEMORY_REGION(memory.get(), bytes);
    }
  }

  size_t count, bytes;
  std::unique_ptr<char, Delete> memory;
  T *begin;
};

/// An array with the given elements.
template <typename T> DeviceArray<T> deviceArray(const std::vector<T> &values) {
  DeviceArray<T> array(values.size());
  std::copy(values.begin(), values.end(), array.data());
  return array;
}

/// Normally distributed numbers, the same on every run.
class Normal {
public:
  explicit Normal(unsigned seed) : random(seed) {}
  float operator()() { return distribution(random); }

private:
  std::mt19937 random;
  std::normal_distribution<float> distribution;
};

/// Whether two arrays have the same bits.
template <typename T>
bool sameBits(const std::vector<T> &a, const std::vector<T> &b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

} // namespace kaon::test

#endif // KAON_TEST_CUDA_TESTMEMORY_H
