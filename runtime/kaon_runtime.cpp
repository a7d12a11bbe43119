//===-- kaon_runtime.cpp - the runtime's C interface ----------------------===//
//
// Wraps plans and executors. Exceptions, of which only those for lack of memory
// can occur, end here.
//
//===----------------------------------------------------------------------===//

#include "runtime/kaon_runtime.h"

#include "runtime/Executor.h"
#include "runtime/HostBackend.h"
#include "runtime/cuda/CudaBackend.h"

#include <algorithm>
#include <cstring>
#include <exception>

using namespace kaon::runtime;

struct KaonPlan {
  StepPlan plan;
};

struct KaonExecutor {
  std::unique_ptr<Executor> executor;
};

static int fail(std::string_view message, KaonError *error) {
  if (error) {
    size_t length = std::min(message.size(), sizeof(error->message) - 1);
    std::memcpy(error->message, message.data(), length);
    error->message[length] = '\0';
  }
  return KAON_FAILURE;
}

/// Runs `body`, which returns a Status, and reports its failure or exception.
template <typename Function> static int guard(KaonError *error, Function body) {
  try {
    Status status = body();
    return status.ok() ? KAON_OK : fail(status.message(), error);
  } catch (const std::bad_alloc &) {
    return fail("expects more free memory than the system has", error);
  } catch (const std::exception &exception) {
    return fail(exception.what(), error);
  } catch (...) {
    return fail("expects no foreign exception, but got one", error);
  }
}

/// Checks that a pointer which the caller must give is there.
template <typename T>
static Status checkPointer(T *pointer, std::string_view name) {
  return pointer ? Status::success()
                 : Status::failure(name, ": expects a pointer, but got null");
}

/// As Python's bindings: 0 stands for all, and less means nothing.
static Status checkThreads(int32_t threads) {
  return threads >= 0 ? Status::success()
                      : Status::failure("threads: expects at least 0, but got ",
                                        threads);
}

int kaon_plan_from_json(const char *json, size_t length, KaonPlan **plan,
                        KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkPointer(json, "json"));
    KAON_RETURN_IF_ERROR(checkPointer(plan, "plan"));
    Result<StepPlan> parsed =
        StepPlan::fromJson(std::string_view(json, length));
    KAON_RETURN_IF_ERROR(parsed.status());
    *plan = new KaonPlan{std::move(*parsed)};
    return Status::success();
  });
}

void kaon_plan_destroy(KaonPlan *plan) { delete plan; }

int64_t kaon_plan_period(const KaonPlan *plan) { return plan->plan.period(); }

int64_t kaon_plan_num_buffers(const KaonPlan *plan) {
  int64_t count = 0;
  for (const ParameterPlan &parameter : plan->plan.parameters) {
    count += 2 + static_cast<int64_t>(parameter.states.size());
  }
  return count;
}

int64_t kaon_plan_num_scalar_sets(const KaonPlan *plan) {
  return static_cast<int64_t>(plan->plan.scalarSets.size());
}

const char *kaon_plan_kernel_name(const KaonPlan *plan, int64_t index) {
  const std::vector<KernelPlan> &kernels = plan->plan.kernels;
  return index >= 0 && static_cast<size_t>(index) < kernels.size()
             ? kernels[index].name.c_str()
             : nullptr;
}

int kaon_executor_create(const KaonPlan *plan, const KaonKernel *kernels,
                         size_t num_kernels, int32_t threads,
                         KaonExecutor **executor, KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkPointer(plan, "plan"));
    KAON_RETURN_IF_ERROR(checkPointer(executor, "executor"));
    KAON_RETURN_IF_ERROR(checkThreads(threads));
    if (num_kernels > 0) {
      KAON_RETURN_IF_ERROR(checkPointer(kernels, "kernels"));
    }
    KernelTable table;
    for (size_t i = 0; i < num_kernels; ++i) {
      const KaonKernel &kernel = kernels[i];
      if (!kernel.name) {
        return Status::failure("kernels[", i,
                               "].name: expects a name, but got null");
      }
      if (!table.add(kernel.name, kernel.function)) {
        return Status::failure("kernels[", i,
                               "]: expects distinct names, but got '",
                               kernel.name, "' twice");
      }
    }
    Result<std::unique_ptr<Executor>> created = Executor::create(
        plan->plan, std::make_unique<HostBackend>(std::move(table), threads));
    KAON_RETURN_IF_ERROR(created.status());
    *executor = new KaonExecutor{std::move(*created)};
    return Status::success();
  });
}

static Result<cuda::Images> copyImages(const KaonImage *images,
                                       size_t numImages) {
  cuda::Images copies;
  for (size_t i = 0; i < numImages; ++i) {
    const KaonImage &image = images[i];
    std::string field = concat("images[", i, "]");
    KAON_RETURN_IF_ERROR(checkPointer(image.name, field + ".name"));
    KAON_RETURN_IF_ERROR(checkPointer(image.data, field + ".data"));
    const auto *bytes = static_cast<const std::byte *>(image.data);
    if (!copies
             .emplace(image.name,
                      std::vector<std::byte>(bytes, bytes + image.size))
             .second) {
      return Status::failure(field, ": expects distinct names, but got '",
                             image.name, "' twice");
    }
  }
  return copies;
}

/// The caller's allocator, in C++.
static cuda::Allocate wrapAllocator(const KaonCudaOptions &options) {
  if (!options.allocate) {
    return {};
  }
  return [allocate = options.allocate,
          context = options.context](int64_t size) -> Result<cuda::Address> {
    return reinterpret_cast<cuda::Address>(allocate(context, size));
  };
}

int kaon_cuda_executor_create(const KaonPlan *plan, const KaonImage *images,
                              size_t num_images, const KaonCudaOptions *options,
                              KaonExecutor **executor, KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkPointer(plan, "plan"));
    KAON_RETURN_IF_ERROR(checkPointer(executor, "executor"));
    if (num_images > 0) {
      KAON_RETURN_IF_ERROR(checkPointer(images, "images"));
    }
    KaonCudaOptions chosen = options ? *options : KaonCudaOptions{};
    Result<cuda::Images> copies = copyImages(images, num_images);
    KAON_RETURN_IF_ERROR(copies.status());
    Result<std::shared_ptr<cuda::CudaDriver>> driver = cuda::CudaDriver::open(
        chosen.driver ? chosen.driver
                      : std::string(cuda::CudaDriver::defaultPath));
    KAON_RETURN_IF_ERROR(driver.status());
    Result<std::unique_ptr<Executor>> created = Executor::create(
        plan->plan, std::make_unique<cuda::CudaBackend>(
                        *driver, std::move(*copies),
                        cuda::CudaOptions{chosen.device, wrapAllocator(chosen),
                                          chosen.use_graphs != 0}));
    KAON_RETURN_IF_ERROR(created.status());
    *executor = new KaonExecutor{std::move(*created)};
    return Status::success();
  });
}

void kaon_executor_destroy(KaonExecutor *executor) { delete executor; }

int64_t kaon_executor_workspace_bytes(const KaonExecutor *executor) {
  return executor->executor->plan().workspaceBytes;
}

int kaon_executor_step(KaonExecutor *executor, const KaonStep *step,
                       int64_t *num_non_finite, KaonError *error) {
  return kaon_executor_step_on_stream(executor, step, /*stream=*/nullptr,
                                      num_non_finite, error);
}

int kaon_executor_step_on_stream(KaonExecutor *executor, const KaonStep *step,
                                 void *stream, int64_t *num_non_finite,
                                 KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkPointer(executor, "executor"));
    KAON_RETURN_IF_ERROR(checkPointer(step, "step"));
    Result<int64_t> count = executor->executor->step(*step, stream);
    KAON_RETURN_IF_ERROR(count.status());
    if (num_non_finite) {
      *num_non_finite = *count;
    }
    return Status::success();
  });
}

int kaon_executor_synchronize(KaonExecutor *executor, KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkPointer(executor, "executor"));
    return executor->executor->synchronize();
  });
}

int kaon_set_pool_threads(int32_t threads, KaonError *error) {
  return guard(error, [&]() -> Status {
    KAON_RETURN_IF_ERROR(checkThreads(threads));
    ThreadPool::setLimit(threads);
    return Status::success();
  });
}
