//===-- WarpgroupMutantTest.cpp - faults in the main loop of sm_90a -------===//
//
// As MutantTest.cpp, for copies of WarpgroupProduct: a wait, a phase or a fence
// that is missing or wrong, stages used too early, and descriptors that do not
// fit what was copied.
//
//===----------------------------------------------------------------------===//

#include "Gemm.cuh"
#include "mutants/bytes_of_one_operand/WarpgroupProduct.cuh"
#include "mutants/missing_acquire/WarpgroupProduct.cuh"
#include "mutants/missing_barrier_fence/WarpgroupProduct.cuh"
#include "mutants/missing_empty_wait/WarpgroupProduct.cuh"
#include "mutants/missing_full_wait/WarpgroupProduct.cuh"
#include "mutants/missing_last_wait/WarpgroupProduct.cuh"
#include "mutants/missing_product_fence/WarpgroupProduct.cuh"
#include "mutants/missing_ring_end_barrier/WarpgroupProduct.cuh"
#include "mutants/missing_start_barrier/WarpgroupProduct.cuh"
#include "mutants/no_swizzle/WarpgroupProduct.cuh"
#include "mutants/one_box_for_all/WarpgroupProduct.cuh"
#include "mutants/one_warp_releases/WarpgroupProduct.cuh"
#include "mutants/original_ring/WarpgroupProduct.cuh"
#include "mutants/parity_never_turns/WarpgroupProduct.cuh"
#include "mutants/stage_left_too_early/WarpgroupProduct.cuh"
#include "mutants/swapped_coordinates/WarpgroupProduct.cuh"
#include "mutants/wrong_depth_step/WarpgroupProduct.cuh"
#include "mutants/wrong_leading/WarpgroupProduct.cuh"
#include "mutants/wrong_parity/WarpgroupProduct.cuh"
#include "mutants/wrong_stride/WarpgroupProduct.cuh"
#include "test/cuda/TestProducts.h"

using namespace kaon;
using kaon::device::bf16;
using kaon::device::ProductList;
using kaon::test::Form;
using kaon::test::ProductKernel;

namespace {

using Epilogue = device::StoreTile<bf16, true, device::Addend::none>;

/// The symmetric products of a copy of the main loop, of short and of tall X.
#define KAON_RING_OF(name)                                                     \
  struct name {                                                                \
    template <device::Contiguous contiguous>                                   \
    using Loop =                                                               \
        device_##name::WarpgroupProduct<bf16, contiguous, contiguous>;         \
    static void shortX(ProductList list, const double *scalars) {              \
      device::runGemm<Loop<device::Contiguous::depth>, Epilogue>(list,         \
                                                                 scalars);     \
    }                                                                          \
    static void tallX(ProductList list, const double *scalars) {               \
      device::runGemm<Loop<device::Contiguous::extent>, Epilogue>(list,        \
                                                                  scalars);    \
    }                                                                          \
  }

KAON_RING_OF(original_ring);
KAON_RING_OF(missing_full_wait);
KAON_RING_OF(missing_empty_wait);
KAON_RING_OF(wrong_parity);
KAON_RING_OF(parity_never_turns);
KAON_RING_OF(stage_left_too_early);
KAON_RING_OF(missing_last_wait);
KAON_RING_OF(missing_product_fence);
KAON_RING_OF(missing_barrier_fence);
KAON_RING_OF(missing_start_barrier);
KAON_RING_OF(missing_ring_end_barrier);
KAON_RING_OF(missing_acquire);
KAON_RING_OF(bytes_of_one_operand);
KAON_RING_OF(one_warp_releases);
KAON_RING_OF(no_swizzle);
KAON_RING_OF(wrong_stride);
KAON_RING_OF(wrong_leading);
KAON_RING_OF(wrong_depth_step);
KAON_RING_OF(swapped_coordinates);
KAON_RING_OF(one_box_for_all);

using Loop = original_ring::Loop<device::Contiguous::depth>;
constexpr test::ProductLaunch ringLaunch = {
    Loop::threads, device::gemmSharedBytes<Loop, Epilogue>};

/// What the tests see of a kernel: wrong elements, races, and launches that
/// broke a rule, with the last one's message.
struct Findings {
  size_t wrong = 0;
  int races = 0, faults = 0;
  std::string fault;
};

/// Runs a kernel on one product with tiles on and off the diagonal, whose last
/// step along k reads the stage that the epilogue uses first.
Findings run(ProductKernel kernel, bool tall,
             std::span<const shim::Schedule> schedules = shim::schedules) {
  const Form form = {
      .tallA = tall, .tallB = tall, .sameOperands = true, .symmetric = true};
  Findings findings;
  for (const shim::Schedule &schedule : schedules) {
    auto products = test::makeProducts<bf16>({{140, 140, 230}}, form);
    auto tables = test::makeTables(products);
    auto maps = test::mapOperands(products, tables);
    findings.races += shim::countRaces([&] {
      try {
        test::launchProducts(ringLaunch, kernel, tables, schedule);
      } catch (const shim::Fault &fault) {
        ++findings.faults;
        findings.fault = fault.what();
      }
    });
    findings.wrong += test::countWrong(products);
  }
  return findings;
}

/// Every launch breaks the rule.
void expectFault(ProductKernel kernel, const char *message) {
  Findings findings = run(kernel, /*tall=*/false);
  EXPECT_EQ(findings.faults, static_cast<int>(shim::schedules.size()));
  EXPECT_NE(findings.fault.find(message), std::string::npos) << findings.fault;
}

/// Something is not kept apart: some schedule gives wrong results or breaks a
/// rule, and ThreadSanitizer reports a race.
void expectRace(ProductKernel kernel) {
  Findings findings = run(kernel, /*tall=*/false, shim::allSchedules);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

/// Something happens too early, which some schedule shows. It need not be a
/// race between threads: what the background does with a stage comes later.
void expectTooEarly(ProductKernel kernel) {
  EXPECT_GT(run(kernel, /*tall=*/false, shim::allSchedules).wrong, 0u);
}

/// Nothing is broken, but the results are wrong.
void expectWrong(ProductKernel kernel, bool tall) {
  Findings findings = run(kernel, tall);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.faults, 0) << findings.fault;
  EXPECT_EQ(findings.races, 0);
}

} // namespace

TEST(WarpgroupMutantTest, TheLoopItselfIsRight) {
  for (bool tall : {false, true}) {
    Findings findings =
        run(tall ? original_ring::tallX : original_ring::shortX, tall);
    EXPECT_EQ(findings.wrong, 0u);
    EXPECT_EQ(findings.races, 0);
    EXPECT_EQ(findings.faults, 0) << findings.fault;
  }
}

TEST(WarpgroupMutantTest, MissingFullWait) {
  expectRace(missing_full_wait::shortX);
}

TEST(WarpgroupMutantTest, MissingEmptyWait) {
  expectTooEarly(missing_empty_wait::shortX);
}

TEST(WarpgroupMutantTest, StageLeftTooEarly) {
  expectTooEarly(stage_left_too_early::shortX);
}

TEST(WarpgroupMutantTest, MissingRingEndBarrier) {
  expectRace(missing_ring_end_barrier::shortX);
}

TEST(WarpgroupMutantTest, BytesOfOneOperand) {
  expectRace(bytes_of_one_operand::shortX);
}

TEST(WarpgroupMutantTest, OneWarpReleases) {
  expectRace(one_warp_releases::shortX);
}

TEST(WarpgroupMutantTest, MissingStartBarrier) {
  expectRace(missing_start_barrier::shortX);
}

TEST(WarpgroupMutantTest, WrongParity) {
  expectFault(wrong_parity::shortX, "deadlock");
}

TEST(WarpgroupMutantTest, ParityNeverTurns) {
  expectFault(parity_never_turns::shortX, "");
}

TEST(WarpgroupMutantTest, MissingLastWait) {
  expectFault(missing_last_wait::shortX, "products in flight");
}

TEST(WarpgroupMutantTest, MissingProductFence) {
  expectFault(missing_product_fence::shortX, "expects a productFence");
}

TEST(WarpgroupMutantTest, MissingBarrierFence) {
  expectFault(missing_barrier_fence::shortX, "barrierInitFence has shown");
}

TEST(WarpgroupMutantTest, MissingAcquire) {
  expectFault(missing_acquire::shortX, "the thread has acquired");
}

TEST(WarpgroupMutantTest, NoSwizzle) {
  expectWrong(no_swizzle::shortX, /*tall=*/false);
}

TEST(WarpgroupMutantTest, WrongStride) {
  expectWrong(wrong_stride::shortX, /*tall=*/false);
}

TEST(WarpgroupMutantTest, WrongLeading) {
  expectWrong(wrong_leading::tallX, /*tall=*/true);
}

TEST(WarpgroupMutantTest, WrongDepthStep) {
  expectWrong(wrong_depth_step::tallX, /*tall=*/true);
}

TEST(WarpgroupMutantTest, SwappedCoordinates) {
  expectWrong(swapped_coordinates::shortX, /*tall=*/false);
}

TEST(WarpgroupMutantTest, OneBoxForAll) {
  expectWrong(one_box_for_all::shortX, /*tall=*/false);
}
