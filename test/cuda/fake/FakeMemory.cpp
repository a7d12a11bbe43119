//===-- FakeMemory.cpp - device and page-locked memory --------------------===//

#include "test/cuda/fake/Fake.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

using namespace kaon::fake;

namespace {

constexpr size_t alignment = 256;
constexpr unsigned char restByte = 0xa5;
constexpr unsigned char notANumberByte = 0xff;

struct Piece {
  MemoryKind kind;
  size_t bytes;
  size_t capacity; // up to the guard
  bool isFreed = false;
  int pins = 0; // copies under way
};

struct Pieces {
  std::mutex mutex;
  std::map<const char *, Piece> pieces; // by their first byte
  int64_t allocated = 0;
};

Pieces &all() {
  static auto *pieces = new Pieces;
  return *pieces;
}

std::string_view nameOf(MemoryKind kind) {
  return kind == MemoryKind::Device ? "device memory" : "page-locked memory";
}

size_t roundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// The piece at or before an address.
std::map<const char *, Piece>::iterator pieceBefore(const void *address) {
  auto after = all().pieces.upper_bound(static_cast<const char *>(address));
  return after == all().pieces.begin() ? all().pieces.end() : std::prev(after);
}

bool restIsWhole(const char *begin, const Piece &piece) {
  for (size_t i = piece.bytes; i < piece.capacity; ++i) {
    if (static_cast<unsigned char>(begin[i]) != restByte) {
      return false;
    }
  }
  return true;
}

} // namespace

char *Memory::allocate(MemoryKind kind, size_t bytes) {
  auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t capacity = roundUp(std::max<size_t>(bytes, 1), alignment);
  size_t inner = roundUp(capacity, page);
  void *mapping = mmap(nullptr, inner + 2 * page, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return nullptr;
  }
  char *first = static_cast<char *>(mapping) + page;
  if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, inner + 2 * page);
    return nullptr;
  }
  char *begin = first + inner - capacity;
  std::memset(begin, notANumberByte, bytes);
  std::memset(begin + bytes, restByte, capacity - bytes);
  std::lock_guard<std::mutex> lock(all().mutex);
  all().pieces[begin] = {kind, bytes, capacity};
  all().allocated += static_cast<int64_t>(bytes);
  return begin;
}

Code Memory::release(MemoryKind kind, const void *begin) {
  std::lock_guard<std::mutex> lock(all().mutex);
  auto found = all().pieces.find(static_cast<const char *>(begin));
  if (found == all().pieces.end() || found->second.kind != kind) {
    return fault(Code::InvalidValue,
                 concat("frees ", begin, ", which is no ", nameOf(kind)));
  }
  Piece &piece = found->second;
  if (piece.isFreed) {
    return fault(Code::InvalidValue,
                 concat("frees ", nameOf(kind), " ", begin, " twice"));
  }
  if (piece.pins > 0) {
    return fault(Code::InvalidValue, concat("frees ", nameOf(kind), " ", begin,
                                            " while a copy of it is pending"));
  }
  if (!restIsWhole(found->first, piece)) {
    fault(Code::InvalidValue,
          concat("something was written behind the ", piece.bytes, " bytes of ",
                 nameOf(kind), " at ", begin));
  }
  piece.isFreed = true;
  all().allocated -= static_cast<int64_t>(piece.bytes);
  // The addresses stay taken, so that whoever uses them is noticed.
  auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t inner = roundUp(piece.capacity, page);
  char *first = const_cast<char *>(found->first) + piece.capacity - inner;
  madvise(first, inner, MADV_DONTNEED);
  mprotect(first, inner, PROT_NONE);
  return Code::Success;
}

bool Memory::contains(MemoryKind kind, const void *begin, size_t bytes,
                      std::string *why) {
  std::lock_guard<std::mutex> lock(all().mutex);
  auto found = pieceBefore(begin);
  const char *first = static_cast<const char *>(begin);
  if (found == all().pieces.end() ||
      first >= found->first + found->second.capacity) {
    *why = concat(begin, ", which is no ", nameOf(kind));
    return false;
  }
  const Piece &piece = found->second;
  if (piece.kind != kind) {
    *why = concat(begin, ", which is ", nameOf(piece.kind), " and not ",
                  nameOf(kind));
    return false;
  }
  if (piece.isFreed) {
    *why = concat(begin, ", which is freed ", nameOf(kind));
    return false;
  }
  auto offset = static_cast<size_t>(first - found->first);
  if (offset > piece.bytes || bytes > piece.bytes - offset) {
    *why = concat(bytes, " bytes at offset ", offset, " of ", piece.bytes,
                  " bytes of ", nameOf(kind));
    return false;
  }
  return true;
}

void Memory::pin(const void *begin, int change) {
  std::lock_guard<std::mutex> lock(all().mutex);
  auto found = pieceBefore(begin);
  if (found != all().pieces.end()) {
    found->second.pins += change;
  }
}

int64_t Memory::allocatedBytes() {
  std::lock_guard<std::mutex> lock(all().mutex);
  return all().allocated;
}

void Memory::checkRests() {
  std::lock_guard<std::mutex> lock(all().mutex);
  for (auto &[begin, piece] : all().pieces) {
    if (piece.isFreed || restIsWhole(begin, piece)) {
      continue;
    }
    fault(Code::InvalidValue,
          concat("something was written behind the ", piece.bytes, " bytes of ",
                 nameOf(piece.kind), " at ", static_cast<const void *>(begin)));
    std::memset(const_cast<char *>(begin) + piece.bytes, restByte,
                piece.capacity - piece.bytes);
  }
}
