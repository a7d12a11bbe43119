//===-- WarpgroupTest.cpp - the main loop of sm_90a against plain loops ---===//
//
// The kernels are those of kernels/WarpgroupKernels.cuh. Under the shim their
// products have the bits of TileProduct's, which ProductTest.cpp compares by
// the same functions.
//
//===----------------------------------------------------------------------===//

#include "ProductKernels.cuh"
#include "WarpgroupKernels.cuh"
#include "test/cuda/TestProducts.h"

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

using Loop = kernels::OuterWarpgroups<bf16>;

/// Every kernel of this file needs the same shared memory, and two blocks of it
/// fit into the 228 KiB of a multiprocessor, of which each loses one.
constexpr size_t sharedBytes =
    gemmSharedBytes<Loop, kernels::Plain<bf16, true>>;
static_assert(
    gemmSharedBytes<kernels::TallWarpgroups<f16>, kernels::Apply<f16, bf16>> ==
    sharedBytes);
static_assert(2 * (sharedBytes + 1024) <= 228 << 10);

constexpr ProductLaunch byWarpgroups = {Loop::threads, sharedBytes,
                                        /*takesMaps=*/true};

/// Ragged shapes, and k of less than a stage, exactly one, and more than the
/// ring has.
const std::vector<Shape> squareShapes = {
    {130, 130, 40}, {1, 1, 1}, {128, 128, 64}, {61, 61, 300}};
const std::vector<Shape> unequalShapes = {
    {130, 60, 40}, {7, 129, 9}, {128, 128, 64}, {33, 1, 260}};

constexpr Form outer = {.sameOperands = true};
constexpr Form outerSymmetric = {.sameOperands = true, .symmetric = true};

} // namespace

TEST(WarpgroupTest, OuterDense) {
  expectExact<bf16>(byWarpgroups, outer_dense_wgmma_bf16, squareShapes, outer);
  expectExact<bf16>(byWarpgroups, outer_dense_wgmma_bf16, unequalShapes, {});
}

TEST(WarpgroupTest, OuterSymmetric) {
  expectExact<bf16>(byWarpgroups, outer_symmetric_wgmma_bf16, squareShapes,
                    outerSymmetric);
}

TEST(WarpgroupTest, SymmetricWithAddend) {
  expectExact<f16>(byWarpgroups, outer_symmetric_add_wgmma_f16, squareShapes,
                   {.sameOperands = true, .symmetric = true, .addend = true});
}

TEST(WarpgroupTest, ShortWithAddend) {
  expectExact<bf16>(byWarpgroups, short_add_wgmma_bf16, unequalShapes,
                    {.tallB = true, .addend = true});
}

TEST(WarpgroupTest, TallSymmetric) {
  expectExact<bf16>(
      byWarpgroups, tall_symmetric_wgmma_bf16, squareShapes,
      {.tallA = true, .tallB = true, .sameOperands = true, .symmetric = true});
}

TEST(WarpgroupTest, TurnedDense) {
  expectExact<f16>(byWarpgroups, turned_dense_wgmma_f16, unequalShapes,
                   {.tallA = true});
}

TEST(WarpgroupTest, HasTheBitsOfTheOtherMainLoop) {
  const std::vector<Shape> shapes = {{300, 300, 150}};
  constexpr ProductLaunch byWarps = {
      productThreads,
      gemmSharedBytes<kernels::OuterLoop<bf16>, kernels::Plain<bf16, true>>};
  auto ofWarpgroups = makeProducts<bf16>(shapes, outerSymmetric);
  auto ofWarps = makeProducts<bf16>(shapes, outerSymmetric);
  runProducts(byWarpgroups, outer_symmetric_wgmma_bf16, ofWarpgroups,
              makeTables(ofWarpgroups));
  runProducts(byWarps, outer_symmetric_bf16, ofWarps, makeTables(ofWarps));
  EXPECT_TRUE(
      sameBits(ofWarpgroups[0].d.data.values(), ofWarps[0].d.data.values()));
}

TEST(WarpgroupTest, BatchEqualsGroup) {
  expectBatchEqualsGroup<bf16>(byWarpgroups, outer_symmetric_wgmma_bf16,
                               /*k=*/80);
}

TEST(WarpgroupTest, AppliesTheLastProductToTheParameter) {
  expectApplied<bf16, float>(byWarpgroups, short_apply_wgmma_bf16_f32,
                             unequalShapes);
  expectApplied<f16, bf16>(byWarpgroups, short_apply_wgmma_f16_bf16,
                           unequalShapes);
}
