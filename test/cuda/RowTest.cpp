//===-- RowTest.cpp - row kernels, bit by bit -----------------------------===//
//
// The kernels are those of kernels/RowKernels.cuh, which NVRTC compiles as
// well. The reference sums a row in the order that Rows.cuh promises.
//
//===----------------------------------------------------------------------===//

#include "RowKernels.cuh"
#include "test/cuda/TestMemory.h"
#include "test/cuda/TestSums.h"

#include <deque>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

constexpr float momentum = 0.95f, oneMinusMomentum = 0.05f, keep = 0.998f,
                step = 0.02f;

struct MatrixCase {
  int rows, columns;
  /// Elements from the end of a row to the next, and before the first.
  int gap, offset;
};

/// A matrix of the row step and what one step must make of it.
template <typename Parameter, typename Gradient> struct StepMatrix {
  StepMatrix(const MatrixCase &shape, int threads, unsigned seed)
      : shape(shape), stride(shape.columns + shape.gap),
        parameter(shape.rows * stride, shape.offset),
        gradient(shape.rows * stride, shape.offset),
        state(shape.rows * stride, shape.offset) {
    Normal normal(seed);
    for (size_t i = 0; i < parameter.size(); ++i) {
      parameter[i] = narrow<Parameter>(normal());
      gradient[i] = narrow<Gradient>(normal());
      state[i] = normal();
    }
    expectedParameter = parameter.values();
    expectedState = state.values();
    for (int row = 0; row < shape.rows; ++row) {
      stepRow(row * stride, threads, /*zero=*/row == 1);
    }
  }

  void stepRow(size_t start, int threads, bool zero) {
    std::vector<double> sums(threads);
    for (int column = 0; column < shape.columns; ++column) {
      size_t at = start + column;
      if (zero) {
        gradient[at] = narrow<Gradient>(0);
        state[at] = 0;
      }
      float kept = momentum * state[at];
      float added = oneMinusMomentum * toFloat(gradient[at]);
      expectedState[at] = kept + added;
      double wide = expectedState[at];
      sums[column / groupSize % threads] += wide * wide;
    }
    double sum = sumThreads(sums);
    double reciprocal = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (int column = 0; column < shape.columns; ++column) {
      size_t at = start + column;
      float direction = static_cast<float>(expectedState[at] * reciprocal);
      float kept = keep * toFloat(parameter[at]), change = step * direction;
      expectedParameter[at] = narrow<Parameter>(kept - change);
    }
  }

  RowMatrix<2, 1> table() const {
    i64 pitch = static_cast<i64>(stride);
    return {{gradient.data(), state.data()},
            {parameter.data()},
            {pitch, pitch},
            {pitch},
            shape.columns,
            1};
  }

  MatrixCase shape;
  size_t stride;
  DeviceArray<Parameter> parameter;
  DeviceArray<Gradient> gradient;
  DeviceArray<float> state;
  std::vector<Parameter> expectedParameter;
  std::vector<float> expectedState;
};

/// Steps all matrices in one launch, `rowsPerBlock` rows to a block.
template <typename Parameter, typename Gradient, int threads,
          int registerGroups>
void expectStep(void (*kernel)(const RowMatrix<2, 1> *, const RowBlock *,
                               const float *),
                const std::vector<MatrixCase> &cases, u32 rowsPerBlock,
                const std::vector<shim::Schedule> &schedules) {
  auto scalars =
      deviceArray<float>({-1, momentum, oneMinusMomentum, keep, step});
  for (const shim::Schedule &schedule : schedules) {
    std::deque<StepMatrix<Parameter, Gradient>> matrices;
    std::vector<RowMatrix<2, 1>> table;
    std::vector<RowBlock> blocks;
    int widest = 0;
    for (const MatrixCase &shape : cases) {
      u32 index = static_cast<u32>(matrices.size());
      matrices.emplace_back(shape, threads, 1 + index);
      table.push_back(matrices.back().table());
      widest = std::max(widest, shape.columns);
      u32 rows = static_cast<u32>(shape.rows);
      for (u32 row = 0; row < rows; row += rowsPerBlock) {
        blocks.push_back({index, row, std::min(rowsPerBlock, rows - row)});
      }
    }
    auto tables = deviceArray(table);
    auto blockTable = deviceArray(blocks);
    size_t sharedBytes = rowSharedBytes(widest, threads, registerGroups);
    shim::launch(
        {static_cast<u32>(blocks.size()), threads, sharedBytes}, schedule,
        [&] { kernel(tables.data(), blockTable.data(), scalars.data()); });
    for (const auto &matrix : matrices) {
      std::string what =
          std::to_string(matrix.shape.columns) + " columns, " + schedule.str();
      EXPECT_TRUE(sameBits(matrix.parameter.values(), matrix.expectedParameter))
          << what;
      EXPECT_TRUE(sameBits(matrix.state.values(), matrix.expectedState))
          << what;
    }
  }
}

const std::vector<shim::Schedule> allSchedules(std::begin(shim::schedules),
                                               std::end(shim::schedules));

/// Rows of less than a group, ragged, aligned and not; row 1 is zero.
const std::vector<MatrixCase> smallCases = {
    {3, 1, 0, 0},   {3, 7, 1, 0},    {2, 8, 0, 0},   {3, 33, 0, 1},
    {2, 264, 8, 0}, {2, 1000, 3, 5}, {3, 1024, 0, 0}};

} // namespace

TEST(RowTest, ShortRows) {
  expectStep<float, bf16, 32, 4>(row_step_short_f32_bf16, smallCases, 2,
                                 allSchedules);
}

TEST(RowTest, RowsInRegisters) {
  expectStep<float, bf16, 256, 4>(row_step_f32_bf16, smallCases, 3,
                                  allSchedules);
  expectStep<bf16, bf16, 256, 4>(row_step_bf16_bf16, {{2, 8192, 0, 0}}, 1,
                                 {{}});
}

TEST(RowTest, RowsPartlyInSharedMemory) {
  expectStep<float, bf16, 32, 4>(row_step_short_f32_bf16,
                                 {{2, 1025, 0, 0}, {2, 2600, 1, 0}}, 2,
                                 allSchedules);
}

TEST(RowTest, LongestRows) {
  static_assert(rowSharedBytes(65536, 1024, 2) <= 227 << 10,
                "fits the shared memory of sm_90 and sm_100");
  expectStep<float, float, 1024, 2>(
      row_step_long_f32_f32, {{1, 65536, 0, 0}, {2, 20001, 0, 0}}, 2, {{}});
}

TEST(RowTest, TheSumDoesNotDependOnAddresses) {
  // The same numbers at another alignment have the same bits.
  std::vector<std::vector<float>> results;
  for (int offset : {0, 1, 4}) {
    StepMatrix<float, float> matrix({1, 5000, 0, offset}, 1024, 11);
    auto table = matrix.table();
    RowBlock block = {0, 0, 1};
    float scalars[] = {-1, momentum, oneMinusMomentum, keep, step};
    shim::launch({1, 1024, rowSharedBytes(5000, 1024, 2)}, {},
                 [&] { row_step_long_f32_f32(&table, &block, scalars); });
    results.push_back(matrix.parameter.values());
  }
  EXPECT_TRUE(sameBits(results[0], results[1]));
  EXPECT_TRUE(sameBits(results[0], results[2]));
}

TEST(RowTest, NormsNeitherOverflowNorVanish) {
  for (float scale : {1e-30f, 1e30f}) {
    DeviceArray<float> parameter(64), gradient(64), state(64);
    for (size_t i = 0; i < 64; ++i) {
      parameter[i] = 0;
      gradient[i] = scale;
      state[i] = scale;
    }
    RowMatrix<2, 1> matrix = {{gradient.data(), state.data()},
                              {parameter.data()},
                              {64, 64},
                              {64},
                              64,
                              0};
    RowBlock block = {0, 0, 1};
    float scalars[] = {momentum, oneMinusMomentum, 1, 1};
    shim::launch({1, 1024, rowSharedBytes(64, 1024, 2)}, {},
                 [&] { row_step_long_f32_f32(&matrix, &block, scalars); });
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_FLOAT_EQ(parameter[i], -0.125f);
    }
  }
}
