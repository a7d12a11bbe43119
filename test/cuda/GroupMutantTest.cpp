//===-- GroupMutantTest.cpp - faults in accesses of 16 bytes --------------===//
//
// As MutantTest.cpp, for faults in what decides whether a group of elements is
// accessed 16 bytes at a time. Some leave every result right and cost speed
// alone: they are noticed by counting accesses. The mutants take the place of
// headers that most others include, so this file includes no other copy.
//
//===----------------------------------------------------------------------===//

#include "mutants/groups_always_aligned/Elementwise.cuh"
#include "mutants/groups_always_aligned/Rows.cuh"
#include "mutants/groups_never_aligned/Elementwise.cuh"
#include "mutants/groups_never_aligned/Rows.cuh"
#include "mutants/groups_original/Elementwise.cuh"
#include "mutants/groups_original/Rows.cuh"
#include "mutants/head_ignored/Elementwise.cuh"
#include "mutants/head_ignored/Rows.cuh"
#include "test/cuda/TestMatrices.h"

using namespace kaon;

namespace {

/// An elementwise and a row kernel of a copy of the library, which copy operand
/// 0 to operand 1.
#define KAON_COPIES_OF(name)                                                   \
  namespace name {                                                             \
  namespace library = device_##name;                                           \
  using List =                                                                 \
      library::Operands<library::Operand<float, library::Access::read>,        \
                        library::Operand<float, library::Access::write>>;      \
  struct Copy {                                                                \
    using List = name::List;                                                   \
    Copy(const double *, const device::Matrix<2> &) {}                         \
    void operator()(library::Element<List> &element) const {                   \
      library::get<1>(element) = library::get<0>(element);                     \
    }                                                                          \
  };                                                                           \
  struct CopyRow {                                                             \
    static constexpr int kept = 0;                                             \
    using Passes =                                                             \
        library::PassList<library::Pass<List, library::Reductions<>>>;         \
    CopyRow(const double *, const device::Matrix<2> &, device::i64) {}         \
    void pass(device::Index<0>, library::Element<List> &element,               \
              library::Kept<0> &,                                              \
              library::Contributions<library::Reductions<>> &) {               \
      library::get<1>(element) = library::get<0>(element);                     \
    }                                                                          \
    void finish(const device::Matrix<2> &, device::i64) const {}               \
  };                                                                           \
  [[maybe_unused]] constexpr auto elementwise =                                \
      &library::runElementwise<Copy>;                                          \
  [[maybe_unused]] constexpr auto rows = &library::runRows<CopyRow, 64, 1>;    \
  }

KAON_COPIES_OF(groups_original)
KAON_COPIES_OF(groups_always_aligned)
KAON_COPIES_OF(groups_never_aligned)
KAON_COPIES_OF(head_ignored)

using Kernel = test::MatrixTables<2>::Kernel;

/// Copies a matrix by rows or all at once; the accesses of 16 bytes that this
/// takes. Matrix and copy start some elements off an aligned address.
size_t countAccesses(Kernel kernel, bool byRows, size_t rows, size_t columns,
                     size_t offset, size_t offsetOfCopy) {
  auto source =
      test::DeviceArray<float>(rows * columns, offset).fill(test::Normal(1));
  test::DeviceArray<float> copy(rows * columns, offsetOfCopy);
  test::MatrixTables<2> tables;
  tables.add(rows, columns, {{source, columns}, {copy, columns}});
  shim::takeAccesses();
  if (byRows) {
    tables.run(kernel, tables.rowBlocks(rows), 64, 0, {});
  } else {
    tables.run(kernel, tables.chunkBlocks(), 256, 0, {});
  }
  EXPECT_TRUE(test::sameBits(copy.values(), source.values()));
  return shim::takeAccesses()[16];
}

size_t countOfList(Kernel kernel, size_t offset, size_t offsetOfCopy) {
  return countAccesses(kernel, /*byRows=*/false, 1, 803, offset, offsetOfCopy);
}
size_t countOfRows(Kernel kernel, size_t columns, size_t offset) {
  return countAccesses(kernel, /*byRows=*/true, 3, columns, offset, offset);
}

} // namespace

TEST(GroupMutantTest, TheLibraryItselfIsRight) {
  // A group is two loads and two stores.
  EXPECT_EQ(countOfList(groups_original::elementwise, 0, 0), 4 * 100u);
  EXPECT_EQ(countOfList(groups_original::elementwise, 1, 1), 4 * 100u);
  EXPECT_EQ(countOfList(groups_original::elementwise, 1, 0), 2 * 100u)
      << "the operand alone is aligned";
  EXPECT_EQ(countOfRows(groups_original::rows, 80, 0), 4 * 30u);
  EXPECT_EQ(countOfRows(groups_original::rows, 80, 1), 0u);
  // Of rows of 81 elements the first one is aligned.
  EXPECT_EQ(countOfRows(groups_original::rows, 81, 0), 4 * 10u);
}

TEST(GroupMutantTest, GroupsAlwaysAligned) {
  EXPECT_THROW(countOfRows(groups_always_aligned::rows, 80, 1), shim::Fault);
  EXPECT_THROW(countOfRows(groups_always_aligned::rows, 81, 0), shim::Fault);
  EXPECT_THROW(countOfList(groups_always_aligned::elementwise, 1, 0),
               shim::Fault)
      << "where the operand is aligned, the copy is not";
}

TEST(GroupMutantTest, GroupsNeverAligned) {
  EXPECT_EQ(countOfList(groups_never_aligned::elementwise, 0, 0), 0u);
  EXPECT_EQ(countOfRows(groups_never_aligned::rows, 80, 0), 0u);
}

TEST(GroupMutantTest, HeadIgnored) {
  EXPECT_EQ(countOfList(head_ignored::elementwise, 0, 0), 4 * 100u);
  EXPECT_EQ(countOfList(head_ignored::elementwise, 1, 1), 0u);
}
