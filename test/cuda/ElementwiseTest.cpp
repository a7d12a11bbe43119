//===-- ElementwiseTest.cpp - elementwise kernels, bit by bit -------------===//
//
// The kernels are those of kernels/ElementwiseKernels.cuh, which NVRTC compiles
// as well. The references are plain loops.
//
//===----------------------------------------------------------------------===//

#include "ElementwiseKernels.cuh"
#include "test/cuda/TestMemory.h"
#include "test/cuda/TestSums.h"

#include <deque>
#include <limits>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

/// Sizes around groups and chunks, and where their arrays start in elements
/// after an aligned address, operand by operand.
struct TensorCase {
  size_t size;
  size_t offsets[4];
};
const TensorCase tensorCases[] = {{1, {0, 0, 0, 0}},     {7, {1, 1, 1, 1}},
                                  {8, {0, 0, 0, 0}},     {9, {4, 4, 4, 4}},
                                  {2049, {1, 3, 0, 2}},  {8191, {0, 4, 0, 0}},
                                  {8192, {0, 0, 0, 0}},  {8200, {3, 3, 3, 3}},
                                  {16387, {5, 5, 1, 1}}, {3, {7, 7, 7, 7}}};

/// The chunk table of tensors with these sizes.
std::vector<Chunk> chunksOf(const std::vector<size_t> &sizes) {
  std::vector<Chunk> chunks;
  for (u32 tensor = 0; tensor < sizes.size(); ++tensor) {
    int count = divideUp(static_cast<int>(sizes[tensor]), chunkSize);
    for (int index = 0; index < count; ++index) {
      chunks.push_back({tensor, static_cast<u32>(index)});
    }
  }
  return chunks;
}

constexpr float adamwScalars[] = {0.9f,  0.1f,  0.999f, 0.001f,
                                  1.02f, 1e-8f, 1e-3f,  0.9999f};

/// A tensor of AdamW and what one step must make of it.
template <typename Parameter, typename Gradient> struct AdamWTensor {
  AdamWTensor(const TensorCase &shape, unsigned seed)
      : parameter(shape.size, shape.offsets[0]),
        gradient(shape.size, shape.offsets[1]),
        first(shape.size, shape.offsets[2]),
        second(shape.size, shape.offsets[3]) {
    Normal normal(seed);
    const float *s = adamwScalars;
    for (size_t i = 0; i < shape.size; ++i) {
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
      expectedParameter.push_back(narrow<Parameter>(kept - change));
      expectedFirst.push_back(m);
      expectedSecond.push_back(v);
    }
  }

  ElementwiseTensor<4> table() const {
    return {{parameter.data(), gradient.data(), first.data(), second.data()},
            static_cast<i64>(parameter.size()),
            1};
  }

  void expectStepped(const std::string &what) const {
    EXPECT_TRUE(sameBits(parameter.values(), expectedParameter)) << what;
    EXPECT_TRUE(sameBits(first.values(), expectedFirst)) << what;
    EXPECT_TRUE(sameBits(second.values(), expectedSecond)) << what;
  }

  DeviceArray<Parameter> parameter;
  DeviceArray<Gradient> gradient;
  DeviceArray<float> first, second;
  std::vector<Parameter> expectedParameter;
  std::vector<float> expectedFirst, expectedSecond;
};

/// All tensors in one launch.
template <typename Parameter, typename Gradient>
void expectAdamW(void (*kernel)(const ElementwiseTensor<4> *, const Chunk *,
                                const float *)) {
  for (const shim::Schedule &schedule : shim::schedules) {
    std::deque<AdamWTensor<Parameter, Gradient>> tensors;
    std::vector<ElementwiseTensor<4>> table;
    std::vector<size_t> sizes;
    for (const TensorCase &shape : tensorCases) {
      tensors.emplace_back(shape, 1 + tensors.size());
      table.push_back(tensors.back().table());
      sizes.push_back(shape.size);
    }
    auto tables = deviceArray(table);
    auto chunks = deviceArray(chunksOf(sizes));
    // The first scalar belongs to nobody: tensors name where theirs start.
    std::vector<float> scalarValues = {-1};
    scalarValues.insert(scalarValues.end(), std::begin(adamwScalars),
                        std::end(adamwScalars));
    auto scalars = deviceArray(scalarValues);
    shim::launch({static_cast<u32>(chunks.size()), elementwiseThreads},
                 schedule,
                 [&] { kernel(tables.data(), chunks.data(), scalars.data()); });
    for (const auto &tensor : tensors) {
      tensor.expectStepped(std::to_string(tensor.parameter.size()) +
                           " elements, " + schedule.str());
    }
  }
}

} // namespace

TEST(ElementwiseTest, AdamWInEveryStorage) {
  expectAdamW<float, float>(adamw_f32_f32);
  expectAdamW<float, bf16>(adamw_f32_bf16);
  expectAdamW<f16, f16>(adamw_f16_f16);
}

TEST(ElementwiseTest, WritesResultsWithoutReadingThem) {
  constexpr size_t size = 1001;
  Normal normal(3);
  auto random = [&] { return toBf16Rn(normal()); };
  auto gradient = DeviceArray<bf16>(size).fill(random);
  auto momentum = DeviceArray<float>(size).fill(normal);
  DeviceArray<bf16> result(size);
  std::vector<float> expectedMomentum;
  std::vector<bf16> expectedResult;
  for (size_t i = 0; i < size; ++i) {
    float g = toFloat(gradient[i]), kept = 0.95f * momentum[i];
    expectedMomentum.push_back(kept + g);
    float ahead = 0.95f * expectedMomentum.back();
    expectedResult.push_back(toBf16Rn(g + ahead));
  }
  ElementwiseTensor<3> tensor = {
      {gradient.data(), momentum.data(), result.data()}, size, 0};
  Chunk chunk = {0, 0};
  float scalar = 0.95f;
  shim::launch({1, elementwiseThreads}, {},
               [&] { momentum_bf16_bf16(&tensor, &chunk, &scalar); });
  EXPECT_TRUE(sameBits(momentum.values(), expectedMomentum));
  EXPECT_TRUE(sameBits(result.values(), expectedResult));
}

//===----------------------------------------------------------------------===//
// Norms
//===----------------------------------------------------------------------===//

namespace {

/// Gradients and momenta of some tensors; their norms by the kernels and by
/// plain loops.
class NormRun {
public:
  NormRun(const std::vector<size_t> &sizes, float scale, size_t offset) {
    for (size_t size : sizes) {
      Normal normal(1 + static_cast<unsigned>(gradients.size()));
      auto random = [&] { return toBf16Rn(scale * normal()); };
      gradients.push_back(DeviceArray<bf16>(size, offset).fill(random));
      momenta.push_back(
          DeviceArray<float>(size, offset).fill([] { return 0; }));
      results.emplace_back(size, offset);
      addExpected(gradients.back());
    }
  }

  /// Runs both launches and returns the reciprocals of all norms.
  std::vector<float> run(const shim::Schedule &schedule) {
    std::vector<ElementwiseTensor<3>> table;
    std::vector<PartialSums> rangeTable;
    std::vector<size_t> sizes;
    u32 numChunks = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      sizes.push_back(gradients[i].size());
      table.push_back(
          {{gradients[i].data(), momenta[i].data(), results[i].data()},
           static_cast<i64>(sizes[i]),
           0});
      u32 count = divideUp(static_cast<int>(sizes[i]), chunkSize);
      rangeTable.push_back({numChunks, count});
      numChunks += count;
    }
    auto tensors = deviceArray(table);
    auto chunks = deviceArray(chunksOf(sizes));
    auto ranges = deviceArray(rangeTable);
    DeviceArray<double> partials(numChunks);
    DeviceArray<float> reciprocals(sizes.size());
    float momentum = 0.95f, scaleAndEpsilon[] = {1.5f, 0};
    shim::launch({numChunks, elementwiseThreads, normSharedBytes}, schedule,
                 [&] {
                   momentum_sum_bf16_bf16(tensors.data(), chunks.data(),
                                          &momentum, partials.data());
                 });
    u32 numTensors = static_cast<u32>(sizes.size());
    shim::launch({numTensors, elementwiseThreads, normSharedBytes}, schedule,
                 [&] {
                   norm_reciprocals(ranges.data(), partials.data(),
                                    scaleAndEpsilon, reciprocals.data());
                 });
    return reciprocals.values();
  }

  std::vector<float> expected;
  std::deque<DeviceArray<bf16>> results;

private:
  void addExpected(const DeviceArray<bf16> &gradient) {
    std::vector<double> partials;
    for (size_t begin = 0; begin < gradient.size(); begin += chunkSize) {
      std::vector<double> threads(elementwiseThreads);
      size_t end = std::min<size_t>(begin + chunkSize, gradient.size());
      for (size_t i = begin; i < end; ++i) {
        // The momentum was zero.
        float g = toFloat(gradient[i]), ahead = 0.95f * g;
        double u = g + ahead;
        threads[(i - begin) / groupSize % elementwiseThreads] += u * u;
      }
      partials.push_back(sumThreads(threads));
    }
    partials.resize(elementwiseThreads);
    double sum = sumThreads(partials);
    expected.push_back(sum > 0 ? static_cast<float>(1 / (1.5 * std::sqrt(sum)))
                               : 0.0f);
  }

  std::deque<DeviceArray<bf16>> gradients;
  std::deque<DeviceArray<float>> momenta;
};

const std::vector<size_t> normSizes = {1, 9, 8192, 20000};

} // namespace

TEST(NormTest, SumsInAFixedOrder) {
  for (const shim::Schedule &schedule : shim::schedules) {
    NormRun norms(normSizes, 1, 0);
    EXPECT_TRUE(sameBits(norms.run(schedule), norms.expected))
        << schedule.str();
  }
}

TEST(NormTest, DoesNotDependOnAddresses) {
  NormRun norms(normSizes, 1, 3);
  EXPECT_TRUE(sameBits(norms.run({}), norms.expected));
}

TEST(NormTest, NeitherOverflowsNorVanishes) {
  for (float scale : {0.0f, 1e-38f, 1e-30f, 1e30f}) {
    NormRun norms({1000}, scale, 0);
    float reciprocal = norms.run({})[0];
    EXPECT_TRUE(std::isfinite(reciprocal));
    EXPECT_EQ(reciprocal > 0, scale > 0);
    EXPECT_EQ(reciprocal, norms.expected[0]);
  }
}

TEST(NormTest, ReciprocalsOfSubnormalNormsStayFinite) {
  NormRun norms({4}, 1e-39f, 0);
  EXPECT_EQ(norms.run({})[0], std::numeric_limits<float>::max());
}
