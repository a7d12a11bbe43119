//===-- Cubin.h - what a CUBIN says about its kernels -----------*- C++ -*-===//
//
// A CUBIN is a 64-bit ELF file. Its header names the architecture and its
// `.nv.info.<kernel>` sections list the parameters of each kernel, which are
// compared with what the runtime is about to pass.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_CUBIN_H
#define KAON_RUNTIME_CUDA_CUBIN_H

#include "runtime/Status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kaon::runtime::cuda {

struct CubinParameter {
  int32_t offset = 0;
  int32_t bytes = 0;

  bool operator==(const CubinParameter &) const = default;
};

struct CubinKernel {
  std::string name;
  std::vector<CubinParameter> parameters; // in order
  int32_t maxThreads = 0;                 // of a block; 0: not said
};

struct Cubin {
  int32_t architecture = 0; // 90 for sm_90 and sm_90a
  std::vector<CubinKernel> kernels;

  /// Whether `image` looks like an ELF file at all; PTX does not.
  static bool isElf(std::span<const std::byte> image);

  /// Reads an ELF file; a failure says what is wrong with it.
  static Result<Cubin> read(std::span<const std::byte> image);

  /// The kernel called `name`, or null.
  const CubinKernel *find(std::string_view name) const;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_CUBIN_H
