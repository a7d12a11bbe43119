//===-- OutlineKernels.cpp - one function per distinct kernel -------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/SymbolTable.h"
#include "passes/Outliner.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_OUTLINEKERNELSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

struct OutlineKernelsPass
    : kaon::impl::OutlineKernelsPassBase<OutlineKernelsPass> {
  void runOnOperation() override {
    Outliner outliner(getOperation());
    SmallVector<KernelOp> kernels;
    getOperation().walk([&](KernelOp kernel) { kernels.push_back(kernel); });
    for (KernelOp kernel : kernels) {
      outliner.outline(kernel);
    }
  }
};

} // namespace
