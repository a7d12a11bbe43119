//===-- Nvrtc.h - CUDA C++ to machine code ----------------------*- C++ -*-===//
//
// NVIDIA's run-time compiler, opened with dlopen: nothing links it, and nothing
// here needs LLVM, a GPU or a CUDA driver.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_NVRTC_H
#define KAON_CODEGEN_CUDA_NVRTC_H

#include "runtime/Status.h"

#include <compare>
#include <memory>
#include <string>
#include <vector>

namespace kaon::cuda {

using runtime::Result;
using runtime::Status;

struct NvrtcVersion {
  int major = 0;
  int minor = 0;

  auto operator<=>(const NvrtcVersion &) const = default;
  std::string str() const;
};

/// A file that a program may include, held in memory.
struct CudaHeader {
  std::string name;
  std::string text;
};

/// One translation unit and how to compile it.
struct CudaSource {
  std::string text;
  std::string name; // In messages, where no #line says otherwise.
  std::string arch; // sm_90a: machine code. compute_80: PTX alone.
  std::vector<std::string> options;
  std::vector<CudaHeader> headers;
};

/// What became of a CudaSource.
struct CudaBinary {
  std::string cubin; // Empty where PTX alone was asked for.
  std::string ptx;
  std::string log; // Warnings, and what ptxas was asked to tell.
  double seconds = 0;
};

/// A CudaSource that NVRTC refused, or could not be given.
struct CudaFailure {
  std::string message; // One line: what, and how it failed.
  std::string log;     // The compiler's own words; may be empty.
};

struct NvrtcFunctions;

/// An opened NVRTC. Compiles from any number of threads at the same time.
class Nvrtc {
public:
  /// Opens the first of `candidates` (paths, or names that the loader knows)
  /// that is a usable NVRTC with its builtins. The failure names all of them,
  /// each with its finding. A library that was opened is never closed: NVRTC
  /// has threads and exit handlers of its own.
  static Result<Nvrtc> open(const std::vector<std::string> &candidates);

  /// The path of an NVRTC that this process has loaded already, or "".
  static std::string findLoaded();

  Nvrtc(Nvrtc &&) noexcept;
  Nvrtc &operator=(Nvrtc &&) noexcept;
  ~Nvrtc();

  const std::string &getPath() const { return path; }
  NvrtcVersion getVersion() const { return version; }

  /// Whether code can be generated for `arch`.
  bool supports(const std::string &arch) const { return checkArch(arch).ok(); }

  /// Compiles; on failure returns false and fills `failure`.
  bool compile(const CudaSource &source, CudaBinary &binary,
               CudaFailure &failure) const;

private:
  Nvrtc(std::unique_ptr<NvrtcFunctions> functions, std::string path,
        NvrtcVersion version);
  static Result<Nvrtc> openOne(const std::string &candidate);
  Status checkArch(const std::string &arch) const;

  std::unique_ptr<NvrtcFunctions> functions;
  std::string path;
  NvrtcVersion version;
};

} // namespace kaon::cuda

#endif // KAON_CODEGEN_CUDA_NVRTC_H
