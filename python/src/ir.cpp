//===-- ir.cpp - modules in kaon._C ---------------------------------------===//
//
// Parsing, printing, pass pipelines and introspection.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/OperationSupport.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "python/src/Bindings.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/SourceMgr.h"

#include <map>
#include <pybind11/eval.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Diagnostics
//===----------------------------------------------------------------------===//

namespace kaon::python {

static std::string getSeverityName(DiagnosticSeverity severity) {
  switch (severity) {
  case DiagnosticSeverity::Note:
    return "note";
  case DiagnosticSeverity::Warning:
    return "warning";
  case DiagnosticSeverity::Error:
    return "error";
  case DiagnosticSeverity::Remark:
    return "remark";
  }
  llvm_unreachable("all cases are handled");
}

static std::string formatLocation(Location location) {
  std::string text;
  llvm::raw_string_ostream os(text);
  location.print(os);
  // `loc("a.py":3:4)` without the wrapper.
  StringRef inner(text);
  if (inner.consume_front("loc(") && inner.consume_back(")")) {
    return inner.str();
  }
  return text;
}

static DiagnosticRecord makeRecord(Diagnostic &diagnostic) {
  DiagnosticRecord record{getSeverityName(diagnostic.getSeverity()),
                          formatLocation(diagnostic.getLocation()),
                          diagnostic.str(),
                          {}};
  for (Diagnostic &note : diagnostic.getNotes()) {
    record.notes.push_back(formatLocation(note.getLocation()) + ": " +
                           note.str());
  }
  return record;
}

CompileError::CompileError(std::string message,
                           std::vector<DiagnosticRecord> diagnostics)
    : message(std::move(message)), diagnostics(std::move(diagnostics)) {}

DiagnosticCollector::DiagnosticCollector(MLIRContext *context)
    : handler(context, [this](Diagnostic &diagnostic) {
        diagnostics.push_back(makeRecord(diagnostic));
        return success();
      }) {}

void DiagnosticCollector::raise(const std::string &summary) {
  std::string message = summary;
  for (const DiagnosticRecord &record : diagnostics) {
    if (record.severity != "error") {
      continue;
    }
    message += "\n" + record.location + ": error: " + record.message;
    for (const std::string &note : record.notes) {
      message += "\n  " + note;
    }
  }
  throw CompileError(std::move(message), std::move(diagnostics));
}

//===----------------------------------------------------------------------===//
// Module
//===----------------------------------------------------------------------===//

static const DialectRegistry &getRegistry() {
  static const DialectRegistry registry = [] {
    DialectRegistry all;
    registerAllDialects(all);
    return all;
  }();
  return registry;
}

Context::Context() : mlir(getRegistry(), MLIRContext::Threading::DISABLED) {
  // The location says where; a note with the whole function would bury it.
  mlir.printOpOnDiagnostic(false);
  // Attributes of the dialect can be set on a module that has none of its ops.
  mlir.loadDialect<KaonDialect>();
}

/// Levels of brackets that a module may nest. MLIR's parser recurses on each
/// and overflows the stack at some; real modules have a dozen.
static constexpr int64_t maxNesting = 256;

/// The line on which brackets nest too deeply, or zero. Strings and comments do
/// not count.
static int64_t findDeepNesting(StringRef text) {
  int64_t depth = 0, line = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
    case '\n':
      ++line;
      break;
    case '"':
      for (++i; i < text.size() && text[i] != '"' && text[i] != '\n'; ++i) {
        i += text[i] == '\\';
      }
      i -= i < text.size() && text[i] == '\n';
      break;
    case '/':
      if (text.substr(i).starts_with("//")) {
        i = std::min(text.find('\n', i), text.size()) - 1;
      }
      break;
    case '-':
      i += text.substr(i).starts_with("->");
      break;
    case '(':
    case '[':
    case '{':
    case '<':
      if (++depth > maxNesting) {
        return line;
      }
      break;
    case ')':
    case ']':
    case '}':
    case '>':
      depth = std::max<int64_t>(depth - 1, 0);
      break;
    default:
      break;
    }
  }
  return 0;
}

OwningOpRef<ModuleOp> parseModule(MLIRContext *context, const std::string &text,
                                  const std::string &filename,
                                  const std::string &what) {
  if (int64_t line = findDeepNesting(text)) {
    throw CompileError("cannot parse " + what +
                           ": expects brackets nested at most " +
                           std::to_string(maxNesting) + " levels, but line " +
                           std::to_string(line) + " goes deeper",
                       {});
  }
  DiagnosticCollector collector(context);
  ParserConfig config(context);
  OwningOpRef<ModuleOp> module =
      parseSourceString<ModuleOp>(text, config, filename);
  if (!module) {
    collector.raise("cannot parse " + what);
  }
  return module;
}

std::unique_ptr<Module> Module::parse(const std::string &text,
                                      const std::string &filename) {
  py::gil_scoped_release release;
  auto context = std::make_shared<Context>();
  // No lock: nobody else knows the context yet.
  OwningOpRef<ModuleOp> module =
      parseModule(&context->mlir, text, filename, filename);
  return std::make_unique<Module>(std::move(context), std::move(module));
}

// A mutex that cannot be locked ends the process.
Module::~Module() { // NOLINT(bugprone-exception-escape)
  // Python deletes modules with the GIL held.
  py::gil_scoped_release release;
  std::lock_guard<std::mutex> lock(context->mutex);
  module = nullptr;
}

std::unique_ptr<Module> Module::clone() {
  return withLock([&](ModuleOp op) {
    return std::make_unique<Module>(context, OwningOpRef<ModuleOp>(op.clone()));
  });
}

/// Splits a textual pipeline at its outer commas. An empty one has no elements.
static SmallVector<StringRef> splitPipeline(StringRef text) {
  SmallVector<StringRef> elements;
  if (text.empty()) {
    return elements;
  }
  int64_t depth = 0;
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(' || text[i] == '{') {
      ++depth;
    } else if (text[i] == ')' || text[i] == '}') {
      --depth;
    } else if (text[i] == ',' && depth == 0) {
      elements.push_back(text.slice(start, i).trim());
      start = i + 1;
    }
  }
  elements.push_back(text.substr(start).trim());
  return elements;
}

/// Adds `name`, `name{options}` or `op.name(...)` to a pipeline. Unlike MLIR's
/// textual pipelines, and like the options of kaon-opt, a pass on functions
/// needs no `func.func(...)` around it.
static LogicalResult addToPipeline(StringRef element, OpPassManager &passes,
                                   llvm::raw_ostream &errors) {
  if (element.empty()) {
    errors << "expects the name of a pass next to a comma, but got nothing";
    return failure();
  }
  size_t end = std::min(element.find_first_of("({"), element.size());
  StringRef name = element.take_front(end).trim();
  StringRef options = element.drop_front(end).trim();
  const PassRegistryEntry *entry = PassInfo::lookup(name);
  if (!entry) {
    entry = PassPipelineInfo::lookup(name);
  }
  bool isPlain = options.empty() ||
                 (options.consume_front("{") && options.consume_back("}"));
  if (!entry || !isPlain) {
    return parsePassPipeline(element, passes, errors);
  }
  return entry->addToPipeline(passes, options, [&](const Twine &message) {
    errors << message;
    return failure();
  });
}

static void runPipeline(ModuleOp module, const std::string &pipeline) {
  DiagnosticCollector collector(module.getContext());
  auto passes = PassManager::on<ModuleOp>(module.getContext(),
                                          OpPassManager::Nesting::Implicit);
  StringRef text = StringRef(pipeline).trim();
  if (text.starts_with("builtin.module(") && text.ends_with(")")) {
    text = text.drop_front(strlen("builtin.module(")).drop_back();
  }
  std::string errors;
  llvm::raw_string_ostream os(errors);
  for (StringRef element : splitPipeline(text)) {
    if (failed(addToPipeline(element, passes, os))) {
      throw CompileError("cannot parse pass pipeline '" + pipeline +
                             "': " + StringRef(errors).trim().str(),
                         {});
    }
  }
  if (failed(passes.run(module))) {
    collector.raise("pass pipeline '" + pipeline + "' failed");
  }
}

static std::string printModule(ModuleOp module, bool locations) {
  std::string text;
  llvm::raw_string_ostream os(text);
  OpPrintingFlags flags;
  if (locations) {
    flags.enableDebugInfo();
  }
  module->print(os, flags);
  return text;
}

/// Sets the module's `kaon.cuda` from a dictionary like the attribute.
static void setCudaTarget(Module &self, const py::dict &target) {
  std::string half = "bf16";
  std::string loop = "mma";
  int64_t sharedBytes = defaultSharedBytes;
  for (auto [key, value] : target) {
    auto name = py::cast<std::string>(key);
    if (name == "half") {
      half = py::cast<std::string>(value);
    } else if (name == "shared_bytes") {
      sharedBytes = py::cast<int64_t>(value);
    } else if (name == "main_loop") {
      loop = py::cast<std::string>(value);
    } else {
      throw py::value_error("a cuda target: expects 'half', 'shared_bytes' and "
                            "'main_loop', but got '" +
                            name + "'");
    }
  }
  std::optional<HalfType> halfType = symbolizeHalfType(half);
  if (!halfType) {
    throw py::value_error(
        "a cuda target: expects half to be 'bf16' or 'f16', but got '" + half +
        "'");
  }
  std::optional<MainLoop> mainLoop = symbolizeMainLoop(loop);
  if (!mainLoop) {
    throw py::value_error("a cuda target: expects main_loop to be 'mma' or "
                          "'wgmma', but got '" +
                          loop + "'");
  }
  self.withLock([&](ModuleOp module) {
    DiagnosticCollector collector(module.getContext());
    if (module->hasAttr(KaonDialect::getCpuAttrName())) {
      collector.raise("a cuda target: expects a module without a target, but "
                      "this one has a cpu target");
    }
    auto attribute = CudaTargetAttr::getChecked(
        [&] { return emitError(module.getLoc()); }, module.getContext(),
        *halfType, sharedBytes, *mainLoop);
    if (!attribute) {
      collector.raise("cannot generate code for this target");
    }
    module->setAttr(KaonDialect::getCudaAttrName(), attribute);
  });
}

//===----------------------------------------------------------------------===//
// Introspection
//===----------------------------------------------------------------------===//

// Making a Python object may run Python's garbage collector, and with it the
// destructor of another module, which waits for the context's lock. Hence
// modules are copied into a `Tree` under the lock, without touching Python, and
// Python objects are made of the tree afterwards.

namespace {
/// A Python object to be.
struct Tree {
  enum class Kind {
    None,
    Bool,
    Integer,
    Float,
    String,
    List,
    Tuple,
    /// Keys and values in turn.
    Dict,
    /// `text` names a class of this extension, the items are its arguments.
    Object
  };

  static Tree boolean(bool value) { return {Kind::Bool, value, 0, {}, {}}; }
  static Tree integer(int64_t value) {
    return {Kind::Integer, value, 0, {}, {}};
  }
  static Tree real(double value) { return {Kind::Float, 0, value, {}, {}}; }
  static Tree string(StringRef value) {
    return {Kind::String, 0, 0, value.str(), {}};
  }
  static Tree list(std::vector<Tree> items = {}) {
    return {Kind::List, 0, 0, {}, std::move(items)};
  }
  static Tree tuple(std::vector<Tree> items) {
    return {Kind::Tuple, 0, 0, {}, std::move(items)};
  }
  static Tree dict() { return {Kind::Dict, 0, 0, {}, {}}; }
  static Tree object(StringRef type, std::vector<Tree> arguments) {
    return {Kind::Object, 0, 0, type.str(), std::move(arguments)};
  }

  void append(Tree item) { items.push_back(std::move(item)); }

  Kind kind = Kind::None;
  int64_t number = 0; // of a Bool or an Integer
  double floating = 0;
  std::string text;
  std::vector<Tree> items;
};

/// Copies IR into trees. Values are numbered in the order of their definition,
/// so that equal modules give equal trees.
class Introspection {
public:
  Tree convert(Operation *op);

private:
  Tree convert(Region &region);
  Tree convert(Block &block);
  static Tree convert(Type type);
  static Tree convert(Attribute attribute);
  static Tree convertElements(DenseElementsAttr elements);
  template <typename RangeT> static Tree convertTypes(RangeT &&types);
  Tree number(ValueRange values);

  llvm::DenseMap<Value, int64_t> numbers;
};
} // namespace

template <typename T> static Tree print(T thing) {
  std::string text;
  llvm::raw_string_ostream(text) << thing;
  return Tree::string(text);
}

template <typename RangeT> Tree Introspection::convertTypes(RangeT &&types) {
  Tree list = Tree::list();
  for (Type type : types) {
    list.append(convert(type));
  }
  return list;
}

Tree Introspection::convert(Type type) {
  if (auto tensor = dyn_cast<RankedTensorType>(type)) {
    std::vector<Tree> shape;
    for (int64_t size : tensor.getShape()) {
      shape.push_back(ShapedType::isDynamic(size) ? Tree()
                                                  : Tree::integer(size));
    }
    return Tree::tuple({Tree::string("tensor"), Tree::tuple(std::move(shape)),
                        print(tensor.getElementType())});
  }
  if (auto function = dyn_cast<FunctionType>(type)) {
    return Tree::tuple(
        {Tree::string("function"),
         Tree::tuple(convertTypes(function.getInputs()).items),
         Tree::tuple(convertTypes(function.getResults()).items)});
  }
  return Tree::tuple({print(type)});
}

/// A number of an elements attribute.
static Tree convertElement(Attribute attribute) {
  if (auto number = dyn_cast<FloatAttr>(attribute)) {
    return Tree::real(number.getValueAsDouble());
  }
  auto number = cast<IntegerAttr>(attribute);
  if (number.getValue().getSignificantBits() > 64) {
    return print(attribute);
  }
  return number.getType().isInteger(1)
             ? Tree::boolean(!number.getValue().isZero())
             : Tree::integer(number.getValue().getSExtValue());
}

Tree Introspection::convertElements(DenseElementsAttr elements) {
  ArrayRef<int64_t> shape = elements.getType().getShape();
  auto values = elements.getValues<Attribute>();
  auto it = values.begin();
  auto build = [&](auto &&self, ArrayRef<int64_t> rest) -> Tree {
    if (rest.empty()) {
      return convertElement(*it++);
    }
    Tree list = Tree::list();
    for (int64_t i = 0; i < rest.front(); ++i) {
      list.append(self(self, rest.drop_front()));
    }
    return list;
  };
  return build(build, shape);
}

Tree Introspection::convert(Attribute attribute) {
  return llvm::TypeSwitch<Attribute, Tree>(attribute)
      .Case<UnitAttr>([](auto) { return Tree::boolean(true); })
      .Case<BoolAttr>([](auto a) { return Tree::boolean(a.getValue()); })
      .Case<IntegerAttr, FloatAttr>([](auto a) { return convertElement(a); })
      .Case<StringAttr, FlatSymbolRefAttr>(
          [](auto a) { return Tree::string(a.getValue()); })
      .Case<TypeAttr>([](auto a) { return convert(a.getValue()); })
      .Case<ArrayAttr>([](auto a) {
        Tree list = Tree::list();
        for (Attribute element : a) {
          list.append(convert(element));
        }
        return list;
      })
      .Case<DictionaryAttr>([](auto a) {
        Tree dict = Tree::dict();
        for (NamedAttribute entry : a) {
          dict.append(Tree::string(entry.getName()));
          dict.append(convert(entry.getValue()));
        }
        return dict;
      })
      .Case<DenseF64ArrayAttr>([](auto a) {
        Tree list = Tree::list();
        for (double value : a.asArrayRef()) {
          list.append(Tree::real(value));
        }
        return list;
      })
      .Case<DenseI64ArrayAttr, DenseI32ArrayAttr>([](auto a) {
        Tree list = Tree::list();
        for (int64_t value : a.asArrayRef()) {
          list.append(Tree::integer(value));
        }
        return list;
      })
      .Case<DenseElementsAttr>([](auto a) { return convertElements(a); })
      .Case<MomentumFormAttr, AlongAttr, NormalizeModeAttr, ReduceKindAttr,
            ApplyFormAttr, RoleAttr, ScheduleAttr, PackSideAttr>(
          [](auto a) { return Tree::string(stringifyEnum(a.getValue())); })
      .Case<BufferAttr>([](auto a) {
        return Tree::tuple({Tree::string(stringifyEnum(a.getKind())),
                            Tree::integer(a.getOffset())});
      })
      .Default([](Attribute a) { return print(a); });
}

Tree Introspection::number(ValueRange values) {
  Tree list = Tree::list();
  for (Value value : values) {
    list.append(Tree::integer(
        numbers.try_emplace(value, numbers.size()).first->second));
  }
  return list;
}

Tree Introspection::convert(Block &block) {
  Tree arguments = number(block.getArguments());
  Tree operations = Tree::list();
  for (Operation &op : block) {
    operations.append(convert(&op));
  }
  return Tree::object("Block", {std::move(arguments),
                                convertTypes(block.getArgumentTypes()),
                                std::move(operations)});
}

Tree Introspection::convert(Region &region) {
  Tree blocks = Tree::list();
  for (Block &block : region) {
    blocks.append(convert(block));
  }
  return Tree::object("Region", {std::move(blocks)});
}

Tree Introspection::convert(Operation *op) {
  Tree operands = number(op->getOperands());
  Tree results = number(op->getResults());
  // Inherent attributes live in properties and are read with the others.
  Tree attributes = Tree::dict();
  for (NamedAttribute entry : op->getAttrs()) {
    attributes.append(Tree::string(entry.getName()));
    attributes.append(convert(entry.getValue()));
  }
  Tree regions = Tree::list();
  for (Region &region : op->getRegions()) {
    regions.append(convert(region));
  }
  return Tree::object("Operation",
                      {Tree::string(op->getName().getStringRef()),
                       std::move(operands), std::move(results),
                       convertTypes(op->getResultTypes()),
                       std::move(attributes), std::move(regions),
                       Tree::string(formatLocation(op->getLoc()))});
}

/// The Python class of a name in this extension's module.
static py::object getClass(const char *name) {
  return py::module_::import("kaon._C").attr(name);
}

static py::object makeObject(const Tree &tree) {
  switch (tree.kind) {
  case Tree::Kind::None:
    return py::none();
  case Tree::Kind::Bool:
    return py::bool_(tree.number != 0);
  case Tree::Kind::Integer:
    return py::int_(tree.number);
  case Tree::Kind::Float:
    return py::float_(tree.floating);
  case Tree::Kind::String:
    return py::str(tree.text);
  case Tree::Kind::List:
  case Tree::Kind::Tuple: {
    py::list list;
    for (const Tree &item : tree.items) {
      list.append(makeObject(item));
    }
    return tree.kind == Tree::Kind::List ? py::object(list) : py::tuple(list);
  }
  case Tree::Kind::Dict: {
    py::dict dict;
    for (size_t i = 0; i < tree.items.size(); i += 2) {
      dict[makeObject(tree.items[i])] = makeObject(tree.items[i + 1]);
    }
    return dict;
  }
  case Tree::Kind::Object: {
    py::tuple arguments(tree.items.size());
    for (size_t i = 0; i < tree.items.size(); ++i) {
      arguments[i] = makeObject(tree.items[i]);
    }
    return getClass(tree.text.c_str())(*arguments);
  }
  }
  llvm_unreachable("all kinds are handled");
}

//===----------------------------------------------------------------------===//
// Bindings
//===----------------------------------------------------------------------===//

/// `CompileError(message, diagnostics)`: an exception class with one more
/// attribute, made in Python because pybind11 cannot add any.
static py::object makeCompileErrorClass(py::module_ &m) {
  py::dict scope;
  scope["__name__"] = m.attr("__name__");
  py::exec(R"(
class CompileError(Exception):
    """The compiler refused a module: parsing, verification or a pass failed.

    ``str(error)`` holds every error; ``diagnostics`` lists ``(severity,
    location, message, notes)`` in order of emission, warnings and remarks too.
    """

    def __init__(self, message, diagnostics=()):
        super().__init__(message, diagnostics)
        self.message = message
        self.diagnostics = list(diagnostics)

    def __str__(self):
        return self.message
)",
           scope);
  return scope["CompileError"];
}

/// The classes that introspection returns: frozen dataclasses.
static void defineIntrospectionClasses(py::module_ &m) {
  py::object makeDataclass =
      py::module_::import("dataclasses").attr("make_dataclass");
  auto define = [&](const char *name, std::vector<std::string> fields,
                    const char *doc) {
    py::object type = makeDataclass(name, fields, py::arg("frozen") = true,
                                    py::arg("slots") = true);
    type.attr("__module__") = m.attr("__name__");
    type.attr("__doc__") = doc;
    m.attr(name) = type;
  };
  define("Operation",
         {"name", "operands", "results", "result_types", "attributes",
          "regions", "location"},
         "An operation as plain data. SSA values are numbers, types are tuples "
         "such as ('tensor', (4, 6), 'f32') or ('f64',), attributes are plain "
         "Python values.");
  define("Region", {"blocks"}, "A region: a list of blocks.");
  define("Block", {"arguments", "argument_types", "operations"},
         "A block: the numbers and types of its arguments, and its "
         "operations.");
}

void bindIr(py::module_ &m) {
  m.attr("CompileError") = makeCompileErrorClass(m);
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11's signature
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const CompileError &error) {
      py::list diagnostics;
      for (const DiagnosticRecord &record : error.getDiagnostics()) {
        diagnostics.append(py::make_tuple(record.severity, record.location,
                                          record.message,
                                          py::cast(record.notes)));
      }
      py::object type = getClass("CompileError");
      py::object value = type(error.what(), diagnostics);
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
  defineIntrospectionClasses(m);

  py::class_<Module>(m, "Module", "A module of IR.")
      .def(
          "run_pipeline",
          [](Module &self, const std::string &pipeline) {
            self.withLock(
                [&](ModuleOp module) { runPipeline(module, pipeline); });
          },
          py::arg("pipeline"),
          "Runs a textual pass pipeline, such as "
          "'builtin.module(kaon-lower-updates)' or just the names of passes "
          "and "
          "pipelines. Raises CompileError, after which the module is in the "
          "state that the failed pass left.")
      .def(
          "print",
          [](Module &self, bool locations) {
            return self.withLock([&](ModuleOp module) {
              return printModule(module, locations);
            });
          },
          py::arg("locations") = false,
          "The module as text, with the source location of every operation "
          "if wanted.")
      .def("__str__",
           [](Module &self) {
             return self.withLock([](ModuleOp module) {
               return printModule(module, /*locations=*/false);
             });
           })
      .def("clone", &Module::clone, "An independent copy.")
      .def("set_cuda_target", &setCudaTarget, py::arg("target"),
           "Makes a GPU the module's target: 'half' ('bf16' or 'f16') is the "
           "type that products take, 'shared_bytes' the shared memory that a "
           "block may have. Raises CompileError if the module has another "
           "target.")
      .def(
          "to_python",
          [](Module &self) {
            return makeObject(self.withLock([](ModuleOp module) {
              return Introspection().convert(module.getOperation());
            }));
          },
          "The module as nested Operation, Region and Block objects.");

  m.def("parse", &Module::parse, py::arg("text"),
        py::arg("filename") = "<kaon>",
        "Parses and verifies a module. Raises CompileError.");
}

} // namespace kaon::python
