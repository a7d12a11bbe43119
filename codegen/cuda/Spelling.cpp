//===-- Spelling.cpp - how CUDA C++ writes things -------------------------===//

#include "codegen/cuda/Spelling.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/FormatVariadic.h"

#include <charconv>

using namespace mlir;
using namespace kaon::kernel;

namespace kaon::cuda {

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

/// The shortest decimal number that is read as `x`.
template <typename T> static std::string spellShortest(T x) {
  std::array<char, 64> buffer;
  std::to_chars_result end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), x);
  std::string text(buffer.data(), end.ptr);
  // `1` is an integer to C++.
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
}

static std::string spellFloat(float x) {
  std::string text = spellShortest(x);
  // A compiler may read f32 by way of f64, which rounds twice.
  double wide = APFloat(APFloat::IEEEdouble(), text).convertToDouble();
  if (static_cast<float>(wide) == x) {
    return text + "f";
  }
  return llvm::formatv("floatOf({0:x}u)", llvm::bit_cast<uint32_t>(x));
}

std::string spellNumber(const llvm::APFloat &number) {
  bool isDouble = &number.getSemantics() == &APFloat::IEEEdouble();
  assert((isDouble || &number.getSemantics() == &APFloat::IEEEsingle()) &&
         "numbers are f32 or f64");
  if (!number.isFinite()) {
    uint64_t bits = number.bitcastToAPInt().getZExtValue();
    return isDouble ? llvm::formatv("doubleOf({0:x}ull)", bits).str()
                    : llvm::formatv("floatOf({0:x}u)", bits).str();
  }
  return isDouble ? spellShortest(number.convertToDouble())
                  : spellFloat(number.convertToFloat());
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

std::string spellType(Type type) {
  auto spellAliased = [](StringRef name, auto aliased) {
    return (name + "<" + aliased.getAlias().getValue() + "> &").str();
  };
  auto spellCounted = [](StringRef name, auto counted, StringRef suffix) {
    return (name + "<" + Twine(counted.getCount()) + ">" + suffix).str();
  };
  return llvm::TypeSwitch<Type, std::string>(type)
      .Case([](IntegerType integer) {
        return integer.getWidth() == 1 ? "bool" : "i64";
      })
      .Case([](BFloat16Type) { return "bf16"; })
      .Case([](Float16Type) { return "f16"; })
      .Case([](Float32Type) { return "float"; })
      .Case([](Float64Type) { return "double"; })
      .Case([](ScalarsType) { return "const double *"; })
      .Case([](BlocksType) { return "const Block *"; })
      .Case([](ProductsType) { return "const ProductList "; })
      .Case([](KeptType) { return "Kept<kept> &"; })
      .Case([&](MatrixType matrix) {
        return "const " + spellCounted("Matrix", matrix, " &");
      })
      .Case([&](MatricesType matrices) {
        return "const " + spellCounted("Matrix", matrices, " *");
      })
      .Case(
          [&](PassIndexType index) { return spellCounted("Index", index, ""); })
      .Case(
          [&](ElementType element) { return spellAliased("Element", element); })
      .Case([&](ContributionsType contributions) {
        return spellAliased("Contributions", contributions);
      })
      .Case([&](ResultsType results) {
        return "const " + spellAliased("Results", results);
      });
}

static std::string spellOperand(OperandAttr operand) {
  StringRef access = operand.getAccess() == Access::ReadOfRow
                         ? "read, Extent::rows"
                         : stringifyEnum(operand.getAccess());
  return "Operand<" + spellType(operand.getType()) +
         ", Access::" + access.str() + ">";
}

static std::string spellReduction(ReductionAttr reduction) {
  switch (reduction.getKind()) {
  case ReductionKind::Sum:
    return "Sum";
  case ReductionKind::Max:
    return "Max<" + spellType(reduction.getType()) + ">";
  case ReductionKind::Min:
    return "Min<" + spellType(reduction.getType()) + ">";
  }
  llvm_unreachable("all kinds are handled");
}

static std::string spellContiguous(Contiguous contiguous) {
  return "Contiguous::" + stringifyEnum(contiguous).str();
}

static std::string spellAddend(bool exists) {
  return exists ? "Addend::matrix" : "Addend::none";
}

TemplateSpelling spellAlias(Attribute value) {
  TemplateSpelling result;
  auto append = [&](auto argument) {
    result.arguments.push_back(std::move(argument));
  };
  llvm::TypeSwitch<Attribute>(value)
      .Case([&](OperandsAttr operands) {
        result.name = "Operands";
        llvm::transform(operands.getList(),
                        std::back_inserter(result.arguments), spellOperand);
      })
      .Case([&](ReductionsAttr reductions) {
        result.name = "Reductions";
        llvm::transform(reductions.getList(),
                        std::back_inserter(result.arguments), spellReduction);
      })
      .Case([&](PassListAttr passes) {
        result.name = "PassList";
        for (auto [operands, reductions] :
             llvm::zip_equal(passes.getOperands(), passes.getReductions())) {
          append(("Pass<" + operands.getValue() + ", " + reductions.getValue() +
                  ">")
                     .str());
        }
      })
      .Case([&](TileProductAttr product) {
        result.name =
            product.getWarpgroups() ? "WarpgroupProduct" : "TileProduct";
        append(spellType(product.getType()));
        append(spellContiguous(product.getLhs()));
        append(spellContiguous(product.getRhs()));
      })
      .Case([&](StoreTileAttr store) {
        result.name = "StoreTile";
        append(spellType(store.getType()));
        append(std::string(store.getSymmetric() ? "true" : "false"));
        append(spellAddend(store.getAddend()));
      })
      .Case([&](ApplyTileAttr apply) {
        result.name = "ApplyTile";
        append(spellType(apply.getType()));
        append(spellType(apply.getParameter()));
        append(spellAddend(apply.getAddend()));
        append(apply.getUpdate().getValue().str());
      });
  return result;
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

namespace {

/// How tightly the outermost operator of an expression binds.
enum class Binding : uint8_t {
  Conditional,
  Or,
  And,
  Equality,
  Relation,
  Unary,
  Primary
};

struct Expression {
  std::string text;
  Binding binding;
};

} // namespace

static Expression spell(Value value);

/// An operand that has to bind at least as tightly.
static std::string spellAtLeast(Value value, Binding binding) {
  Expression expression = spell(value);
  return expression.binding < binding ? "(" + expression.text + ")"
                                      : expression.text;
}

static StringRef spellFunction(Function function) {
  switch (function) {
  case Function::Add:
    return "addRn";
  case Function::Sub:
    return "subRn";
  case Function::Mul:
    return "mulRn";
  case Function::Div:
    return "divRn";
  case Function::Fma:
    return "fmaRn";
  case Function::Sqrt:
    return "sqrtRn";
  case Function::Maximum:
    return "maximum";
  case Function::Minimum:
    return "minimum";
  case Function::Abs:
    return "absolute";
  case Function::CopySign:
    return "copySign";
  case Function::Floor:
    return "roundDown";
  case Function::Exp:
    return "exponential";
  case Function::Log:
    return "logarithm";
  case Function::Pow:
    return "power";
  }
  llvm_unreachable("all functions are handled");
}

static Expression spellLiteral(TypedAttr value) {
  if (auto number = dyn_cast<FloatAttr>(value)) {
    // `-1.0f` is an operator and its operand.
    bool isOperator =
        number.getValue().isFinite() && number.getValue().isNegative();
    return {spellNumber(number.getValue()),
            isOperator ? Binding::Unary : Binding::Primary};
  }
  bool isTrue = !cast<IntegerAttr>(value).getValue().isZero();
  return {isTrue ? "true" : "false", Binding::Primary};
}

static std::string spellConversion(ConvertOp op) {
  Type from = op.getValue().getType(), to = op.getType();
  std::string value = spell(op.getValue()).text;
  if (to.isF64()) {
    return "double(" + value + ")";
  }
  if (to.isF32()) {
    return (from.isF64() ? "toFloatRn(" : "toFloat(") + value + ")";
  }
  return "narrow<" + spellType(to) + ">(" + value + ")";
}

static std::string spellLoad(LoadOp op) {
  StringRef function = op.getPlace() == Place::Single  ? "loadScalar"
                       : op.getPlace() == Place::OfRow ? "loadOfRow"
                                                       : "loadOfColumn";
  std::string text =
      (function + "<" + spellType(op.getType()) + ">(" +
       spell(op.getMatrix()).text + ", " + Twine(op.getOperand()))
          .str();
  if (op.getPosition()) {
    text += ", " + spell(op.getPosition()).text;
  }
  return text + ")";
}

static Expression spellCompare(CompareOp op) {
  static constexpr StringLiteral operators[] = {"==", "!=", "<",
                                                "<=", ">",  ">="};
  bool isEquality = op.getPredicate() == Predicate::Equal ||
                    op.getPredicate() == Predicate::NotEqual;
  return {spellAtLeast(op.getLhs(), Binding::Unary) + " " +
              operators[static_cast<int>(op.getPredicate())].str() + " " +
              spellAtLeast(op.getRhs(), Binding::Unary),
          isEquality ? Binding::Equality : Binding::Relation};
}

/// The name of a parameter.
static std::string spellParameter(BlockArgument argument) {
  Operation *owner = argument.getOwner()->getParentOp();
  auto names = owner->getAttrOfType<ArrayAttr>("names");
  return cast<StringAttr>(names[argument.getArgNumber()]).getValue().str();
}

static Expression spell(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    return {spellParameter(argument), Binding::Primary};
  }
  auto primary = [](std::string text) {
    return Expression{std::move(text), Binding::Primary};
  };
  return llvm::TypeSwitch<Operation *, Expression>(value.getDefiningOp())
      .Case([&](LetOp op) { return primary(op.getName().str()); })
      .Case([&](LiteralOp op) { return spellLiteral(op.getValue()); })
      .Case([&](ReadOp op) { return primary(op.getField().str()); })
      .Case([&](ScalarOp op) {
        return primary(
            (spell(op.getScalars()).text + "[" + Twine(op.getIndex()) + "]")
                .str());
      })
      .Case([&](GetOp op) {
        return primary(("get<" + Twine(op.getIndex()) + ">(" +
                        spell(op.getAggregate()).text + ")")
                           .str());
      })
      .Case([&](LoadOp op) { return primary(spellLoad(op)); })
      .Case([&](CallOp op) {
        std::string text = spellFunction(op.getFunction()).str() + "(";
        llvm::interleave(
            op.getArgs(), [&](Value argument) { text += spell(argument).text; },
            [&] { text += ", "; });
        return primary(text + ")");
      })
      .Case([&](ConvertOp op) { return primary(spellConversion(op)); })
      .Case([&](NegateOp op) {
        return Expression{"-" + spellAtLeast(op.getValue(), Binding::Primary),
                          Binding::Unary};
      })
      .Case([&](CompareOp op) { return spellCompare(op); })
      .Case([&](AndOp op) {
        return Expression{spellAtLeast(op.getLhs(), Binding::And) + " && " +
                              spellAtLeast(op.getRhs(), Binding::Equality),
                          Binding::And};
      })
      .Case([&](OrOp op) {
        // Compilers warn of `a || b && c`.
        return Expression{spellAtLeast(op.getLhs(), Binding::Equality) +
                              " || " +
                              spellAtLeast(op.getRhs(), Binding::Equality),
                          Binding::Or};
      })
      .Case([&](NotOp op) {
        return Expression{"!" + spellAtLeast(op.getValue(), Binding::Primary),
                          Binding::Unary};
      })
      .Case([&](SelectOp op) {
        return Expression{spellAtLeast(op.getCondition(), Binding::Or) + " ? " +
                              spellAtLeast(op.getLeft(), Binding::Or) + " : " +
                              spellAtLeast(op.getRight(), Binding::Or),
                          Binding::Conditional};
      });
}

std::string spellExpression(Value value) { return spell(value).text; }

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

/// C++17 and the alternative spellings of its operators, and what CUDA adds.
static constexpr StringLiteral keywords[] = {
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor",
    "bool", "break", "case", "catch", "char", "char16_t", "char32_t", "char8_t",
    "class", "co_await", "co_return", "co_yield", "compl", "concept", "const",
    "const_cast", "consteval", "constexpr", "constinit", "continue", "decltype",
    "default", "delete", "do", "double", "dynamic_cast", "else", "enum",
    "explicit", "export", "extern", "false", "float", "for", "friend", "goto",
    "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept",
    "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private",
    "protected", "public", "register", "reinterpret_cast", "requires", "return",
    "short", "signed", "sizeof", "static", "static_assert", "static_cast",
    "struct", "switch", "template", "this", "thread_local", "throw", "true",
    "try", "typedef", "typeid", "typename", "typeof", "union", "unsigned",
    "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
    // Variables and macros in lower case that a compiler or its headers define.
    "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "errno",
    "assert", "linux", "unix", "stdin", "stdout", "stderr", "main"};

/// What generated text names of the device library beside its drivers, and the
/// members of classes beside methods.
static constexpr StringLiteral libraryNames[] = {
    // Namespace, types of elements and functions.
    "kaon", "i64", "bf16", "f16", "get", "narrow", "toFloat", "toFloatRn",
    "floatOf", "doubleOf", "addRn", "subRn", "mulRn", "divRn", "fmaRn",
    "sqrtRn", "maximum", "minimum", "absolute", "copySign", "roundDown",
    "exponential", "logarithm", "power", "loadScalar", "loadOfRow",
    "loadOfColumn", "storeOfRow", "storeOfColumn",
    // Classes.
    "Matrix", "Block", "ProductList", "Kept", "Index", "Element",
    "Contributions", "Results", "Operands", "Operand", "Access", "Extent",
    "Reductions", "Sum", "Max", "Min", "PassList", "Pass", "TileProduct",
    "StoreTile", "ApplyTile", "Contiguous", "Addend", "WarpgroupProduct"};

StringRef spellDriver(Driver driver) {
  switch (driver) {
  case Driver::Elementwise:
    return "runElementwise";
  case Driver::Rows:
    return "runRows";
  case Driver::Columns:
    return "runColumns";
  case Driver::Transpose:
    return "runTranspose";
  case Driver::Product:
    return "runGemm";
  case Driver::ElementwiseInPlace:
    return "runElementwiseInPlace";
  }
  llvm_unreachable("all drivers are handled");
}

NameScope::NameScope() {
  for (StringRef name : keywords) {
    taken.insert(name);
  }
  for (StringRef name : libraryNames) {
    taken.insert(name);
  }
  for (unsigned i = 0; i <= getMaxEnumValForDriver(); ++i) {
    taken.insert(spellDriver(static_cast<Driver>(i)));
  }
  for (unsigned i = 0; i <= getMaxEnumValForMethodKind(); ++i) {
    taken.insert(stringifyEnum(static_cast<MethodKind>(i)));
  }
}

bool isIdentifier(StringRef name) {
  return !name.empty() && !llvm::isDigit(name[0]) &&
         llvm::all_of(name,
                      [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

/// An identifier like `wish` that no implementation reserves: no leading and no
/// double underscores, and not in capitals only, as macros are.
static std::string makeIdentifier(StringRef wish) {
  std::string name;
  for (char c : wish.ltrim('_')) {
    if (llvm::isAlnum(c)) {
      name += c;
    } else if (c == '_') {
      name += name.ends_with('_') ? "" : "_";
    } else {
      // A byte of a letter that is not ASCII.
      name += llvm::utohexstr(static_cast<uint8_t>(c), /*LowerCase=*/true);
    }
  }
  if (name.empty() || llvm::isDigit(name[0])) {
    name.insert(0, "v");
  }
  bool isCapitals = name.size() > 1 && llvm::none_of(name, llvm::isLower);
  return isCapitals && !name.ends_with('_') ? name + "_" : name;
}

std::string NameScope::choose(StringRef wish) {
  std::string name = makeIdentifier(wish), unique = name;
  for (unsigned i = 1; !taken.insert(unique).second; ++i) {
    unique = name + (llvm::isDigit(name.back()) ? "_" : "") + std::to_string(i);
  }
  return unique;
}

} // namespace kaon::cuda
