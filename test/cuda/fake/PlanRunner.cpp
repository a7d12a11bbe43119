//===-- PlanRunner.cpp - plans of the compiler on the imitated driver -----===//
//
// usage: kaon-plan-runner KERNELS CASE...
//
// Steps programs of the compiler through the launcher. KERNELS is a folder
// with <kernel>.so for each of their kernels (shim/KernelLibrary.h). A CASE is
// a folder with plan.json and `inputs`, which say what each step starts from:
// steps do not go on from each other's results. All of a case is run with
// two orders of threads, dawdling streams, and with and without graphs; the
// results have to have the same bits, and are written to `results` for others
// to judge. Prints a line for each kernel that ran. It is built with each
// sanitizer, which test/python/test_cuda_sanitizers.py makes kernels for.
//
// `inputs` has numbers of 64 bits: how many buffers, scalar sets and steps
// there are; for each buffer the elements between its rows, and its bytes; for
// each scalar set how many values it has; and for each step its count, the
// values of all scalar sets as f64, and the bytes of all buffers. `results` has
// the bytes of all buffers after each step.
//
//===----------------------------------------------------------------------===//

#include "test/cuda/fake/Scenarios.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;
using namespace kaon::test;

namespace {

//===----------------------------------------------------------------------===//
// Cases
//===----------------------------------------------------------------------===//

/// Reads a file from its beginning to its end.
class Reader {
public:
  explicit Reader(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }

  const std::string &all() const { return bytes; }

  void read(void *to, size_t size) {
    if (size > bytes.size() - at) {
      std::abort(); // The test has written something else.
    }
    std::memcpy(to, bytes.data() + at, size);
    at += size;
  }
  template <typename T> T next() {
    T value;
    read(&value, sizeof(value));
    return value;
  }

private:
  std::string bytes;
  size_t at = 0;
};

using Bytes = std::vector<char>;

struct Step {
  int64_t count = 0;
  std::vector<std::vector<double>> scalars; // of each set
  std::vector<Bytes> buffers;
};

struct Case {
  explicit Case(const std::string &folder);

  std::string plan;
  std::vector<int64_t> strides; // of each buffer
  std::vector<Step> steps;
};

Case::Case(const std::string &folder)
    : plan(Reader(folder + "/plan.json").all()) {
  Reader inputs(folder + "/inputs");
  strides.resize(inputs.next<int64_t>());
  std::vector<int64_t> sizes(strides.size());
  std::vector<int64_t> numScalars(inputs.next<int64_t>());
  steps.resize(inputs.next<int64_t>());
  for (size_t i = 0; i < strides.size(); ++i) {
    strides[i] = inputs.next<int64_t>();
    sizes[i] = inputs.next<int64_t>();
  }
  for (int64_t &count : numScalars) {
    count = inputs.next<int64_t>();
  }
  for (Step &step : steps) {
    step.count = inputs.next<int64_t>();
    for (int64_t count : numScalars) {
      std::vector<double> &values = step.scalars.emplace_back(count);
      inputs.read(values.data(), count * sizeof(double));
    }
    for (int64_t size : sizes) {
      Bytes &buffer = step.buffers.emplace_back(size);
      inputs.read(buffer.data(), buffer.size());
    }
  }
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

/// PTX that declares a kernel; the fake looks for nothing else in it.
std::string declaration(const std::string &name, bool takesList,
                        int32_t threads) {
  const char *first = takesList ? ".param .align 8 .b8 list[16], "
                                : ".param .u64 matrices, .param .u64 blocks, ";
  return concat(".version 9.0\n.target sm_90a\n.address_size 64\n"
                ".visible .entry ",
                name, "(", first, ".param .u64 scalars)\n.maxntid ", threads,
                "\n{ ret; }\n");
}

/// Declares the kernels of a plan, and the checks of gradients.
Images declare(const StepPlan &plan) {
  Images images;
  auto add = [&](const std::string &name, bool takesList, int32_t threads) {
    std::string text = declaration(name, takesList, threads);
    const auto *bytes = reinterpret_cast<const std::byte *>(text.data());
    images[name].assign(bytes, bytes + text.size());
  };
  for (const KernelPlan &kernel : plan.kernels) {
    add(kernel.name, kernel.schedule == Schedule::Matmul, kernel.threads);
  }
  for (const ParameterPlan &parameter : plan.parameters) {
    add(concat("check_finite_", stringify(parameter.gradType)), false, 256);
  }
  return images;
}

/// How a case is run.
struct Order {
  uint32_t seed; // of threads and of streams
  bool graphs;
};
/// Two tell bits that depend on the order; sanitizers report races and ends
/// whatever it is.
constexpr Order orders[] = {{1, true}, {2, false}};

/// Runs all steps; appends what buffers hold after each of them to `results`,
/// and the names of kernels to `ran`.
Status run(const Case &test, const Order &order, Bytes &results,
           std::set<std::string> &ran) {
  FakeControls::get().set_delays(order.seed, order.seed == 0 ? 0 : 100);
  Result<StepPlan> plan = StepPlan::fromJson(test.plan);
  KAON_RETURN_IF_ERROR(plan.status());
  CudaOptions options;
  options.graphs = order.graphs;
  Result<std::unique_ptr<Executor>> executor = Executor::create(
      *plan,
      std::make_unique<CudaBackend>(openFake(), declare(*plan), options));
  KAON_RETURN_IF_ERROR(executor.status());
  for (const Step &step : test.steps) {
    // Each piece of memory by itself, for AddressSanitizer to know its ends.
    std::vector<Bytes> memory = step.buffers;
    std::vector<KaonBuffer> buffers;
    for (size_t i = 0; i < memory.size(); ++i) {
      buffers.push_back({memory[i].data(), test.strides[i]});
    }
    std::vector<KaonScalars> scalars;
    for (const std::vector<double> &values : step.scalars) {
      scalars.push_back({values.data(), static_cast<int64_t>(values.size())});
    }
    Result<int64_t> bad = (*executor)->step(
        {step.count, buffers.data(), static_cast<int64_t>(buffers.size()),
         scalars.data(), static_cast<int64_t>(scalars.size()),
         /*check_finite=*/1});
    KAON_RETURN_IF_ERROR(bad.status());
    KAON_RETURN_IF_ERROR((*executor)->synchronize());
    if (*bad != 0) {
      return Status::failure("found ", *bad, " gradients that are not finite");
    }
    for (const Bytes &buffer : memory) {
      results.insert(results.end(), buffer.begin(), buffer.end());
    }
  }
  for (size_t i = 0; i < plan->kernels.size(); ++i) {
    if ((*executor)->matrixCount(i) > 0) {
      ran.insert(plan->kernels[i].name);
    }
  }
  for (const ParameterPlan &parameter : plan->parameters) {
    ran.insert(concat("check_finite_", stringify(parameter.gradType)));
  }
  return Status::success();
}

/// What was wrong with a case in any order, or nothing.
std::string runInAllOrders(const std::string &folder,
                           std::set<std::string> &ran) {
  Case test(folder);
  Bytes expected;
  for (const Order &order : orders) {
    Bytes results;
    Status status = run(test, order, results, ran);
    std::string wrong = FakeControls::get().takeFaults();
    if (!status.ok()) {
      wrong += status.message() + "\n";
    }
    if (expected.empty()) {
      expected = results;
    } else if (results != expected) {
      wrong += "the bits depend on the order\n";
    }
    if (!wrong.empty()) {
      return concat(folder, ", seed ", order.seed,
                    order.graphs ? ", graphs:\n" : ":\n", wrong);
    }
  }
  std::ofstream(folder + "/results", std::ios::binary)
      .write(expected.data(), static_cast<std::streamsize>(expected.size()));
  return "";
}

} // namespace

int main(int argc, char **argv) {
  if (argc < 3) {
    std::fputs("usage: kaon-plan-runner KERNELS CASE...\n", stderr);
    return 2;
  }
  FakeControls::get().set_kernel_directory(argv[1]);
  std::set<std::string> ran;
  for (int i = 2; i < argc; ++i) {
    std::string wrong = runInAllOrders(argv[i], ran);
    if (!wrong.empty()) {
      std::fputs(wrong.c_str(), stderr);
      return 1;
    }
  }
  for (const std::string &name : ran) {
    std::puts(name.c_str());
  }
  return 0;
}
