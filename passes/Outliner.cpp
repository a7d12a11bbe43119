//===-- Outliner.cpp - kernels become functions ---------------------------===//

#include "passes/Outliner.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "passes/Support.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace kaon;

namespace {

/// Clones the body of a kernel into a function, forgetting shapes.
class ShapeEraser {
public:
  ShapeEraser(KernelOp kernel, Outliner::Ones ones);

  /// The function, without a name.
  func::FuncOp build();

private:
  Type erase(Type type) const;
  Value getSize(unsigned dim);
  /// A splat of a scalar, shaped like a value of the kernel.
  Value createSplat(Location loc, Value scalar, RankedTensorType type);

  KernelOp kernel;
  Outliner::Ones ones;
  OpBuilder builder;
  /// An operand that knows each dimension's size, if there is one.
  std::array<std::optional<unsigned>, 2> sizeSource;
  std::array<Value, 2> sizes;
  Block *entry = nullptr;
};

} // namespace

ShapeEraser::ShapeEraser(KernelOp kernel, Outliner::Ones ones)
    : kernel(kernel), ones(ones), builder(kernel.getContext()) {
  for (auto [index, input] : llvm::enumerate(kernel.getInputs())) {
    for (unsigned dim = 0; dim < 2; ++dim) {
      bool isKnown = ones == Outliner::Ones::Keep &&
                     getMatrixType(input).getDimSize(dim) == 1;
      if (!sizeSource[dim] && !isKnown) {
        sizeSource[dim] = index;
      }
    }
  }
}

Type ShapeEraser::erase(Type type) const {
  auto matrix = dyn_cast<RankedTensorType>(type);
  if (!matrix) {
    return type;
  }
  SmallVector<int64_t, 2> shape(matrix.getShape());
  for (unsigned dim = 0; dim < 2; ++dim) {
    bool isKnown = ones == Outliner::Ones::Keep && shape[dim] == 1;
    if (!isKnown && sizeSource[dim]) {
      shape[dim] = ShapedType::kDynamic;
    }
  }
  return matrix.clone(shape);
}

Value ShapeEraser::getSize(unsigned dim) {
  if (!sizes[dim]) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(entry);
    sizes[dim] = tensor::DimOp::create(
        builder, kernel.getLoc(), entry->getArgument(*sizeSource[dim]), dim);
  }
  return sizes[dim];
}

Value ShapeEraser::createSplat(Location loc, Value scalar,
                               RankedTensorType type) {
  auto erased = cast<RankedTensorType>(erase(type));
  SmallVector<Value, 2> unknown;
  for (unsigned dim = 0; dim < 2; ++dim) {
    if (erased.isDynamicDim(dim)) {
      unknown.push_back(getSize(dim));
    }
  }
  return tensor::SplatOp::create(builder, loc, erased, scalar, unknown);
}

func::FuncOp ShapeEraser::build() {
  auto eraseAll = [&](TypeRange types) {
    return llvm::map_to_vector(types, [&](Type type) { return erase(type); });
  };
  auto type = builder.getFunctionType(eraseAll(kernel->getOperandTypes()),
                                      eraseAll(kernel.getResultTypes()));
  auto function = func::FuncOp::create(kernel.getLoc(), "kernel", type);
  function.setPrivate();
  function->setAttr(
      KaonDialect::getKernelAttrName(),
      ScheduleAttr::get(kernel.getContext(), kernel.getSchedule()));
  entry = function.addEntryBlock();
  // Arguments of the update keep their names, for code that is read by people.
  for (auto [argument, operand] :
       llvm::zip_equal(entry->getArguments(), kernel->getOperands())) {
    if (isa<BlockArgument>(operand)) {
      argument.setLoc(operand.getLoc());
    }
  }
  builder.setInsertionPointToEnd(entry);

  Block &body = kernel.getBody().front();
  IRMapping mapping;
  mapping.map(body.getArguments(), entry->getArguments());
  for (Operation &op : body) {
    if (auto yield = dyn_cast<YieldOp>(op)) {
      auto results = llvm::map_to_vector(yield.getOperands(), [&](Value value) {
        return mapping.lookup(value);
      });
      func::ReturnOp::create(builder, op.getLoc(), results);
      continue;
    }
    auto matrix = dyn_cast<RankedTensorType>(op.getResult(0).getType());
    if (std::optional<double> number = getSplatConstant(op.getResult(0))) {
      Value scalar = arith::ConstantOp::create(
          builder, op.getLoc(),
          builder.getFloatAttr(matrix.getElementType(), *number));
      mapping.map(op.getResult(0), createSplat(op.getLoc(), scalar, matrix));
    } else if (auto splat = dyn_cast<tensor::SplatOp>(op)) {
      mapping.map(
          op.getResult(0),
          createSplat(op.getLoc(), mapping.lookup(splat.getInput()), matrix));
    } else {
      Operation *clone = builder.clone(op, mapping);
      for (OpResult result : clone->getResults()) {
        result.setType(erase(result.getType()));
      }
    }
  }
  return function;
}

static bool isSameFunction(Operation *a, Operation *b) {
  return OperationEquivalence::isEquivalentTo(
      a, b, OperationEquivalence::IgnoreLocations);
}

LaunchOp Outliner::outline(KernelOp kernel, Ones ones) {
  func::FuncOp function = ShapeEraser(kernel, ones).build();
  // The text without locations names the function: equal kernels share it, here
  // and in every other module. Its form is fixed, whatever the tool's flags
  // say.
  std::string text;
  llvm::raw_string_ostream os(text);
  function->print(os, OpPrintingFlags()
                          .enableDebugInfo(false)
                          .printGenericOpForm(false)
                          .printNameLocAsPrefix(false)
                          .printUniqueSSAIDs(false)
                          .printValueUsers(false)
                          .useLocalScope());
  std::string hashed =
      llvm::formatv("kernel_{0:x-16}", llvm::xxh3_64bits(text));
  std::string name = hashed;
  function.setSymName(name);
  Operation *existing = symbols.lookup(name);
  for (unsigned suffix = 1; existing && !isSameFunction(existing, function);
       ++suffix) {
    // Something else has the name; it decides neither which kernel runs nor
    // whether there is one.
    name = hashed + "_" + std::to_string(suffix);
    function.setSymName(name);
    existing = symbols.lookup(name);
  }
  if (existing) {
    function.erase();
  } else {
    symbols.insert(function, module.getBody()->end());
  }
  OpBuilder builder(kernel);
  auto launch =
      LaunchOp::create(builder, kernel.getLoc(), kernel.getResultTypes(),
                       FlatSymbolRefAttr::get(builder.getContext(), name),
                       kernel.getInputs(), kernel.getScalars());
  kernel.replaceAllUsesWith(launch.getResults());
  kernel.erase();
  return launch;
}
