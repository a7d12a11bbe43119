//===-- LibraryTest.cpp - conversions, reductions, scheduling -------------===//

#include "Layout.cuh"
#include "Passes.cuh"
#include "Rows.cuh"
#include "test/cuda/TestMemory.h"
#include "test/cuda/TestSums.h"

#include <limits>
#include <set>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::shim;
using kaon::test::DeviceArray;
using kaon::test::Normal;

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

TEST(ConvertTest, F16IsExactForEveryValue) {
  for (u32 bits = 0; bits <= 0xffff; ++bits) {
    _Float16 expected;
    u16 half = static_cast<u16>(bits);
    std::memcpy(&expected, &half, sizeof half);
    float wide = toFloat(f16{half});
    if (std::isnan(static_cast<float>(expected))) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_EQ(toF16Rn(wide).bits, 0x7fff);
    } else {
      EXPECT_EQ(bitsOf(wide), bitsOf(static_cast<float>(expected)));
      EXPECT_EQ(toF16Rn(wide).bits, half);
    }
  }
}

TEST(ConvertTest, F16RoundsToNearestEven) {
  // Every pattern of the kept bits with the dropped ones at, just below and
  // just above a tie, for all exponents around the range of f16.
  for (u32 exponent = 127 - 30; exponent <= 127 + 18; ++exponent) {
    for (u32 kept = 0; kept < 1024; ++kept) {
      for (u32 rest : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
        for (u32 sign : {0u, 0x80000000u}) {
          float x = floatOf(sign | exponent << 23 | kept << 13 | rest);
          _Float16 expected = static_cast<_Float16>(x);
          u16 bits;
          std::memcpy(&bits, &expected, sizeof bits);
          ASSERT_EQ(toF16Rn(x).bits, bits) << x;
        }
      }
    }
  }
  EXPECT_EQ(toF16Rn(65519.996f).bits, 0x7bff);
  EXPECT_EQ(toF16Rn(65520.0f).bits, 0x7c00);
  EXPECT_EQ(toF16Rn(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(toF16Rn(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(ConvertTest, Bf16RoundsToNearestEven) {
  for (u32 high = 0; high <= 0xffff; ++high) {
    if ((high & 0x7fff) > 0x7f80) {
      EXPECT_EQ(toBf16Rn(floatOf(high << 16)).bits, 0x7fff);
      continue;
    }
    // The value itself, and what lies between it and the next one; infinity
    // has no next one.
    EXPECT_EQ(bitsOf(toFloat(bf16{static_cast<u16>(high)})), high << 16);
    EXPECT_EQ(toBf16Rn(floatOf(high << 16)).bits, high);
    if ((high & 0x7fff) == 0x7f80) {
      continue;
    }
    EXPECT_EQ(toBf16Rn(floatOf(high << 16 | 0x7fff)).bits, high);
    EXPECT_EQ(toBf16Rn(floatOf(high << 16 | 0x8000)).bits, high + (high & 1));
    EXPECT_EQ(toBf16Rn(floatOf(high << 16 | 0x8001)).bits, high + 1);
  }
}

//===----------------------------------------------------------------------===//
// Vectors
//===----------------------------------------------------------------------===//

namespace {

/// Groups of every length at every alignment come out as they went in.
template <typename T> void expectGroupsMove() {
  launch({1, 32}, {}, [] {
    if (threadIndex() != 0) {
      return;
    }
    for (size_t offset = 0; offset < 9; ++offset) {
      for (int count = 0; count <= groupSize; ++count) {
        auto source = DeviceArray<T>(count, offset);
        auto target = DeviceArray<T>(count, offset);
        for (int i = 0; i < count; ++i) {
          source[i] = narrow<T>(static_cast<float>(i + 1));
        }
        ValueOf<T> values[groupSize];
        loadGroup(source.data(), count, values);
        storeGroup(target.data(), count, values);
        for (int i = 0; i < groupSize; ++i) {
          EXPECT_EQ(values[i], i < count ? i + 1 : 0);
        }
        for (int i = 0; i < count; ++i) {
          EXPECT_EQ(widen(target[i]), i + 1);
        }
      }
    }
  });
}

} // namespace

TEST(VectorTest, LoadsAndStoresAnyPartAnywhere) {
  expectGroupsMove<float>();
  expectGroupsMove<double>();
  expectGroupsMove<bf16>();
  expectGroupsMove<f16>();
}

TEST(VectorTest, CountsElementsToAlignment) {
  DeviceArray<bf16> array(32);
  for (int i = 0; i < 17; ++i) {
    EXPECT_EQ(elementsToAlignment(array.data() + i), (16 - i) % 8 & 7);
  }
  DeviceArray<float> wide(32);
  EXPECT_EQ(elementsToAlignment(wide.data() + 1), 3);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

namespace {

/// The sum, the largest and the smallest of one value per thread, at once.
template <int threads> void expectBlockReductions() {
  using List = Reductions<Sum, Max<float>, Min<double>>;
  Normal normal(threads);
  std::vector<double> values(threads);
  std::generate(values.begin(), values.end(), normal);
  double sum = kaon::test::sumThreads(values);
  auto [smallest, largest] = std::minmax_element(values.begin(), values.end());

  for (const Schedule &schedule : schedules) {
    DeviceArray<double> sums(threads), minima(threads);
    DeviceArray<float> maxima(threads);
    launch({1, threads, 3 * reduceBlockBytes}, schedule, [&] {
      u32 thread = threadIndex();
      List::Values results;
      get<0>(results) = values[thread];
      get<1>(results) = static_cast<float>(values[thread]);
      get<2>(results) = values[thread];
      reduceBlock<List, threads>(results, sharedMemory());
      sums[thread] = get<0>(results);
      maxima[thread] = get<1>(results);
      minima[thread] = get<2>(results);
    });
    EXPECT_EQ(sums.values(), std::vector<double>(threads, sum));
    EXPECT_EQ(maxima.values(),
              std::vector<float>(threads, static_cast<float>(*largest)));
    EXPECT_EQ(minima.values(), std::vector<double>(threads, *smallest));
  }
}

template <typename T> void expectExtremaOfSpecialNumbers() {
  const T nan = std::numeric_limits<T>::quiet_NaN(),
          infinity = std::numeric_limits<T>::infinity();
  for (T other : {T(1), infinity, -infinity, nan}) {
    EXPECT_TRUE(std::isnan(maximum(nan, other)));
    EXPECT_TRUE(std::isnan(maximum(other, nan)));
    EXPECT_TRUE(std::isnan(minimum(nan, other)));
    EXPECT_TRUE(std::isnan(minimum(other, nan)));
  }
  EXPECT_EQ(maximum(T(1), infinity), infinity);
  EXPECT_EQ(minimum(T(1), -infinity), -infinity);
  // Both orders, so that all lanes of a reduction get the same bits.
  for (auto [a, b] : {std::pair(T(0), -T(0)), std::pair(-T(0), T(0))}) {
    EXPECT_FALSE(std::signbit(maximum(a, b)));
    EXPECT_TRUE(std::signbit(minimum(a, b)));
  }
}

} // namespace

TEST(ReduceTest, BlocksReduceInTheirFixedOrder) {
  expectBlockReductions<32>();
  expectBlockReductions<96>();
  expectBlockReductions<256>();
  expectBlockReductions<1024>();
}

TEST(ReduceTest, ExtremaKeepNaNAndTellZerosApart) {
  expectExtremaOfSpecialNumbers<float>();
  expectExtremaOfSpecialNumbers<double>();
  float nan = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> largest(32), smallest(32);
  launch({1, 32}, {}, [&] {
    u32 thread = threadIndex();
    float value = thread == 7 ? nan : float(thread);
    largest[thread] = reduceWarp<Max<float>>(value);
    smallest[thread] = reduceWarp<Min<float>>(value);
  });
  for (int lane = 0; lane < warpSize; ++lane) {
    EXPECT_TRUE(std::isnan(largest[lane]) && std::isnan(smallest[lane]));
  }
}

//===----------------------------------------------------------------------===//
// Scheduling of tiles
//===----------------------------------------------------------------------===//

TEST(TileSchedulerTest, TriangularTilesAreExactAtTheirBoundaries) {
  for (u32 row : {0u, 1u, 2u, 3u, 100u, 1000u, 4095u, 4096u, 20000u, 65000u}) {
    Tile first = triangularTile(triangle(row));
    Tile last = triangularTile(triangle(row + 1) - 1);
    EXPECT_EQ(first.row, static_cast<int>(row));
    EXPECT_EQ(first.column, 0);
    EXPECT_EQ(last.row, static_cast<int>(row));
    EXPECT_EQ(last.column, static_cast<int>(row));
  }
}

TEST(TileSchedulerTest, DenseTilesCoverTheGridOnce) {
  for (u32 rows : {1u, 7u, 8u, 9u, 20u}) {
    for (u32 columns : {1u, 3u, 17u}) {
      std::set<std::pair<int, int>> seen;
      for (u32 index = 0; index < rows * columns; ++index) {
        Tile tile = denseTile(index, rows, columns);
        EXPECT_TRUE(tile.row >= 0 && tile.row < static_cast<int>(rows));
        EXPECT_TRUE(tile.column >= 0 &&
                    tile.column < static_cast<int>(columns));
        EXPECT_TRUE(seen.emplace(tile.row, tile.column).second);
      }
    }
  }
}

TEST(TileSchedulerTest, FindsProductsByDivisionAndBySearch) {
  std::vector<Product> products(5);
  u32 tiles = 0, sizes[] = {3, 1, 7, 2, 4};
  for (u32 i = 0; i < 5; ++i) {
    products[i].firstTile = tiles;
    tiles += sizes[i];
  }
  u32 tile = 0;
  for (u32 i = 0; i < 5; ++i) {
    for (u32 j = 0; j < sizes[i]; ++j) {
      EXPECT_EQ(findProduct({products.data(), 5, 0}, tile++), i);
    }
  }
  EXPECT_EQ(findProduct({products.data(), 5, 6}, 17), 2u);
}
