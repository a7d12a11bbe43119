//===-- KernelSources.cpp - the kernels that a module needs ---------------===//

#include "codegen/cpu/KernelSources.h"

#include "codegen/cpu/PackedLayout.h"
#include "dialect/Kaon.h"
#include "mlir/IR/AsmState.h"

#include "llvm/ADT/TypeSwitch.h"

#include <map>

using namespace mlir;

namespace kaon::cpu {

namespace {
/// A library kernel that some op needs.
struct LibraryUse {
  std::string library;
  FunctionType type;
  bool needsTile = false;
};
} // namespace

static std::string nameOf(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

/// Prints a module of one kernel, without locations.
static std::string print(ModuleOp module) {
  std::string text;
  llvm::raw_string_ostream os(text);
  module->print(os, OpPrintingFlags().enableDebugInfo(false).useLocalScope());
  os << "\n";
  return text;
}

void setCpuTarget(ModuleOp module, const TileParameters &tile) {
  module->setAttr(KaonDialect::getCpuAttrName(),
                  CpuTargetAttr::get(module.getContext(), tile.vectorBits,
                                     tile.mr, tile.nr, tile.kc, tile.block));
}

/// The library kernel of an op, with its symbol, if the op needs one.
static std::optional<std::pair<std::string, LibraryUse>>
getLibraryUse(Operation *op) {
  MLIRContext *context = op->getContext();
  auto element = [](Value matrix) {
    return getElementTypeOrSelf(matrix.getType());
  };
  auto use = [&](Type type, std::string library, unsigned matrices,
                 bool needsTile) {
    Type matrix = RankedTensorType::get(
        {ShapedType::kDynamic, ShapedType::kDynamic}, type);
    std::string symbol = library + "_" + nameOf(type);
    auto signature =
        FunctionType::get(context, SmallVector<Type>(matrices, matrix), matrix);
    return std::pair(symbol, LibraryUse{library, signature, needsTile});
  };
  return llvm::TypeSwitch<Operation *,
                          std::optional<std::pair<std::string, LibraryUse>>>(op)
      .Case([&](PackOp pack) {
        bool lhs = pack.getSide() == PackSide::Lhs;
        return use(element(pack.getInput()),
                   packKernelName(lhs, pack.getTranspose()), 1, true);
      })
      .Case([&](MatmulOp matmul) {
        bool add = static_cast<bool>(matmul.getAddend());
        return use(element(matmul.getLhs()),
                   matmulKernelName(matmul.getSymmetric(), add), add ? 3 : 2,
                   true);
      })
      .Case([&](TransposeOp transpose)
                -> std::optional<std::pair<std::string, LibraryUse>> {
        if (transpose.isView()) {
          return std::nullopt;
        }
        return use(element(transpose.getInput()), "transpose", 1, false);
      })
      .Default(std::nullopt);
}

FailureOr<std::vector<KernelSource>> collectKernelSources(ModuleOp module) {
  std::vector<KernelSource> sources;
  std::map<std::string, LibraryUse> libraryUses;
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
      auto use = getLibraryUse(op);
      if (use && use->second.needsTile && !target) {
        op->emitOpError() << "needs " << KaonDialect::getCpuAttrName()
                          << " on the module";
        return WalkResult::interrupt();
      }
      if (use) {
        libraryUses.insert(*use);
      }
      return WalkResult::advance();
    });
    if (walk.wasInterrupted()) {
      return failure();
    }
  }
  for (auto &[symbol, use] : libraryUses) {
    OwningOpRef<ModuleOp> single = ModuleOp::create(unknown);
    if (use.needsTile) {
      (*single)->setAttr(KaonDialect::getCpuAttrName(), target);
    }
    auto function = func::FuncOp::create(unknown, symbol, use.type);
    function.setPrivate();
    function->setAttr(KaonDialect::getLibraryAttrName(),
                      StringAttr::get(module.getContext(), use.library));
    single->push_back(function);
    sources.push_back({symbol, print(*single)});
  }
  return sources;
}

} // namespace kaon::cpu
