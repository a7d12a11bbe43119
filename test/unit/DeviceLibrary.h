//===-- DeviceLibrary.h - numbers of the CUDA device library ----*- C++ -*-===//
//
// What the launches of the compiler must agree on with the library, which is
// compiled apart, since it shares no header with the compiler.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_UNIT_DEVICELIBRARY_H
#define KAON_TEST_UNIT_DEVICELIBRARY_H

#include <cstdint>

namespace kaon::test {

/// Shared memory of a launch over rows.
int64_t deviceRowSharedBytes(int64_t columns, int64_t threads,
                             int64_t registerGroups, int64_t kept,
                             int64_t reductions);

/// Shared memory of a launch over columns.
int64_t deviceColumnSharedBytes(int64_t reductions);

/// Tiles of a product with an m x n result.
int64_t deviceProductTiles(int64_t m, int64_t n, bool symmetric);

extern const int64_t deviceProductSharedBytes;
extern const int64_t deviceProductThreads;
extern const int64_t deviceWarpgroupSharedBytes;
extern const int64_t deviceWarpgroupThreads;
extern const int64_t deviceElementwiseThreads;
extern const int64_t deviceElementwiseGrain;
extern const int64_t deviceColumnThreads;
extern const int64_t deviceColumnsOfBlock;
extern const int64_t deviceTransposeTile;
extern const int64_t deviceTransposeColumns;
extern const int64_t deviceTransposeSharedBytesOfHalf;
extern const int64_t deviceTransposeSharedBytesOfFloat;

} // namespace kaon::test

#endif // KAON_TEST_UNIT_DEVICELIBRARY_H
