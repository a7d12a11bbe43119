//===-- KaonProgramOps.cpp - programs and kernels -------------------------===//
//
// Accessors and result names of the program ops.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"

using namespace mlir;
using namespace kaon;

FlatSymbolRefAttr ParameterOp::getUpdateAt(int64_t residue) {
  ArrayAttr updates = getUpdates();
  if (updates.size() == 1) {
    return cast<FlatSymbolRefAttr>(updates[0]);
  }
  int64_t period = updates.size();
  // The remainder of a negative dividend is negative, hence the second one.
  int64_t index =
      ((residue - static_cast<int64_t>(getPhase())) % period + period) % period;
  return cast<FlatSymbolRefAttr>(updates[index]);
}

SmallVector<BucketOp> PhaseOp::getBuckets() {
  SmallVector<BucketOp> buckets;
  getBody().walk([&](BucketOp bucket) { buckets.push_back(bucket); });
  return buckets;
}

void PackOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getResult(),
          getSide() == PackSide::Lhs ? "packed_lhs" : "packed_rhs");
}
