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

static bool isHalfProduct(Value value) {
  auto product = value.getDefiningOp<MatmulOp>();
  return product && getMatrixType(value).getElementTypeBitWidth() == 16;
}

/// The kernel that computes the new parameter, and a product in half precision
/// that it reads, if there are such.
static std::optional<Candidate> findCandidate(func::FuncOp update) {
  Operation *terminator = update.getBody().front().getTerminator();
  auto kernel = terminator->getOperand(0).getDefiningOp<KernelOp>();
  if (!kernel) {
    return std::nullopt;
  }
  auto inputs = kernel.getInputs();
  auto product = llvm::find_if(inputs, isHalfProduct);
  if (product == inputs.end()) {
    return std::nullopt;
  }
  return Candidate{
      kernel, (*product).getDefiningOp<MatmulOp>(),
      update.getArgument(getArgumentsWithRole(update, Role::Param).front())};
}

/// Whether the new parameter can be written over the old one by `op`: nothing
/// reads the old one afterwards.
static bool isLastRead(Value param, Operation *op) {
  return llvm::all_of(param.getUsers(), [&](Operation *user) {
    return user == op || (user->isBeforeInBlock(op) && !isView(user));
  });
}

/// What keeps a product from changing the parameter itself; empty if nothing
/// does: its kernel computes the new parameter from the old one, the product,
/// and nothing else but host scalars.
static StringRef findObstacle(const Candidate &candidate) {
  auto [kernel, product, param] = candidate;
  if (kernel.getSchedule() != Schedule::Elementwise ||
      kernel.getNumResults() != 1 || kernel.getInputs().size() != 2 ||
      !llvm::is_contained(kernel.getInputs(), param) ||
      getMatrixType(param).getShape() !=
          product.getResult().getType().getShape()) {
    return "its kernel reads or computes something else, too";
  }
  if (product.getSymmetric()) {
    return "it is symmetric, which a parameter is not";
  }
  if (!product.getResult().hasOneUse() || !kernel.getResult(0).hasOneUse()) {
    return "others read it or the new parameter";
  }
  // A product reads its operands while others write the parameter.
  bool isRead = llvm::is_contained(product->getOperands(), param) ||
                !isLastRead(param, kernel);
  return isRead ? "others read the old parameter later" : "";
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

static remark::RemarkOpts getRemark(func::FuncOp update) {
  return remark::RemarkOpts::name("Epilogue")
      .category("kaon-fuse-product-epilogue")
      .function(update.getName());
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
  remark::passed(loc, getRemark(fused->getParentOfType<func::FuncOp>()))
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
      std::optional<Candidate> candidate = findCandidate(update);
      if (!candidate) {
        continue;
      }
      StringRef obstacle = findObstacle(*candidate);
      if (obstacle.empty()) {
        fuse(*candidate, outliner);
      } else {
        remark::missed(candidate->product.getLoc(), getRemark(update))
            << remark::add("a product is stored before it changes the "
                           "parameter: {0}",
                           obstacle);
      }
    }
  }
};

} // namespace
