//===-- KernelDialect.td - the exit dialect of CUDA ----------*- tablegen -*-===//
//
// The dialect, its types, and what is said by attributes.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KERNELDIALECT_TD
#define KAON_DIALECT_KERNELDIALECT_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"

def KernelDialect : Dialect {
  let name = "kernel";
  let cppNamespace = "::kaon::kernel";
  let summary = "CUDA C++, construct by construct";
  let description = [{
    The last level before text. An op is one construct of C++ or one call of the
    device library (`codegen/cuda/lib`), and `kaon-translate --kaon-to-cuda`
    prints it without deciding anything. A module holds one kernel: the header it
    includes, the class that the library's driver runs, and the entry.

    Values are expressions. Those that `kernel.let` names are variables; all
    others are written where they are used. `kaon-prepare-kernel` decides which
    is which, and gives everything a name that C++ accepts: only then can a module
    be printed.

    ```mlir
    kernel.include "Elementwise.cuh"
    kernel.class @Function {
      kernel.alias @List = #kernel.operands<[<f32, update>, <bf16, read>]>
      kernel.field @lr : f32
      kernel.method constructor(%scalars: !kernel.scalars, %matrix: !kernel.matrix<2>) {
        %s = kernel.scalar %scalars[0]
        %lr = kernel.convert %s : f64 to f32
        kernel.assign @lr, %lr : f32
      }
      kernel.method call(%element: !kernel.element<@List>) {
        %w = kernel.get %element[0] : !kernel.element<@List> -> f32
        %g = kernel.get %element[1] : !kernel.element<@List> -> f32
        %lr = kernel.read @lr : f32
        %step = kernel.call mul(%lr, %g) : f32
        %w1 = kernel.call sub(%w, %step) : f32
        kernel.set %element[0], %w1 : !kernel.element<@List>, f32
      }
    }
    kernel.entry @sgd threads 256 blocks 2
        (%matrices: !kernel.matrices<2>, %blocks: !kernel.blocks, %scalars: !kernel.scalars) {
      kernel.run elementwise<@Function>(%matrices, %blocks, %scalars)
          : !kernel.matrices<2>, !kernel.blocks, !kernel.scalars
    }
    ```
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

class Kernel_Type<string name, string typeMnemonic, string cpp>
    : TypeDef<KernelDialect, name> {
  let mnemonic = typeMnemonic;
  let summary = "`" # cpp # "`";
}

class Kernel_CountedType<string name, string typeMnemonic, string cpp>
    : Kernel_Type<name, typeMnemonic, cpp> {
  let parameters = (ins "int64_t":$count);
  let assemblyFormat = "`<` $count `>`";
}

class Kernel_AliasedType<string name, string typeMnemonic, string cpp>
    : Kernel_Type<name, typeMnemonic, cpp> {
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$alias);
  let assemblyFormat = "`<` $alias `>`";
}

def Kernel_ScalarsType : Kernel_Type<"Scalars", "scalars", "const double *"> {
  let description = "The host scalars of a launch, or of one matrix.";
}
def Kernel_BlocksType : Kernel_Type<"Blocks", "blocks", "const Block *"> {
  let description = "What each block of a launch works on.";
}
def Kernel_ProductsType : Kernel_Type<"Products", "products", "const ProductList"> {
  let description = "The products of a launch.";
}
def Kernel_KeptType : Kernel_Type<"Kept", "kept", "Kept<kept> &"> {
  let description = "The values of an element that stay on chip from pass to pass, as many as the class's constant `kept` says.";
}
def Kernel_MatrixType : Kernel_CountedType<"Matrix", "matrix", "const Matrix<n> &"> {
  let description = "Where the `n` operands of a matrix lie.";
}
def Kernel_MatricesType : Kernel_CountedType<"Matrices", "matrices", "const Matrix<n> *"> {
  let description = "The matrices of a launch.";
}
def Kernel_PassIndexType : Kernel_CountedType<"PassIndex", "index", "Index<n>"> {
  let description = "The number of a pass.";
}
def Kernel_ElementType : Kernel_AliasedType<"Element", "element", "Element<List> &"> {
  let description = "One element of every operand that a list of operands reads or writes.";
}
def Kernel_ContributionsType : Kernel_AliasedType<"Contributions", "contributions", "Contributions<Reductions> &"> {
  let description = "What an element contributes to each of a list of reductions.";
}
def Kernel_ResultsType : Kernel_AliasedType<"Results", "results", "const Results<Reductions> &"> {
  let description = "The values of a list of reductions.";
}

def Kernel_Number : AnyTypeOf<[F32, F64], "f32 or f64">;
def Kernel_Storage : AnyTypeOf<[BF16, F16, F32, F64], "bf16, f16, f32 or f64">;
def Kernel_Value : AnyTypeOf<[I1, I64, BF16, F16, F32, F64], "i1, i64, bf16, f16, f32 or f64">;
// What has members that are accessed by their number.
def Kernel_Aggregate : AnyTypeOf<[
    Kernel_ElementType, Kernel_KeptType, Kernel_ContributionsType, Kernel_ResultsType],
    "an element, kept values, contributions or results">;

//===----------------------------------------------------------------------===//
// Keywords
//===----------------------------------------------------------------------===//

class Kernel_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::kaon::kernel";
  let genSpecializedAttr = 0;
}

class Kernel_EnumAttr<EnumInfo info, string mnemonic, string text>
    : EnumAttr<KernelDialect, info, mnemonic> {
  let assemblyFormat = "$value";
  let description = text;
}

def Kernel_Access : Kernel_Enum<"Access", "what a pass does with an operand", [
    I32EnumAttrCase<"None", 0, "none">,
    I32EnumAttrCase<"Uniform", 1, "uniform">,
    I32EnumAttrCase<"Read", 2, "read">,
    I32EnumAttrCase<"Write", 3, "write">,
    I32EnumAttrCase<"Update", 4, "update">,
    I32EnumAttrCase<"ReadOfRow", 5, "read_of_row">]>;

def Kernel_ReductionKind : Kernel_Enum<"ReductionKind", "what a reduction computes", [
    I32EnumAttrCase<"Sum", 0, "sum">,
    I32EnumAttrCase<"Max", 1, "max">,
    I32EnumAttrCase<"Min", 2, "min">]>;

def Kernel_Contiguous : Kernel_Enum<"Contiguous", "which dimension of a product's operand is contiguous", [
    I32EnumAttrCase<"Depth", 0, "depth">,
    I32EnumAttrCase<"Extent", 1, "extent">]>;

def Kernel_MethodKind : Kernel_Enum<"MethodKind", "what the library calls a method for", [
    I32EnumAttrCase<"Constructor", 0, "constructor">,
    I32EnumAttrCase<"Call", 1, "call">,
    I32EnumAttrCase<"Pass", 2, "pass">,
    I32EnumAttrCase<"Reduced", 3, "reduced">,
    I32EnumAttrCase<"Finish", 4, "finish">,
    I32EnumAttrCase<"Keeps", 5, "keeps">]>;
def Kernel_MethodKindAttr : Kernel_EnumAttr<Kernel_MethodKind, "method_kind",
    "A constructor, `operator()`, or the method of that name.">;

def Kernel_Place : Kernel_Enum<"Place", "which element of an operand is meant", [
    I32EnumAttrCase<"Single", 0, "single">,
    I32EnumAttrCase<"OfRow", 1, "of_row">,
    I32EnumAttrCase<"OfColumn", 2, "of_column">]>;
def Kernel_PlaceAttr : Kernel_EnumAttr<Kernel_Place, "place",
    "The only element, that of a row, or that of a column.">;

def Kernel_Function : Kernel_Enum<"Function", "a function of the device library", [
    I32EnumAttrCase<"Add", 0, "add">,
    I32EnumAttrCase<"Sub", 1, "sub">,
    I32EnumAttrCase<"Mul", 2, "mul">,
    I32EnumAttrCase<"Div", 3, "div">,
    I32EnumAttrCase<"Fma", 4, "fma">,
    I32EnumAttrCase<"Sqrt", 5, "sqrt">,
    I32EnumAttrCase<"Maximum", 6, "maximum">,
    I32EnumAttrCase<"Minimum", 7, "minimum">,
    I32EnumAttrCase<"Abs", 8, "abs">,
    I32EnumAttrCase<"CopySign", 9, "copysign">,
    I32EnumAttrCase<"Floor", 10, "floor">,
    I32EnumAttrCase<"Exp", 11, "exp">,
    I32EnumAttrCase<"Log", 12, "log">,
    I32EnumAttrCase<"Pow", 13, "pow">]>;
def Kernel_FunctionAttr : Kernel_EnumAttr<Kernel_Function, "function", [{
    Arithmetic that rounds once to nearest even and that no compiler contracts
    (`addRn`, ..., `fmaRn`, `sqrtRn`); `maximum` and `minimum`, of which a NaN is the
    result if either operand is one; exact `absolute`, `copySign`, `roundDown`; and
    `exponential`, `logarithm`, `power` with the bounds that the library states.}]>;

def Kernel_Predicate : Kernel_Enum<"Predicate", "a comparison of C++", [
    I32EnumAttrCase<"Equal", 0, "eq">,
    I32EnumAttrCase<"NotEqual", 1, "ne">,
    I32EnumAttrCase<"Less", 2, "lt">,
    I32EnumAttrCase<"LessEqual", 3, "le">,
    I32EnumAttrCase<"Greater", 4, "gt">,
    I32EnumAttrCase<"GreaterEqual", 5, "ge">]>;
def Kernel_PredicateAttr : Kernel_EnumAttr<Kernel_Predicate, "predicate",
    "`==`, `!=`, `<`, `<=`, `>`, `>=`: all but `!=` are false where an operand is NaN.">;

def Kernel_Driver : Kernel_Enum<"Driver", "a driver of the device library", [
    I32EnumAttrCase<"Elementwise", 0, "elementwise">,
    I32EnumAttrCase<"Rows", 1, "rows">,
    I32EnumAttrCase<"Columns", 2, "columns">,
    I32EnumAttrCase<"Transpose", 3, "transpose">,
    I32EnumAttrCase<"Product", 4, "product">,
    I32EnumAttrCase<"ElementwiseInPlace", 5, "elementwise_in_place">]>;
def Kernel_DriverAttr : Kernel_EnumAttr<Kernel_Driver, "driver",
    "`runElementwise`, `runRows`, `runColumns`, `runTranspose`, `runGemm` or `runElementwiseInPlace`.">;

//===----------------------------------------------------------------------===//
// What aliases stand for
//===----------------------------------------------------------------------===//

class Kernel_Attr<string name, string attrMnemonic> : AttrDef<KernelDialect, name> {
  let mnemonic = attrMnemonic;
}

def Kernel_OperandAttr : Kernel_Attr<"Operand", "operand"> {
  let summary = "`Operand<T, Access>`: the type in memory, and what is done to it";
  let description = [{
    `none`: a pass does not touch it. `uniform`: a single element, which the
    class loads itself. `read_of_row`: the one element of each row, in a kernel of
    columns. Arithmetic on an element is f64 for f64 in memory, else f32.
  }];
  let parameters = (ins "::mlir::Type":$type, EnumParameter<Kernel_Access>:$access);
  let assemblyFormat = "`<` $type `,` $access `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Whether elements hold the operand.
    bool isInElement() const {
      return getAccess() != Access::None && getAccess() != Access::Uniform;
    }
    bool isStored() const {
      return getAccess() == Access::Write || getAccess() == Access::Update;
    }
    bool isLoaded() const { return isInElement() && getAccess() != Access::Write; }
    /// The type of arithmetic on an element.
    ::mlir::Type getArithmeticType() const;
  }];
}

def Kernel_OperandsAttr : Kernel_Attr<"Operands", "operands"> {
  let summary = "`Operands<...>`: one operand after the other";
  let parameters = (ins OptionalArrayRefParameter<"::kaon::kernel::OperandAttr">:$list);
  let assemblyFormat = "`<` `[` (`]`) : ($list^ `]`)? `>`";
}

def Kernel_ReductionAttr : Kernel_Attr<"Reduction", "reduction"> {
  let summary = "`Sum`, `Max<T>` or `Min<T>`";
  let description = "A sum is f64; the others keep the type of what they are taken of.";
  let parameters = (ins EnumParameter<Kernel_ReductionKind>:$kind, "::mlir::Type":$type);
  let assemblyFormat = "`<` $kind `,` $type `>`";
  let genVerifyDecl = 1;
}

def Kernel_ReductionsAttr : Kernel_Attr<"Reductions", "reductions"> {
  let summary = "`Reductions<...>`: one reduction after the other";
  let parameters = (ins OptionalArrayRefParameter<"::kaon::kernel::ReductionAttr">:$list);
  let assemblyFormat = "`<` `[` (`]`) : ($list^ `]`)? `>`";
}

def Kernel_PassListAttr : Kernel_Attr<"PassList", "pass_list"> {
  let summary = "`PassList<Pass<List, Reductions>, ...>`";
  let description = "The aliases of every pass: its operands, then its reductions.";
  let parameters = (ins
      ArrayRefParameter<"::mlir::FlatSymbolRefAttr">:$operands,
      ArrayRefParameter<"::mlir::FlatSymbolRefAttr">:$reductions);
  let assemblyFormat = "`<` `[` $operands `]` `,` `[` $reductions `]` `>`";
  let genVerifyDecl = 1;
}

def Kernel_TileProductAttr : Kernel_Attr<"TileProduct", "tile_product"> {
  let summary = "`TileProduct<T, Contiguous, Contiguous>`: the main loop of a product";
  let description = [{
    With `warpgroups`, `WarpgroupProduct<T, Contiguous, Contiguous>`: the main loop of
    sm_90a, whose entry has a warp more.
  }];
  let parameters = (ins "::mlir::Type":$type,
                        EnumParameter<Kernel_Contiguous>:$lhs,
                        EnumParameter<Kernel_Contiguous>:$rhs,
                        DefaultValuedParameter<"bool", "false">:$warpgroups);
  let assemblyFormat = "`<` $type `,` $lhs `,` $rhs (`,` `warpgroups` `=` $warpgroups^)? `>`";
}

def Kernel_StoreTileAttr : Kernel_Attr<"StoreTile", "store_tile"> {
  let summary = "`StoreTile<T, symmetric, Addend>`: an epilogue that stores the product";
  let parameters = (ins "::mlir::Type":$type, "bool":$symmetric, "bool":$addend);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Kernel_ApplyTileAttr : Kernel_Attr<"ApplyTile", "apply_tile"> {
  let summary = "`ApplyTile<T, Parameter, Addend, Update>`: an epilogue that changes a parameter";
  let parameters = (ins "::mlir::Type":$type, "::mlir::Type":$parameter, "bool":$addend,
                        "::mlir::FlatSymbolRefAttr":$update);
  let assemblyFormat = "`<` struct(params) `>`";
}

#endif // KAON_DIALECT_KERNELDIALECT_TD
