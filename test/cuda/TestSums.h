//===-- TestSums.h - sums in the order of the library -----------*- C++ -*-===//
//
// The orders that Reduce.cuh and Columns.cuh promise, written from their
// definitions.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_TESTSUMS_H
#define KAON_TEST_CUDA_TESTSUMS_H

#include <cstddef>
#include <vector>

namespace kaon::test {

/// The sum of one value per lane, as a butterfly.
inline double sumLanes(std::vector<double> values) {
  for (size_t distance = values.size() / 2; distance > 0; distance /= 2) {
    std::vector<double> next(values.size());
    for (size_t lane = 0; lane < values.size(); ++lane) {
      next[lane] = values[lane] + values[lane ^ distance];
    }
    values = next;
  }
  return values.front();
}

/// The sum of one value per thread of a block: a butterfly of the lanes of each
/// warp, then one of the warps.
inline double sumThreads(const std::vector<double> &values) {
  constexpr size_t lanes = 32;
  std::vector<double> warps;
  for (size_t first = 0; first < values.size(); first += lanes) {
    auto begin = values.begin() + static_cast<ptrdiff_t>(first);
    warps.push_back(sumLanes({begin, begin + lanes}));
  }
  if (warps.size() == 1) {
    return warps[0];
  }
  warps.resize(lanes);
  return sumLanes(warps);
}

/// The sum of `columns` values in the order of a row kernel with `threads`
/// threads: groups of eight columns go round the threads.
template <typename Value>
double sumOfRow(size_t columns, size_t threads, Value valueOf) {
  constexpr size_t groupSize = 8;
  std::vector<double> sums(threads);
  for (size_t column = 0; column < columns; ++column) {
    sums[column / groupSize % threads] += valueOf(column);
  }
  return sumThreads(sums);
}

/// The sum of `rows` values in the order of a column kernel: eight lanes, each
/// of every eighth row, one after the other.
template <typename Value> double sumOfColumn(size_t rows, Value valueOf) {
  constexpr size_t lanes = 8;
  double lanesOfColumn[lanes] = {};
  for (size_t row = 0; row < rows; ++row) {
    lanesOfColumn[row % lanes] += valueOf(row);
  }
  double sum = lanesOfColumn[0];
  for (size_t lane = 1; lane < lanes; ++lane) {
    sum += lanesOfColumn[lane];
  }
  return sum;
}

} // namespace kaon::test

#endif // KAON_TEST_CUDA_TESTSUMS_H
