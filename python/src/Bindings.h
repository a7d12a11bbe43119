//===-- Bindings.h - shared by the parts of the extension -------*- C++ -*-===//
//
// What the files that bind the compiler in `kaon._C` have in common: the module
// holder, and how the compiler's diagnostics become one Python exception.
//
// Locks: an MLIR context is not thread safe, and modules that are clones of one
// another share one. Whoever touches a module's IR holds the context's mutex,
// and whoever waits for that mutex does not hold the GIL. `Module::withLock`
// does both. Nobody touches Python while holding the mutex: any Python object
// that is made may run the garbage collector, which destroys modules.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PYTHON_SRC_BINDINGS_H
#define KAON_PYTHON_SRC_BINDINGS_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"

#include <exception>
#include <memory>
#include <mutex>
#include <pybind11/pybind11.h>
#include <string>
#include <vector>

namespace kaon::python {

/// One diagnostic of the compiler, detached from its context.
struct DiagnosticRecord {
  std::string severity; // error, warning or remark
  std::string location; // as MLIR prints it, without `loc(...)`
  std::string message;
  std::vector<std::string> notes; // "location: message"
};

/// Becomes `kaon._C.CompileError(message, diagnostics)`. Thrown in binding code
/// only: the compiler libraries are built without exceptions.
class CompileError : public std::exception {
public:
  CompileError(std::string message, std::vector<DiagnosticRecord> diagnostics);
  const char *what() const noexcept override { return message.c_str(); }
  const std::vector<DiagnosticRecord> &getDiagnostics() const {
    return diagnostics;
  }

private:
  std::string message;
  std::vector<DiagnosticRecord> diagnostics;
};

/// Collects what a context reports during its lifetime, instead of printing it.
class DiagnosticCollector {
public:
  explicit DiagnosticCollector(mlir::MLIRContext *context);

  /// Throws a CompileError that says `summary` and, line by line, every error
  /// collected with its notes.
  [[noreturn]] void raise(const std::string &summary);

private:
  std::vector<DiagnosticRecord> diagnostics;
  mlir::ScopedDiagnosticHandler handler;
};

/// Parses a module that locations call `filename`. Throws a CompileError that
/// begins with "cannot parse `what`".
mlir::OwningOpRef<mlir::ModuleOp> parseModule(mlir::MLIRContext *context,
                                              const std::string &text,
                                              const std::string &filename,
                                              const std::string &what);

/// A context without a thread pool (which would not survive a fork of the
/// process), and the mutex that guards it.
struct Context {
  Context();

  mlir::MLIRContext mlir;
  std::mutex mutex;
};

/// `kaon._C.Module`: a module and a share of its context.
class Module {
public:
  Module(std::shared_ptr<Context> context,
         mlir::OwningOpRef<mlir::ModuleOp> module)
      : context(std::move(context)), module(std::move(module)) {}
  /// Parses and verifies a module, in a context of its own.
  static std::unique_ptr<Module> parse(const std::string &text,
                                       const std::string &filename);
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;
  ~Module();

  /// Calls `function(ModuleOp)` with the context locked and the GIL released.
  /// The function must not touch Python, so it never acquires the GIL.
  template <typename FunctionT> auto withLock(FunctionT &&function) {
    pybind11::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(context->mutex);
    return function(*module);
  }

  /// Shares the context.
  std::unique_ptr<Module> clone();

private:
  std::shared_ptr<Context> context; // Outlives the module below.
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

void bindIr(pybind11::module_ &m);
void bindCodegen(pybind11::module_ &m);
void bindCudaCodegen(pybind11::module_ &m);
void bindNvrtc(pybind11::module_ &m);

} // namespace kaon::python

#endif // KAON_PYTHON_SRC_BINDINGS_H
