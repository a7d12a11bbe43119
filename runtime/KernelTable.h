//===-- KernelTable.h - kernels by name -------------------------*- C++ -*-===//
//
// The code that a plan's kernels run, found by name. Whoever loaded the code (a
// JIT, dlopen) fills the table and keeps the code alive.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_KERNELTABLE_H
#define KAON_RUNTIME_KERNELTABLE_H

#include "runtime/KernelAbi.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace kaon::runtime {

class KernelTable {
public:
  /// Adds a kernel; false when the name is taken.
  bool add(std::string name, KaonKernelFn function) {
    return functions.emplace(std::move(name), function).second;
  }

  /// The kernel called `name`, or null.
  KaonKernelFn find(std::string_view name) const {
    auto found = functions.find(name);
    return found == functions.end() ? nullptr : found->second;
  }

  /// The names of all kernels, in alphabetic order, for messages.
  std::string describe() const {
    std::string names;
    for (const auto &[name, function] : functions) {
      names += (names.empty() ? "'" : ", '") + name + "'";
    }
    return names.empty() ? "none" : names;
  }

private:
  std::map<std::string, KaonKernelFn, std::less<>> functions;
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_KERNELTABLE_H
