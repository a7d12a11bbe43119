//===-- Spelling.h - how CUDA C++ writes things -----------------*- C++ -*-===//
//
// Numbers, types and expressions as text, and the names that are free to use.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_SPELLING_H
#define KAON_CODEGEN_CUDA_SPELLING_H

#include "dialect/Kernel.h"

#include "llvm/ADT/StringSet.h"

#include <string>

namespace kaon::cuda {

/// A number of f32 or f64 as an expression that has the same bits: the shortest
/// decimal number if it is finite, else made from its bits.
std::string spellNumber(const llvm::APFloat &number);

/// `float`, `bf16`, `const Matrix<3> &`.
std::string spellType(mlir::Type type);

/// The expression of a value: what `kernel.let` and parameters are called, and
/// what other ops compute. The names must have been set.
std::string spellExpression(mlir::Value value);

/// What an alias stands for: the template, and its arguments.
struct TemplateSpelling {
  std::string name;
  llvm::SmallVector<std::string> arguments;
};
TemplateSpelling spellAlias(mlir::Attribute value);

/// The function of the device library that is a driver.
llvm::StringRef spellDriver(kernel::Driver driver);

/// Hands out names that C++, the device library and each other leave free.
class NameScope {
public:
  /// The outermost scope, in which names of C++, its libraries' macros and what
  /// generated text names of the device library are taken.
  NameScope();

  /// Takes a name as it is.
  void take(llvm::StringRef name) { taken.insert(name); }
  /// A free name, which is `wish` if that is one; it is taken afterwards.
  std::string choose(llvm::StringRef wish);

private:
  llvm::StringSet<> taken;
};

/// Whether C++ takes a name for an identifier.
bool isIdentifier(llvm::StringRef name);

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_SPELLING_H
