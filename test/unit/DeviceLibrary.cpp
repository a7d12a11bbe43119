//===-- DeviceLibrary.cpp - numbers of the CUDA device library ------------===//

#include "DeviceLibrary.h"

#include "Columns.cuh"
#include "Elementwise.cuh"
#include "Gemm.cuh"
#include "Rows.cuh"
#include "Transpose.cuh"
#include "WarpgroupProduct.cuh"

using namespace kaon;
using namespace kaon::device;

int64_t test::deviceRowSharedBytes(int64_t columns, int64_t threads,
                                   int64_t registerGroups, int64_t kept,
                                   int64_t reductions) {
  return rowSharedBytes(static_cast<int>(columns), static_cast<int>(threads),
                        static_cast<int>(registerGroups),
                        static_cast<int>(kept), static_cast<int>(reductions));
}

int64_t test::deviceColumnSharedBytes(int64_t reductions) {
  return columnSharedBytes(static_cast<int>(reductions));
}

int64_t test::deviceProductTiles(int64_t m, int64_t n, bool symmetric) {
  return productTiles(static_cast<i32>(m), static_cast<i32>(n), symmetric);
}

using Loop = TileProduct<bf16, Contiguous::depth, Contiguous::extent>;
using Store = StoreTile<bf16, false, Addend::none>;

const int64_t test::deviceProductSharedBytes = gemmSharedBytes<Loop, Store>;
const int64_t test::deviceProductThreads = productThreads;

using Warpgroups =
    WarpgroupProduct<bf16, Contiguous::depth, Contiguous::extent>;

const int64_t test::deviceWarpgroupSharedBytes =
    gemmSharedBytes<Warpgroups, Store>;
const int64_t test::deviceWarpgroupThreads = Warpgroups::threads;
const int64_t test::deviceElementwiseThreads = elementwiseThreads;
const int64_t test::deviceElementwiseGrain = chunkSize;
const int64_t test::deviceColumnThreads = columnThreads;
const int64_t test::deviceColumnsOfBlock = columnsOfBlock;
const int64_t test::deviceTransposeTile = transposeTile;
const int64_t test::deviceTransposeColumns = transposeColumns;
const int64_t test::deviceTransposeSharedBytesOfHalf =
    transposeSharedBytes<bf16>;
const int64_t test::deviceTransposeSharedBytesOfFloat =
    transposeSharedBytes<float>;
