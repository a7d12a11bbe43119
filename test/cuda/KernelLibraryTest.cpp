//===-- KernelLibraryTest.cpp - kernels in shared objects -----------------===//
//
// The shared objects are built by CMake the way that tests of the runtime build
// those of generated kernels.
//
//===----------------------------------------------------------------------===//

#include "codegen/cuda/lib/Elementwise.cuh"
#include "codegen/cuda/lib/TileScheduler.cuh"
#include "test/cuda/TestMemory.h"

#include <dlfcn.h>

using namespace kaon;
using namespace kaon::device;
using namespace kaon::test;

namespace {

/// A shared object and what it exports of one kernel.
class KernelLibrary {
public:
  KernelLibrary(const char *path, const std::string &kernel)
      : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (!handle) {
      throw std::runtime_error(dlerror());
    }
    runKernel = reinterpret_cast<Run *>(
        dlsym(handle, ("kaon_shim_run_" + kernel).c_str()));
    sizes = static_cast<const uint32_t *>(
        dlsym(handle, ("kaon_shim_parameters_" + kernel).c_str()));
  }
  ~KernelLibrary() { dlclose(handle); }

  /// Empty, or what the kernel did wrong.
  std::string run(const shim::LaunchSize &size, void **parameters,
                  unsigned schedule) const {
    char fault[60] = "";
    int result = runKernel(size.blocks, size.threads, size.sharedBytes,
                           parameters, schedule, fault, sizeof fault);
    EXPECT_EQ(result, fault[0] == '\0' ? 0 : 1);
    return fault;
  }

  std::vector<uint32_t> parameterSizes() const {
    std::vector<uint32_t> result;
    for (const uint32_t *size = sizes; *size != 0; ++size) {
      result.push_back(*size);
    }
    return result;
  }

private:
  using Run = int(uint32_t, uint32_t, size_t, void **, unsigned, char *,
                  size_t);

  void *handle;
  Run *runKernel;
  const uint32_t *sizes;
};

} // namespace

TEST(KernelLibraryTest, RunsAKernelUnderEverySchedule) {
  KernelLibrary library(KAON_ELEMENTWISE_LIBRARY, "scale_f32_f64");
  EXPECT_EQ(library.parameterSizes(), (std::vector<uint32_t>{8, 8, 8}));
  for (unsigned schedule = 0; schedule < 7; ++schedule) {
    auto x = deviceArray<float>({1, 2, -3});
    auto factor = deviceArray<double>({0.5});
    DeviceArray<double> wide(3);
    DeviceArray<float> rounded(3);
    Matrix<4> matrix = {{x.data(), factor.data(), wide.data(), rounded.data()},
                        {3, 0, 3, 3},
                        1,
                        3,
                        0};
    Block block = {0, 0, 1};
    const Matrix<4> *matrices = &matrix;
    const Block *blocks = &block;
    const double *scalars = nullptr;
    void *parameters[] = {&matrices, &blocks, &scalars};
    EXPECT_EQ(library.run({1, elementwiseThreads}, parameters, schedule), "");
    EXPECT_EQ(wide.values(), (std::vector<double>{0.5, 1, -1.5}));
    EXPECT_EQ(rounded.values(), (std::vector<float>{0.5, 1, -1.5}));
  }
}

TEST(KernelLibraryTest, PassesStructs) {
  KernelLibrary library(KAON_PRODUCT_LIBRARY, "outer_dense_bf16");
  EXPECT_EQ(library.parameterSizes(), (std::vector<uint32_t>{16, 8}));
  auto a = deviceArray(std::vector<bf16>(8, toBf16Rn(0)));
  a[0] = toBf16Rn(3);
  auto d = deviceArray(std::vector<bf16>(8, toBf16Rn(0)));
  double alpha = 2;
  Product product = {a.data(), a.data(), nullptr, d.data(), nullptr, 1, 1,
                     1,        8,        8,       8,        8,       0, 0};
  ProductList list = {&product, 1, 1};
  const double *scalars = &alpha;
  void *parameters[] = {&list, &scalars};
  EXPECT_EQ(library.run({1, 256, 48 << 10}, parameters, 0), "");
  EXPECT_EQ(toFloat(d[0]), 18);
}

TEST(KernelLibraryTest, ReportsFaultsAndGoesOn) {
  KernelLibrary library(KAON_PRODUCT_LIBRARY, "outer_dense_bf16");
  auto a = deviceArray(std::vector<bf16>(16, toBf16Rn(1)));
  double alpha = 1;
  Product product = {a.data(), a.data() + 1,
                     nullptr,  a.data() + 8,
                     nullptr,  1,
                     1,        1,
                     8,        8,
                     8,        8,
                     0,        0};
  ProductList list = {&product, 1, 1};
  const double *scalars = &alpha;
  void *parameters[] = {&list, &scalars};
  EXPECT_EQ(library.run({1, 256, 48 << 10}, parameters, 0),
            "block 0, thread 0: copyAsync expects an address aligned to ");
  EXPECT_EQ(library.run({1, 33, 0}, parameters, 0),
            "expects blocks of whole warps, but got 33 threads");
  product.b = a.data();
  EXPECT_EQ(library.run({1, 256, 48 << 10}, parameters, 0), "");
  EXPECT_EQ(toFloat(a[8]), 1);
}
