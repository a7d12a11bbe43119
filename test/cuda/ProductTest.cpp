//===-- ProductTest.cpp - product kernels against plain loops -------------===//
//
// The kernels are those of kernels/ProductKernels.cuh, which NVRTC compiles as
// well. Under the shim products are summed in the order of k, so results are
// compared bit by bit; the bound that also a GPU has to keep is tested too.
//
//===----------------------------------------------------------------------===//

#include "ProductKernels.cuh"
#include "test/cuda/TestProducts.h"

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

/// Every kernel of this file needs the same shared memory.
constexpr size_t sharedBytes =
    gemmSharedBytes<kernels::OuterLoop<bf16>, kernels::Plain<bf16, true>>;
static_assert(
    gemmSharedBytes<kernels::ShortLoop<f16>, kernels::Apply<f16, bf16>> ==
    sharedBytes);

constexpr ProductLaunch byWarps = {productThreads, sharedBytes};

/// Square and ragged shapes: less than a tile, exact tiles, and one more.
const std::vector<Shape> squareShapes = {
    {130, 130, 40}, {1, 1, 1}, {128, 128, 64}, {61, 61, 33}};
const std::vector<Shape> unequalShapes = {
    {130, 60, 40}, {7, 129, 9}, {128, 128, 32}, {33, 1, 100}};

constexpr Form outer = {.sameOperands = true};
constexpr Form outerSymmetric = {.sameOperands = true, .symmetric = true};

} // namespace

TEST(ProductTest, OuterDense) {
  expectExact<bf16>(byWarps, outer_dense_bf16, squareShapes, outer);
  expectExact<bf16>(byWarps, outer_dense_bf16, unequalShapes, {});
}

TEST(ProductTest, OuterSymmetric) {
  expectExact<bf16>(byWarps, outer_symmetric_bf16, squareShapes,
                    outerSymmetric);
}

TEST(ProductTest, SymmetricWithAddend) {
  expectExact<f16>(byWarps, outer_symmetric_add_f16, squareShapes,
                   {.sameOperands = true, .symmetric = true, .addend = true});
}

TEST(ProductTest, ShortWithAddend) {
  expectExact<bf16>(byWarps, short_add_bf16, unequalShapes,
                    {.tallB = true, .addend = true});
}

TEST(ProductTest, TallDenseAndSymmetric) {
  expectExact<bf16>(byWarps, tall_dense_bf16, unequalShapes,
                    {.tallA = true, .tallB = true});
  expectExact<bf16>(
      byWarps, tall_symmetric_bf16, squareShapes,
      {.tallA = true, .tallB = true, .sameOperands = true, .symmetric = true});
}

TEST(ProductTest, SymmetricEqualsDenseBitByBit) {
  // Three tiles a side, so that there are tiles away from the diagonal.
  const std::vector<Shape> shapes = {{300, 300, 50}};
  auto symmetric = makeProducts<bf16>(shapes, outerSymmetric);
  auto dense = makeProducts<bf16>(shapes, outer);
  runProducts(byWarps, outer_symmetric_bf16, symmetric, makeTables(symmetric));
  runProducts(byWarps, outer_dense_bf16, dense, makeTables(dense));
  EXPECT_TRUE(sameBits(symmetric[0].d.data.values(), dense[0].d.data.values()));
  const TestMatrix<bf16> &d = symmetric[0].d;
  d.forEach([&](int row, int column, bf16 value) {
    EXPECT_EQ(value.bits, d.at(column, row).bits);
  });
}

TEST(ProductTest, BatchEqualsGroup) {
  expectBatchEqualsGroup<bf16>(byWarps, outer_symmetric_bf16, /*k=*/24);
}

TEST(ProductTest, KeepsTheBoundForAnyOrderOfSummation) {
  // k + 6 roundings to f32, four of them of the scalars, of what lies below the
  // sum of the terms' magnitudes, and one rounding to 8 significant bits.
  auto products =
      makeProducts<bf16>({{65, 97, 200}}, {.tallB = true, .addend = true});
  runProducts(byWarps, short_add_bf16, products, makeTables(products));
  const TestProduct<bf16> &product = products[0];
  product.d.forEach([&](int row, int column, bf16 value) {
    double exact, magnitude;
    product.exact(row, column, exact, magnitude);
    double sumBound = (product.shape.k + 6) * 0x1p-24 * magnitude;
    double bound = sumBound + 0x1p-8 * (std::abs(exact) + sumBound);
    EXPECT_LE(std::abs(toFloat(value) - exact), bound);
  });
}

TEST(ProductTest, NoFactorIsOne) {
  auto products = makeProducts<bf16>({{40, 40, 16}}, outer);
  products[0].factor[0] = 1;
  Product withoutFactor = products[0].product();
  withoutFactor.factor = nullptr;
  launchProducts(byWarps, outer_dense_bf16,
                 makeTables({withoutFactor}, {products[0].scalars()}, false),
                 {});
  EXPECT_EQ(countWrong(products), 0u);
}

TEST(ProductTest, AppliesTheLastProductToTheParameter) {
  expectApplied<bf16, float>(byWarps, short_apply_bf16_f32, unequalShapes);
  expectApplied<f16, bf16>(byWarps, short_apply_f16_bf16, unequalShapes);
}
