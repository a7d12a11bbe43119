//===-- CudaKernel.cpp - a kernel that is ready to launch -----------------===//
//
// Messages name the kernel first.
//
//===----------------------------------------------------------------------===//

#include "runtime/cuda/CudaKernel.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

using namespace kaon::runtime;
using namespace kaon::runtime::cuda;

// Shared memory that every block may have without asking for more.
static constexpr int64_t sharedBytesByDefault = 48 << 10;

static std::string describe(std::span<const CubinParameter> parameters) {
  std::string text;
  for (const CubinParameter &parameter : parameters) {
    text += concat(text.empty() ? "" : ", ", parameter.bytes, " bytes at ",
                   parameter.offset);
  }
  return text.empty() ? "none" : text;
}

CudaKernel::~CudaKernel() {
  if (module) {
    (*driver)->moduleUnload(module);
  }
}

Result<CudaKernel> CudaKernel::load(std::shared_ptr<CudaDriver> driver,
                                    const DeviceInfo &info,
                                    const Images &images, std::string_view name,
                                    const KernelUse &use) {
  auto image = images.find(name);
  if (image == images.end()) {
    std::string names;
    for (const auto &[other, bytes] : images) {
      names += concat(names.empty() ? "'" : ", '", other, "'");
    }
    return Status::failure(
        "expects code for the kernel '", name,
        "', but there is none; given: ", names.empty() ? "none" : names);
  }
  CudaKernel kernel;
  kernel.driver = std::move(driver);
  kernel.kernelName = name;
  if (Cubin::isElf(image->second)) {
    KAON_RETURN_IF_ERROR(kernel.checkCubin(info, image->second, use));
  } else {
    KAON_RETURN_IF_ERROR(kernel.checkPtx(image->second, use));
  }
  KAON_RETURN_IF_ERROR(kernel.loadImage(image->second));
  KAON_RETURN_IF_ERROR(kernel.allow(info, use));
  return kernel;
}

Status CudaKernel::checkCubin(const DeviceInfo &info,
                              std::span<const std::byte> image,
                              const KernelUse &use) const {
  Result<Cubin> cubin = Cubin::read(image);
  if (!cubin.ok()) {
    return Status::failure("kernel '", kernelName,
                           "': ", cubin.status().message());
  }
  // Code runs on its own architecture and on later ones of the same generation.
  int major = cubin->architecture / 10, minor = cubin->architecture % 10;
  if (major != info.major || minor > info.minor) {
    return Status::failure("kernel '", kernelName, "': expects code for ",
                           info.architecture(), " (", info.name,
                           "), but got code for sm_", cubin->architecture);
  }
  const CubinKernel *found = cubin->find(kernelName);
  if (!found) {
    return Status::failure("kernel '", kernelName,
                           "': expects an entry of this name in its code, but "
                           "there is none");
  }
  if (!std::equal(found->parameters.begin(), found->parameters.end(),
                  use.parameters.begin(), use.parameters.end())) {
    return Status::failure("kernel '", kernelName, "': expects the parameters ",
                           describe(use.parameters), ", but its code has ",
                           describe(found->parameters));
  }
  return checkThreads(found->maxThreads, use);
}

/// Code is made for just one size of blocks: with fewer threads, or more, it
/// would leave out elements or visit some twice.
Status CudaKernel::checkThreads(int64_t threads, const KernelUse &use) const {
  if (threads == use.threads) {
    return Status::success();
  }
  return Status::failure(
      "kernel '", kernelName, "': expects code for blocks of ", use.threads,
      " threads, but its code ",
      threads ? concat("is for ", threads) : "does not say for how many");
}

/// The threads of a block of the entry `name` in the text of PTX: 0 if it does
/// not say, none if there is no such entry, which the driver will tell.
static std::optional<int64_t> findPtxThreads(std::string_view text,
                                             std::string_view name) {
  size_t entry = text.find(concat(".entry ", name, "("));
  if (entry == std::string_view::npos) {
    return std::nullopt;
  }
  constexpr std::string_view directive = ".maxntid ";
  std::string_view head = text.substr(entry, text.find('{', entry) - entry);
  size_t found = head.find(directive);
  int64_t threads = 0;
  if (found != std::string_view::npos) {
    const char *begin = head.data() + found + directive.size();
    std::from_chars(begin, head.data() + head.size(), threads);
  }
  return threads;
}

Status CudaKernel::checkPtx(std::span<const std::byte> image,
                            const KernelUse &use) const {
  std::string_view text(reinterpret_cast<const char *>(image.data()),
                        image.size());
  std::optional<int64_t> threads = findPtxThreads(text, kernelName);
  return threads ? checkThreads(*threads, use) : Status::success();
}

Status CudaKernel::loadImage(std::span<const std::byte> image) {
  // PTX is a string for the driver, which wants its end marked.
  std::vector<std::byte> terminated(image.begin(), image.end());
  terminated.push_back(std::byte(0));
  std::array<char, 4096> log = {};
  std::array<JitOption, 2> options = {JitOption::ErrorLogBuffer,
                                      JitOption::ErrorLogBufferBytes};
  // The driver takes numbers in the place of pointers.
  std::array<void *, 2> values = {log.data(),
                                  // NOLINTNEXTLINE(performance-no-int-to-ptr)
                                  reinterpret_cast<void *>(log.size() - 1)};
  Code code = (*driver)->moduleLoad(&module, terminated.data(), options.size(),
                                    options.data(), values.data());
  std::string_view text = log.data();
  KAON_RETURN_IF_ERROR(driver->check(
      code, "kernel '", kernelName, "': loading its code failed",
      code == Code::UnsupportedPtxVersion
          ? " (the PTX is newer than the driver: update the NVIDIA driver)"
          : "",
      text.empty() ? "" : ": ", text));
  return driver->check(
      (*driver)->moduleGetFunction(&entry, module, kernelName.c_str()),
      "kernel '", kernelName, "': expects an entry of this name in its code");
}

Status CudaKernel::allow(const DeviceInfo &info, const KernelUse &use) {
  const Functions &functions = driver->functions();
  int maxThreads = 0, staticBytes = 0;
  KAON_RETURN_IF_ERROR(driver->check(
      functions.functionGetAttribute(
          &maxThreads, FunctionAttribute::MaxThreadsPerBlock, entry),
      "kernel '", kernelName, "': cuFuncGetAttribute"));
  KAON_RETURN_IF_ERROR(
      driver->check(functions.functionGetAttribute(
                        &staticBytes, FunctionAttribute::SharedBytes, entry),
                    "kernel '", kernelName, "': cuFuncGetAttribute"));
  if (use.threads > maxThreads) {
    return Status::failure("kernel '", kernelName, "': expects blocks of ",
                           use.threads, " threads, but ", info.name,
                           " runs it with at most ", maxThreads);
  }
  int64_t sharedBytes = use.sharedBytes + staticBytes;
  if (sharedBytes > info.sharedBytes) {
    return Status::failure("kernel '", kernelName, "': expects ", sharedBytes,
                           " bytes of shared memory for a block, but ",
                           info.name, " has ", info.sharedBytes);
  }
  if (sharedBytes <= sharedBytesByDefault) {
    return Status::success();
  }
  return driver->check(functions.functionSetAttribute(
                           entry, FunctionAttribute::MaxDynamicSharedBytes,
                           static_cast<int>(use.sharedBytes)),
                       "kernel '", kernelName, "': opting in to ",
                       use.sharedBytes, " bytes of shared memory");
}
