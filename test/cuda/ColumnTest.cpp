//===-- ColumnTest.cpp - column kernels, bit by bit -----------------------===//
//
// The kernels are those of kernels/ColumnKernels.cuh, which NVRTC compiles as
// well. The references are plain loops.
//
//===----------------------------------------------------------------------===//

#include "ColumnKernels.cuh"
#include "test/cuda/TestMatrices.h"
#include "test/cuda/TestSums.h"

#include <deque>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

struct MatrixCase {
  size_t rows, columns;
  /// Elements from the end of a row to the next.
  size_t gap = 0;

  size_t stride() const { return columns + gap; }
};

/// Around the rows in flight of all lanes and the columns of a block.
const std::vector<MatrixCase> cases = {
    {1, 1}, {4, 3, 2}, {9, 32}, {31, 33}, {32, 64}, {75, 5}, {3, 100, 1}};

/// A matrix of the normalisation and what must become of it.
template <typename T> struct NormalizedMatrix {
  NormalizedMatrix(const MatrixCase &shape, unsigned seed)
      : shape(shape), x(shape.rows * shape.stride()), rowNorms(2 * shape.rows),
        averages(shape.columns), largest(shape.columns) {
    Normal normal(seed);
    std::generate_n(x.data(), x.size(), [&] { return narrow<T>(normal()); });
    for (size_t row = 0; row < shape.rows; ++row) {
      rowNorms[2 * row] = 1 + std::abs(normal());
    }
    std::generate_n(averages.data(), averages.size(),
                    [&] { return std::abs(normal()); });
    expectedX = x.values();
    for (size_t column = 0; column < shape.columns; ++column) {
      computeColumn(column);
    }
  }

  void computeColumn(size_t column) {
    std::vector<float> quotients;
    for (size_t row = 0; row < shape.rows; ++row) {
      quotients.push_back(toFloat(x[row * shape.stride() + column]) /
                          rowNorms[2 * row]);
    }
    double sum = sumOfColumn(shape.rows, [&](size_t row) {
      double wide = quotients[row];
      return wide * wide;
    });
    float kept = 0.9f * averages[column], added = 0.1f * float(sum);
    float average = kept + added;
    expectedAverages.push_back(average);
    expectedLargest.push_back(
        *std::max_element(quotients.begin(), quotients.end()));
    for (size_t row = 0; row < shape.rows; ++row) {
      expectedX[row * shape.stride() + column] =
          narrow<T>(quotients[row] / std::sqrt(average));
    }
  }

  void addTo(MatrixTables<6> &tables) const {
    size_t stride = shape.stride();
    tables.add(shape.rows, shape.columns,
               {{x, stride},
                {rowNorms, 2},
                {averages, 0},
                {x, stride},
                {averages, 0},
                {largest, 0}},
               {0.9, 0.1});
  }

  MatrixCase shape;
  DeviceArray<T> x;
  DeviceArray<float> rowNorms, averages, largest;
  std::vector<T> expectedX;
  std::vector<float> expectedAverages, expectedLargest;
};

template <typename T> void expectNormalized(MatrixTables<6>::Kernel kernel) {
  for (size_t columns : {columnsOfBlock, 20}) {
    for (const shim::Schedule &schedule : shim::schedules) {
      std::deque<NormalizedMatrix<T>> matrices;
      MatrixTables<6> tables;
      for (const MatrixCase &shape : cases) {
        matrices.emplace_back(shape, 1 + matrices.size());
        matrices.back().addTo(tables);
      }
      tables.run(kernel, tables.columnBlocks(columns), columnThreads,
                 columnSharedBytes(2), schedule);
      for (const auto &matrix : matrices) {
        std::string what = std::to_string(matrix.shape.columns) + " columns, " +
                           schedule.str();
        EXPECT_TRUE(sameBits(matrix.x.values(), matrix.expectedX)) << what;
        EXPECT_TRUE(sameBits(matrix.averages.values(), matrix.expectedAverages))
            << what;
        EXPECT_TRUE(sameBits(matrix.largest.values(), matrix.expectedLargest))
            << what;
      }
    }
  }
}

} // namespace

TEST(ColumnTest, NormalizesInPlace) {
  expectNormalized<float>(normalize_columns_f32);
  expectNormalized<bf16>(normalize_columns_bf16);
}

TEST(ColumnTest, NoReductions) {
  constexpr size_t rows = 6, columns = 290;
  Normal normal(8);
  auto x = DeviceArray<float>(rows * columns).fill(normal);
  auto offsets = DeviceArray<float>(columns).fill(normal);
  DeviceArray<float> result(rows * columns);
  MatrixTables<3> tables;
  tables.add(rows, columns, {{x, columns}, {offsets, 0}, {result, columns}});
  tables.run(add_column_offsets, tables.columnBlocks(columnsOfBlock),
             columnThreads, columnSharedBytes(0), {});
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_EQ(result[i], x[i] + offsets[i % columns]);
  }
}
