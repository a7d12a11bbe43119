//===-- PackOperands.cpp - operands of products in slivers ----------------===//
//
// Numeric class: bitwise.
//
//===----------------------------------------------------------------------===//

#include "codegen/cpu/PackedLayout.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_PACKOPERANDSPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

struct PackOperandsPass : kaon::impl::PackOperandsPassBase<PackOperandsPass> {
  void runOnOperation() override {
    SmallVector<MatmulOp> products;
    getOperation().walk([&](MatmulOp op) {
      if (!op.isPacked()) {
        products.push_back(op);
      }
    });
    if (products.empty()) {
      return;
    }
    auto module = getOperation()->getParentOfType<ModuleOp>();
    auto target =
        module->getAttrOfType<CpuTargetAttr>(KaonDialect::getCpuAttrName());
    if (!target) {
      products.front().emitOpError()
          << "can only be packed for a known processor, but the module has no "
          << KaonDialect::getCpuAttrName();
      return signalPassFailure();
    }
    for (MatmulOp op : products) {
      pack(op, target);
    }
  }

  static void pack(MatmulOp op, CpuTargetAttr target) {
    auto [m, n, k] = op.getProductSizes();
    auto packOperand = [&](OpOperand &operand, PackSide side, bool transpose,
                           int64_t size) {
      Value matrix = operand.get();
      // An earlier product may read the same operand on the same side.
      for (Operation *user : matrix.getUsers()) {
        auto other = dyn_cast<PackOp>(user);
        if (other && other.getSide() == side &&
            other.getTranspose() == transpose &&
            other->getBlock() == op->getBlock() && other->isBeforeInBlock(op)) {
          return operand.set(other.getResult());
        }
      }
      auto type = getMatrixType(matrix);
      int64_t tile =
          side == PackSide::Lhs
              ? target.getMr()
              : cpu::tileColumns(target.getNr(), type.getElementTypeBitWidth());
      auto packed =
          RankedTensorType::get({cpu::packedSlivers(size, tile),
                                 cpu::roundUp(k, cpu::packedDepthUnit) * tile},
                                type.getElementType());
      OpBuilder builder(op);
      operand.set(PackOp::create(builder, op.getLoc(), packed, side, matrix,
                                 transpose));
    };
    packOperand(op.getLhsMutable(), PackSide::Lhs, op.getTransposeA(), m);
    packOperand(op.getRhsMutable(), PackSide::Rhs, op.getTransposeB(), n);
    op.setTransposeA(false);
    op.setTransposeB(false);
    op.setSizes(ArrayRef<int64_t>{m, n, k});
  }
};

} // namespace
