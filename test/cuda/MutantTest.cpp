//===-- MutantTest.cpp - the tests notice planted faults ------------------===//
//
// Mutants.cmake writes copies of the device library with one fault each. Every
// fault must be noticed: by wrong results, by ThreadSanitizer or by
// AddressSanitizer.
//
//===----------------------------------------------------------------------===//

#include "mutants/addend_without_factor/Gemm.cuh"
#include "mutants/column_off_by_one/Columns.cuh"
#include "mutants/columns_original/Columns.cuh"
#include "mutants/element_too_many/Elementwise.cuh"
#include "mutants/elementwise_original/Elementwise.cuh"
#include "mutants/group_across_rows/Elementwise.cuh"
#include "mutants/lane_left_out/Columns.cuh"
#include "mutants/mirror_not_transposed/Gemm.cuh"
#include "mutants/missing_column_barrier/Columns.cuh"
#include "mutants/missing_end_barrier/Gemm.cuh"
#include "mutants/missing_lane_barrier/Columns.cuh"
#include "mutants/missing_loop_barrier/Gemm.cuh"
#include "mutants/missing_mirror_barrier/Gemm.cuh"
#include "mutants/missing_pass_barrier/Rows.cuh"
#include "mutants/missing_row_barrier/Rows.cuh"
#include "mutants/missing_tile_barrier/Transpose.cuh"
#include "mutants/never_kept/Elementwise.cuh"
#include "mutants/odd_addend/Gemm.cuh"
#include "mutants/odd_staged_pitch/Gemm.cuh"
#include "mutants/one_tile/Transpose.cuh"
#include "mutants/original/Gemm.cuh"
#include "mutants/parameters_always_aligned/Gemm.cuh"
#include "mutants/parameters_never_aligned/Gemm.cuh"
#include "mutants/row_of_column_too_many/Columns.cuh"
#include "mutants/row_off_by_one/Rows.cuh"
#include "mutants/row_too_many/Gemm.cuh"
#include "mutants/rows_original/Rows.cuh"
#include "mutants/shared_kept_slot/Rows.cuh"
#include "mutants/shifted_mirror/Gemm.cuh"
#include "mutants/transpose_column_too_few/Transpose.cuh"
#include "mutants/transpose_original/Transpose.cuh"
#include "mutants/wait_one_short/Gemm.cuh"
#include "test/cuda/TestMatrices.h"
#include "test/cuda/TestProducts.h"

#include <gtest/gtest-spi.h>

using namespace kaon;
using kaon::device::bf16;
using kaon::device::ProductList;
using kaon::test::Form;
using kaon::test::ProductKernel;
using kaon::test::Shape;

namespace {

constexpr test::ProductLaunch productLaunch = {256, 48 << 10};

/// Products of a copy of the library: symmetric ones, of short and of tall X,
/// and one with an addend.
#define KAON_PRODUCTS_OF(name)                                                 \
  struct name {                                                                \
    template <device_##name::Contiguous contiguous>                            \
    static void run(ProductList list, const double *scalars) {                 \
      using namespace kaon::device_##name;                                     \
      using Loop = TileProduct<bf16, contiguous, contiguous>;                  \
      using Epilogue = StoreTile<bf16, true, Addend::none>;                    \
      static_assert(gemmSharedBytes<Loop, Epilogue> ==                         \
                    productLaunch.sharedBytes);                                \
      runGemm<Loop, Epilogue>(list, scalars);                                  \
    }                                                                          \
    static void shortX(ProductList list, const double *scalars) {              \
      run<device_##name::Contiguous::depth>(list, scalars);                    \
    }                                                                          \
    static void tallX(ProductList list, const double *scalars) {               \
      run<device_##name::Contiguous::extent>(list, scalars);                   \
    }                                                                          \
    static void withAddend(ProductList list, const double *scalars) {          \
      using namespace kaon::device_##name;                                     \
      using Loop = TileProduct<bf16, Contiguous::depth, Contiguous::depth>;    \
      using Epilogue = StoreTile<bf16, false, Addend::matrix>;                 \
      runGemm<Loop, Epilogue>(list, scalars);                                  \
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
KAON_PRODUCTS_OF(addend_without_factor);
KAON_PRODUCTS_OF(odd_staged_pitch);
KAON_PRODUCTS_OF(odd_addend);

/// What the tests of products see of a kernel.
struct Findings {
  size_t wrong = 0;
  int races = 0;
};

/// Runs a kernel on one product with tiles on and off the diagonal.
Findings runProduct(ProductKernel kernel, bool tall) {
  const Form form = {
      .tallA = tall, .tallB = tall, .sameOperands = true, .symmetric = true};
  Findings findings;
  for (const shim::Schedule &schedule : shim::allSchedules) {
    auto products = test::makeProducts<bf16>({{200, 200, 137}}, form);
    auto tables = test::makeTables(products);
    findings.races += shim::countRaces(
        [&] { test::launchProducts(productLaunch, kernel, tables, schedule); });
    findings.wrong += test::countWrong(products);
  }
  return findings;
}

/// A barrier or a wait is missing: results are wrong under some schedule, and
/// ThreadSanitizer reports a race.
void expectRace(ProductKernel kernel) {
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

namespace {

/// Wrong elements of a product with an addend and a factor.
size_t countWrongSums(ProductKernel kernel) {
  auto products = test::makeProducts<bf16>({{40, 33, 20}}, {.addend = true});
  test::launchProducts(productLaunch, kernel, test::makeTables(products), {});
  return test::countWrong(products);
}

} // namespace

TEST(MutantTest, AddendWithoutFactor) {
  EXPECT_EQ(countWrongSums(original::withAddend), 0u);
  EXPECT_GT(countWrongSums(addend_without_factor::withAddend), 0u);
}

namespace {

/// What the shim says about products with an addend; empty if they are right.
std::string faultOfSums(ProductKernel kernel) {
  try {
    EXPECT_EQ(countWrongSums(kernel), 0u);
  } catch (const shim::Fault &fault) {
    return fault.what();
  }
  return {};
}

} // namespace

TEST(MutantTest, OddStagedPitch) {
  EXPECT_EQ(faultOfSums(original::withAddend), "");
  EXPECT_NE(faultOfSums(odd_staged_pitch::withAddend)
                .find("a store expects an address aligned to 4"),
            std::string::npos);
}

TEST(MutantTest, OddAddend) {
  EXPECT_NE(faultOfSums(odd_addend::withAddend)
                .find("a load expects an address aligned to 4"),
            std::string::npos);
}

namespace {

/// A step against the product.
struct Subtract {
  explicit Subtract(const double *scalars)
      : keep(device::toFloatRn(scalars[0])),
        step(device::toFloatRn(scalars[1])) {}
  float operator()(float w, float product) const {
    return device::subRn(device::mulRn(keep, w), device::mulRn(step, product));
  }
  float keep, step;
};

#define KAON_APPLY_OF(name)                                                    \
  template <typename Parameter>                                                \
  void name##_apply(ProductList list, const double *scalars) {                 \
    using namespace device_##name;                                             \
    using Loop = TileProduct<bf16, Contiguous::depth, Contiguous::extent>;     \
    using Epilogue = ApplyTile<bf16, Parameter, Addend::matrix, Subtract>;     \
    runGemm<Loop, Epilogue>(list, scalars);                                    \
  }

KAON_APPLY_OF(original)
KAON_APPLY_OF(parameters_always_aligned)
KAON_APPLY_OF(parameters_never_aligned)

/// Applies a product to a parameter with `columns` columns that starts `offset`
/// elements off an aligned address; the accesses of several parameters.
template <typename Parameter>
size_t countPairs(ProductKernel kernel, int columns, size_t offset) {
  auto products = test::makeProducts<bf16>({{40, columns, 20}},
                                           {.tallB = true, .addend = true});
  test::AppliedProducts<bf16, Parameter> applied(products, offset);
  auto tables = applied.tables();
  shim::takeAccesses();
  test::launchProducts(productLaunch, kernel, tables, {});
  EXPECT_EQ(applied.countWrong(), 0u);
  shim::AccessCounts counts = shim::takeAccesses();
  // Addends are words of 4 bytes, and every pair is loaded once.
  size_t addends = 40 * ((columns + 1) / 2);
  return counts[2 * sizeof(Parameter)] - (sizeof(Parameter) == 2 ? addends : 0);
}

template <typename Parameter>
void expectAlignmentMatters(ProductKernel right, ProductKernel always,
                            ProductKernel never) {
  constexpr size_t loadsAndStores = 2 * 40 * 17;
  EXPECT_EQ(countPairs<Parameter>(right, 34, 0), loadsAndStores);
  EXPECT_EQ(countPairs<Parameter>(never, 34, 0), 0u);
  EXPECT_EQ(countPairs<Parameter>(right, 34, 1), 0u);
  EXPECT_THROW(countPairs<Parameter>(always, 34, 1), shim::Fault)
      << "the parameter starts in the middle of a pair";
  // Of every other row of an odd number of columns all pairs are aligned.
  EXPECT_EQ(countPairs<Parameter>(right, 35, 0), loadsAndStores / 2);
  EXPECT_THROW(countPairs<Parameter>(always, 35, 0), shim::Fault);
}

} // namespace

TEST(MutantTest, ParametersAlwaysOrNeverAligned) {
  expectAlignmentMatters<float>(original_apply<float>,
                                parameters_always_aligned_apply<float>,
                                parameters_never_aligned_apply<float>);
  expectAlignmentMatters<bf16>(original_apply<bf16>,
                               parameters_always_aligned_apply<bf16>,
                               parameters_never_aligned_apply<bf16>);
}

//===----------------------------------------------------------------------===//
// Elementwise kernels
//===----------------------------------------------------------------------===//

namespace {

struct Negate {
  using List = device::Operands<device::Operand<float, device::Access::update>>;
  Negate(const double *, const device::Matrix<1> &) {}
  void operator()(device::Element<List> &element) const {
    device::get<0>(element) = -device::get<0>(element);
  }
};

void negateOneTooMany() {
  auto array = test::DeviceArray<float>(3).fill([] { return 1; });
  test::MatrixTables<1> tables;
  tables.add(1, 3, {{array, 3}});
  tables.run(device_element_too_many::runElementwise<Negate>,
             tables.chunkBlocks(), 256, 0, {});
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

namespace {

/// Zeros, unless the matrix is kept.
struct ZeroUnlessKept {
  using List =
      device::Operands<device::Operand<float, device::Access::update>,
                       device::Operand<float, device::Access::uniform>>;
  ZeroUnlessKept(const double *, const device::Matrix<2> &matrix)
      : isKept(device::loadScalar<float>(matrix, 1) == 1) {}
  void operator()(device::Element<List> &element) const {
    device::get<0>(element) = 0;
  }
  bool keeps() const { return isKept; }
  bool isKept;
};

/// Elements that are zero after one matrix was kept and another was not.
std::array<size_t, 2> countZeros(test::MatrixTables<2>::Kernel kernel) {
  constexpr size_t rows = 3, columns = 5;
  auto ones = [] {
    return test::DeviceArray<float>(rows * columns).fill([] { return 1; });
  };
  auto kept = ones(), changed = ones();
  auto one = test::deviceArray<float>({1}), two = test::deviceArray<float>({2});
  test::MatrixTables<2> tables;
  tables.add(rows, columns, {{kept, columns}, {one, 0}});
  tables.add(rows, columns, {{changed, columns}, {two, 0}});
  tables.run(kernel, tables.chunkBlocks(), 256, 0, {});
  auto count = [](const test::DeviceArray<float> &array) {
    size_t zeros = 0;
    for (size_t i = 0; i < array.size(); ++i) {
      zeros += array[i] == 0;
    }
    return zeros;
  };
  return {count(kept), count(changed)};
}

} // namespace

TEST(MutantTest, NeverKept) {
  using Counts = std::array<size_t, 2>;
  EXPECT_EQ(
      countZeros(
          device_elementwise_original::runElementwiseInPlace<ZeroUnlessKept>),
      (Counts{0, 15}));
  EXPECT_EQ(
      countZeros(device_never_kept::runElementwiseInPlace<ZeroUnlessKept>),
      (Counts{15, 15}));
}

TEST(MutantTest, GroupAcrossRows) {
  constexpr size_t rows = 3, columns = 5, stride = 6;
  auto array =
      test::DeviceArray<float>((rows + 2) * stride).fill([] { return 1; });
  test::MatrixTables<1> tables;
  tables.add(rows, columns, {{array, stride}});
  int races = shim::countRaces([&] {
    tables.run(device_group_across_rows::runElementwise<Negate>,
               tables.chunkBlocks(), 256, 0, {});
  });
  EXPECT_EQ(array[columns], -1) << "what lies between rows was changed";
  EXPECT_EQ(races > 0, shim::detectsRaces);
}

//===----------------------------------------------------------------------===//
// Row, column and transposing kernels
//===----------------------------------------------------------------------===//

namespace {

/// A number that stands for (row, column) of a matrix.
float numberAt(size_t row, size_t column) {
  return static_cast<float>(1 + row * 1000 + column);
}

test::DeviceArray<float> numberedMatrix(size_t rows, size_t columns) {
  test::DeviceArray<float> matrix(rows * columns);
  for (size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = numberAt(i / columns, i % columns);
  }
  return matrix;
}

/// A step of a copy of the library that makes two passes. Operands: x, result =
/// x * 2 - the sum of x + the largest 2 * x, sums (one per row).
#define KAON_STEP_OF(name)                                                     \
  namespace name##_rows {                                                      \
    using namespace device_##name;                                             \
    class Step {                                                               \
    public:                                                                    \
      static constexpr int kept = 1;                                           \
      using List0 =                                                            \
          Operands<Operand<float, Access::read>, Operand<float, Access::none>, \
                   Operand<double, Access::uniform>>;                          \
      using List1 =                                                            \
          Operands<Operand<float, Access::none>, Operand<float, Access::none>, \
                   Operand<double, Access::uniform>>;                          \
      using List2 = Operands<Operand<float, Access::none>,                     \
                             Operand<float, Access::write>,                    \
                             Operand<double, Access::uniform>>;                \
      using Passes = PassList<Pass<List0, Reductions<Sum>>,                    \
                              Pass<List1, Reductions<Max<double>>>,            \
                              Pass<List2, Reductions<>>>;                      \
      Step(const double *, const Matrix<3> &, i64) {}                          \
      void pass(Index<0>, Element<List0> &element, Kept<1> &kept,              \
                Contributions<Reductions<Sum>> &contributions) {               \
        get<0>(kept) = 2 * get<0>(element);                                    \
        get<0>(contributions) = get<0>(element);                               \
      }                                                                        \
      void reduced(Index<0>, const Results<Reductions<Sum>> &results) {        \
        sum = get<0>(results);                                                 \
      }                                                                        \
      void pass(Index<1>, Element<List1> &, Kept<1> &kept,                     \
                Contributions<Reductions<Max<double>>> &contributions) {       \
        get<0>(contributions) = get<0>(kept);                                  \
      }                                                                        \
      void reduced(Index<1>,                                                   \
                   const Results<Reductions<Max<double>>> &results) {          \
        largest = get<0>(results);                                             \
      }                                                                        \
      void pass(Index<2>, Element<List2> &element, Kept<1> &kept,              \
                Contributions<Reductions<>> &) {                               \
        get<1>(element) = static_cast<float>(get<0>(kept) - sum + largest);    \
      }                                                                        \
      void finish(const Matrix<3> &matrix, i64 row) const {                    \
        storeOfRow<double>(matrix, 2, row, sum);                               \
      }                                                                        \
      double sum = 0, largest = 0;                                             \
    };                                                                         \
    void kernel(const Matrix<3> *matrices, const Block *blocks,                \
                const double *scalars) {                                       \
      runRows<Step, 64, 1>(matrices, blocks, scalars);                         \
    }                                                                          \
  }

KAON_STEP_OF(rows_original)
KAON_STEP_OF(missing_pass_barrier)
KAON_STEP_OF(shared_kept_slot)
KAON_STEP_OF(row_off_by_one)

/// Runs the step of a copy of the library over several rows of a block, longer
/// than fits in registers.
Findings runRowsOf(test::MatrixTables<3>::Kernel kernel) {
  constexpr size_t rows = 5, columns = 1300;
  // A row more, into which a fault may reach.
  constexpr size_t size = (rows + 1) * columns;
  Findings findings;
  for (const shim::Schedule &schedule : shim::allSchedules) {
    auto x = numberedMatrix(rows + 1, columns);
    test::DeviceArray<float> result(size);
    test::DeviceArray<double> sums(rows);
    test::MatrixTables<3> tables;
    tables.add(rows, columns, {{x, columns}, {result, columns}, {sums, 1}});
    findings.races += shim::countRaces([&] {
      tables.run(kernel, tables.rowBlocks(3), 64,
                 device_rows_original::rowSharedBytes(columns, 64, 1, 1, 2),
                 schedule);
    });
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0, largest = 2 * numberAt(row, columns - 1);
      for (size_t column = 0; column < columns; ++column) {
        sum += numberAt(row, column);
      }
      findings.wrong += sums[row] != sum;
      for (size_t column = 0; column < columns; ++column) {
        auto expected =
            static_cast<float>(2 * numberAt(row, column) - sum + largest);
        findings.wrong += result[row * columns + column] != expected;
      }
    }
  }
  return findings;
}

} // namespace

TEST(MutantTest, RowsThemselvesAreRight) {
  Findings findings = runRowsOf(rows_original_rows::kernel);
  EXPECT_EQ(findings.wrong, 0u);
  EXPECT_EQ(findings.races, 0);
}

TEST(MutantTest, MissingPassBarrier) {
  Findings findings = runRowsOf(missing_pass_barrier_rows::kernel);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

namespace {

/// One pass with one reduction: nothing but the barrier at a row's end keeps
/// threads of different rows apart. Operands: x, sums (one per row), to which
/// the sums of x are added.
class AddSums {
public:
  static constexpr int kept = 0;
  using List0 =
      device::Operands<device::Operand<float, device::Access::read>,
                       device::Operand<double, device::Access::uniform>>;
  using Reductions0 = device::Reductions<device::Sum>;
  using Passes = device::PassList<device::Pass<List0, Reductions0>>;

  AddSums(const double *, const device::Matrix<2> &matrix, device::i64 row)
      : sum(device::loadOfRow<double>(matrix, 1, row)) {}

  /// Kept<0> of any copy of the library.
  template <typename NothingKept>
  void pass(device::Index<0>, device::Element<List0> &element, NothingKept &,
            device::Contributions<Reductions0> &contributions) {
    device::get<0>(contributions) = device::get<0>(element);
  }
  void reduced(device::Index<0>, const device::Results<Reductions0> &results) {
    sum += device::get<0>(results);
  }
  void finish(const device::Matrix<2> &matrix, device::i64 row) const {
    device::storeOfRow<double>(matrix, 1, row, sum);
  }

private:
  double sum;
};

Findings runAddSums(test::MatrixTables<2>::Kernel kernel) {
  constexpr size_t rows = 6, columns = 500;
  Findings findings;
  for (const shim::Schedule &schedule : shim::allSchedules) {
    auto x = numberedMatrix(rows, columns);
    auto sums = test::DeviceArray<double>(rows).fill([] { return 7; });
    test::MatrixTables<2> tables;
    tables.add(rows, columns, {{x, columns}, {sums, 1}});
    findings.races += shim::countRaces([&] {
      tables.run(kernel, tables.rowBlocks(3), 64, device::reduceBlockBytes,
                 schedule);
    });
    for (size_t row = 0; row < rows; ++row) {
      double sum = 7;
      for (size_t column = 0; column < columns; ++column) {
        sum += numberAt(row, column);
      }
      findings.wrong += sums[row] != sum;
    }
  }
  return findings;
}

} // namespace

TEST(MutantTest, MissingRowBarrier) {
  Findings right = runAddSums(device_rows_original::runRows<AddSums, 64, 1>);
  EXPECT_EQ(right.wrong, 0u);
  EXPECT_EQ(right.races, 0);
  Findings findings =
      runAddSums(device_missing_row_barrier::runRows<AddSums, 64, 1>);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

TEST(MutantTest, SharedKeptSlot) {
  EXPECT_GT(runRowsOf(shared_kept_slot_rows::kernel).wrong, 0u);
}

TEST(MutantTest, RowOffByOne) {
  EXPECT_GT(runRowsOf(row_off_by_one_rows::kernel).wrong, 0u);
}

namespace {

/// Two steps over columns. Sums adds up a column (operands: x, sums); Counts
/// reduces nothing, but replaces a value that all lanes of a column read
/// (operands: x = x + the column's count, counts = counts + 1).
#define KAON_COLUMNS_OF(name)                                                  \
  namespace name##_columns {                                                   \
    using namespace device_##name;                                             \
    class Sums {                                                               \
    public:                                                                    \
      using List0 = Operands<Operand<float, Access::read>,                     \
                             Operand<double, Access::uniform>>;                \
      using Passes = PassList<Pass<List0, Reductions<Sum>>>;                   \
      Sums(const double *, const Matrix<2> &, i64) {}                          \
      void pass(Index<0>, Element<List0> &element,                             \
                Contributions<Reductions<Sum>> &contributions) {               \
        get<0>(contributions) = get<0>(element);                               \
      }                                                                        \
      void reduced(Index<0>, const Results<Reductions<Sum>> &results) {        \
        sum = get<0>(results);                                                 \
      }                                                                        \
      void finish(const Matrix<2> &matrix, i64 column) const {                 \
        storeOfColumn<double>(matrix, 1, column, sum);                         \
      }                                                                        \
      double sum = 0;                                                          \
    };                                                                         \
    class Counts {                                                             \
    public:                                                                    \
      using List0 = Operands<Operand<float, Access::update>,                   \
                             Operand<double, Access::uniform>>;                \
      using Passes = PassList<Pass<List0, Reductions<>>>;                      \
      Counts(const double *, const Matrix<2> &matrix, i64 column)              \
          : count(loadOfColumn<double>(matrix, 1, column)) {}                  \
      void pass(Index<0>, Element<List0> &element,                             \
                Contributions<Reductions<>> &) {                               \
        get<0>(element) += toFloatRn(count);                                   \
      }                                                                        \
      void finish(const Matrix<2> &matrix, i64 column) const {                 \
        storeOfColumn<double>(matrix, 1, column, count + 1);                   \
      }                                                                        \
      double count;                                                            \
    };                                                                         \
    [[maybe_unused]] constexpr auto sums = &runColumns<Sums>;                  \
    [[maybe_unused]] constexpr auto counts = &runColumns<Counts>;              \
  }

KAON_COLUMNS_OF(columns_original)
KAON_COLUMNS_OF(column_off_by_one)
KAON_COLUMNS_OF(row_of_column_too_many)
KAON_COLUMNS_OF(lane_left_out)
KAON_COLUMNS_OF(missing_lane_barrier)
KAON_COLUMNS_OF(missing_column_barrier)

/// Runs a kernel over columns of `rows` x 70 numbers, and counts the columns
/// for which `isRight(x, values, column)` is false.
template <typename IsRight>
Findings runColumnsOf(test::MatrixTables<2>::Kernel kernel, size_t rows,
                      std::span<const shim::Schedule> schedules,
                      IsRight isRight) {
  constexpr size_t columns = 70;
  Findings findings;
  for (const shim::Schedule &schedule : schedules) {
    auto x = numberedMatrix(rows, columns);
    test::DeviceArray<double> values(columns);
    std::fill_n(values.data(), columns, 1.0);
    test::MatrixTables<2> tables;
    tables.add(rows, columns, {{x, columns}, {values, 0}});
    findings.races += shim::countRaces([&] {
      tables.run(kernel, tables.columnBlocks(32), 256,
                 device_columns_original::columnSharedBytes(1), schedule);
    });
    for (size_t column = 0; column < columns; ++column) {
      findings.wrong += !isRight(x, values, column);
    }
  }
  return findings;
}

Findings
runSums(test::MatrixTables<2>::Kernel kernel,
        std::span<const shim::Schedule> schedules = shim::allSchedules) {
  constexpr size_t rows = 19;
  return runColumnsOf(kernel, rows, schedules,
                      [](const auto &, const auto &sums, size_t column) {
                        double sum = 0;
                        for (size_t row = 0; row < rows; ++row) {
                          sum += numberAt(row, column);
                        }
                        return sums[column] == sum;
                      });
}

Findings runCounts(test::MatrixTables<2>::Kernel kernel) {
  constexpr size_t rows = 9;
  return runColumnsOf(kernel, rows, shim::allSchedules,
                      [](const auto &x, const auto &counts, size_t column) {
                        bool right = counts[column] == 2;
                        for (size_t row = 0; row < rows; ++row) {
                          right &=
                              x[row * 70 + column] == numberAt(row, column) + 1;
                        }
                        return right;
                      });
}

} // namespace

TEST(MutantTest, ColumnsThemselvesAreRight) {
  for (Findings findings : {runSums(columns_original_columns::sums),
                            runCounts(columns_original_columns::counts)}) {
    EXPECT_EQ(findings.wrong, 0u);
    EXPECT_EQ(findings.races, 0);
  }
}

TEST(MutantTest, ColumnOffByOne) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
  EXPECT_DEATH(runSums(column_off_by_one_columns::sums), "use-after-poison");
#else
  EXPECT_NONFATAL_FAILURE(runSums(column_off_by_one_columns::sums,
                                  std::span(shim::allSchedules).first(1)),
                          "a kernel wrote outside of an array");
#endif
}

TEST(MutantTest, RowOfColumnTooMany) {
#ifdef KAON_SHIM_ADDRESS_SANITIZER
  EXPECT_DEATH(runSums(row_of_column_too_many_columns::sums),
               "use-after-poison");
#else
  EXPECT_GT(runSums(row_of_column_too_many_columns::sums).wrong, 0u)
      << "the row after the last one is NaN";
#endif
}

TEST(MutantTest, LaneLeftOut) {
  EXPECT_GT(runSums(lane_left_out_columns::sums).wrong, 0u);
}

TEST(MutantTest, MissingLaneBarrier) {
  Findings findings = runSums(missing_lane_barrier_columns::sums);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

TEST(MutantTest, MissingColumnBarrier) {
  Findings findings = runCounts(missing_column_barrier_columns::counts);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

namespace {

Findings runTransposeOf(void (*kernel)(const device::Matrix<2> *,
                                       const device::Block *)) {
  constexpr size_t rows = 40, columns = 200;
  Findings findings;
  for (const shim::Schedule &schedule : shim::allSchedules) {
    auto source = numberedMatrix(rows, columns);
    test::DeviceArray<float> result(rows * columns);
    test::MatrixTables<2> tables;
    tables.add(rows, columns, {{source, columns}, {result, rows}});
    auto blocks = tables.transposeBlocks(32, 128);
    static void (*running)(const device::Matrix<2> *, const device::Block *);
    running = kernel;
    findings.races += shim::countRaces([&] {
      tables.run(
          [](const device::Matrix<2> *matrices, const device::Block *table,
             const double *) { running(matrices, table); },
          blocks, 256, device_transpose_original::transposeSharedBytes<float>,
          schedule);
    });
    for (size_t i = 0; i < result.size(); ++i) {
      findings.wrong += result[i] != numberAt(i % rows, i / rows);
    }
  }
  return findings;
}

} // namespace

TEST(MutantTest, TransposesThemselvesAreRight) {
  Findings findings =
      runTransposeOf(device_transpose_original::runTranspose<float>);
  EXPECT_EQ(findings.wrong, 0u);
  EXPECT_EQ(findings.races, 0);
}

TEST(MutantTest, TransposeColumnTooFew) {
  EXPECT_GT(runTransposeOf(device_transpose_column_too_few::runTranspose<float>)
                .wrong,
            0u);
}

TEST(MutantTest, MissingTileBarrier) {
  Findings findings =
      runTransposeOf(device_missing_tile_barrier::runTranspose<float>);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}

TEST(MutantTest, TilesDoNotTakeTurns) {
  Findings findings = runTransposeOf(device_one_tile::runTranspose<float>);
  EXPECT_GT(findings.wrong, 0u);
  EXPECT_EQ(findings.races > 0, shim::detectsRaces);
}
