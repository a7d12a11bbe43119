//===-- Passes.cpp - registration of passes -------------------------------===//
//
// The one function through which tools and the Python extension learn of
// passes.
//
//===----------------------------------------------------------------------===//

#include "passes/Passes.h"

#include "mlir/Transforms/Passes.h"

void kaon::registerAllPasses() { mlir::registerTransformsPasses(); }
