//===-- PrintKernel.cpp - kernels as CUDA C++ -----------------------------===//

#include "codegen/cuda/PrintKernel.h"

#include "codegen/cuda/Spelling.h"
#include "dialect/Kernel.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon::kernel;

namespace kaon::cuda {

/// The line of Python that a location leads to, if any: the innermost call, the
/// first of several.
static FileLineColLoc getUserLine(Location loc) {
  return llvm::TypeSwitch<LocationAttr, FileLineColLoc>(loc)
      .Case([](FileLineColLoc line) { return line; })
      .Case([](NameLoc name) { return getUserLine(name.getChildLoc()); })
      .Case([](CallSiteLoc call) { return getUserLine(call.getCallee()); })
      .Case([](FusedLoc fused) -> FileLineColLoc {
        for (Location part : fused.getLocations()) {
          if (FileLineColLoc line = getUserLine(part)) {
            return line;
          }
        }
        return {};
      })
      .Default(FileLineColLoc());
}

namespace {

class Printer {
public:
  Printer(ModuleOp module, const PrintOptions &options)
      : module(module), options(options) {}

  std::string print();

private:
  static constexpr size_t width = 80;

  //===--- lines ------------------------------------------------------------//

  void printLine(const Twine &text = "");
  /// Prints `head`, items with commas, and `tail`, broken between items where a
  /// line is full.
  void printList(const Twine &head, ArrayRef<std::string> items,
                 StringRef tail);
  /// Makes the next line belong to what a location says.
  void printOrigin(Location loc);
  /// Makes the next line belong to the text itself.
  void endOrigin();

  //===--- ops --------------------------------------------------------------//

  void printDeclarations();
  void printAlias(AliasOp op);
  void printClass(ClassOp op);
  void printMethod(ClassOp parent, MethodOp op);
  void printStatement(Operation *op);
  void printEntry(EntryOp op);

  ModuleOp module;
  const PrintOptions &options;
  std::string text;
  unsigned numLines = 0, indent = 0;
  /// What the preprocessor takes the next line for; an empty file is this one.
  std::pair<std::string, unsigned> origin;
};

} // namespace

void Printer::printLine(const Twine &line) {
  std::string content = line.str();
  if (!content.empty()) {
    text.append(indent, ' ');
  }
  text += content;
  text += '\n';
  ++numLines;
  ++origin.second;
}

void Printer::printList(const Twine &head, ArrayRef<std::string> items,
                        StringRef tail) {
  std::string line = head.str();
  size_t column = line.size();
  for (auto [i, item] : llvm::enumerate(items)) {
    std::string piece = item;
    piece += i + 1 < items.size() ? StringRef(",") : tail;
    bool isFirst = i == 0 || line.size() == column;
    if (!isFirst && indent + line.size() + 1 + piece.size() > width) {
      printLine(line);
      line.assign(column, ' ');
      isFirst = true;
    }
    line += isFirst ? piece : " " + piece;
  }
  if (items.empty()) {
    line += tail;
  }
  printLine(line);
}

/// A file's name within a string of C++.
static std::string quote(StringRef name) {
  std::string quoted = "\"";
  for (char c : name) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += c;
  }
  return quoted + "\"";
}

void Printer::printOrigin(Location loc) {
  FileLineColLoc line = options.lines ? getUserLine(loc) : FileLineColLoc();
  if (!line || line.getLine() == 0) {
    endOrigin();
    return;
  }
  std::pair<std::string, unsigned> wanted = {line.getFilename().str(),
                                             line.getLine()};
  if (origin != wanted) {
    text += "#line " + std::to_string(wanted.second) + " " +
            quote(wanted.first) + "\n";
    ++numLines;
    origin = wanted;
  }
}

void Printer::endOrigin() {
  if (origin.first.empty()) {
    return;
  }
  ++numLines;
  text +=
      "#line " + std::to_string(numLines + 1) + " " +
      quote((*module.getOps<EntryOp>().begin()).getSymName().str() + ".cu") +
      "\n";
  origin = {"", numLines + 1};
}

void Printer::printAlias(AliasOp op) {
  TemplateSpelling spelling = spellAlias(op.getValue());
  printList("using " + op.getSymName() + " = " + spelling.name + "<",
            spelling.arguments, ">;");
}

/// `float value`, `const double *scalars`; the type alone without a name.
static std::string spellDeclaration(Type type, StringRef name) {
  std::string spelled = spellType(type);
  bool isJoined = StringRef(" *&").contains(spelled.back());
  if (name.empty()) {
    return StringRef(spelled).rtrim().str();
  }
  return spelled + (isJoined ? "" : " ") + name.str();
}

static SmallVector<std::string> spellParameters(Block &body, ArrayAttr names) {
  SmallVector<std::string> parameters;
  for (auto [argument, name] : llvm::zip_equal(body.getArguments(), names)) {
    parameters.push_back(spellDeclaration(argument.getType(),
                                          cast<StringAttr>(name).getValue()));
  }
  return parameters;
}

void Printer::printStatement(Operation *op) {
  auto spellMember = [](Value aggregate, uint64_t index) {
    return "get<" + std::to_string(index) + ">(" + spellExpression(aggregate) +
           ")";
  };
  std::string statement =
      llvm::TypeSwitch<Operation *, std::string>(op)
          .Case([](LetOp let) {
            return spellDeclaration(let.getType(), let.getName()) + " = " +
                   spellExpression(let.getValue());
          })
          .Case([&](SetOp set) {
            return spellMember(set.getAggregate(), set.getIndex()) + " = " +
                   spellExpression(set.getValue());
          })
          .Case([](AssignOp assign) {
            return assign.getField().str() + " = " +
                   spellExpression(assign.getValue());
          })
          .Case([](StoreOp store) {
            StringRef function = store.getPlace() == Place::OfRow
                                     ? "storeOfRow"
                                     : "storeOfColumn";
            return (function + "<" + spellType(store.getType()) + ">(" +
                    spellExpression(store.getMatrix()) + ", " +
                    Twine(store.getOperand()) + ", " +
                    spellExpression(store.getPosition()) + ", " +
                    spellExpression(store.getValue()) + ")")
                .str();
          })
          .Case([](ReturnOp ret) {
            return "return " + spellExpression(ret.getValue());
          })
          .Default(std::string());
  // Expressions are printed where they are used.
  if (!statement.empty()) {
    printOrigin(op->getLoc());
    printLine(statement + ";");
  }
}

/// Whether an op prints to a line of its own.
static bool isStatement(Operation &op) {
  return isa<LetOp, SetOp, AssignOp, StoreOp, ReturnOp>(op);
}

void Printer::printMethod(ClassOp parent, MethodOp op) {
  std::string head = "KAON_DEVICE ";
  if (op.getKind() != MethodKind::Constructor) {
    std::optional<Type> type = op.getResultType();
    head += (type ? spellType(*type) : "void") + " ";
  }
  switch (op.getKind()) {
  case MethodKind::Constructor:
    head += parent.getSymName();
    break;
  case MethodKind::Call:
    head += "operator()";
    break;
  default:
    head += stringifyEnum(op.getKind());
    break;
  }
  Block &body = op.getBody().front();
  bool isEmpty = llvm::none_of(body, isStatement);
  std::string tail = op.isConst() ? ") const {" : ") {";
  printList(head + "(", spellParameters(body, *op.getNames()),
            isEmpty ? tail + "}" : tail);
  if (isEmpty) {
    return;
  }
  indent += 2;
  for (Operation &statement : body) {
    printStatement(&statement);
  }
  indent -= 2;
  endOrigin();
  printLine("}");
}

void Printer::printClass(ClassOp op) {
  printLine("class " + op.getSymName() + " {");
  printLine("public:");
  indent += 2;
  for (Operation &member : op.getBody().front()) {
    if (auto alias = dyn_cast<AliasOp>(member)) {
      printAlias(alias);
    } else if (auto constant = dyn_cast<ConstantOp>(member)) {
      printLine("static constexpr int " + constant.getSymName() + " = " +
                Twine(constant.getValue()) + ";");
    }
  }
  bool isFirst = op.getOps<AliasOp>().empty();
  for (auto method : op.getOps<MethodOp>()) {
    if (!isFirst) {
      printLine();
    }
    isFirst = false;
    printMethod(op, method);
  }
  indent -= 2;
  auto fields = op.getOps<FieldOp>();
  if (!fields.empty()) {
    printLine();
    printLine("private:");
    indent += 2;
    for (FieldOp field : fields) {
      printLine(spellDeclaration(field.getType(), field.getSymName()) + ";");
    }
    indent -= 2;
  }
  printLine("};");
}

static std::string spellTemplateArgument(Attribute argument) {
  return llvm::TypeSwitch<Attribute, std::string>(argument)
      .Case([](FlatSymbolRefAttr symbol) { return symbol.getValue().str(); })
      .Case([](IntegerAttr number) { return std::to_string(number.getInt()); })
      .Case([](TypeAttr type) { return spellType(type.getValue()); });
}

static std::string spellRun(RunOp op) {
  std::string call = spellDriver(op.getDriver()).str() + "<";
  llvm::interleave(
      op.getTemplateArgs(),
      [&](Attribute argument) { call += spellTemplateArgument(argument); },
      [&] { call += ", "; });
  call += ">(";
  llvm::interleave(
      op.getOperands(), [&](Value value) { call += spellExpression(value); },
      [&] { call += ", "; });
  return call + ");";
}

void Printer::printEntry(EntryOp op) {
  printLine("KAON_KERNEL(" + Twine(op.getThreads()) + ", " +
            Twine(op.getBlocks()) + ")");
  Block &body = op.getBody().front();
  printList(op.getSymName() + "(", spellParameters(body, *op.getNames()),
            ") {");
  indent += 2;
  for (auto run : body.getOps<RunOp>()) {
    printLine(spellRun(run));
  }
  indent -= 2;
  printLine("}");
}

void Printer::printDeclarations() {
  auto isDeclaration = [](Operation &op) { return isa<AliasOp, ClassOp>(op); };
  if (llvm::none_of(*module.getBody(), isDeclaration)) {
    return;
  }
  printLine("namespace {");
  printLine();
  bool hasAliases = false;
  for (Operation &op : *module.getBody()) {
    if (auto classOp = dyn_cast<ClassOp>(op)) {
      printClass(classOp);
      printLine();
    } else if (auto alias = dyn_cast<AliasOp>(op)) {
      printAlias(alias);
    }
    hasAliases |= isa<AliasOp>(op);
  }
  if (hasAliases) {
    printLine();
  }
  printLine("} // namespace");
  printLine();
}

std::string Printer::print() {
  for (auto include : module.getOps<IncludeOp>()) {
    printLine("#include \"" + include.getHeader() + "\"");
  }
  printLine();
  printLine("using namespace kaon::device;");
  printLine();
  printDeclarations();
  for (auto entry : module.getOps<EntryOp>()) {
    printEntry(entry);
  }
  return std::move(text);
}

LogicalResult printKernel(ModuleOp module, raw_ostream &os,
                          const PrintOptions &options) {
  if (failed(verifyPrintable(module))) {
    return failure();
  }
  os << Printer(module, options).print();
  return success();
}

} // namespace kaon::cuda
