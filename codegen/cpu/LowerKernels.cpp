//===-- LowerKernels.cpp - generating the code of kernels -----------------===//

#include "codegen/cpu/CompileKernel.h"
#include "codegen/cpu/FusedKernels.h"
#include "codegen/cpu/LibraryKernels.h"
#include "codegen/cpu/Passes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;

namespace kaon::cpu {

#define GEN_PASS_DEF_LOWERKERNELS
#define GEN_PASS_REGISTRATION
#include "codegen/cpu/Passes.h.inc"

static TileParameters getTile(ModuleOp module) {
  TileParameters tile;
  if (auto target =
          module->getAttrOfType<CpuTargetAttr>(KaonDialect::getCpuAttrName())) {
    tile = {target.getVectorBits(), target.getMr(), target.getNr(),
            target.getKc(), target.getBlock()};
  }
  return tile;
}

namespace {
struct LowerKernelsPass : impl::LowerKernelsBase<LowerKernelsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    TileParameters tile = getTile(module);
    for (func::FuncOp source :
         llvm::make_early_inc_range(module.getOps<func::FuncOp>())) {
      std::optional<Schedule> schedule = getKernelSchedule(source);
      if (!schedule && !source->hasAttr(KaonDialect::getLibraryAttrName())) {
        continue;
      }
      std::string name = source.getName().str();
      LogicalResult result =
          schedule ? buildFusedKernel(module, name, source, *schedule)
                   : buildLibraryKernel(module, name, source, tile);
      if (failed(result)) {
        return signalPassFailure();
      }
      source.erase();
    }
  }
};
} // namespace

void registerCpuPasses() {
  registerPasses();
  PassPipelineRegistration<>(
      "kaon-kernels-to-llvm",
      "Generate the code of kernels, down to the llvm dialect",
      [](OpPassManager &pm) {
        pm.addPass(createLowerKernels());
        addLowerToLLVMPasses(pm);
      });
}

} // namespace kaon::cpu
