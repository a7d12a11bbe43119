//===-- Traffic.h - what kernels read and write -----------------*- C++ -*-===//
//
// Counts every access of a kernel to memory that is not on the chip. Nothing in
// the kernel's text or the device library takes part, so that no access can
// escape: the text is compiled with -fsanitize=thread, for which a compiler
// calls a function at every load and store, and is linked with the functions of
// Traffic.cpp in the place of ThreadSanitizer's.
//
// Not counted are accesses to the stacks of threads, to shared memory and to
// the arguments of the kernel, and prefetches, which read nothing themselves.
// What a compiler does away with, such as a second load of a value that is at
// hand, is not there to be counted.
//
// The record is read by C functions, which Python's tests call:
//
//   void kaon_shim_traffic_clear();
//   int64_t kaon_shim_traffic_launches();
//   const char *kaon_shim_traffic_kernel(int64_t launch);
//   int64_t kaon_shim_traffic_tables(int64_t launch, int64_t *words);
//   int64_t kaon_shim_traffic_bytes(int64_t launch, uint64_t *addresses,
//                                   uint32_t *reads, uint32_t *writes);
//
// The last two return how many entries there are, and fill arrays that are not
// null: the launch's tables as below, and the bytes that were accessed, in the
// order of their addresses, with how often each was read and written.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_TRAFFIC_H
#define KAON_TEST_CUDA_SHIM_TRAFFIC_H

#include "Matrices.cuh"
#include "TileScheduler.cuh"
#include "test/cuda/shim/KernelLibrary.h"

#include <algorithm>
#include <vector>

namespace kaon::shim {

/// Starts the record of a launch; see describeTables.
void recordLaunch(const char *kernel, std::vector<int64_t> tables);

/// While it lives, accesses of the running device thread count.
class CountingScope {
public:
  CountingScope() { setCounting(true); }
  ~CountingScope() { setCounting(false); }
  CountingScope(const CountingScope &) = delete;
  CountingScope &operator=(const CountingScope &) = delete;

private:
  static void setCounting(bool counts);
};

inline int64_t wordOf(const void *pointer) {
  return reinterpret_cast<int64_t>(pointer);
}

/// The tables of a launch over matrices: the addresses of matrices, blocks and
/// scalars, the number of blocks, of matrices, and of operands; then of each
/// matrix the bases, the strides, rows, columns and the first scalar.
template <int count, typename Last>
std::vector<int64_t> describeTables(uint32_t numBlocks,
                                    const device::Matrix<count> *matrices,
                                    const device::Block *blocks, Last *last) {
  uint32_t numMatrices = 0;
  for (uint32_t i = 0; i < numBlocks; ++i) {
    numMatrices = std::max(numMatrices, blocks[i].matrix + 1);
  }
  std::vector<int64_t> words = {wordOf(matrices), wordOf(blocks), wordOf(last),
                                numBlocks,        numMatrices,    count};
  for (uint32_t i = 0; i < numMatrices; ++i) {
    const device::Matrix<count> &matrix = matrices[i];
    for (const void *base : matrix.bases) {
      words.push_back(wordOf(base));
    }
    words.insert(words.end(), matrix.strides, matrix.strides + count);
    words.insert(words.end(),
                 {matrix.rows, matrix.columns, matrix.firstScalar});
  }
  return words;
}

/// The same of products: the addresses of products and scalars, the number of
/// blocks and of products; then of each product a, b, c, d, factor, their
/// pitches but the factor's, m, n, k and the first scalar.
inline std::vector<int64_t> describeTables(uint32_t numBlocks,
                                           const device::ProductList &list,
                                           const double *scalars) {
  std::vector<int64_t> words = {wordOf(list.products), wordOf(scalars),
                                numBlocks, list.count};
  for (uint32_t i = 0; i < list.count; ++i) {
    const device::Product &product = list.products[i];
    words.insert(words.end(),
                 {wordOf(product.a), wordOf(product.b), wordOf(product.c),
                  wordOf(product.d), wordOf(product.factor), product.pitchA,
                  product.pitchB, product.pitchC, product.pitchD, product.m,
                  product.n, product.k, product.firstScalar});
  }
  return words;
}

template <typename... Parameters>
std::vector<int64_t> describe(void (*)(Parameters...), uint32_t numBlocks,
                              void **parameters) {
  return [=]<size_t... indices>(std::index_sequence<indices...>) {
    return describeTables(
        numBlocks,
        *static_cast<std::remove_cv_t<Parameters> *>(parameters[indices])...);
  }(std::index_sequence_for<Parameters...>());
}

/// The kernel, of which accesses count, unlike those of the code around it.
template <auto kernel, typename... Parameters>
void callCounted(Parameters... parameters) {
  CountingScope scope;
  kernel(parameters...);
}

template <auto kernel, typename... Parameters>
constexpr auto countedKernel(void (*)(Parameters...)) {
  return &callCounted<kernel, Parameters...>;
}

/// runKernel of the kernel called `name`, whose accesses are recorded.
template <auto kernel>
int runCounted(const char *name, const LaunchSize &size, void **parameters,
               unsigned schedule, char *fault, size_t faultBytes) {
  recordLaunch(name, describe(kernel, size.blocks, parameters));
  return runKernel(countedKernel<kernel>(kernel), size, parameters, schedule,
                   fault, faultBytes);
}

} // namespace kaon::shim

#endif // KAON_TEST_CUDA_SHIM_TRAFFIC_H
