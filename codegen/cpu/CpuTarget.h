//===-- CpuTarget.h - the processor that kernels are made for ---*- C++ -*-===//
//
// Which processor code is generated for, and the register tile of the matrix
// product that suits it. The host is asked at run time, never at build time.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_CPUTARGET_H
#define KAON_CODEGEN_CPU_CPUTARGET_H

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>

namespace kaon::cpu {

/// Parameters of the packed matrix product for 32-bit elements; 64-bit elements
/// halve `nr` (see PackedLayout.h).
struct TileParameters {
  /// Width of the vectors the tile is sized for.
  int64_t vectorBits = 128;
  /// Rows and columns of the register tile.
  int64_t mr = 4, nr = 8;
  /// Depth of one block of the sum over k.
  int64_t kc = 256;
  /// Rows and columns of one work item; a multiple of mr and of nr.
  int64_t block = 192;

  bool operator==(const TileParameters &) const = default;
};

/// A processor as LLVM names it, and what is derived from its features.
struct CpuTarget {
  std::string triple;
  std::string cpu;
  /// `+a,-b,...`, sorted by name.
  std::string features;
  TileParameters tile;

  /// The processor this process runs on.
  static CpuTarget host();

  /// A processor given by name and features, e.g. `x86-64-v3` and `+avx2,+fma`.
  static CpuTarget get(llvm::StringRef triple, llvm::StringRef cpu,
                       llvm::StringRef features);
};

/// Makes LLVM's code generator for the host available; from any thread, any
/// number of times.
void initializeHostCodegen();

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_CPUTARGET_H
