//===-- LauncherTest.cpp - the launcher, and the fake that it is tried on -===//
//
// Scenarios under many random delays, in builds with sanitizers too; what the
// fake must notice; mutants of the launcher; the C interface.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/LaunchTables.h"
#include "runtime/kaon_runtime.h"
#include "test/cuda/fake/Scenarios.h"

#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <optional>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;
using namespace kaon::test;

//===----------------------------------------------------------------------===//
// Scenarios
//===----------------------------------------------------------------------===//

class LauncherTest
    : public ::testing::TestWithParam<std::tuple<uint32_t, bool>> {};

TEST_P(LauncherTest, RunsScenarios) {
  auto [seed, graphs] = GetParam();
  EXPECT_EQ(runScenarios(seed, graphs), "");
  EXPECT_EQ(FakeControls::get().allocated_bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, LauncherTest,
    ::testing::Combine(::testing::Range(0u, hasThreadSanitizer ? 3u : 12u),
                       ::testing::Bool()));

#ifdef KAON_LAUNCHER_MUTANTS
/// Runs the launcher with a planted fault: a program of its own, which may
/// crash.
class LauncherMutantTest : public ::testing::TestWithParam<const char *> {};

TEST_P(LauncherMutantTest, IsNoticed) {
  std::string name = GetParam();
  std::string command =
      concat("\"", KAON_LAUNCHER_MUTANTS, name, "\" > /dev/null 2>&1");
  int status = std::system(command.c_str());
  if (name == "original") {
    EXPECT_EQ(status, 0);
  } else {
    EXPECT_NE(status, 0) << "nobody notices the fault " << name;
    // 126 and 127: the program is not there.
    EXPECT_NE(WEXITSTATUS(status), 126);
    EXPECT_NE(WEXITSTATUS(status), 127);
  }
}

static constexpr const char *mutantNames[] = {KAON_LAUNCHER_MUTANT_NAMES};
INSTANTIATE_TEST_SUITE_P(All, LauncherMutantTest,
                         ::testing::ValuesIn(mutantNames),
                         [](const auto &info) { return info.param; });
#endif

//===----------------------------------------------------------------------===//
// What the fake notices
//===----------------------------------------------------------------------===//

namespace {
/// The driver's functions with a context, as the launcher uses them.
class FakeTest : public ::testing::Test {
protected:
  void SetUp() override {
    FakeControls::get().set_devices(2, 9, 0);
    driver = openFake();
    ASSERT_TRUE(driver);
    cuda = driver->functions();
    ASSERT_EQ(cuda.primaryContextRetain(&context, 0), Code::Success);
    ASSERT_EQ(cuda.contextPush(context), Code::Success);
  }
  void TearDown() override {
    Context popped = nullptr;
    EXPECT_EQ(cuda.contextPop(&popped), Code::Success);
    EXPECT_EQ(popped, context);
    EXPECT_EQ(cuda.primaryContextRelease(0), Code::Success);
    EXPECT_EQ(fake.takeFaults(), "");
    fake.set_devices(1, 9, 0);
  }

  Address allocate(size_t bytes) {
    Address address = 0;
    EXPECT_EQ(cuda.memAlloc(&address, bytes), Code::Success);
    return address;
  }
  char *allocatePinned(size_t bytes) {
    void *memory = nullptr;
    EXPECT_EQ(cuda.memHostAlloc(&memory, bytes, 0), Code::Success);
    return static_cast<char *>(memory);
  }

  /// One fault that says `text`, and no more.
  void expectFault(const std::string &text) {
    std::string faults = fake.takeFaults();
    EXPECT_NE(faults.find(text), std::string::npos) << faults;
    EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 1) << faults;
  }

  const FakeControls &fake = FakeControls::get();
  std::shared_ptr<CudaDriver> driver;
  Functions cuda;
  Context context = nullptr;
};
} // namespace

TEST_F(FakeTest, CopiesThroughStreamsInOrder) {
  Address device = allocate(100);
  char *from = allocatePinned(100), *to = allocatePinned(100);
  for (int i = 0; i < 100; ++i) {
    from[i] = static_cast<char>(i);
  }
  ASSERT_EQ(cuda.copyToDevice(device, from, 100, nullptr), Code::Success);
  ASSERT_EQ(cuda.copyToHost(to, device, 100, nullptr), Code::Success);
  ASSERT_EQ(cuda.streamSynchronize(nullptr), Code::Success);
  EXPECT_EQ(std::memcmp(from, to, 100), 0);
  EXPECT_EQ(cuda.memFree(device), Code::Success);
  EXPECT_EQ(cuda.memFreeHost(from), Code::Success);
  EXPECT_EQ(cuda.memFreeHost(to), Code::Success);
}

TEST_F(FakeTest, NoticesPageLockedMemoryThatChangesTooEarly) {
  Address device = allocate(64);
  char *from = allocatePinned(64);
  std::memset(from, 1, 64);
  void *stream = fake.stream_create();
  fake.stream_block(stream);
  ASSERT_EQ(cuda.copyToDevice(device, from, 64, static_cast<Stream>(stream)),
            Code::Success);
  from[63] = 2;
  fake.stream_unblock(stream);
  EXPECT_EQ(cuda.streamSynchronize(static_cast<Stream>(stream)),
            Code::IllegalAddress);
  // As a device that has failed, until somebody has looked.
  Address more = 0;
  EXPECT_EQ(cuda.memAlloc(&more, 64), Code::IllegalAddress);
  expectFault("(64 bytes) was changed while a copy from it was pending");
  fake.stream_destroy(stream);
  EXPECT_EQ(cuda.memFree(device), Code::Success);
  EXPECT_EQ(cuda.memFreeHost(from), Code::Success);
}

TEST_F(FakeTest, NoticesMemoryThatIsFreedTooEarly) {
  Address device = allocate(64);
  char *from = allocatePinned(64);
  std::memset(from, 1, 64);
  void *stream = fake.stream_create();
  fake.stream_block(stream);
  ASSERT_EQ(cuda.copyToDevice(device, from, 32, static_cast<Stream>(stream)),
            Code::Success);
  EXPECT_EQ(cuda.memFreeHost(from), Code::InvalidValue);
  fake.stream_unblock(stream);
  EXPECT_EQ(cuda.streamSynchronize(static_cast<Stream>(stream)), Code::Success);
  expectFault("while a copy of it is pending");
  fake.stream_destroy(stream);
  EXPECT_EQ(cuda.memFree(device), Code::Success);
  EXPECT_EQ(cuda.memFreeHost(from), Code::Success);
}

TEST_F(FakeTest, NoticesWrongMemory) {
  Address device = allocate(64), other = allocate(64);
  char *pinned = allocatePinned(64);
  char plain[64];
  ASSERT_EQ(cuda.memFree(other), Code::Success);
  auto toDevice = [&](Address to, const void *from, size_t bytes) {
    EXPECT_EQ(cuda.copyToDevice(to, from, bytes, nullptr), Code::InvalidValue);
  };
  toDevice(device, plain, 64);
  expectFault("cuMemcpyHtoDAsync from");
  toDevice(reinterpret_cast<Address>(pinned), pinned, 64);
  expectFault("which is page-locked memory and not device memory");
  toDevice(device, pinned, 65);
  expectFault("65 bytes at offset 0 of 64 bytes of device memory");
  toDevice(device + 60, pinned, 5);
  expectFault("5 bytes at offset 60 of 64 bytes of device memory");
  toDevice(other, pinned, 64);
  expectFault("which is freed device memory");
  EXPECT_EQ(cuda.copyToHost(plain, device, 64, nullptr), Code::InvalidValue);
  expectFault("cuMemcpyDtoHAsync to");
  EXPECT_EQ(cuda.memFree(other), Code::InvalidValue);
  expectFault("twice");
  EXPECT_EQ(cuda.memFree(device + 8), Code::InvalidValue);
  expectFault("which is no device memory");
  reinterpret_cast<char *>(device)[64] = 0; // Behind its end.
  expectFault("something was written behind the 64 bytes of device memory");
  EXPECT_EQ(cuda.memFree(device), Code::Success);
  EXPECT_EQ(cuda.memFreeHost(pinned), Code::Success);
}

TEST_F(FakeTest, NoticesWrongHandles) {
  Event event = nullptr;
  ASSERT_EQ(cuda.eventCreate(&event, eventDisableTiming), Code::Success);
  EXPECT_EQ(cuda.eventRecord(event, reinterpret_cast<Stream>(&event)),
            Code::InvalidHandle);
  expectFault("something that is no stream");
  EXPECT_EQ(cuda.eventSynchronize(reinterpret_cast<Event>(&event)),
            Code::InvalidHandle);
  expectFault("something that is no event");
  EXPECT_EQ(cuda.graphLaunch(reinterpret_cast<GraphExec>(&event), nullptr),
            Code::InvalidHandle);
  expectFault("cuGraphLaunch of no graph");
  EXPECT_EQ(cuda.moduleUnload(reinterpret_cast<Module>(&event)),
            Code::InvalidHandle);
  expectFault("cuModuleUnload of no module");

  // What belongs to one context is nothing to another.
  Context other = nullptr, popped = nullptr;
  ASSERT_EQ(cuda.primaryContextRetain(&other, 1), Code::Success);
  ASSERT_EQ(cuda.contextPush(other), Code::Success);
  EXPECT_EQ(cuda.eventSynchronize(event), Code::InvalidContext);
  expectFault("an event of another context");
  ASSERT_EQ(cuda.contextPop(&popped), Code::Success);
  ASSERT_EQ(cuda.primaryContextRelease(1), Code::Success);
  EXPECT_EQ(cuda.contextPush(other), Code::InvalidContext);
  expectFault("cuCtxPushCurrent of a context that nobody has");
  EXPECT_EQ(cuda.eventDestroy(event), Code::Success);

  ASSERT_EQ(cuda.contextPop(&popped), Code::Success);
  Address address = 0;
  EXPECT_EQ(cuda.memAlloc(&address, 8), Code::InvalidContext);
  expectFault("cuMemAlloc without a current context");
  ASSERT_EQ(cuda.contextPush(context), Code::Success);
}

TEST_F(FakeTest, NoticesWrongLaunches) {
  std::vector<std::byte> image = declareKernels()["descent"];
  image.push_back(std::byte(0));
  Module module = nullptr;
  Function descent = nullptr;
  ASSERT_EQ(cuda.moduleLoad(&module, image.data(), 0, nullptr, nullptr),
            Code::Success);
  ASSERT_EQ(cuda.moduleGetFunction(&descent, module, "descent"), Code::Success);
  Function none = nullptr;
  EXPECT_EQ(cuda.moduleGetFunction(&none, module, "ascent"), Code::NotFound);

  Address table = allocate(256), gone = allocate(256), stack = 0;
  ASSERT_EQ(cuda.memFree(gone), Code::Success);
  stack = reinterpret_cast<Address>(&stack);
  struct {
    unsigned blocks, threads, sharedBytes;
    Address argument;
    const char *text;
  } const cases[] = {
      {0, 256, 0, table, "with 0 blocks"},
      {1, 512, 0, table, "with 512 threads"},
      {1, 100, 0, table, "with 100 threads"},
      {1, 256, 50000, table, "with 50000 bytes of shared memory"},
      {1, 256, 0, stack, "with argument 1 at"},
      {1, 256, 0, gone, "which is freed device memory"},
      {1, 256, 0, table + 4, "no multiple of 8"},
      {1, 256, 0, table + 256, "which is no device memory"},
  };
  for (const auto &wrong : cases) {
    Address first = table, second = wrong.argument, third = table;
    void *parameters[] = {&first, &second, &third};
    EXPECT_EQ(cuda.launchKernel(descent, wrong.blocks, 1, 1, wrong.threads, 1,
                                1, wrong.sharedBytes, nullptr, parameters,
                                nullptr),
              Code::InvalidValue);
    expectFault(wrong.text);
  }
  EXPECT_EQ(cuda.launchKernel(descent, 1, 2, 1, 256, 1, 1, 0, nullptr, nullptr,
                              nullptr),
            Code::InvalidValue);
  expectFault("in more than one dimension");
  EXPECT_EQ(cuda.launchKernel(descent, 1, 1, 1, 256, 1, 1, 0, nullptr, nullptr,
                              nullptr),
            Code::InvalidValue);
  expectFault("without a list of its arguments");
  EXPECT_EQ(cuda.moduleUnload(module), Code::Success);
  EXPECT_EQ(cuda.launchKernel(descent, 1, 1, 1, 256, 1, 1, 0, nullptr, nullptr,
                              nullptr),
            Code::InvalidHandle);
  expectFault("something that is no kernel");
  EXPECT_EQ(cuda.memFree(table), Code::Success);
}

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

namespace {
/// Tables of launches of `descent`, whose code takes what is never launched for
/// a product, too.
class LaunchTablesTest : public FakeTest {
protected:
  void SetUp() override {
    FakeTest::SetUp();
    static constexpr std::array<CubinParameter, 3> parameters = {
        {{0, 8}, {8, 8}, {16, 8}}};
    Result<DeviceInfo> info = driver->deviceInfo(0);
    ASSERT_TRUE(info.ok()) << info.status().message();
    Result<CudaKernel> loaded = CudaKernel::load(
        driver, *info, declareKernels(), "descent", {parameters, 256, 0});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    kernel = std::move(*loaded);
    memory.emplace(driver, Allocate());
    tables.emplace(driver, *memory, Address(0));
  }
  void TearDown() override {
    tables.reset();
    memory.reset();
    kernel = CudaKernel();
    FakeTest::TearDown();
  }

  /// Adds a launch on matrices of `blocks` with rows `stride` apart.
  Status add(Schedule schedule, std::vector<int64_t> blocks, int64_t stride) {
    for (KaonBuffer &buffer : buffers) {
      buffer = {storage, stride};
    }
    std::vector<MatrixRequest> matrices;
    for (int64_t count : blocks) {
      matrices.push_back({operands, sizes, count, 1, bindings, 0});
    }
    return tables->add({&kernel, schedule, 256, 0}, matrices, buffers.data());
  }

  float storage[4] = {};
  CudaKernel kernel;
  std::optional<DeviceMemory> memory;
  std::optional<LaunchTables> tables;
  std::array<KaonBuffer, 3> buffers;
  std::vector<Operand> operands = std::vector<Operand>(
      3, {BufferKind::Param, 0, 0, 2, 2, ElementType::F32, 0});
  std::array<int64_t, 3> sizes = {2, 2, 2};
  std::vector<OperandBinding> bindings = {
      {0, true, 0, 2}, {1, true, 0, 2}, {2, true, 0, 2}};
};
} // namespace

TEST_F(LaunchTablesTest, RefusesMoreBlocksThanALaunchHas) {
  constexpr int64_t most = (int64_t(1) << 31) - 1;
  tables->clear(0);
  // More than there is memory for.
  EXPECT_EQ(add(Schedule::Elementwise, {int64_t(1) << 48}, 2).message(),
            "kernel 'descent': expects at most 2147483647 blocks, but its "
            "matrices take more: one of 281474976710656 comes after 0");
  EXPECT_EQ(add(Schedule::Matmul, {most, 1}, 2).message(),
            "kernel 'descent': expects at most 2147483647 blocks, but its "
            "matrices take more: one of 1 comes after 2147483647");
  EXPECT_EQ(add(Schedule::Matmul, {most - 1, 1}, 2).message(), "");
}

TEST_F(LaunchTablesTest, RefusesProductsOfRowsTooFarApart) {
  constexpr int64_t most = (int64_t(1) << 31) - 1;
  tables->clear(0);
  EXPECT_EQ(add(Schedule::Matmul, {1}, most + 1).message(),
            "kernel 'descent': expects rows that are at most 2147483647 "
            "elements apart, but got 2147483648");
  EXPECT_EQ(add(Schedule::Matmul, {1}, most).message(), "");
  EXPECT_EQ(add(Schedule::Elementwise, {1}, most + 1).message(), "");
}

TEST_F(LaunchTablesTest, RepeatsOnlyWhatWasSent) {
  constexpr const char *notSent =
      "repeat: expects a phase of which a step has run, but none has since its "
      "tables were made";
  auto repeat = [&] { return tables->repeat(0, 0, nullptr).message(); };
  auto build = [&] {
    tables->clear(0);
    EXPECT_EQ(add(Schedule::Elementwise, {1}, 2).message(), "");
  };
  build();
  EXPECT_EQ(repeat(), notSent);
  EXPECT_EQ(tables->finish().message(), "");
  EXPECT_EQ(repeat(), notSent);
  EXPECT_EQ(tables->send(buffers.data(), {}, nullptr).message(), "");
  EXPECT_EQ(repeat(), "");
  EXPECT_EQ(tables->repeat(0, -1, nullptr).message(),
            "count: expects at least 0, but got -1");

  // A copy that the driver refuses.
  auto *none = reinterpret_cast<Stream>(storage);
  EXPECT_FALSE(tables->send(buffers.data(), {}, none).ok());
  expectFault("something that is no stream");
  EXPECT_EQ(repeat(), notSent);
  EXPECT_EQ(tables->send(buffers.data(), {}, nullptr).message(), "");
  EXPECT_EQ(repeat(), "");

  // Tables that are half made.
  build();
  EXPECT_EQ(repeat(), notSent);
  EXPECT_EQ(cuda.streamSynchronize(nullptr), Code::Success);
}

//===----------------------------------------------------------------------===//
// The C interface
//===----------------------------------------------------------------------===//

TEST(CudaInterfaceTest, RunsAPlan) {
  FakeControls::get();
  StepPlan plan = momentumPlan();
  std::string text = plan.toJson();
  KaonError error;
  KaonPlan *handle = nullptr;
  ASSERT_EQ(kaon_plan_from_json(text.data(), text.size(), &handle, &error),
            KAON_OK);
  Images images = declareKernels();
  std::vector<KaonImage> list;
  for (const auto &[name, bytes] : images) {
    list.push_back({name.c_str(), bytes.data(), bytes.size()});
  }
  KaonCudaOptions options = {};
  options.driver = KAON_FAKE_CUDA;
  options.use_graphs = 1;
  KaonExecutor *executor = nullptr;
  ASSERT_EQ(kaon_cuda_executor_create(handle, list.data(), list.size(),
                                      &options, &executor, &error),
            KAON_OK)
      << error.message;

  HostModel model(plan), expected(plan);
  std::vector<double> values = {0.25, 0.5};
  KaonScalars scalars{values.data(), 2};
  KaonStep step{1,
                model.buffers.data(),
                static_cast<int64_t>(model.buffers.size()),
                &scalars,
                1,
                1};
  int64_t count = -1;
  void *stream = FakeControls::get().stream_create();
  EXPECT_EQ(
      kaon_executor_step_on_stream(executor, &step, stream, &count, &error),
      KAON_OK)
      << error.message;
  EXPECT_EQ(count, 0);
  EXPECT_EQ(kaon_executor_synchronize(executor, &error), KAON_OK);
  momentumStep(expected, plan, 0.25f, 0.5f);
  EXPECT_EQ(model.memory, expected.memory);
  FakeControls::get().stream_destroy(stream);
  kaon_executor_destroy(executor);

  // What is wrong is said.
  auto create = [&](const KaonImage *some, size_t number) {
    KaonExecutor *other = nullptr;
    EXPECT_EQ(kaon_cuda_executor_create(handle, some, number, &options, &other,
                                        &error),
              KAON_FAILURE);
    return std::string(error.message);
  };
  EXPECT_EQ(create(nullptr, 1), "images: expects a pointer, but got null");
  KaonImage twice[] = {list[0], list[0]};
  EXPECT_EQ(create(twice, 2), "images[1]: expects distinct names, but got "
                              "'check_finite_f32' twice");
  KaonImage nameless = {nullptr, "", 0};
  EXPECT_EQ(create(&nameless, 1),
            "images[0].name: expects a pointer, but got null");
  KaonImage empty = {"momentum", nullptr, 0};
  EXPECT_EQ(create(&empty, 1),
            "images[0].data: expects a pointer, but got null");
  options.driver = "libnothing.so.7";
  EXPECT_NE(create(list.data(), list.size()).find("libnothing.so.7"),
            std::string::npos);
  // On the host, a plan for a GPU has no place.
  KaonExecutor *other = nullptr;
  EXPECT_EQ(kaon_executor_create(handle, nullptr, 0, 1, &other, &error),
            KAON_FAILURE);
  EXPECT_STREQ(error.message,
               "target: expects a plan for cpu, but got one for cuda");
  kaon_plan_destroy(handle);
  EXPECT_EQ(FakeControls::get().takeFaults(), "");
  EXPECT_EQ(FakeControls::get().allocated_bytes(), 0);
}

TEST(CudaInterfaceTest, AsksTheCallerForMemory) {
  FakeControls::get();
  StepPlan plan = detourPlan();
  std::string text = plan.toJson();
  KaonError error;
  KaonPlan *handle = nullptr;
  ASSERT_EQ(kaon_plan_from_json(text.data(), text.size(), &handle, &error),
            KAON_OK);
  KaonCudaOptions options = {};
  options.driver = KAON_FAKE_CUDA;
  options.allocate = [](void *, int64_t) -> void * { return nullptr; };
  Images images = declareKernels();
  std::vector<KaonImage> list;
  for (const auto &[name, bytes] : images) {
    list.push_back({name.c_str(), bytes.data(), bytes.size()});
  }
  KaonExecutor *executor = nullptr;
  EXPECT_EQ(kaon_cuda_executor_create(handle, list.data(), list.size(),
                                      &options, &executor, &error),
            KAON_FAILURE);
  EXPECT_EQ(std::string(error.message).find("allocate: expects an address"), 0u)
      << error.message;
  kaon_plan_destroy(handle);
}
