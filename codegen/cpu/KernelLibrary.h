//===-- KernelLibrary.h - loaded kernels ------------------------*- C++ -*-===//
//
// Owns the machine code of a set of kernels, loaded from object files into this
// process.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_KERNELLIBRARY_H
#define KAON_CODEGEN_CPU_KERNELLIBRARY_H

#include "runtime/KernelTable.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace llvm::orc {
class LLJIT;
} // namespace llvm::orc

namespace kaon::cpu {

/// Any thread may call anything.
class KernelLibrary {
public:
  static llvm::Expected<std::unique_ptr<KernelLibrary>> create();
  ~KernelLibrary();

  /// Loads an object file that defines the kernel `name`. Fails if the name is
  /// taken, if the bytes are no object file for this process, or if they lack
  /// the kernel.
  llvm::Error add(llvm::StringRef name, llvm::StringRef object);

  /// The kernels that are loaded by now; their code lives as long as the
  /// library.
  runtime::KernelTable table() const;

private:
  explicit KernelLibrary(std::unique_ptr<llvm::orc::LLJIT> jit);

  /// Guards all that follows.
  mutable std::mutex mutex;
  /// What the JIT reported besides the errors it returned; outlives it.
  std::string reports;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  runtime::KernelTable kernels;
  /// How many object files were given to the JIT; names their dylibs.
  int64_t loads = 0;
};

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_KERNELLIBRARY_H
