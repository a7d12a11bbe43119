//===-- KernelTable.h - kernels by name -------------------------*- C++ -*-===//
//
// The code that a plan's kernels run, found by name. Whoever loaded the code (a
// JIT, dlopen) fills the table and keeps the code alive.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_KERNELTABLE_H
#define KAON_RUNTIME_KERNELTABLE_H

#include "runtime/KernelAbi.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace kaon::runtime {

/// Code of a kernel, and the scratch bytes that it wants per thread:
/// scratchPerColumn * columns + scratchFixed.
struct KernelEntry {
  KaonKernelFn function = nullptr;
  int64_t scratchPerColumn = 0;
  int64_t scratchFixed = 0;
};

class KernelTable {
public:
  /// Adds a kernel; false when the name is taken.
  bool add(std::string name, const KernelEntry &entry) {
    return entries.emplace(std::move(name), entry).second;
  }

  /// The kernel called `name`, or null.
  const KernelEntry *find(std::string_view name) const {
    auto found = entries.find(name);
    return found == entries.end() ? nullptr : &found->second;
  }

private:
  std::map<std::string, KernelEntry, std::less<>> entries;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_KERNELTABLE_H
