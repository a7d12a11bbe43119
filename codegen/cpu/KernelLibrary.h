//===-- KernelLibrary.h - loaded kernels ------------------------*- C++ -*-===//
//
// Owns the machine code of a set of kernels, loaded from object files into this
// process.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_KERNELLIBRARY_H
#define KAON_CODEGEN_CPU_KERNELLIBRARY_H

#include "runtime/KernelAbi.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace llvm::orc {
class LLJIT;
} // namespace llvm::orc

namespace kaon::cpu {

/// One loaded kernel. Valid as long as its library lives.
struct LoadedKernel {
  KaonKernelFn function = nullptr;
  int64_t scratchPerColumn = 0, scratchFixed = 0;
};

class KernelLibrary {
public:
  static llvm::Expected<std::unique_ptr<KernelLibrary>> create();
  ~KernelLibrary();

  /// Loads an object file that defines the kernel `name`. Fails if the name is
  /// taken, if the bytes are no object file for this process, or if they lack
  /// the kernel.
  llvm::Error add(llvm::StringRef name, llvm::StringRef object,
                  int64_t scratchPerColumn, int64_t scratchFixed);

  /// All kernels by name, in the order of names.
  const std::map<std::string, LoadedKernel> &kernels() const { return table; }

private:
  explicit KernelLibrary(std::unique_ptr<llvm::orc::LLJIT> jit);

  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::map<std::string, LoadedKernel> table;
};

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_KERNELLIBRARY_H
