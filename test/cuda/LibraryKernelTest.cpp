//===-- LibraryKernelTest.cpp - transposes and finite checks --------------===//
//
// The kernels are those of kernels/LibraryKernels.cuh, which NVRTC compiles as
// well.
//
//===----------------------------------------------------------------------===//

#include "LibraryKernels.cuh"
#include "test/cuda/TestMatrices.h"

#include <deque>
#include <limits>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

//===----------------------------------------------------------------------===//
// Transposes
//===----------------------------------------------------------------------===//

namespace {

struct TransposeCase {
  size_t rows, columns;
  /// Elements from the end of a row to the next, of source and result.
  size_t sourceGap = 0, resultGap = 0;
};

/// Around the sizes of tiles and blocks, with several along both sides.
const std::vector<TransposeCase> transposeCases = {
    {1, 1},   {32, 32},       {33, 31, 0, 3}, {7, 130, 5, 1},
    {100, 3}, {65, 97, 1, 7}, {40, 128},      {33, 300, 2, 0}};

template <typename T> struct TransposedMatrix {
  TransposedMatrix(const TransposeCase &shape, unsigned seed)
      : shape(shape), source(shape.rows * (shape.columns + shape.sourceGap)),
        result(shape.columns * (shape.rows + shape.resultGap)),
        expected(result.values()) {
    Normal normal(seed);
    std::generate_n(source.data(), source.size(),
                    [&] { return narrow<T>(normal()); });
    for (size_t row = 0; row < shape.rows; ++row) {
      for (size_t column = 0; column < shape.columns; ++column) {
        expected[column * (shape.rows + shape.resultGap) + row] =
            source[row * (shape.columns + shape.sourceGap) + column];
      }
    }
  }

  TransposeCase shape;
  DeviceArray<T> source, result;
  std::vector<T> expected;
};

template <typename T> void expectTransposed(MatrixTables<2>::Kernel kernel) {
  for (const shim::Schedule &schedule : shim::schedules) {
    std::deque<TransposedMatrix<T>> matrices;
    MatrixTables<2> tables;
    for (const TransposeCase &shape : transposeCases) {
      matrices.emplace_back(shape, 1 + matrices.size());
      const auto &matrix = matrices.back();
      tables.add(shape.rows, shape.columns,
                 {{matrix.source, shape.columns + shape.sourceGap},
                  {matrix.result, shape.rows + shape.resultGap}});
    }
    tables.run(kernel, tables.transposeBlocks(transposeTile, transposeColumns),
               transposeThreads, transposeSharedBytes<T>, schedule);
    for (const auto &matrix : matrices) {
      EXPECT_TRUE(sameBits(matrix.result.values(), matrix.expected))
          << matrix.shape.rows << " rows, " << schedule.str();
    }
  }
}

} // namespace

TEST(TransposeTest, EveryStorageAndShape) {
  expectTransposed<float>(transpose_f32);
  expectTransposed<double>(transpose_f64);
  expectTransposed<bf16>(transpose_bf16);
  expectTransposed<f16>(transpose_f16);
}

//===----------------------------------------------------------------------===//
// Finite checks
//===----------------------------------------------------------------------===//

namespace {

template <typename T>
using CheckKernel = void (*)(const Matrix<1> *, const Block *, u32 *);

/// Only the matrices with an element that is not finite are flagged, wherever
/// in the matrix it is.
template <typename T> void expectFound(CheckKernel<T> kernel) {
  constexpr size_t size = 9000;
  constexpr float infinity = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t offset : {0, 1}) {
    std::deque<DeviceArray<T>> matrices;
    std::vector<u32> expected;
    auto add = [&](size_t at, float value) {
      Normal normal(static_cast<unsigned>(at));
      matrices.push_back(DeviceArray<T>(size, offset).fill([&] {
        return narrow<T>(normal());
      }));
      matrices.back()[at] = narrow<T>(value);
      expected.push_back(std::isfinite(value) ? 0 : 1);
    };
    // The largest number is one whose exponent lies next to infinity's.
    add(0, 60000.0f);
    for (size_t at : {size_t(0), size_t(8191), size_t(8192), size - 1}) {
      add(at, infinity);
      add(at, -infinity);
      add(at, nan);
      add(at, 0);
    }
    MatrixTables<1> tables;
    for (const auto &matrix : matrices) {
      tables.add(90, 100, {{matrix, 100}});
    }
    auto flags = deviceArray(std::vector<u32>(matrices.size(), 0));
    tables.run(kernel, tables.chunkBlocks(), flags.data(), elementwiseThreads,
               0, {});
    EXPECT_EQ(flags.values(), expected);
  }
}

} // namespace

TEST(FiniteCheckTest, DoesNotLookBetweenRows) {
  constexpr size_t rows = 100, columns = 101, stride = 103;
  std::vector<u32> found;
  // Between rows, the last of a row, the first of one.
  for (size_t at : {50 * stride + columns, 50 * stride + columns - 1,
                    60 * stride, rows * stride - 1}) {
    auto matrix = DeviceArray<float>(rows * stride).fill([] { return 1; });
    matrix[at] = std::numeric_limits<float>::infinity();
    MatrixTables<1> tables;
    tables.add(rows, columns, {{matrix, stride}});
    u32 flag = 0;
    tables.run(check_finite_f32, tables.chunkBlocks(), &flag,
               elementwiseThreads, 0, {});
    found.push_back(flag);
  }
  EXPECT_EQ(found, (std::vector<u32>{0, 1, 1, 0}));
}

TEST(FiniteCheckTest, FlagsMatricesWithInfinitiesAndNaNs) {
  expectFound<float>(check_finite_f32);
  expectFound<double>(check_finite_f64);
  expectFound<bf16>(check_finite_bf16);
  expectFound<f16>(check_finite_f16);
}
