//===-- CpuTarget.cpp - the processor that kernels are made for -----------===//

#include "codegen/cpu/CpuTarget.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/Triple.h"

#include <algorithm>

using namespace llvm;

namespace kaon::cpu {

static bool hasFeature(StringRef features, StringRef name) {
  SmallVector<StringRef> list;
  features.split(list, ',');
  // The last mention wins, as in LLVM.
  for (StringRef feature : reverse(list)) {
    if (feature.size() > 1 && feature.drop_front() == name) {
      return feature.front() == '+';
    }
  }
  return false;
}

/// Sizes the register tile so that accumulators, one row of the right operand
/// and the broadcast elements of the left one fill the vector registers.
static TileParameters chooseTile(const Triple &triple, StringRef features) {
  TileParameters tile;
  if (!triple.isX86()) {
    return tile;
  }
  bool fma = hasFeature(features, "fma");
  if (fma && hasFeature(features, "avx512f") &&
      hasFeature(features, "avx512vl") && hasFeature(features, "avx512bw") &&
      hasFeature(features, "avx512dq")) {
    // 24 accumulators of 32 registers.
    tile.vectorBits = 512;
    tile.mr = 12;
    tile.nr = 32;
  } else if (fma && hasFeature(features, "avx2")) {
    // 12 accumulators of 16 registers.
    tile.vectorBits = 256;
    tile.mr = 6;
    tile.nr = 16;
  }
  return tile;
}

void initializeHostCodegen() {
  static const bool once = [] {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)once;
}

CpuTarget CpuTarget::get(StringRef triple, StringRef cpu, StringRef features) {
  CpuTarget target;
  target.triple = triple.str();
  target.cpu = cpu.str();
  target.features = features.str();
  target.tile = chooseTile(Triple(triple), features);
  return target;
}

CpuTarget CpuTarget::host() {
  SmallVector<std::string> features;
  for (const auto &feature : sys::getHostCPUFeatures()) {
    features.push_back((feature.second ? "+" : "-") + feature.first().str());
  }
  // The map has no defined order; equal hosts must have equal strings.
  std::sort(features.begin(), features.end(), [](StringRef a, StringRef b) {
    return a.drop_front() < b.drop_front();
  });
  return get(sys::getProcessTriple(), sys::getHostCPUName(),
             llvm::join(features, ","));
}

} // namespace kaon::cpu
