//===-- KernelLibrary.cpp - loaded kernels --------------------------------===//

#include "codegen/cpu/KernelLibrary.h"

#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"

using namespace llvm;

namespace kaon::cpu {

KernelLibrary::KernelLibrary(std::unique_ptr<orc::LLJIT> jit)
    : jit(std::move(jit)) {}
KernelLibrary::~KernelLibrary() = default;

Expected<std::unique_ptr<KernelLibrary>> KernelLibrary::create() {
  InitializeNativeTarget();
  InitializeNativeTargetAsmPrinter();
  // Kernels have no constructors and no thread-local data: no platform needed.
  auto jit =
      orc::LLJITBuilder().setPlatformSetUp(orc::setUpInactivePlatform).create();
  if (!jit) {
    return jit.takeError();
  }
  // Kernels may call the C library: mathematical functions, memset.
  char prefix = (*jit)->getDataLayout().getGlobalPrefix();
  auto process =
      orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(prefix);
  if (!process) {
    return process.takeError();
  }
  (*jit)->getMainJITDylib().addGenerator(std::move(*process));
  return std::unique_ptr<KernelLibrary>(new KernelLibrary(std::move(*jit)));
}

Error KernelLibrary::add(StringRef name, StringRef object,
                         int64_t scratchPerColumn, int64_t scratchFixed) {
  if (table.count(name.str())) {
    return createStringError("kernel '%s' is already loaded",
                             name.str().c_str());
  }
  if (Error error =
          jit->addObjectFile(MemoryBuffer::getMemBufferCopy(object, name))) {
    return error;
  }
  Expected<orc::ExecutorAddr> address = jit->lookup(name);
  if (!address) {
    return address.takeError();
  }
  table[name.str()] = {address->toPtr<KaonKernelFn>(), scratchPerColumn,
                       scratchFixed};
  return Error::success();
}

} // namespace kaon::cpu
