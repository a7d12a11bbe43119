//===-- EmitCuda.cpp - kernels as CUDA C++ text ---------------------------===//

#include "codegen/cuda/EmitCuda.h"

#include "codegen/cuda/LaunchShape.h"
#include "codegen/cuda/Passes.h"
#include "dialect/Kaon.h"
#include "dialect/Kernel.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Tools/mlir-translate/Translation.h"

#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/CommandLine.h"

using namespace mlir;

namespace kaon::cuda {

#define GEN_PASS_REGISTRATION
#include "codegen/cuda/Passes.h.inc"

void registerCudaPasses() { registerPasses(); }

//===----------------------------------------------------------------------===//
// The kernels of a module
//===----------------------------------------------------------------------===//

/// The matrix with its shape forgotten.
static Type eraseShape(Type type) {
  auto matrix = dyn_cast<RankedTensorType>(type);
  return matrix ? matrix.clone({ShapedType::kDynamic, ShapedType::kDynamic})
                : type;
}

/// A launch's kernel, with what its text depends on besides.
static void addKernel(ModuleOp module, LaunchOp op, const LaunchShape &shape) {
  auto kernel = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
      op, op.getKernelAttr());
  auto clone = cast<func::FuncOp>(kernel->clone());
  clone.setSymName(shape.name);
  if (shape.rows) {
    Builder b(op.getContext());
    clone->setAttr(threadsAttrName, b.getI64IntegerAttr(shape.rows->threads));
    clone->setAttr(registerGroupsAttrName,
                   b.getI64IntegerAttr(shape.rows->registerGroups));
    if (shape.rows->streaming) {
      clone->setAttr(streamingAttrName, b.getUnitAttr());
    }
  }
  if (shape.isInPlace) {
    clone->setAttr(inPlaceAttrName, UnitAttr::get(op.getContext()));
  }
  module.push_back(clone);
}

/// A function that does what the op does, to matrices of any shape.
static void addFunction(ModuleOp module, Operation *op,
                        const LaunchShape &shape) {
  Operation *clone = op->clone();
  // A number in the launch's table, which the text finds there or not.
  if (auto product = dyn_cast<MatmulOp>(clone)) {
    product.getFactorMutable().clear();
  }
  SmallVector<Type> inputs =
      llvm::map_to_vector(clone->getOperandTypes(), eraseShape);
  Type result = eraseShape(op->getResult(0).getType());
  OpBuilder b(op->getContext());
  auto function = func::FuncOp::create(op->getLoc(), shape.name,
                                       b.getFunctionType(inputs, result));
  function.setPrivate();
  Block *body = function.addEntryBlock();
  b.setInsertionPointToEnd(body);
  b.insert(clone);
  // An operand may occur several times: the arguments are set one by one.
  clone->setOperands(body->getArguments());
  clone->getResult(0).setType(result);
  clone->removeAttr(KaonDialect::getBuffersAttrName());
  func::ReturnOp::create(b, op->getLoc(), clone->getResults());
  module.push_back(function);
}

static OwningOpRef<ModuleOp> makeModule(Operation *op,
                                        const LaunchShape &shape) {
  OwningOpRef<ModuleOp> module =
      ModuleOp::create(UnknownLoc::get(op->getContext()));
  if (auto launch = dyn_cast<LaunchOp>(op)) {
    addKernel(*module, launch, shape);
    return module;
  }
  addFunction(*module, op, shape);
  if (shape.tensorMaps) {
    // Says which main loop the kernel has; others have the one of all.
    (*module)->setAttr(KaonDialect::getCudaAttrName(), getCudaTarget(op));
  }
  if (auto product = dyn_cast<MatmulOp>(op);
      product && product.getEpilogueAttr()) {
    auto epilogue = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
        op, product.getEpilogueAttr());
    module->push_back(cast<func::FuncOp>(epilogue->clone()));
  }
  return module;
}

FailureOr<std::vector<KernelModule>> collectKernels(ModuleOp module) {
  if (!module->hasAttr(KaonDialect::getCudaAttrName())) {
    return module.emitError() << "expects " << KaonDialect::getCudaAttrName()
                              << " on a module whose kernels are for CUDA";
  }
  std::vector<KernelModule> kernels;
  llvm::StringSet<> names;
  module.walk<WalkOrder::PreOrder>([&](Operation *op) {
    std::optional<LaunchShape> shape = getLaunchShape(op);
    if (shape && names.insert(shape->name).second) {
      kernels.push_back({shape->name, makeModule(op, *shape)});
    }
  });
  return kernels;
}

//===----------------------------------------------------------------------===//
// Text
//===----------------------------------------------------------------------===//

LogicalResult emitCuda(ModuleOp module, raw_ostream &os,
                       const PrintOptions &options) {
  PassManager pm(module.getContext());
  pm.addPass(createLowerToKernel());
  pm.addPass(createPrepareKernel());
  return success(succeeded(pm.run(module)) &&
                 succeeded(printKernel(module, os, options)));
}

/// Prints the kernels of a planned module, the kernel of another, or what is in
/// the kernel dialect already.
static LogicalResult translate(ModuleOp module, raw_ostream &os,
                               StringRef wanted, const PrintOptions &options) {
  if (!module.getOps<kernel::EntryOp>().empty()) {
    return printKernel(module, os, options);
  }
  if (!module->hasAttr(KaonDialect::getCudaAttrName())) {
    return emitCuda(module, os, options);
  }
  FailureOr<std::vector<KernelModule>> kernels = collectKernels(module);
  if (failed(kernels)) {
    return failure();
  }
  bool found = false;
  for (KernelModule &kernel : *kernels) {
    if (!wanted.empty() && kernel.name != wanted) {
      continue;
    }
    found = true;
    os << "// " << kernel.name << ".cu\n";
    if (failed(emitCuda(*kernel.module, os, options))) {
      return failure();
    }
  }
  if (!found && !wanted.empty()) {
    return module.emitError()
           << "expects a kernel of the module, but got '" << wanted << "'";
  }
  return success();
}

void registerCudaTranslation() {
  static llvm::cl::opt<std::string> kernel(
      "kernel", llvm::cl::desc("Print the kernel of this name only"));
  static llvm::cl::opt<bool> lines(
      "line-directives", llvm::cl::init(true),
      llvm::cl::desc("Lead back to the user's Python"));
  static TranslateFromMLIRRegistration registration(
      "kaon-to-cuda", "print kernels as CUDA C++",
      [](ModuleOp module, raw_ostream &os) {
        return translate(module, os, kernel, {lines});
      },
      [](DialectRegistry &registry) { registerAllDialects(registry); });
}

} // namespace kaon::cuda
