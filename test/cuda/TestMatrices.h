//===-- TestMatrices.h - tables of kernels over matrices --------*- C++ -*-===//
//
// Tests put matrices, their blocks and their scalars together and launch a
// kernel over all of them at once.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_TESTMATRICES_H
#define KAON_TEST_CUDA_TESTMATRICES_H

#include "codegen/cuda/lib/Matrices.cuh"
#include "test/cuda/TestMemory.h"

#include <limits>

namespace kaon::test {

/// Where an operand lies: its first element and the elements between rows.
struct Place {
  template <typename T>
  Place(const DeviceArray<T> &array, size_t stride)
      : base(array.data()), stride(static_cast<device::i64>(stride)) {}

  void *base;
  device::i64 stride;
};

/// The tables of one launch of a kernel with `count` operands.
template <int count> class MatrixTables {
public:
  using Kernel = void (*)(const device::Matrix<count> *, const device::Block *,
                          const double *);

  /// Scalars that no matrix names come first, so that a kernel that ignores
  /// where its own start computes NaN.
  MatrixTables() : scalars(3, std::numeric_limits<double>::quiet_NaN()) {}

  void add(size_t rows, size_t columns, const std::vector<Place> &operands,
           const std::vector<double> &scalarsOfMatrix = {}) {
    ASSERT_EQ(operands.size(), size_t(count));
    device::Matrix<count> matrix;
    for (int i = 0; i < count; ++i) {
      matrix.bases[i] = operands[i].base;
      matrix.strides[i] = operands[i].stride;
    }
    matrix.rows = static_cast<device::i64>(rows);
    matrix.columns = static_cast<device::i64>(columns);
    matrix.firstScalar = static_cast<device::i64>(scalars.size());
    matrices.push_back(matrix);
    scalars.insert(scalars.end(), scalarsOfMatrix.begin(),
                   scalarsOfMatrix.end());
  }

  /// Blocks that cover [0, extentOf(matrix)) of every matrix, `step` at a time.
  template <typename Extent>
  std::vector<device::Block> blocksOf(Extent extentOf, size_t step) const {
    std::vector<device::Block> blocks;
    for (size_t i = 0; i < matrices.size(); ++i) {
      auto extent = static_cast<size_t>(extentOf(matrices[i]));
      for (size_t first = 0; first < extent; first += step) {
        blocks.push_back(
            {static_cast<device::u32>(i), static_cast<device::u32>(first),
             static_cast<device::u32>(std::min(step, extent - first))});
      }
    }
    return blocks;
  }

  std::vector<device::Block> rowBlocks(size_t rowsOfBlock) const {
    return blocksOf([](const auto &matrix) { return matrix.rows; },
                    rowsOfBlock);
  }
  std::vector<device::Block> columnBlocks(size_t columnsOfBlock) const {
    return blocksOf([](const auto &matrix) { return matrix.columns; },
                    columnsOfBlock);
  }
  std::vector<device::Block> chunkBlocks() const {
    return blocksOf(
        [](const auto &matrix) {
          constexpr device::i64 chunkSize = 8192;
          return (matrix.rows * matrix.columns + chunkSize - 1) / chunkSize;
        },
        1);
  }
  std::vector<device::Block> transposeBlocks(size_t rows,
                                             size_t columns) const {
    return blocksOf(
        [=](const auto &matrix) {
          return (matrix.rows + rows - 1) / rows *
                 ((matrix.columns + columns - 1) / columns);
        },
        1);
  }

  template <typename LastArgument>
  void run(void (*kernel)(const device::Matrix<count> *, const device::Block *,
                          LastArgument *),
           const std::vector<device::Block> &blocks, LastArgument *argument,
           device::u32 threads, size_t sharedBytes,
           const shim::Schedule &schedule) const {
    auto matrixTable = deviceArray(matrices);
    auto blockTable = deviceArray(blocks);
    shim::launch(
        {static_cast<device::u32>(blocks.size()), threads, sharedBytes},
        schedule,
        [&] { kernel(matrixTable.data(), blockTable.data(), argument); });
  }

  void run(Kernel kernel, const std::vector<device::Block> &blocks,
           device::u32 threads, size_t sharedBytes,
           const shim::Schedule &schedule) const {
    auto scalarTable = deviceArray(scalars);
    run<const double>(kernel, blocks, scalarTable.data(), threads, sharedBytes,
                      schedule);
  }

private:
  std::vector<device::Matrix<count>> matrices;
  std::vector<double> scalars;
};

} // namespace kaon::test

#endif // KAON_TEST_CUDA_TESTMATRICES_H
