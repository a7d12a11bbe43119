//===-- FuseProductEpilogue.cpp - products change the parameter -----------===//
//
// Numeric class: approximate.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Remarks.h"
#include "passes/Outliner.h"
#include "passes/Passes.h"
#include "passes/Support.h"

namespace kaon {
#define GEN_PASS_DEF_FUSEPRODUCTEPILOGUEPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

/// A kernel that a product can run as its epilogue.
struct Candidate {
  KernelOp kernel;
  MatmulOp product;
  BlockArgument param;
};

} // namespace

/// The product that alone makes a value, if nothing else needs it whole: a
/// symmetric one mirrors what it stores.
static MatmulOp getOwnProduct(Value value) {
  auto product = value.getDefiningOp<MatmulOp>();
  bool isOwn = product && value.hasOneUse() && !product.getSymmetric() &&
               !product.isPacked() && !product.getEpilogue() &&
               getMatrixType(value).getElementTypeBitWidth() == 16;
  return isOwn ? product : MatmulOp();
}

/// Whether the new parameter can be written over the old one by `op`: nothing
/// reads the old one afterwards.
static bool isLastRead(Value param, Operation *op) {
  return llvm::all_of(param.getUsers(), [&](Operation *user) {
    return user == op || (user->isBeforeInBlock(op) && !isView(user));
  });
}

/// Matches a kernel that computes the new parameter from the old one, a
/// product, and nothing else but host scalars.
static std::optional<Candidate> match(KernelOp kernel, func::FuncOp update) {
  if (kernel.getSchedule() != Schedule::Elementwise ||
      kernel.getNumResults() != 1 || kernel.getInputs().size() != 2 ||
      !kernel.getResult(0).hasOneUse()) {
    return std::nullopt;
  }
  OpOperand &use = *kernel.getResult(0).getUses().begin();
  if (!isa<func::ReturnOp>(use.getOwner()) || use.getOperandNumber() != 0) {
    return std::nullopt;
  }
  BlockArgument param =
      update.getArgument(getArgumentsWithRole(update, Role::Param).front());
  for (unsigned index : {0u, 1u}) {
    MatmulOp product = getOwnProduct(kernel.getInputs()[index]);
    // A product reads its operands while others write the parameter.
    if (product && kernel.getInputs()[1 - index] == param &&
        getMatrixType(param).getShape() ==
            product.getResult().getType().getShape() &&
        !llvm::is_contained(product->getOperands(), param) &&
        isLastRead(param, kernel)) {
      return Candidate{kernel, product, param};
    }
  }
  return std::nullopt;
}

/// Puts the product before the parameter in the inputs of a kernel.
static void orderInputs(Candidate &candidate) {
  KernelOp kernel = candidate.kernel;
  if (kernel.getInputs()[1] == candidate.param) {
    return;
  }
  kernel.getInputsMutable().assign(
      {kernel.getInputs()[1], kernel.getInputs()[0]});
  Block &body = kernel.getBody().front();
  BlockArgument param = body.getArgument(0);
  BlockArgument moved = body.insertArgument(2, param.getType(), param.getLoc());
  param.replaceAllUsesWith(moved);
  body.eraseArgument(0);
}

static void fuse(Candidate candidate, Outliner &outliner) {
  orderInputs(candidate);
  MatmulOp product = candidate.product;
  LaunchOp launch = outliner.outline(candidate.kernel, Outliner::Ones::Erase);
  OpBuilder builder(launch);
  auto loc =
      FusedLoc::get(builder.getContext(), {product.getLoc(), launch.getLoc()});
  auto fused = MatmulOp::create(
      builder, loc, launch.getResult(0).getType(), product.getLhs(),
      product.getRhs(), product.getAlpha(), product.getBeta(),
      product.getAddend(), product.getFactor(), candidate.param,
      launch.getScalars(), product.getTransposeA(), product.getTransposeB(),
      /*symmetric=*/false, launch.getKernelAttr(),
      /*sizes=*/DenseI64ArrayAttr());
  launch.getResult(0).replaceAllUsesWith(fused.getResult());
  remark::passed(
      loc, remark::RemarkOpts::name("Epilogue")
               .category("kaon-fuse-product-epilogue")
               .function(fused->getParentOfType<func::FuncOp>().getName()))
      << remark::add("a product changes the parameter by {0}",
                     launch.getKernel());
  launch.erase();
  product.erase();
}

namespace {

struct FuseProductEpiloguePass
    : kaon::impl::FuseProductEpiloguePassBase<FuseProductEpiloguePass> {
  void runOnOperation() override {
    Outliner outliner(getOperation());
    // The functions that outlining adds are no updates.
    for (auto update : llvm::to_vector(getOperation().getOps<func::FuncOp>())) {
      if (!isUpdate(update)) {
        continue;
      }
      for (auto kernel : llvm::to_vector(update.getOps<KernelOp>())) {
        if (std::optional<Candidate> candidate = match(kernel, update)) {
          fuse(*candidate, outliner);
        }
      }
    }
  }
};

} // namespace
