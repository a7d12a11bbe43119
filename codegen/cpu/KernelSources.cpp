//===-- KernelSources.cpp - the kernels that a module needs ---------------===//

#include "codegen/cpu/KernelSources.h"

#include "codegen/cpu/LibraryCalls.h"
#include "dialect/Kaon.h"
#include "mlir/IR/AsmState.h"

#include <map>

using namespace mlir;

namespace kaon::cpu {

/// Prints a module of one kernel, without locations.
static std::string print(ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream os(text);
  module->print(os, OpPrintingFlags().enableDebugInfo(false).useLocalScope());
  os << "\n";
  return text;
}

LogicalResult setCpuTarget(ModuleOp module, const TileParameters &tile) {
  auto target = CpuTargetAttr::getChecked(
      [&] { return emitError(module.getLoc()); }, module.getContext(),
      tile.vectorBits, tile.mr, tile.nr, tile.kc, tile.block);
  if (!target) {
    return failure();
  }
  module->setAttr(KaonDialect::getCpuAttrName(), target);
  return success();
}

/// A declaration of the kernel, as code generation takes it.
static func::FuncOp declare(const LibraryCall &call, Location loc) {
  Type matrix = RankedTensorType::get(
      {ShapedType::kDynamic, ShapedType::kDynamic}, call.element);
  auto type = FunctionType::get(
      loc.getContext(), SmallVector<Type>(call.numInputs, matrix), matrix);
  auto function = func::FuncOp::create(loc, call.symbol(), type);
  function.setPrivate();
  function->setAttr(KaonDialect::getLibraryAttrName(),
                    StringAttr::get(loc.getContext(), call.library));
  return function;
}

FailureOr<std::vector<KernelSource>> collectKernelSources(ModuleOp module) {
  std::vector<KernelSource> sources;
  std::map<std::string, LibraryCall> calls; // by symbol
  Location unknown = UnknownLoc::get(module.getContext());
  Attribute target = module->getAttr(KaonDialect::getCpuAttrName());
  for (func::FuncOp function : module.getOps<func::FuncOp>()) {
    if (getKernelSchedule(function)) {
      OwningOpRef<ModuleOp> single = ModuleOp::create(unknown);
      single->push_back(function.clone());
      sources.push_back({function.getName().str(), print(*single)});
      continue;
    }
    WalkResult walk = function.walk([&](Operation *op) {
      auto matmul = dyn_cast<MatmulOp>(op);
      if (matmul && !matmul.isPacked()) {
        op->emitOpError()
            << "has operands that are not packed: run kaon-pack-operands first";
        return WalkResult::interrupt();
      }
      std::optional<LibraryCall> call = getLibraryCall(op);
      if (call && call->needsTile && !target) {
        op->emitOpError() << "needs " << KaonDialect::getCpuAttrName()
                          << " on the module";
        return WalkResult::interrupt();
      }
      if (call) {
        calls.try_emplace(call->symbol(), *call);
      }
      return WalkResult::advance();
    });
    if (walk.wasInterrupted()) {
      return failure();
    }
  }
  for (const auto &[symbol, call] : calls) {
    OwningOpRef<ModuleOp> single = ModuleOp::create(unknown);
    if (call.needsTile) {
      (*single)->setAttr(KaonDialect::getCpuAttrName(), target);
    }
    single->push_back(declare(call, unknown));
    sources.push_back({symbol, print(*single)});
  }
  return sources;
}

} // namespace kaon::cpu
