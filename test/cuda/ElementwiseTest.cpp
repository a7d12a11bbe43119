//===-- ElementwiseTest.cpp - elementwise kernels, bit by bit -------------===//
//
// The kernels are those of kernels/ElementwiseKernels.cuh, which NVRTC compiles
// as well. The references are plain loops.
//
//===----------------------------------------------------------------------===//

#include "ElementwiseKernels.cuh"
#include "test/cuda/TestMatrices.h"

#include <deque>
#include <limits>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

/// Matrices around the sizes of groups and chunks, and where their operands
/// start in elements after an aligned address.
struct MatrixCase {
  size_t rows, columns;
  size_t offsets[4];
  /// Elements from the end of a row to the next, which are not the matrix's.
  size_t gap = 0;

  size_t stride() const { return columns + gap; }
  size_t size() const { return rows * stride(); }
  bool contains(size_t index) const { return index % stride() < columns; }
};
const MatrixCase matrixCases[] = {
    {1, 1, {0, 0, 0, 0}},       {7, 1, {1, 1, 1, 1}},
    {2, 4, {0, 0, 0, 0}},       {1, 9, {4, 4, 4, 4}},
    {683, 3, {1, 3, 0, 2}},     {1, 8191, {0, 4, 0, 0}},
    {64, 128, {0, 0, 0, 0}},    {41, 200, {3, 3, 3, 3}},
    {7, 2341, {5, 5, 1, 1}},    {1, 3, {7, 7, 7, 7}},
    {5, 1, {0, 0, 0, 0}, 3},    {70, 129, {0, 1, 0, 0}, 7},
    {3, 8192, {0, 0, 0, 0}, 8}, {1000, 9, {0, 0, 0, 0}, 1}};

constexpr double adamwScalars[] = {0.9,  0.1,  0.999, 0.001,
                                   1.02, 1e-8, 1e-3,  0.9999};

/// A matrix of AdamW and what one step must make of it.
template <typename Parameter, typename Gradient> struct AdamWMatrix {
  AdamWMatrix(const MatrixCase &shape, unsigned seed)
      : shape(shape), parameter(shape.size(), shape.offsets[0]),
        gradient(shape.size(), shape.offsets[1]),
        first(shape.size(), shape.offsets[2]),
        second(shape.size(), shape.offsets[3]) {
    Normal normal(seed);
    float s[8];
    std::copy(std::begin(adamwScalars), std::end(adamwScalars), s);
    for (size_t i = 0; i < shape.size(); ++i) {
      parameter[i] = narrow<Parameter>(normal());
      gradient[i] = narrow<Gradient>(normal());
      first[i] = normal();
      second[i] = std::abs(normal());

      float g = toFloat(gradient[i]);
      float decayed = s[0] * first[i], added = s[1] * g;
      float m = decayed + added;
      float square = g * g;
      float decayedSquare = s[2] * second[i], addedSquare = s[3] * square;
      float v = decayedSquare + addedSquare;
      float root = std::sqrt(v) * s[4];
      float denominator = root + s[5];
      float kept = s[7] * toFloat(parameter[i]);
      float change = s[6] * (m / denominator);
      bool stepped = shape.contains(i);
      expectedParameter.push_back(stepped ? narrow<Parameter>(kept - change)
                                          : parameter[i]);
      expectedFirst.push_back(stepped ? m : first[i]);
      expectedSecond.push_back(stepped ? v : second[i]);
    }
  }

  std::vector<Place> places() const {
    size_t stride = shape.stride();
    return {{parameter, stride},
            {gradient, stride},
            {first, stride},
            {second, stride}};
  }

  void expectStepped(const std::string &what) const {
    EXPECT_TRUE(sameBits(parameter.values(), expectedParameter)) << what;
    EXPECT_TRUE(sameBits(first.values(), expectedFirst)) << what;
    EXPECT_TRUE(sameBits(second.values(), expectedSecond)) << what;
  }

  MatrixCase shape;
  DeviceArray<Parameter> parameter;
  DeviceArray<Gradient> gradient;
  DeviceArray<float> first, second;
  std::vector<Parameter> expectedParameter;
  std::vector<float> expectedFirst, expectedSecond;
};

/// All matrices in one launch.
template <typename Parameter, typename Gradient>
void expectAdamW(MatrixTables<4>::Kernel kernel) {
  for (const shim::Schedule &schedule : shim::schedules) {
    std::deque<AdamWMatrix<Parameter, Gradient>> matrices;
    MatrixTables<4> tables;
    for (const MatrixCase &shape : matrixCases) {
      matrices.emplace_back(shape, 1 + matrices.size());
      tables.add(shape.rows, shape.columns, matrices.back().places(),
                 {std::begin(adamwScalars), std::end(adamwScalars)});
    }
    tables.run(kernel, tables.chunkBlocks(), elementwiseThreads, 0, schedule);
    for (const auto &matrix : matrices) {
      matrix.expectStepped(std::to_string(matrix.shape.size()) + " elements, " +
                           schedule.str());
    }
  }
}

} // namespace

TEST(ElementwiseTest, AdamWInEveryStorage) {
  expectAdamW<float, float>(adamw_f32_f32);
  expectAdamW<float, bf16>(adamw_f32_bf16);
  expectAdamW<f16, f16>(adamw_f16_f16);
}

TEST(ElementwiseTest, ListsThatLieAlikeAreAccessed16BytesAtATime) {
  constexpr size_t rows = 3, columns = 5003, size = rows * columns;
  for (size_t offset = 0; offset < 8; ++offset) {
    AdamWMatrix<float, bf16> matrix(
        {rows, columns, {offset, offset, offset, offset}}, 1);
    MatrixTables<4> tables;
    tables.add(rows, columns, matrix.places(),
               {std::begin(adamwScalars), std::end(adamwScalars)});
    shim::takeAccesses();
    tables.run(adamw_f32_bf16, tables.chunkBlocks(), elementwiseThreads, 0, {});
    // All groups but the ends: one load of the gradient, and two loads and two
    // stores of each of the others.
    size_t groups = (size - (8 - offset) % 8) / 8;
    EXPECT_EQ(shim::takeAccesses(), (shim::AccessCounts{{16, 13 * groups}}))
        << "operands start " << offset << " elements late";
    matrix.expectStepped("elements that start late");
  }
}

TEST(ElementwiseTest, ResultsInPlaceAndApart) {
  constexpr size_t size = 1001;
  constexpr float beta = 0.95f;
  Normal normal(3);
  auto random = [&] { return toBf16Rn(normal()); };
  auto gradient = DeviceArray<bf16>(size).fill(random);
  auto momentum = DeviceArray<float>(size).fill(normal);
  DeviceArray<bf16> result(size);
  std::vector<float> expectedMomentum;
  std::vector<bf16> expectedResult;
  for (size_t i = 0; i < size; ++i) {
    float g = toFloat(gradient[i]), kept = beta * momentum[i];
    expectedMomentum.push_back(kept + g);
    float ahead = beta * expectedMomentum.back();
    expectedResult.push_back(toBf16Rn(g + ahead));
  }
  MatrixTables<4> tables;
  tables.add(7, 143,
             {{gradient, 143}, {momentum, 143}, {momentum, 143}, {result, 143}},
             {beta});
  tables.run(momentum_bf16_bf16, tables.chunkBlocks(), elementwiseThreads, 0,
             {});
  EXPECT_TRUE(sameBits(momentum.values(), expectedMomentum));
  EXPECT_TRUE(sameBits(result.values(), expectedResult));
}

TEST(ElementwiseTest, OperandsWithDifferentStrides) {
  constexpr size_t rows = 21, columns = 100, stride = 104;
  auto gradient =
      DeviceArray<bf16>(rows * columns).fill([] { return toBf16Rn(3); });
  auto momentum = DeviceArray<float>(rows * columns).fill([] { return 2; });
  DeviceArray<bf16> result(rows * stride);
  MatrixTables<4> tables;
  tables.add(rows, columns,
             {{gradient, columns},
              {momentum, columns},
              {momentum, columns},
              {result, stride}},
             {0.5});
  tables.run(momentum_bf16_bf16, tables.chunkBlocks(), elementwiseThreads, 0,
             {});
  EXPECT_EQ(momentum.values(), std::vector<float>(rows * columns, 4));
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_EQ(result[i].bits, i % stride < columns ? toBf16Rn(5).bits : 0xffff)
        << "padding stays NaN";
  }
}

TEST(ElementwiseTest, NumbersInDeviceMemoryAndF64) {
  constexpr size_t size = 777;
  for (size_t offset : {0, 1}) {
    auto x = DeviceArray<float>(size, offset).fill(Normal(5));
    auto factor = deviceArray<double>({1.0 / 3});
    DeviceArray<double> wide(size, offset);
    DeviceArray<float> rounded(size, offset);
    MatrixTables<4> tables;
    tables.add(7, 111, {{x, 111}, {factor, 0}, {wide, 111}, {rounded, 111}});
    tables.run(scale_f32_f64, tables.chunkBlocks(), elementwiseThreads, 0, {});
    for (size_t i = 0; i < size; ++i) {
      EXPECT_EQ(wide[i], (1.0 / 3) * x[i]);
      EXPECT_EQ(rounded[i], static_cast<float>((1.0 / 3) * x[i]));
    }
  }
}

TEST(ElementwiseTest, FunctionsThatAreNotRoundedCorrectly) {
  constexpr size_t size = 400;
  auto x = DeviceArray<float>(size).fill(
      [normal = Normal(6)]() mutable { return 4 * normal(); });
  DeviceArray<float> narrow(size);
  DeviceArray<double> wide(size);
  MatrixTables<3> tables;
  tables.add(size, 1, {{x, 1}, {narrow, 1}, {wide, 1}});
  tables.run(functions_f32_f64, tables.chunkBlocks(), elementwiseThreads, 0,
             {});
  for (size_t i = 0; i < size; ++i) {
    double value = std::abs(static_cast<double>(x[i]));
    double expected =
        std::pow(value, 0.25) + std::log(std::exp(-value) + std::floor(value));
    EXPECT_NEAR(narrow[i], std::copysign(expected, x[i]), 1e-6 * (1 + value));
    EXPECT_NEAR(wide[i], std::max(expected, std::min(value, 0.5)),
                1e-14 * (1 + value));
  }
}
