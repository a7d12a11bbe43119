//===-- KaonCanonicalization.td - declarative patterns -------*- tablegen -*-===//
//
// One-to-one algebraic rewrites. All are exact: no rounding changes.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONCANONICALIZATION_TD
#define KAON_DIALECT_KAONCANONICALIZATION_TD

include "dialect/KaonUpdateOps.td"
include "mlir/IR/PatternBase.td"

// broadcast(broadcast(x)) -> broadcast(x)
def BroadcastOfBroadcast : Pat<
    (Kaon_BroadcastOp (Kaon_BroadcastOp $input)),
    (Kaon_BroadcastOp $input)>;

// transpose(broadcast(x)) -> broadcast(transpose(x)): the transpose becomes a view.
def TransposeOfBroadcast : Pat<
    (Kaon_TransposeOp (Kaon_BroadcastOp $input)),
    (Kaon_BroadcastOp (Kaon_TransposeOp $input))>;

#endif // KAON_DIALECT_KAONCANONICALIZATION_TD
