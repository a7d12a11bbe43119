//===-- KaonOps.td - all of the dialect ----------------------*- tablegen -*-===//
//
// The root from which declarations, definitions and documentation are generated.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONOPS_TD
#define KAON_DIALECT_KAONOPS_TD

include "dialect/KaonAttrs.td"
include "dialect/KaonDialect.td"
include "dialect/KaonProgramOps.td"
include "dialect/KaonUpdateOps.td"

#endif // KAON_DIALECT_KAONOPS_TD
