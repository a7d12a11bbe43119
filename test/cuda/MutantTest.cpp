//===-- MutantTest.cpp - the tests notice planted faults ------------------===//
//
// Mutants.cmake writes copies of the device library with one fault each. Every
// fault must be noticed: by wrong results, by ThreadSanitizer or by
// AddressSanitizer.
//
//===----------------------------------------------------------------------===//

#include "mutants/element_too_many/Elementwise.cuh"
#include "mutants/mirror_not_transposed/Gemm.cuh"
#include "mutants/missing_end_barrier/Gemm.cuh"
#include "mutants/missing_loop_barrier/Gemm.cuh"
#include "mutants/missing_mirror_barrier/Gemm.cuh"
#include "mutants/missing_reduce_barrier/Reduce.cuh"
#include "mutants/original/Gemm.cuh"
#include "mutants/row_too_many/Gemm.cuh"
#include "mutants/shifted_mirror/Gemm.cuh"
#include "mutants/wait_one_short/Gemm.cuh"
#include "test/cuda/TestProducts.h"

#include <gtest/gtest-spi.h>

using namespace kaon;
using kaon::device::bf16;
using kaon::device::ProductList;
using kaon::test::Form;
using kaon::test::Shape;

namespace {

constexpr size_t productSharedBytes = 48 << 10;

/// The symmetric products of a copy of the library, of short and of tall X.
#define KAON_PRODUCTS_OF(name)                                                 \
  struct name {                                                                \
    template <device_##name::Contiguous contiguous>                            \
    static void run(ProductList list, const float *scalars) {                  \
      using namespace kaon::device_##name;                                     \
      using Loop = TileProduct<bf16, contiguous, contiguous>;                  \
      using Epilogue = StoreTile<bf16, true, Addend::none, Diagonal::none>;    \
      static_assert(gemmSharedBytes<Loop, Epilogue> == productSharedBytes);    \
      runGemm<Loop, Epilogue>(list, scalars);                                  \
    }                                                                          \
    static void shortX(ProductList list, const float *scalars) {               \
      run<device_##name::Contiguous::depth>(list, scalars);                    \
    }                                                                          \
    static void tallX(ProductList list, const float *scalars) {                \
      run<device_##name::Contiguous::extent>(list, scalars);                   \
    }                                                                          \
  }

KAON_PRODUCTS_OF(original);
KAON_PRODUCTS_OF(missing_loop_barrier);
KAON_PRODUCTS_OF(wait_one_short);
KAON_PRODUCTS_OF(missing_end_barrier);
KAON_PRODUCTS_OF(missing_mirror_barrier);
KAON_PRODUCTS_OF(row_too_many);
KAON_PRODUCTS_OF(shifted_mirror);
KAON_PRODUCTS_OF(mirror_not_transposed);

/// What the tests of products see of a kernel.
struct Findings {
  size_t wrong = 0;
  int races = 0;
};

using Kernel = void (*)(ProductList, const float *);

/// Runs a kernel on one product with tiles on and off the diagonal.
Findings runProduct(Kernel kernel, bool tall) {
  const Form form = {
      .tallA = tall, .tallB = tall, .sameOperands = true, .symmetric = true};
  Findings findings;
  for (const shim::Schedule &schedule : shim::schedules) {
    auto products = test::makeProducts<bf16>({{200, 200, 137}}, form);
    auto tables = test::makeTables(products);
    ProductList list = tables.list();
    const float *scalars = tables.scalars.data();
    findings.races += shim::countRaces([&] {
      shim::launch({tables.tiles, 256, productSharedBytes}, schedule,
                   [=] { kernel(list, scalars); });
    });
    findings.wrong += test::countWrong(products);
  }
  return findings;
}

/// A barrier or a wait is missing: results are wrong under some schedule, and
/// ThreadSanitizer reports a race.
void expectRace(Kernel kernel) {
  Findings findings = runProduct(kernel, /*tall=*/false);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

} // namespace

TEST(MutantTest, TheLibraryItselfIsRight) {
  for (bool tall : {false, true}) {
    Findings findings =
        runProduct(tall ? original::tallX : original::shortX, tall);
    EXPECT_EQ(findings.wrong, 0u);
    EXPECT_EQ(findings.races, 0);
  }
}

TEST(MutantTest, MissingLoopBarrier) {
  expectRace(missing_loop_barrier::shortX);
}

TEST(MutantTest, WaitOneShort) { expectRace(wait_one_short::shortX); }

TEST(MutantTest, MissingEndBarrier) { expectRace(missing_end_barrier::shortX); }

TEST(MutantTest, MissingMirrorBarrier) {
  expectRace(missing_mirror_barrier::shortX);
}

TEST(MutantTest, ShiftedMirror) {
  EXPECT_GT(runProduct(shifted_mirror::shortX, false).wrong, 0u);
}

TEST(MutantTest, MirrorNotTransposed) {
  EXPECT_GT(runProduct(mirror_not_transposed::shortX, false).wrong, 0u);
}

TEST(MutantTest, RowTooMany) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
  EXPECT_DEATH(runProduct(row_too_many::tallX, true), "use-after-poison");
#else
  EXPECT_GT(runProduct(row_too_many::tallX, true).wrong, 0u)
      << "the row after the last one is NaN";
#endif
}

TEST(MutantTest, MissingReduceBarrier) {
  Findings findings;
  for (const shim::Schedule &schedule : shim::schedules) {
    size_t wrong = 0;
    findings.races += shim::countRaces([&] {
      shim::launch(
          {1, 256, device_missing_reduce_barrier::reduceBlockBytes<float>},
          schedule, [&] {
            using namespace device_missing_reduce_barrier;
            auto *shared = reinterpret_cast<float *>(device::sharedMemory());
            if (reduceBlock<Sum, 256>(1.0f, shared) != 256.0f) {
              wrong = 1;
            }
          });
    });
    findings.wrong += wrong;
  }
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

namespace {

struct Negate {
  using List = device::Operands<device::Operand<float, device::Access::update>>;
  explicit Negate(const float *) {}
  void operator()(float (&values)[1]) const { values[0] = -values[0]; }
};

void negateOneTooMany() {
  test::DeviceArray<float> array(3);
  std::fill_n(array.data(), array.size(), 1.0f);
  device_element_too_many::ElementwiseTensor<1> tensor = {{array.data()}, 3, 0};
  device_element_too_many::Chunk chunk = {0, 0};
  shim::launch({1, 256}, {}, [&] {
    device_element_too_many::runElementwise<Negate>(&tensor, &chunk, nullptr);
  });
}

} // namespace

TEST(MutantTest, ElementTooMany) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
  EXPECT_DEATH(negateOneTooMany(), "use-after-poison");
#else
  EXPECT_NONFATAL_FAILURE(negateOneTooMany(),
                          "a kernel wrote outside of an array");
#endif
}
