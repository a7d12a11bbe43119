//===-- ElementwiseTest.cpp - elementwise kernels, bit by bit -------------===//
//
// The kernels are those of kernels/ElementwiseKernels.cuh, which NVRTC compiles
// as well. The references are plain loops.
//
//===----------------------------------------------------------------------===//

#include "ElementwiseKernels.cuh"
#include "test/cuda/TestMemory.h"

#include <deque>

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
