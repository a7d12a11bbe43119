//===-- KernelLibrary.cpp - loaded kernels --------------------------------===//

#include "codegen/cpu/KernelLibrary.h"

#include "codegen/cpu/CpuTarget.h"

#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace llvm;

namespace kaon::cpu {

/// An error of any text, also one with a zero byte.
static Error fail(const Twine &message) {
  return make_error<StringError>(message, inconvertibleErrorCode());
}

KernelLibrary::KernelLibrary(std::unique_ptr<orc::LLJIT> jit)
    : jit(std::move(jit)) {}
KernelLibrary::~KernelLibrary() = default;

Expected<std::unique_ptr<KernelLibrary>> KernelLibrary::create() {
  initializeHostCodegen();
  // Kernels have no constructors and no thread-local data: no platform needed.
  auto jit =
      orc::LLJITBuilder().setPlatformSetUp(orc::setUpInactivePlatform).create();
  if (!jit) {
    return jit.takeError();
  }
  std::unique_ptr<KernelLibrary> library(new KernelLibrary(std::move(*jit)));
  // The JIT tells the reason of a failure to this reporter, which by default
  // prints, and returns only that there was one.
  library->jit->getExecutionSession().setErrorReporter(
      [&reports = library->reports](Error error) {
        reports += "; " + toString(std::move(error));
      });
  return library;
}

runtime::KernelTable KernelLibrary::table() const {
  std::lock_guard<std::mutex> lock(mutex);
  return kernels;
}

Error KernelLibrary::add(StringRef name, StringRef object) {
  // The reporter is called on this thread, by the JIT's calls below.
  std::lock_guard<std::mutex> lock(mutex);
  if (kernels.find(name.str())) {
    return fail(
        "expects the name of a kernel that is not loaded yet, but got '" +
        name + "'");
  }
  // A dylib of its own: what a bad object defines does not get in the way of a
  // good one of the same name.
  std::string dylibName = (name + "#" + Twine(loads++)).str();
  Expected<orc::JITDylib &> dylib = jit->createJITDylib(dylibName);
  if (!dylib) {
    return dylib.takeError();
  }
  if (Error error = jit->addObjectFile(
          *dylib, MemoryBuffer::getMemBufferCopy(object, name))) {
    return error;
  }
  reports.clear();
  Expected<orc::ExecutorAddr> address = jit->lookup(*dylib, name);
  if (!address) {
    return fail("cannot load kernel '" + name +
                "': " + toString(address.takeError()) + reports);
  }
  kernels.add(name.str(), address->toPtr<KaonKernelFn>());
  return Error::success();
}

} // namespace kaon::cpu
