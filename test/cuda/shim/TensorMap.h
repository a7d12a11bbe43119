//===-- TensorMap.h - maps of matrices for imitated copies ------*- C++ -*-===//
//
// What takes the place of a CUtensorMap, whose content is the driver's secret:
// the imitated driver and the tests encode it, the shim's copies read it. The
// rules are those that the driver's manual gives for cuTensorMapEncodeTiled.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_TENSORMAP_H
#define KAON_TEST_CUDA_SHIM_TENSORMAP_H

#include <cstdint>
#include <cstring>
#include <string>

namespace kaon::shim {

/// A row-major matrix and the boxes that are copied out of it.
struct TensorMapContent {
  static constexpr uint64_t mark = 0x70616d2d6e6f616b;

  uint64_t marked = mark;
  uint64_t address = 0;
  uint64_t columns = 0, rows = 0;
  uint64_t pitchBytes = 0;
  uint32_t boxColumns = 0, boxRows = 0;
  uint32_t elementBytes = 0;
  /// log2 of the 16-byte units of a row that are swizzled: 0 for none, 3 for
  /// 128 bytes.
  uint32_t swizzle = 0;
};

constexpr size_t tensorMapBytes = 128, tensorMapAlignment = 64;
static_assert(sizeof(TensorMapContent) <= tensorMapBytes);

/// What the driver would refuse about a map; empty if nothing.
inline std::string checkTensorMap(const void *map,
                                  const TensorMapContent &content) {
  auto expects = [](const char *wish, uint64_t finding) {
    return std::string("expects ") + wish + ", but got " +
           std::to_string(finding);
  };
  constexpr uint64_t mostElements = uint64_t(1) << 32,
                     mostBytes = uint64_t(1) << 40, mostBox = 256;
  uint64_t boxBytes = uint64_t(content.boxColumns) * content.elementBytes;
  if (auto at = reinterpret_cast<uintptr_t>(map); at % tensorMapAlignment) {
    return expects("a map aligned to 64 bytes", at);
  }
  if (content.address == 0 || content.address % 16) {
    return expects("an address aligned to 16 bytes", content.address);
  }
  for (uint64_t extent : {content.columns, content.rows}) {
    if (extent == 0 || extent > mostElements) {
      return expects("1 to 2^32 rows and columns", extent);
    }
  }
  if (content.pitchBytes % 16 || content.pitchBytes >= mostBytes) {
    return expects("a pitch that is a multiple of 16 bytes below 2^40",
                   content.pitchBytes);
  }
  if (content.pitchBytes < content.columns * content.elementBytes) {
    return expects("a pitch of a whole row", content.pitchBytes);
  }
  for (uint64_t extent : {content.boxColumns, content.boxRows}) {
    if (extent == 0 || extent > mostBox) {
      return expects("a box of 1 to 256 rows and columns", extent);
    }
  }
  if (boxBytes % 16) {
    return expects("rows of a box that are a multiple of 16 bytes", boxBytes);
  }
  if (content.swizzle > 0 && boxBytes > uint64_t(16) << content.swizzle) {
    return expects("rows of a box that are no longer than the swizzle",
                   boxBytes);
  }
  return {};
}

/// Writes a map that checkTensorMap finds nothing about.
inline void writeTensorMap(void *map, const TensorMapContent &content) {
  std::memset(map, 0, tensorMapBytes);
  std::memcpy(map, &content, sizeof content);
}

} // namespace kaon::shim

#endif // KAON_TEST_CUDA_SHIM_TENSORMAP_H
