//===-- KernelDialect.cpp - the exit dialect of CUDA ----------------------===//
//
// Registration, generated code and verification of the `kernel` dialect.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kernel.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon::kernel;

#include "dialect/KernelDialect.cpp.inc"
#include "dialect/KernelEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "dialect/KernelAttrs.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "dialect/KernelTypes.cpp.inc"

//===----------------------------------------------------------------------===//
// Custom assembly directives
//===----------------------------------------------------------------------===//

/// `<@Step, 256, f32>`: integers without their type.
static ParseResult parseTemplateArgs(OpAsmParser &parser, ArrayAttr &args) {
  SmallVector<Attribute> list;
  auto parseArgument = [&]() -> ParseResult {
    int64_t number;
    OptionalParseResult result = parser.parseOptionalInteger(number);
    if (result.has_value()) {
      list.push_back(parser.getBuilder().getI64IntegerAttr(number));
      return *result;
    }
    return parser.parseAttribute(list.emplace_back());
  };
  if (failed(parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                            parseArgument))) {
    return failure();
  }
  args = parser.getBuilder().getArrayAttr(list);
  return success();
}

static void printTemplateArgs(OpAsmPrinter &printer, Operation *,
                              ArrayAttr args) {
  printer << '<';
  llvm::interleaveComma(args, printer, [&](Attribute argument) {
    printer.printAttributeWithoutType(argument);
  });
  printer << '>';
}

#define GET_OP_CLASSES
#include "dialect/KernelOps.cpp.inc"

//===----------------------------------------------------------------------===//
// Dialect, types and attributes
//===----------------------------------------------------------------------===//

void KernelDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/KernelAttrs.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/KernelTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/KernelOps.cpp.inc"
      >();
}

bool kaon::kernel::isStorageType(Type type) {
  return type.isBF16() || type.isF16() || type.isF32() || type.isF64();
}

Type kaon::kernel::getArithmeticType(Type type) {
  return type.isF64() ? type : Float32Type::get(type.getContext());
}

Type OperandAttr::getArithmeticType() const {
  return kaon::kernel::getArithmeticType(getType());
}

LogicalResult OperandAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                  Type type, Access access) {
  if (!isStorageType(type)) {
    return emitError()
           << "expects an operand of bf16, f16, f32 or f64, but got " << type;
  }
  return success();
}

LogicalResult
ReductionAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                      ReductionKind kind, Type type) {
  if (kind == ReductionKind::Sum ? !type.isF64()
                                 : !type.isF32() && !type.isF64()) {
    return emitError() << "expects " << stringifyEnum(kind) << " to be "
                       << (kind == ReductionKind::Sum ? "f64" : "f32 or f64")
                       << ", but got " << type;
  }
  return success();
}

LogicalResult PassListAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   ArrayRef<FlatSymbolRefAttr> operands,
                                   ArrayRef<FlatSymbolRefAttr> reductions) {
  if (operands.size() != reductions.size()) {
    return emitError() << "expects operands and reductions of every pass, but "
                          "got "
                       << operands.size() << " and " << reductions.size();
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Lookups
//===----------------------------------------------------------------------===//

/// What the class that holds `op` has under a name, or null after an error.
template <typename OpT>
static OpT lookUp(Operation *op, FlatSymbolRefAttr name,
                  SymbolTableCollection &symbols) {
  auto parent = op->getParentOfType<ClassOp>();
  auto found = parent ? symbols.lookupSymbolIn<OpT>(parent, name) : OpT();
  if (!found) {
    op->emitOpError() << "expects " << OpT::getOperationName() << " " << name
                      << " in its class";
  }
  return found;
}

/// What an alias of the class stands for, or null after an error.
template <typename AttrT>
static AttrT lookUpAlias(Operation *op, FlatSymbolRefAttr name,
                         SymbolTableCollection &symbols) {
  auto alias = lookUp<AliasOp>(op, name, symbols);
  if (!alias) {
    return {};
  }
  auto value = dyn_cast<AttrT>(alias.getValue());
  if (!value) {
    op->emitOpError() << "expects " << name << " to be #kernel."
                      << AttrT::getMnemonic() << ", but got "
                      << alias.getValue();
  }
  return value;
}

/// The type of a member of an aggregate; null after an error. `isWrite` says
/// whether it is to be written.
static Type getMemberType(Operation *op, Type aggregate, uint64_t index,
                          bool isWrite, SymbolTableCollection &symbols) {
  auto reject = [&](size_t count) {
    op->emitOpError() << "expects an index below " << count << ", but got "
                      << index;
    return Type();
  };
  auto reduction = [&](FlatSymbolRefAttr name) {
    auto reductions = lookUpAlias<ReductionsAttr>(op, name, symbols);
    if (!reductions) {
      return Type();
    }
    ArrayRef<ReductionAttr> list = reductions.getList();
    return index < list.size() ? list[index].getType() : reject(list.size());
  };
  return llvm::TypeSwitch<Type, Type>(aggregate)
      .Case([&](ElementType type) -> Type {
        auto operands = lookUpAlias<OperandsAttr>(op, type.getAlias(), symbols);
        if (!operands) {
          return {};
        }
        ArrayRef<OperandAttr> list = operands.getList();
        if (index >= list.size()) {
          return reject(list.size());
        }
        OperandAttr operand = list[index];
        if (isWrite ? !operand.isStored() : !operand.isLoaded()) {
          op->emitOpError()
              << "expects an operand that is " << (isWrite ? "written" : "read")
              << ", but #" << index << " is "
              << stringifyEnum(operand.getAccess());
          return {};
        }
        return operand.getArithmeticType();
      })
      .Case([&](KeptType) -> Type {
        auto kept = lookUp<ConstantOp>(
            op, FlatSymbolRefAttr::get(op->getContext(), keptConstantName),
            symbols);
        if (!kept) {
          return {};
        }
        return index < kept.getValue() ? Float32Type::get(op->getContext())
                                       : reject(kept.getValue());
      })
      .Case([&](ContributionsType type) -> Type {
        if (!isWrite) {
          op->emitOpError() << "cannot read contributions";
          return {};
        }
        return reduction(type.getAlias());
      })
      .Case([&](ResultsType type) -> Type {
        if (isWrite) {
          op->emitOpError() << "cannot change the results of reductions";
          return {};
        }
        return reduction(type.getAlias());
      });
}

static LogicalResult expectType(Operation *op, Type expected, Type type) {
  if (type != expected) {
    return op->emitOpError() << "expects " << expected << ", but got " << type;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

LogicalResult ClassOp::verifyRegions() {
  for (Operation &op : getBody().front()) {
    if (!isa<AliasOp, ConstantOp, FieldOp, MethodOp>(op)) {
      return op.emitOpError() << "is no member of a class";
    }
  }
  return success();
}

LogicalResult AliasOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (auto passes = dyn_cast<PassListAttr>(getValue())) {
    for (auto [operands, reductions] :
         llvm::zip_equal(passes.getOperands(), passes.getReductions())) {
      if (!lookUpAlias<OperandsAttr>(*this, operands, symbols) ||
          !lookUpAlias<ReductionsAttr>(*this, reductions, symbols)) {
        return failure();
      }
    }
  }
  if (auto apply = dyn_cast<ApplyTileAttr>(getValue())) {
    if (!symbols.lookupNearestSymbolFrom<ClassOp>(*this, apply.getUpdate())) {
      return emitOpError() << "expects a class, but found none called "
                           << apply.getUpdate();
    }
  }
  return success();
}

LogicalResult FieldOp::verify() {
  if (!getType().isF32() && !getType().isF64() && !getType().isInteger(1)) {
    return emitOpError() << "expects a field of i1, f32 or f64, but got "
                         << getType();
  }
  return success();
}

/// Parses `(%name: type, ...)`, and the body whose arguments these are.
static ParseResult
parseParameters(OpAsmParser &parser,
                SmallVectorImpl<OpAsmParser::Argument> &args) {
  return parser.parseArgumentList(args, AsmParser::Delimiter::Paren,
                                  /*allowType=*/true);
}

static void printParameters(OpAsmPrinter &printer, Block &body) {
  printer << '(';
  llvm::interleaveComma(
      body.getArguments(), printer,
      [&](BlockArgument argument) { printer.printRegionArgument(argument); });
  printer << ')';
}

static void printBody(OpAsmPrinter &printer, Operation *op,
                      ArrayRef<StringRef> printed) {
  printer.printOptionalAttrDictWithKeyword(op->getAttrs(), printed);
  printer << ' ';
  printer.printRegion(op->getRegion(0), /*printEntryBlockArgs=*/false,
                      /*printBlockTerminators=*/true);
}

static ParseResult parseBody(OpAsmParser &parser, OperationState &result,
                             ArrayRef<OpAsmParser::Argument> args) {
  if (failed(parser.parseOptionalAttrDictWithKeyword(result.attributes))) {
    return failure();
  }
  Region *body = result.addRegion();
  if (failed(parser.parseRegion(*body, args))) {
    return failure();
  }
  if (body->empty()) {
    Block &block = body->emplaceBlock();
    for (const OpAsmParser::Argument &argument : args) {
      block.addArgument(argument.type,
                        argument.sourceLoc.value_or(
                            parser.getEncodedSourceLoc(parser.getNameLoc())));
    }
  }
  return success();
}

/// One name for every parameter.
static LogicalResult verifyNames(Operation *op, Block &body,
                                 std::optional<ArrayAttr> names) {
  if (names && names->size() != body.getNumArguments()) {
    return op->emitOpError()
           << "expects a name for each of " << body.getNumArguments()
           << " parameters, but got " << names->size();
  }
  return success();
}

ParseResult MethodOp::parse(OpAsmParser &parser, OperationState &result) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (failed(parser.parseKeyword(&keyword))) {
    return failure();
  }
  std::optional<MethodKind> kind = symbolizeMethodKind(keyword);
  if (!kind) {
    return parser.emitError(loc) << "expects constructor, call, pass, reduced, "
                                    "finish or keeps, but got '"
                                 << keyword << "'";
  }
  result.addAttribute(getKindAttrName(result.name),
                      MethodKindAttr::get(parser.getContext(), *kind));
  SmallVector<OpAsmParser::Argument> args;
  if (failed(parseParameters(parser, args))) {
    return failure();
  }
  if (succeeded(parser.parseOptionalArrow())) {
    Type type;
    if (failed(parser.parseType(type))) {
      return failure();
    }
    result.addAttribute(getResultTypeAttrName(result.name),
                        TypeAttr::get(type));
  }
  return parseBody(parser, result, args);
}

void MethodOp::print(OpAsmPrinter &printer) {
  printer << ' ' << stringifyEnum(getKind());
  printParameters(printer, getBody().front());
  if (std::optional<Type> type = getResultType()) {
    printer << " -> " << *type;
  }
  printBody(printer, *this, {"kind", "result_type"});
}

LogicalResult MethodOp::verify() {
  Block &body = getBody().front();
  auto end = body.empty() ? ReturnOp() : dyn_cast<ReturnOp>(body.back());
  if (static_cast<bool>(end) != getResultType().has_value()) {
    return emitOpError() << "expects kernel.return at its end if and only if "
                            "it has a result";
  }
  if (end && end.getValue().getType() != *getResultType()) {
    return end.emitOpError() << "expects " << *getResultType() << ", but got "
                             << end.getValue().getType();
  }
  for (Operation &op : body) {
    if (isa<ReturnOp>(op) && &op != &body.back()) {
      return op.emitOpError() << "expects to be the last op of its method";
    }
    if (isConst() && isa<AssignOp>(op)) {
      return op.emitOpError()
             << "cannot change a field in " << stringifyEnum(getKind());
    }
    if (!isa_and_present<KernelDialect>(op.getDialect())) {
      return op.emitOpError() << "expects ops of the kernel dialect only";
    }
  }
  if (getKind() == MethodKind::Keeps &&
      getResultType() != IntegerType::get(getContext(), 1)) {
    return emitOpError() << "expects keeps to have a result of i1";
  }
  return verifyNames(*this, body, getNames());
}

LogicalResult MethodOp::verifySymbolUses(SymbolTableCollection &symbols) {
  for (Type type : getBody().front().getArgumentTypes()) {
    if (auto element = dyn_cast<ElementType>(type)) {
      if (!lookUpAlias<OperandsAttr>(*this, element.getAlias(), symbols)) {
        return failure();
      }
    }
    FlatSymbolRefAttr reductions =
        llvm::TypeSwitch<Type, FlatSymbolRefAttr>(type)
            .Case<ContributionsType, ResultsType>(
                [](auto aliased) { return aliased.getAlias(); })
            .Default(FlatSymbolRefAttr());
    if (reductions &&
        !lookUpAlias<ReductionsAttr>(*this, reductions, symbols)) {
      return failure();
    }
  }
  return success();
}

ParseResult EntryOp::parse(OpAsmParser &parser, OperationState &result) {
  StringAttr name;
  auto parseNumber = [&](StringRef keyword, StringAttr attribute) {
    int64_t number;
    if (failed(parser.parseKeyword(keyword)) ||
        failed(parser.parseInteger(number))) {
      return failure();
    }
    result.addAttribute(attribute,
                        parser.getBuilder().getI64IntegerAttr(number));
    return success();
  };
  SmallVector<OpAsmParser::Argument> args;
  if (failed(parser.parseSymbolName(name, getSymNameAttrName(result.name),
                                    result.attributes)) ||
      failed(parseNumber("threads", getThreadsAttrName(result.name))) ||
      failed(parseNumber("blocks", getBlocksAttrName(result.name))) ||
      failed(parseParameters(parser, args))) {
    return failure();
  }
  return parseBody(parser, result, args);
}

void EntryOp::print(OpAsmPrinter &printer) {
  printer << ' ';
  printer.printSymbolName(getSymName());
  printer << " threads " << getThreads() << " blocks " << getBlocks() << ' ';
  printParameters(printer, getBody().front());
  printBody(printer, *this, {"sym_name", "threads", "blocks"});
}

LogicalResult EntryOp::verify() {
  if (getThreads() < 32 || getThreads() > 1024 || getThreads() % 32 != 0) {
    return emitOpError()
           << "expects 32 to 1024 threads in whole warps, but got "
           << getThreads();
  }
  if (getBlocks() < 1 || getBlocks() > 32) {
    return emitOpError() << "expects 1 to 32 blocks, but got " << getBlocks();
  }
  return verifyNames(*this, getBody().front(), getNames());
}

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

LogicalResult RunOp::verify() {
  ArrayAttr args = getTemplateArgs();
  auto isSymbol = [&](size_t i) { return isa<FlatSymbolRefAttr>(args[i]); };
  auto isNumber = [&](size_t i) { return isa<IntegerAttr>(args[i]); };
  auto expect = [&](bool holds, StringRef wish) -> LogicalResult {
    if (!holds) {
      return emitOpError() << "expects " << wish << " as template arguments of "
                           << stringifyEnum(getDriver()) << ", but got "
                           << args;
    }
    return success();
  };
  switch (getDriver()) {
  case Driver::Elementwise:
  case Driver::ElementwiseInPlace:
  case Driver::Columns:
    return expect(args.size() == 1 && isSymbol(0), "a class");
  case Driver::Rows:
    return expect(args.size() == 3 && isSymbol(0) && isNumber(1) && isNumber(2),
                  "a class, threads and register groups");
  case Driver::Transpose:
    return expect(args.size() == 1 && isa<TypeAttr>(args[0]) &&
                      isStorageType(cast<TypeAttr>(args[0]).getValue()),
                  "bf16, f16, f32 or f64");
  case Driver::Product:
    return expect(args.size() == 2 && isSymbol(0) && isSymbol(1),
                  "a main loop and an epilogue");
  }
  llvm_unreachable("all drivers are handled");
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbols) {
  for (Attribute argument : getTemplateArgs()) {
    if (auto symbol = dyn_cast<FlatSymbolRefAttr>(argument)) {
      Operation *found = symbols.lookupNearestSymbolFrom(*this, symbol);
      if (!isa_and_present<ClassOp, AliasOp>(found)) {
        return emitOpError()
               << "expects a class or an alias, but found none called "
               << symbol;
      }
    }
  }
  return success();
}

LogicalResult SetOp::verifySymbolUses(SymbolTableCollection &symbols) {
  Type member = getMemberType(*this, getAggregate().getType(), getIndex(),
                              /*isWrite=*/true, symbols);
  return member ? expectType(*this, member, getValue().getType()) : failure();
}

LogicalResult AssignOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto field = lookUp<FieldOp>(*this, getFieldAttr(), symbols);
  return field ? expectType(*this, field.getType(), getValue().getType())
               : failure();
}

/// The operand exists, and arithmetic on it is in `number`.
static LogicalResult verifyAccess(Operation *op, MatrixType matrix,
                                  uint64_t operand, Type number, Type type) {
  if (operand >= static_cast<uint64_t>(matrix.getCount())) {
    return op->emitOpError() << "expects an operand below " << matrix.getCount()
                             << ", but got " << operand;
  }
  return expectType(op, getArithmeticType(type), number);
}

LogicalResult StoreOp::verify() {
  if (getPlace() == Place::Single) {
    return emitOpError() << "expects the place of a row or of a column";
  }
  return verifyAccess(*this, getMatrix().getType(), getOperand(),
                      getValue().getType(), getType());
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

LogicalResult GetOp::verifySymbolUses(SymbolTableCollection &symbols) {
  Type member = getMemberType(*this, getAggregate().getType(), getIndex(),
                              /*isWrite=*/false, symbols);
  return member ? expectType(*this, member, getType()) : failure();
}

LogicalResult ReadOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto field = lookUp<FieldOp>(*this, getFieldAttr(), symbols);
  return field ? expectType(*this, field.getType(), getType()) : failure();
}

LogicalResult LoadOp::verify() {
  if ((getPlace() == Place::Single) == static_cast<bool>(getPosition())) {
    return emitOpError()
           << "expects a position if and only if it loads of a row or a column";
  }
  return verifyAccess(*this, getMatrix().getType(), getOperand(),
                      getResult().getType(), getType());
}

LogicalResult CallOp::verify() {
  size_t expected = 2;
  switch (getFunction()) {
  case Function::Add:
  case Function::Sub:
  case Function::Mul:
  case Function::Div:
  case Function::Maximum:
  case Function::Minimum:
  case Function::CopySign:
  case Function::Pow:
    break;
  case Function::Fma:
    expected = 3;
    break;
  case Function::Sqrt:
  case Function::Abs:
  case Function::Floor:
  case Function::Exp:
  case Function::Log:
    expected = 1;
    break;
  }
  if (getArgs().size() != expected) {
    return emitOpError() << "expects " << expected << " arguments of "
                         << stringifyEnum(getFunction()) << ", but got "
                         << getArgs().size();
  }
  return success();
}

LogicalResult ConvertOp::verify() {
  Type from = getValue().getType(), to = getType();
  auto isHalf = [](Type type) { return type.isBF16() || type.isF16(); };
  if (!(from.isF32() && (to.isF64() || isHalf(to))) &&
      !(to.isF32() && (from.isF64() || isHalf(from)))) {
    return emitOpError() << "expects f32 on exactly one side, but got " << from
                         << " to " << to;
  }
  return success();
}
