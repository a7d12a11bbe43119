//===-- Traffic.cpp - what kernels read and write -------------------------===//

#include "test/cuda/shim/Traffic.h"

#include <array>
#include <bitset>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>

using namespace kaon;

namespace {

/// How often each of some bytes that follow each other was accessed.
struct Page {
  static constexpr uint64_t bytes = 4096;
  std::array<uint32_t, bytes> reads = {}, writes = {};
};

struct Record {
  std::string kernel;
  std::vector<int64_t> tables;
  /// By address / Page::bytes.
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
};

std::vector<Record> records;
/// Threads of the block whose accesses count, and how many.
std::bitset<1024> counting;
size_t numCounting = 0;
/// The page that was used last, which the next access is likely to need.
uint64_t lastNumber = 0;
Page *lastPage = nullptr;

} // namespace

static Page &pageOf(uint64_t address) {
  uint64_t number = address / Page::bytes;
  if (!lastPage || number != lastNumber) {
    std::unique_ptr<Page> &page = records.back().pages[number];
    if (!page) {
      page = std::make_unique<Page>();
    }
    lastNumber = number;
    lastPage = page.get();
  }
  return *lastPage;
}

static void count(const void *pointer, size_t size,
                  std::array<uint32_t, Page::bytes> Page::*kind) {
  // Nobody counts outside of launches, where there is no device thread.
  if (numCounting == 0 || !counting[machine::threadIndex()] ||
      shim::isOnChip(pointer)) {
    return;
  }
  auto address = reinterpret_cast<uint64_t>(pointer);
  for (size_t i = 0; i < size; ++i) {
    ++(pageOf(address + i).*kind)[(address + i) % Page::bytes];
  }
}

static void countRead(const void *pointer, size_t size) {
  count(pointer, size, &Page::reads);
}
static void countWrite(const void *pointer, size_t size) {
  count(pointer, size, &Page::writes);
}

/// Page numbers of a record in order.
static std::vector<uint64_t> pagesInOrder(const Record &record) {
  std::vector<uint64_t> numbers;
  numbers.reserve(record.pages.size());
  for (const auto &entry : record.pages) {
    numbers.push_back(entry.first);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void shim::recordLaunch(const char *kernel, std::vector<int64_t> tables) {
  setCopyObserver(countRead);
  records.push_back({kernel, std::move(tables), {}});
  lastPage = nullptr;
}

void shim::CountingScope::setCounting(bool counts) {
  counting[machine::threadIndex()] = counts;
  numCounting += counts ? 1 : -1;
}

//===----------------------------------------------------------------------===//
// What the compiler calls
//===----------------------------------------------------------------------===//

// Names are the compiler's, and those of C.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

#define KAON_COUNT_ACCESS(size)                                                \
  void __tsan_read##size(void *pointer) { countRead(pointer, size); }          \
  void __tsan_write##size(void *pointer) { countWrite(pointer, size); }        \
  void __tsan_unaligned_read##size(void *pointer) {                            \
    countRead(pointer, size);                                                  \
  }                                                                            \
  void __tsan_unaligned_write##size(void *pointer) {                           \
    countWrite(pointer, size);                                                 \
  }                                                                            \
  /* Only prefetches are volatile. */                                          \
  void __tsan_volatile_read##size(void *) {}

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void **) {}
void __tsan_vptr_update(void **, void *) {}

KAON_COUNT_ACCESS(1)
KAON_COUNT_ACCESS(2)
KAON_COUNT_ACCESS(4)
KAON_COUNT_ACCESS(8)
KAON_COUNT_ACCESS(16)

void __tsan_read_range(void *pointer, size_t size) { countRead(pointer, size); }
void __tsan_write_range(void *pointer, size_t size) {
  countWrite(pointer, size);
}

void *__tsan_memcpy(void *to, const void *from, size_t size) {
  countRead(from, size);
  countWrite(to, size);
  return std::memcpy(to, from, size);
}
void *__tsan_memmove(void *to, const void *from, size_t size) {
  countRead(from, size);
  countWrite(to, size);
  return std::memmove(to, from, size);
}
void *__tsan_memset(void *to, int value, size_t size) {
  countWrite(to, size);
  return std::memset(to, value, size);
}

uint32_t __tsan_atomic32_fetch_or(volatile uint32_t *pointer, uint32_t bits,
                                  int) {
  auto *address = const_cast<uint32_t *>(pointer);
  countRead(address, sizeof *pointer);
  countWrite(address, sizeof *pointer);
  return __atomic_fetch_or(pointer, bits, __ATOMIC_RELAXED);
}

//===----------------------------------------------------------------------===//
// What tests call
//===----------------------------------------------------------------------===//

KAON_SHIM_EXPORT void kaon_shim_traffic_clear() {
  records.clear();
  lastPage = nullptr;
}

KAON_SHIM_EXPORT int64_t kaon_shim_traffic_launches() {
  return static_cast<int64_t>(records.size());
}

KAON_SHIM_EXPORT const char *kaon_shim_traffic_kernel(int64_t launch) {
  return records.at(launch).kernel.c_str();
}

KAON_SHIM_EXPORT int64_t kaon_shim_traffic_tables(int64_t launch,
                                                  int64_t *words) {
  const std::vector<int64_t> &tables = records.at(launch).tables;
  if (words) {
    std::copy(tables.begin(), tables.end(), words);
  }
  return static_cast<int64_t>(tables.size());
}

KAON_SHIM_EXPORT int64_t kaon_shim_traffic_bytes(int64_t launch,
                                                 uint64_t *addresses,
                                                 uint32_t *reads,
                                                 uint32_t *writes) {
  const Record &record = records.at(launch);
  int64_t size = 0;
  for (uint64_t number : pagesInOrder(record)) {
    const Page &page = *record.pages.at(number);
    for (uint64_t i = 0; i < Page::bytes; ++i) {
      if (page.reads[i] == 0 && page.writes[i] == 0) {
        continue;
      }
      if (addresses) {
        addresses[size] = number * Page::bytes + i;
        reads[size] = page.reads[i];
        writes[size] = page.writes[i];
      }
      ++size;
    }
  }
  return size;
}

} // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
