//===-- LibraryCalls.cpp - ops that library kernels compute ---------------===//

#include "codegen/cpu/LibraryCalls.h"

#include "codegen/cpu/PackedLayout.h"
#include "dialect/Kaon.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace kaon::cpu {

std::string getKeyword(Type type) {
  std::string text;
  llvm::raw_string_ostream(text) << type;
  return text;
}

std::string LibraryCall::symbol() const {
  return library + "_" + getKeyword(element);
}

std::optional<LibraryCall> getLibraryCall(Operation *op) {
  using Call = std::optional<LibraryCall>;
  auto element = [](Value matrix) {
    return getElementTypeOrSelf(matrix.getType());
  };
  return llvm::TypeSwitch<Operation *, Call>(op)
      .Case([&](PackOp pack) -> Call {
        bool lhs = pack.getSide() == PackSide::Lhs;
        return {{packKernelName(lhs, pack.getTranspose()),
                 element(pack.getInput())}};
      })
      .Case([&](MatmulOp matmul) -> Call {
        bool add = static_cast<bool>(matmul.getAddend());
        return {{matmulKernelName(matmul.getSymmetric(), add),
                 element(matmul.getLhs()), add ? 3u : 2u}};
      })
      .Case([&](TransposeOp transpose) -> Call {
        if (transpose.isView()) {
          return std::nullopt;
        }
        return {{std::string(transposeKernelName),
                 element(transpose.getInput()), 1, /*needsTile=*/false}};
      })
      .Default(std::nullopt);
}

} // namespace kaon::cpu
