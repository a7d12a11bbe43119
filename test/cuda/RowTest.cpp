//===-- RowTest.cpp - row kernels, bit by bit -----------------------------===//
//
// The kernels are those of kernels/RowKernels.cuh, which NVRTC compiles as
// well. The references sum a row in the order that Rows.cuh promises.
//
//===----------------------------------------------------------------------===//

#include "RowKernels.cuh"
#include "test/cuda/TestMatrices.h"
#include "test/cuda/TestSums.h"

#include <deque>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

struct MatrixCase {
  size_t rows, columns;
  /// Elements from the end of a row to the next, and before the first.
  size_t gap = 0, offset = 0;

  size_t stride() const { return columns + gap; }
  std::string str() const { return std::to_string(columns) + " columns"; }
};

/// Rows of less than a group, ragged, aligned and not.
const std::vector<MatrixCase> smallCases = {
    {3, 1},      {3, 7, 1},       {2, 8},   {3, 33, 0, 1},
    {2, 264, 8}, {2, 1000, 3, 5}, {3, 1024}};

const std::vector<shim::Schedule> allSchedules(std::begin(shim::schedules),
                                               std::end(shim::schedules));

//===----------------------------------------------------------------------===//
// The row step
//===----------------------------------------------------------------------===//

const std::vector<double> stepScalars = {0.95, 0.05, 0.998, 0.02};

/// A matrix of the row step and what one step must make of it. Row 1 is zero.
template <typename Parameter, typename Gradient> struct StepMatrix {
  StepMatrix(const MatrixCase &shape, size_t threads, unsigned seed)
      : shape(shape), parameter(shape.rows * shape.stride(), shape.offset),
        gradient(parameter.size(), shape.offset),
        state(parameter.size(), shape.offset) {
    Normal normal(seed);
    for (size_t i = 0; i < parameter.size(); ++i) {
      bool zero = i / shape.stride() == 1;
      parameter[i] = narrow<Parameter>(normal());
      gradient[i] = narrow<Gradient>(zero ? 0 : normal());
      state[i] = zero ? 0 : normal();
    }
    expectedParameter = parameter.values();
    expectedState = state.values();
    for (size_t row = 0; row < shape.rows; ++row) {
      stepRow(row * shape.stride(), threads);
    }
  }

  void stepRow(size_t start, size_t threads) {
    float s[4];
    std::copy(stepScalars.begin(), stepScalars.end(), s);
    for (size_t at = start; at < start + shape.columns; ++at) {
      float kept = s[0] * state[at], added = s[1] * toFloat(gradient[at]);
      expectedState[at] = kept + added;
    }
    double sum = sumOfRow(shape.columns, threads, [&](size_t column) {
      double wide = expectedState[start + column];
      return wide * wide;
    });
    double reciprocal = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (size_t at = start; at < start + shape.columns; ++at) {
      float direction = static_cast<float>(expectedState[at] * reciprocal);
      float kept = s[2] * toFloat(parameter[at]), change = s[3] * direction;
      expectedParameter[at] = narrow<Parameter>(kept - change);
    }
  }

  void addTo(MatrixTables<3> &tables) const {
    size_t stride = shape.stride();
    tables.add(shape.rows, shape.columns,
               {{gradient, stride}, {state, stride}, {parameter, stride}},
               stepScalars);
  }

  MatrixCase shape;
  DeviceArray<Parameter> parameter;
  DeviceArray<Gradient> gradient;
  DeviceArray<float> state;
  std::vector<Parameter> expectedParameter;
  std::vector<float> expectedState;
};

/// A row step and how it is launched.
struct StepKernel {
  MatrixTables<3>::Kernel kernel;
  int threads, registerGroups, kept;

  size_t sharedBytes(size_t columns) const {
    return rowSharedBytes(static_cast<int>(columns), threads, registerGroups,
                          kept, 1);
  }
};

const StepKernel step32 = {row_step_f32_bf16_t32, 32, 4, 1},
                 step128 = {row_step_f32_bf16_t128, 128, 4, 1},
                 step256 = {row_step_f32_bf16_t256, 256, 4, 1},
                 halfStep256 = {row_step_bf16_bf16_t256, 256, 4, 1},
                 step512 = {row_step_f32_f32_t512, 512, 4, 1},
                 streamingStep512 = {row_step_f32_f32_t512_streaming, 512, 1,
                                     0};

/// Steps all matrices in one launch, `rowsOfBlock` rows to a block.
template <typename Parameter, typename Gradient>
void expectStep(const StepKernel &step, const std::vector<MatrixCase> &cases,
                size_t rowsOfBlock,
                const std::vector<shim::Schedule> &schedules) {
  for (const shim::Schedule &schedule : schedules) {
    std::deque<StepMatrix<Parameter, Gradient>> matrices;
    MatrixTables<3> tables;
    size_t widest = 0;
    for (const MatrixCase &shape : cases) {
      matrices.emplace_back(shape, step.threads, 1 + matrices.size());
      matrices.back().addTo(tables);
      widest = std::max(widest, shape.columns);
    }
    tables.run(step.kernel, tables.rowBlocks(rowsOfBlock), step.threads,
               step.sharedBytes(widest), schedule);
    for (const auto &matrix : matrices) {
      std::string what = matrix.shape.str() + ", " + schedule.str();
      EXPECT_TRUE(sameBits(matrix.parameter.values(), matrix.expectedParameter))
          << what;
      EXPECT_TRUE(sameBits(matrix.state.values(), matrix.expectedState))
          << what;
    }
  }
}

} // namespace

TEST(RowTest, ShortRows) {
  expectStep<float, bf16>(step32, smallCases, 2, allSchedules);
}

TEST(RowTest, RowsInRegisters) {
  expectStep<float, bf16>(step128, smallCases, 1, allSchedules);
  expectStep<float, bf16>(step256, smallCases, 3, allSchedules);
  expectStep<bf16, bf16>(halfStep256, {{2, 8192}}, 1, {{}});
}

TEST(RowTest, RowsPartlyInSharedMemory) {
  expectStep<float, bf16>(step32, {{2, 1025}, {2, 2600, 1}}, 2, allSchedules);
}

TEST(RowTest, LongestRows) {
  static_assert(rowSharedBytes(65536, 512, 4, 1, 1) <= 227 << 10,
                "fits the shared memory of sm_90 and sm_100");
  expectStep<float, float>(step512, {{1, 65536}, {2, 20001}}, 2, {{}});
}

TEST(RowTest, StreamsRowsOfAnyLength) {
  EXPECT_EQ(streamingStep512.sharedBytes(1 << 20), size_t(reduceBlockBytes));
  expectStep<float, float>(streamingStep512, smallCases, 2, {{}});
  expectStep<float, float>(streamingStep512, {{1, 70001}}, 1, {{}});
}

TEST(RowTest, TheSumDoesNotDependOnAddresses) {
  // The same numbers at another alignment have the same bits.
  std::vector<std::vector<float>> results;
  for (size_t offset : {0, 1, 4}) {
    StepMatrix<float, float> matrix({1, 5000, 0, offset}, 512, 11);
    MatrixTables<3> tables;
    matrix.addTo(tables);
    tables.run(step512.kernel, tables.rowBlocks(1), 512,
               step512.sharedBytes(5000), {});
    results.push_back(matrix.parameter.values());
  }
  EXPECT_TRUE(sameBits(results[0], results[1]));
  EXPECT_TRUE(sameBits(results[0], results[2]));
}

TEST(RowTest, NormsNeitherOverflowNorVanish) {
  for (float scale : {1e-30f, 1e30f}) {
    auto fill = [](float value) { return [=] { return value; }; };
    auto parameter = DeviceArray<float>(64).fill(fill(0));
    auto gradient = DeviceArray<float>(64).fill(fill(scale));
    auto state = DeviceArray<float>(64).fill(fill(scale));
    MatrixTables<3> tables;
    tables.add(1, 64, {{gradient, 64}, {state, 64}, {parameter, 64}},
               {0.95, 0.05, 1, 1});
    tables.run(step512.kernel, tables.rowBlocks(1), 512,
               step512.sharedBytes(64), {});
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_FLOAT_EQ(parameter[i], -0.125f);
    }
  }
}

//===----------------------------------------------------------------------===//
// Several passes, reductions and kept values; values per row and per column
//===----------------------------------------------------------------------===//

namespace {

/// A matrix of the shares and what they must come to.
struct SharesMatrix {
  SharesMatrix(const MatrixCase &shape, size_t threads, unsigned seed)
      : shape(shape), x(shape.rows * shape.stride(), shape.offset),
        bias(shape.columns, shape.offset), offset(2 * shape.rows),
        smallest(3 * shape.rows), result(x.size(), shape.offset),
        expectedResult(result.values()), expectedOffset(offset.values()),
        expectedSmallest(smallest.values()) {
    Normal normal(seed);
    std::generate_n(x.data(), x.size(), [&] { return toBf16Rn(normal()); });
    std::generate_n(bias.data(), bias.size(), normal);
    for (size_t row = 0; row < shape.rows; ++row) {
      offset[2 * row] = normal();
      computeRow(row, threads);
    }
  }

  void computeRow(size_t row, size_t threads) {
    size_t start = row * shape.stride();
    std::vector<float> sums;
    for (size_t column = 0; column < shape.columns; ++column) {
      sums.push_back(toFloat(x[start + column]) + bias[column]);
    }
    float least = *std::min_element(sums.begin(), sums.end());
    float most = *std::max_element(sums.begin(), sums.end());
    float range = (most - least) + 1.0f;
    auto share = [&](size_t column) { return (sums[column] - least) / range; };
    float sum = static_cast<float>(sumOfRow(shape.columns, threads, share));
    for (size_t column = 0; column < shape.columns; ++column) {
      float moved = share(column) / (sum + 1.0f) + offset[2 * row];
      expectedResult[start + column] = moved + sums[column] * 0.5f;
    }
    expectedOffset[2 * row] = sum;
    expectedSmallest[3 * row] = least;
  }

  void addTo(MatrixTables<6> &tables) const {
    size_t stride = shape.stride();
    tables.add(shape.rows, shape.columns,
               {{x, stride},
                {bias, 0},
                {offset, 2},
                {result, stride},
                {offset, 2},
                {smallest, 3}});
  }

  MatrixCase shape;
  DeviceArray<bf16> x;
  DeviceArray<float> bias, offset, smallest, result;
  std::vector<float> expectedResult, expectedOffset, expectedSmallest;
};

void expectShares(MatrixTables<6>::Kernel kernel, int threads,
                  int registerGroups, const std::vector<MatrixCase> &cases,
                  size_t rowsOfBlock) {
  for (const shim::Schedule &schedule : shim::schedules) {
    std::deque<SharesMatrix> matrices;
    MatrixTables<6> tables;
    size_t widest = 0;
    for (const MatrixCase &shape : cases) {
      matrices.emplace_back(shape, threads, 1 + matrices.size());
      matrices.back().addTo(tables);
      widest = std::max(widest, shape.columns);
    }
    tables.run(kernel, tables.rowBlocks(rowsOfBlock), threads,
               rowSharedBytes(static_cast<int>(widest), threads, registerGroups,
                              kernels::Shares::kept,
                              kernels::Shares::Passes::numReductions),
               schedule);
    for (const SharesMatrix &matrix : matrices) {
      std::string what = matrix.shape.str() + ", " + schedule.str();
      auto result = matrix.result.values();
      for (size_t i = 0; i < result.size(); ++i) {
        // What lies between rows was NaN and has to stay so.
        if (i % matrix.shape.stride() < matrix.shape.columns) {
          EXPECT_EQ(result[i], matrix.expectedResult[i]) << what;
        } else {
          EXPECT_TRUE(std::isnan(result[i])) << what;
        }
      }
      for (size_t row = 0; row < matrix.shape.rows; ++row) {
        EXPECT_EQ(matrix.offset[2 * row], matrix.expectedOffset[2 * row])
            << what;
        EXPECT_EQ(matrix.smallest[3 * row], matrix.expectedSmallest[3 * row])
            << what;
      }
    }
  }
}

} // namespace

TEST(RowTest, SeveralPassesAndReductions) {
  expectShares(shares_t32, 32, 1, smallCases, 3);
  expectShares(shares_t128, 128, 2, smallCases, 2);
}

TEST(RowTest, SeveralKeptValuesInSharedMemory) {
  // Up to 256 columns of 32 threads are in registers.
  expectShares(shares_t32, 32, 1, {{2, 257}, {2, 517, 3, 1}, {1, 1500}}, 2);
  expectShares(shares_t128, 128, 2, {{2, 5001, 1}}, 2);
}

TEST(RowTest, NormOfAMatrixInTwoLaunches) {
  constexpr size_t rows = 37, columns = 300;
  auto x =
      DeviceArray<bf16>(rows * columns).fill([normal = Normal(9)]() mutable {
        return toBf16Rn(normal());
      });
  DeviceArray<double> sums(rows);
  auto norm = DeviceArray<float>(1);
  MatrixTables<2> squares, root;
  squares.add(rows, columns, {{x, columns}, {sums, 1}});
  squares.run(sum_of_squares_bf16_t256, squares.rowBlocks(4), 256,
              rowSharedBytes(columns, 256, 1, 0, 1), {});
  // The sums of the rows are a matrix of one row.
  root.add(1, rows, {{sums, 0}, {norm, 0}});
  root.run(root_of_sum_t1024, root.rowBlocks(1), 1024,
           rowSharedBytes(rows, 1024, 1, 0, 1), {});

  std::vector<double> expected;
  for (size_t row = 0; row < rows; ++row) {
    expected.push_back(sumOfRow(columns, 256, [&](size_t column) {
      double wide = toFloat(x[row * columns + column]);
      return wide * wide;
    }));
  }
  EXPECT_EQ(sums.values(), expected);
  double total =
      sumOfRow(rows, 1024, [&](size_t row) { return expected[row]; });
  EXPECT_EQ(norm[0], static_cast<float>(std::sqrt(total)));
}

TEST(RowTest, NoReductions) {
  constexpr size_t rows = 5, columns = 1100, stride = 1101;
  for (const shim::Schedule &schedule : shim::schedules) {
    Normal normal(8);
    auto x =
        DeviceArray<f16>(rows * stride).fill([&] { return toF16Rn(normal()); });
    auto offsets = DeviceArray<double>(rows).fill(normal);
    auto expected = x.values();
    for (size_t row = 0; row < rows; ++row) {
      for (size_t column = 0; column < columns; ++column) {
        f16 &value = expected[row * stride + column];
        value = toF16Rn(toFloat(value) + static_cast<float>(offsets[row]));
      }
    }
    MatrixTables<3> tables;
    tables.add(rows, columns, {{x, stride}, {offsets, 1}, {x, stride}});
    tables.run(add_offsets_t128, tables.rowBlocks(2), 128, 0, schedule);
    EXPECT_TRUE(sameBits(x.values(), expected)) << schedule.str();
  }
}
