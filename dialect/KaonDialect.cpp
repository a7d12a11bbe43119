//===-- KaonDialect.cpp - registration and generated code -----------------===//
//
// The dialect itself, its attributes and the code generated for its ops.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "dialect/Kernel.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;

#include "dialect/KaonDialect.cpp.inc"
#include "dialect/KaonEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/KaonAttrs.cpp.inc"

//===----------------------------------------------------------------------===//
// Custom assembly directives
//===----------------------------------------------------------------------===//

/// An enum attribute as a bare keyword: `lerp` rather than `<lerp>`.
template <typename EnumAttrT>
static ParseResult parseKeyword(OpAsmParser &parser, EnumAttrT &attribute) {
  using EnumT = decltype(std::declval<EnumAttrT>().getValue());
  FailureOr<EnumT> value = FieldParser<EnumT>::parse(parser);
  if (failed(value)) {
    return failure();
  }
  attribute = EnumAttrT::get(parser.getContext(), *value);
  return success();
}

template <typename EnumAttrT>
static void printKeyword(OpAsmPrinter &printer, Operation *,
                         EnumAttrT attribute) {
  printer << stringifyEnum(attribute.getValue());
}

/// Numbers with all their bits: an array attribute prints six digits of each,
/// and numbers without a point that it cannot read back.
static ParseResult parseNumbers(OpAsmParser &parser,
                                DenseF64ArrayAttr &attribute) {
  SmallVector<double> numbers;
  auto parseNumber = [&]() -> ParseResult {
    return parser.parseFloat(numbers.emplace_back());
  };
  if (failed(parser.parseCommaSeparatedList(OpAsmParser::Delimiter::Square,
                                            parseNumber))) {
    return failure();
  }
  attribute = DenseF64ArrayAttr::get(parser.getContext(), numbers);
  return success();
}

static void printNumbers(OpAsmPrinter &printer, Operation *,
                         DenseF64ArrayAttr attribute) {
  printer << '[';
  llvm::interleaveComma(attribute.asArrayRef(), printer, [&](double number) {
    printer.printFloat(APFloat(number));
  });
  printer << ']';
}

/// The updates of a parameter: `@a`, or `[@a, @b]` if there are several.
static ParseResult parseUpdates(OpAsmParser &parser, ArrayAttr &updates) {
  SmallVector<Attribute> symbols;
  auto parseSymbol = [&]() -> ParseResult {
    StringAttr name;
    if (failed(parser.parseSymbolName(name))) {
      return failure();
    }
    symbols.push_back(FlatSymbolRefAttr::get(name));
    return success();
  };
  StringAttr single;
  if (succeeded(parser.parseOptionalSymbolName(single))) {
    symbols.push_back(FlatSymbolRefAttr::get(single));
  } else if (failed(parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                                   parseSymbol))) {
    return failure();
  }
  updates = parser.getBuilder().getArrayAttr(symbols);
  return success();
}

static void printUpdates(OpAsmPrinter &printer, Operation *,
                         ArrayAttr updates) {
  if (updates.size() == 1) {
    printer.printAttributeWithoutType(updates[0]);
  } else {
    printer.printAttributeWithoutType(updates);
  }
}

/// Parses a list of lists of integers, `[[0, 1], [0]]`.
static ParseResult parseLists(OpAsmParser &parser, ArrayAttr &lists) {
  SmallVector<Attribute> parsed;
  auto parseList = [&]() -> ParseResult {
    parsed.push_back(DenseI64ArrayAttr::parse(parser, Type()));
    return success(parsed.back() != nullptr);
  };
  if (failed(parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                            parseList))) {
    return failure();
  }
  lists = parser.getBuilder().getArrayAttr(parsed);
  return success();
}

static void printLists(OpAsmPrinter &printer, Operation *, ArrayAttr lists) {
  printer << '[';
  llvm::interleaveComma(lists.getAsRange<DenseI64ArrayAttr>(), printer,
                        [&](DenseI64ArrayAttr list) { list.print(printer); });
  printer << ']';
}

#define GET_OP_CLASSES
#include "dialect/KaonOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Dialect
//===----------------------------------------------------------------------===//

void KaonDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/KaonAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/KaonOps.cpp.inc"
      >();
}

Operation *KaonDialect::materializeConstant(OpBuilder &builder, Attribute value,
                                            Type type, Location loc) {
  return arith::ConstantOp::materialize(builder, value, type, loc);
}

void kaon::registerAllDialects(DialectRegistry &registry) {
  registry.insert<KaonDialect, kernel::KernelDialect, arith::ArithDialect,
                  func::FuncDialect, LLVM::LLVMDialect, math::MathDialect,
                  memref::MemRefDialect, scf::SCFDialect, tensor::TensorDialect,
                  vector::VectorDialect>();
}

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

FloatType CudaTargetAttr::getHalfType() const {
  if (getHalf() == HalfType::F16) {
    return Float16Type::get(getContext());
  }
  return BFloat16Type::get(getContext());
}

CudaTargetAttr kaon::getCudaTarget(Operation *op) {
  auto module = dyn_cast<ModuleOp>(op);
  if (!module) {
    module = op->getParentOfType<ModuleOp>();
  }
  return module ? module->getAttrOfType<CudaTargetAttr>(
                      KaonDialect::getCudaAttrName())
                : CudaTargetAttr();
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

bool kaon::isUpdate(func::FuncOp function) {
  return function->hasAttrOfType<UnitAttr>(KaonDialect::getUpdateAttrName());
}

std::optional<Schedule> kaon::getKernelSchedule(func::FuncOp function) {
  if (auto schedule = function->getAttrOfType<ScheduleAttr>(
          KaonDialect::getKernelAttrName())) {
    return schedule.getValue();
  }
  return std::nullopt;
}

func::FuncOp kaon::getKernel(LaunchOp op) {
  return SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(op,
                                                            op.getKernelAttr());
}

std::array<int64_t, 2> kaon::getLaunchSizes(LaunchOp op) {
  std::array<int64_t, 2> sizes{1, 1};
  for (Type type : llvm::concat<const Type>(op.getInputs().getTypes(),
                                            op.getResultTypes())) {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
    sizes = {std::max(sizes[0], shape[0]), std::max(sizes[1], shape[1])};
  }
  return sizes;
}

std::optional<Role> kaon::getArgumentRole(func::FuncOp function,
                                          unsigned index) {
  if (auto role = function.getArgAttrOfType<RoleAttr>(
          index, KaonDialect::getRoleAttrName())) {
    return role.getValue();
  }
  return std::nullopt;
}

StringRef kaon::getArgumentName(func::FuncOp function, unsigned index) {
  if (auto name = function.getArgAttrOfType<StringAttr>(
          index, KaonDialect::getNameAttrName())) {
    return name.getValue();
  }
  return {};
}

SmallVector<unsigned> kaon::getArgumentsWithRole(func::FuncOp function,
                                                 Role role) {
  SmallVector<unsigned> indices;
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    if (getArgumentRole(function, i) == role) {
      indices.push_back(i);
    }
  }
  return indices;
}
