//===-- WarpgroupTest.cpp - the main loop of sm_90a against plain loops ---===//
//
// The kernels are those of kernels/WarpgroupKernels.cuh. Under the shim their
// products have the bits of TileProduct's, which ProductTest.cpp compares in
// the same way.
//
//===----------------------------------------------------------------------===//

#include "ProductKernels.cuh"
#include "WarpgroupKernels.cuh"
#include "test/cuda/TestProducts.h"

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

using Kernel = void (*)(ProductList, const double *);
using Loop = kernels::OuterWarpgroups<bf16>;

/// Every kernel of this file needs the same shared memory, and two blocks of it
/// fit into the 228 KiB of a multiprocessor, of which each loses one.
constexpr size_t sharedBytes =
    gemmSharedBytes<Loop, kernels::Plain<bf16, true>>;
static_assert(
    gemmSharedBytes<kernels::TallWarpgroups<f16>, kernels::Apply<f16, bf16>> ==
    sharedBytes);
static_assert(2 * (sharedBytes + 1024) <= 228 << 10);

void run(Kernel kernel, const MappedTables &mapped,
         const shim::Schedule &schedule) {
  ProductList list = mapped.tables.list();
  const double *scalars = mapped.tables.scalars.data();
  shim::launch({mapped.tables.tiles, Loop::threads, sharedBytes}, schedule,
               [=] { kernel(list, scalars); });
}

/// Ragged shapes, and k of less than a stage, exactly one, and more than the
/// ring has.
const std::vector<Shape> squareShapes = {
    {130, 130, 40}, {1, 1, 1}, {128, 128, 64}, {61, 61, 300}};
const std::vector<Shape> unequalShapes = {
    {130, 60, 40}, {7, 129, 9}, {128, 128, 64}, {33, 1, 260}};

template <typename T>
void expectExact(Kernel kernel, const std::vector<Shape> &shapes,
                 const Form &form) {
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = makeProducts<T>(shapes, form);
    run(kernel, mapOperands(products, makeTables(products)), schedule);
    EXPECT_EQ(countWrong(products), 0u) << schedule.str();
    for (const TestProduct<T> &product : products) {
      EXPECT_EQ(countWritten(product.d), 0u) << "padding was written";
    }
  }
}

constexpr Form outer = {.sameOperands = true};
constexpr Form outerSymmetric = {.sameOperands = true, .symmetric = true};

} // namespace

TEST(WarpgroupTest, OuterDense) {
  expectExact<bf16>(outer_dense_wgmma_bf16, squareShapes, outer);
  expectExact<bf16>(outer_dense_wgmma_bf16, unequalShapes, {});
}

TEST(WarpgroupTest, OuterSymmetric) {
  expectExact<bf16>(outer_symmetric_wgmma_bf16, squareShapes, outerSymmetric);
}

TEST(WarpgroupTest, SymmetricWithAddend) {
  expectExact<f16>(outer_symmetric_add_wgmma_f16, squareShapes,
                   {.sameOperands = true, .symmetric = true, .addend = true});
}

TEST(WarpgroupTest, SymmetricWithDiagonal) {
  expectExact<bf16>(
      outer_symmetric_diagonal_wgmma_bf16, squareShapes,
      {.sameOperands = true, .symmetric = true, .diagonal = true});
}

TEST(WarpgroupTest, ShortWithAddend) {
  expectExact<bf16>(short_add_wgmma_bf16, unequalShapes,
                    {.tallB = true, .addend = true});
}

TEST(WarpgroupTest, TallSymmetric) {
  expectExact<bf16>(
      tall_symmetric_wgmma_bf16, squareShapes,
      {.tallA = true, .tallB = true, .sameOperands = true, .symmetric = true});
}

TEST(WarpgroupTest, TurnedDense) {
  expectExact<f16>(turned_dense_wgmma_f16, unequalShapes, {.tallA = true});
}

TEST(WarpgroupTest, HasTheBitsOfTheOtherMainLoop) {
  const std::vector<Shape> shapes = {{300, 300, 150}};
  auto byWarpgroups = makeProducts<bf16>(shapes, outerSymmetric);
  auto byWarps = makeProducts<bf16>(shapes, outerSymmetric);
  run(outer_symmetric_wgmma_bf16,
      mapOperands(byWarpgroups, makeTables(byWarpgroups)), {});
  ProductTables tables = makeTables(byWarps);
  ProductList list = tables.list();
  const double *scalars = tables.scalars.data();
  shim::launch(
      {tables.tiles, productThreads,
       gemmSharedBytes<kernels::OuterLoop<bf16>, kernels::Plain<bf16, true>>},
      {}, [=] { outer_symmetric_bf16(list, scalars); });
  EXPECT_TRUE(
      sameBits(byWarpgroups[0].d.data.values(), byWarps[0].d.data.values()));
}

TEST(WarpgroupTest, BatchEqualsGroup) {
  const std::vector<Shape> shapes(3, Shape{140, 140, 80});
  auto batch = makeProducts<bf16>(shapes, outerSymmetric);
  auto group = makeProducts<bf16>(shapes, outerSymmetric);
  run(outer_symmetric_wgmma_bf16,
      mapOperands(batch, makeTables(batch, /*batched=*/true)), {});
  run(outer_symmetric_wgmma_bf16, mapOperands(group, makeTables(group)), {});
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_TRUE(sameBits(batch[i].d.data.values(), group[i].d.data.values()));
  }
  EXPECT_EQ(countWrong(batch), 0u);
}

namespace {

/// The parameter after the last product of an iteration.
template <typename T, typename Parameter> void expectApplied(Kernel kernel) {
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products =
        makeProducts<T>(unequalShapes, {.tallB = true, .addend = true});
    AppliedProducts<T, Parameter> applied(products);
    run(kernel, mapOperands(products, applied.tables()), schedule);
    EXPECT_EQ(applied.countWrong(), 0u) << schedule.str();
  }
}

} // namespace

TEST(WarpgroupTest, AppliesTheLastProductToTheParameter) {
  expectApplied<bf16, float>(short_apply_wgmma_bf16_f32);
  expectApplied<f16, bf16>(short_apply_wgmma_f16_bf16);
}
