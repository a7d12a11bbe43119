//===-- GeneratedTest.cpp - kernels as the compiler prints them -----------===//
//
// kaon-translate prints the kernels of generated/kernels.mlir when the tests
// are built. The references are plain loops.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/lib/Columns.cuh"
#include "codegen/cuda/lib/Elementwise.cuh"
#include "codegen/cuda/lib/Gemm.cuh"
#include "codegen/cuda/lib/Rows.cuh"
#include "test/cuda/TestMatrices.h"
#include "test/cuda/TestProducts.h"
#include "test/cuda/TestSums.h"

#include <deque>

// Every text has classes of the same names.
namespace generated::adam {
#include "generated/kernel_adam.cu"
}
namespace generated::rows32 {
#include "generated/kernel_rows_t32.cu"
}
namespace generated::rows128 {
#include "generated/kernel_rows_t128.cu"
}
namespace generated::rows512 {
#include "generated/kernel_rows_t512.cu"
}
namespace generated::streaming512 {
#include "generated/kernel_rows_t512_streaming.cu"
}
namespace generated::columns {
#include "generated/kernel_columns.cu"
}
namespace generated::gram {
#include "generated/matmul_bf16_transposed_rhs_symmetric.cu"
}
namespace generated::polynomial {
#include "generated/matmul_bf16_symmetric_add.cu"
}
namespace generated::apply {
#include "generated/matmul_bf16_add_apply.cu"
}

using namespace kaon;
using namespace kaon::test;
using kaon::device::bf16;
using kaon::device::f16;
using kaon::device::narrow;
using kaon::device::toFloat;

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

TEST(GeneratedTest, Elementwise) {
  constexpr size_t columns = 911;
  constexpr float beta1 = 0.9f, beta2 = 0.99f, lr = 0.01f, epsilon = 0.1f;
  for (const shim::Schedule &schedule : shim::schedules) {
    MatrixTables<8> tables;
    auto norm = deviceArray<double>({1.0 / 3});
    std::deque<DeviceArray<bf16>> parameters;
    std::deque<DeviceArray<f16>> gradients;
    std::deque<DeviceArray<float>> moments, squares;
    std::vector<std::vector<bf16>> expected;
    std::vector<std::vector<float>> expectedMoments, expectedSquares;
    for (size_t offset : {0, 3}) {
      constexpr size_t rows = 10, size = rows * columns;
      Normal normal(static_cast<unsigned>(offset));
      auto &w = parameters.emplace_back(size, offset);
      auto &g = gradients.emplace_back(size, offset);
      auto &m = moments.emplace_back(size, offset);
      auto &v = squares.emplace_back(size, offset);
      expected.emplace_back();
      expectedMoments.emplace_back();
      expectedSquares.emplace_back();
      for (size_t i = 0; i < size; ++i) {
        w[i] = narrow<bf16>(normal());
        g[i] = narrow<f16>(normal());
        m[i] = normal();
        v[i] = std::abs(normal()) / 100;
        float unit = toFloat(g[i]) / static_cast<float>(norm[0]);
        float kept = beta1 * m[i], keptSquare = beta2 * v[i];
        float moment = kept + unit, square = unit * unit;
        float secondMoment = keptSquare + square;
        float ratio = moment / std::max(std::sqrt(secondMoment), epsilon);
        float change = lr * ratio;
        expected.back().push_back(narrow<bf16>(toFloat(w[i]) - change));
        expectedMoments.back().push_back(moment);
        expectedSquares.back().push_back(secondMoment);
      }
      Place place(w, columns), moment(m, columns), square(v, columns);
      tables.add(rows, columns,
                 {place,
                  {g, columns},
                  moment,
                  square,
                  {norm, 0},
                  place,
                  moment,
                  square},
                 {beta1, beta2, lr, epsilon});
    }
    tables.run(generated::adam::kernel_adam, tables.chunkBlocks(), 256, 0,
               schedule);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(sameBits(parameters[i].values(), expected[i]));
      EXPECT_TRUE(sameBits(moments[i].values(), expectedMoments[i]));
      EXPECT_TRUE(sameBits(squares[i].values(), expectedSquares[i]));
    }
  }
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

namespace {

/// Steps a matrix in place; `reductions` and the others are those of the class.
template <typename Step>
void expectRowStep(MatrixTables<7>::Kernel kernel, int threads,
                   int registerGroups, size_t columns, size_t gap) {
  constexpr size_t rows = 5;
  constexpr float mu = 0.95f;
  size_t stride = columns + gap;
  for (const shim::Schedule &schedule : shim::schedules) {
    Normal normal(static_cast<unsigned>(columns));
    auto half = [&] { return narrow<bf16>(normal()); };
    auto w = DeviceArray<bf16>(rows * stride).fill(half);
    auto g = DeviceArray<bf16>(rows * stride).fill(half);
    auto m = DeviceArray<float>(rows * stride).fill(normal);
    auto rates = DeviceArray<float>(rows).fill(normal);
    DeviceArray<double> norms(rows);
    auto expected = w.values();
    auto expectedState = m.values();
    std::vector<double> expectedNorms;
    for (size_t row = 0; row < rows; ++row) {
      size_t start = row * stride;
      for (size_t at = start; at < start + columns; ++at) {
        float kept = mu * m[at];
        expectedState[at] = kept + toFloat(g[at]);
      }
      double norm = std::sqrt(sumOfRow(columns, threads, [&](size_t column) {
        double wide = expectedState[start + column];
        return wide * wide;
      }));
      expectedNorms.push_back(norm);
      for (size_t at = start; at < start + columns; ++at) {
        float unit = static_cast<float>(expectedState[at] / norm);
        float change = unit * rates[row];
        expected[at] = narrow<bf16>(toFloat(w[at]) - change);
      }
    }
    MatrixTables<7> tables;
    Place parameter(w, stride), state(m, stride);
    tables.add(rows, columns,
               {parameter,
                {g, stride},
                state,
                {rates, 1},
                parameter,
                state,
                {norms, 1}},
               {mu});
    tables.run(kernel, tables.rowBlocks(3), threads,
               device::rowSharedBytes(static_cast<int>(columns), threads,
                                      registerGroups, Step::kept,
                                      Step::Passes::numReductions),
               schedule);
    std::string what = std::to_string(columns) + " columns, " + schedule.str();
    EXPECT_TRUE(sameBits(w.values(), expected)) << what;
    EXPECT_TRUE(sameBits(m.values(), expectedState)) << what;
    EXPECT_TRUE(sameBits(norms.values(), expectedNorms)) << what;
  }
}

} // namespace

TEST(GeneratedTest, Rows) {
  using namespace generated;
  for (size_t columns : {1, 31, 200}) {
    expectRowStep<rows32::Step>(rows32::kernel_rows_t32, 32, 4, columns, 1);
  }
  expectRowStep<rows128::Step>(rows128::kernel_rows_t128, 128, 4, 600, 0);
  expectRowStep<rows512::Step>(rows512::kernel_rows_t512, 512, 4, 17000, 0);
  expectRowStep<streaming512::Step>(streaming512::kernel_rows_t512_streaming,
                                    512, 1, 9001, 2);
}

//===----------------------------------------------------------------------===//
// Columns
//===----------------------------------------------------------------------===//

TEST(GeneratedTest, Columns) {
  constexpr size_t rows = 11, columns = 300;
  for (const shim::Schedule &schedule : shim::schedules) {
    Normal normal(4);
    auto x = DeviceArray<float>(rows * columns).fill(normal);
    auto factors = DeviceArray<float>(rows).fill(normal);
    DeviceArray<float> norms(columns);
    auto expected = x.values();
    std::vector<float> expectedNorms;
    for (size_t column = 0; column < columns; ++column) {
      auto scaled = [&](size_t row) {
        return x[row * columns + column] * factors[row];
      };
      double sum = sumOfColumn(
          rows, [&](size_t row) { return scaled(row) * scaled(row); });
      expectedNorms.push_back(std::sqrt(static_cast<float>(sum)));
      for (size_t row = 0; row < rows; ++row) {
        expected[row * columns + column] = scaled(row) / expectedNorms.back();
      }
    }
    MatrixTables<4> tables;
    tables.add(rows, columns,
               {{x, columns}, {factors, 1}, {x, columns}, {norms, 0}});
    tables.run(generated::columns::kernel_columns,
               tables.columnBlocks(device::columnsOfBlock),
               device::columnThreads, device::columnSharedBytes(1), schedule);
    EXPECT_TRUE(sameBits(x.values(), expected)) << schedule.str();
    EXPECT_TRUE(sameBits(norms.values(), expectedNorms)) << schedule.str();
  }
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

namespace {

constexpr ProductLaunch productLaunch = {device::productThreads, 48 << 10};

/// `symmetrize`: A equals its transpose.
void expectSymmetricProducts(ProductKernel kernel, bool addend,
                             const std::vector<Shape> &shapes,
                             bool symmetrize) {
  const Form form = {.sameOperands = true, .symmetric = true, .addend = addend};
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = makeProducts<bf16>(shapes, form);
    for (auto &product : products) {
      const auto &a = product.a;
      if (symmetrize) {
        a.forEach([&](int row, int column, bf16 &value) {
          value = a.at(std::min(row, column), std::max(row, column));
        });
      }
    }
    launchProducts(productLaunch, kernel, makeTables(products), schedule);
    EXPECT_EQ(countWrong(products), 0u) << schedule.str();
  }
}

} // namespace

TEST(GeneratedTest, SymmetricProducts) {
  using namespace generated;
  expectSymmetricProducts(gram::matmul_bf16_transposed_rhs_symmetric,
                          /*addend=*/false, {{150, 150, 70}, {33, 33, 9}},
                          /*symmetrize=*/false);
  expectSymmetricProducts(polynomial::matmul_bf16_symmetric_add,
                          /*addend=*/true, {{150, 150, 150}, {33, 33, 33}},
                          /*symmetrize=*/true);
}

TEST(GeneratedTest, ProductIntoTheParameter) {
  constexpr float step = 0.1f, keep = 0.99f;
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = makeProducts<bf16>({{130, 140, 40}, {7, 9, 65}},
                                       {.tallB = true, .addend = true});
    std::deque<DeviceArray<float>> parameters;
    std::vector<std::vector<float>> expected;
    std::vector<device::Product> table;
    std::vector<std::vector<double>> scalars;
    for (const auto &product : products) {
      Normal normal(3);
      size_t columns = product.shape.n;
      auto &w = parameters.emplace_back(product.shape.m * columns);
      std::generate_n(w.data(), w.size(), normal);
      expected.push_back(w.values());
      product.d.forEach([&](int row, int column, bf16) {
        float &value = expected.back()[row * columns + column];
        float kept = keep * value;
        float change = step * product.expected(row, column);
        value = kept - change;
      });
      table.push_back(product.product());
      table.back().d = w.data();
      table.back().pitchD = product.shape.n;
      scalars.push_back(product.scalars());
      scalars.back().insert(scalars.back().end(), {step, keep});
    }
    launchProducts(productLaunch, generated::apply::matmul_bf16_add_apply,
                   makeTables(table, scalars, false), schedule);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(sameBits(parameters[i].values(), expected[i]))
          << schedule.str();
    }
  }
}
