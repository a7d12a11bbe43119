//===-- KernelOps.td - ops of the exit dialect ---------------*- tablegen -*-===//
//
// Every op names the C++ that it prints to.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KERNELOPS_TD
#define KAON_DIALECT_KERNELOPS_TD

include "dialect/KernelDialect.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"

class Kernel_Op<string mnemonic, list<Trait> traits = []>
    : Op<KernelDialect, mnemonic, traits>;

// An op that is a function of its operands, or reads what nothing changes while
// it can be seen.
class Kernel_Expression<string mnemonic, list<Trait> traits = []>
    : Kernel_Op<mnemonic, !listconcat([Pure], traits)>;

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

def Kernel_IncludeOp : Kernel_Op<"include", [HasParent<"::mlir::ModuleOp">]> {
  let summary = "`#include \"header\"`, and its namespace opened";
  let description = [{
    Example:

    ```mlir
    kernel.include "Rows.cuh"
    ```
  }];
  let arguments = (ins Arg<StrAttr, "A header of the device library.">:$header);
  let assemblyFormat = "$header attr-dict";
}

def Kernel_ClassOp : Kernel_Op<"class", [
    HasParent<"::mlir::ModuleOp">, NoTerminator, SingleBlock, Symbol, SymbolTable]> {
  let summary = "`class Name { ... };`";
  let description = [{
    Fields are private, everything else is public.

    Example:

    ```mlir
    kernel.class @Step {
      kernel.field @lr : f32
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name attr-dict-with-keyword $body";
  let hasRegionVerifier = 1;
}

def Kernel_ConstantOp : Kernel_Op<"constant", [HasParent<"ClassOp">, Symbol]> {
  let summary = "`static constexpr int name = value;`";
  let description = [{
    Example:

    ```mlir
    kernel.constant @kept = 1
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Arg<I64Attr, "The value.">:$value);
  let assemblyFormat = "$sym_name `=` $value attr-dict";
}

def Kernel_AliasOp : Kernel_Op<"alias", [
    ParentOneOf<["ClassOp", "::mlir::ModuleOp"]>, Symbol,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`using Name = ...;`";
  let description = [{
    Example:

    ```mlir
    kernel.alias @List0 = #kernel.operands<[<f32, read>, <bf16, none>]>
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
      Arg<AnyAttrOf<[Kernel_OperandsAttr, Kernel_ReductionsAttr, Kernel_PassListAttr,
                     Kernel_TileProductAttr, Kernel_StoreTileAttr, Kernel_ApplyTileAttr]>,
          "What the name stands for.">:$value);
  let assemblyFormat = "$sym_name `=` $value attr-dict";
}

def Kernel_FieldOp : Kernel_Op<"field", [HasParent<"ClassOp">, Symbol]> {
  let summary = "`float name;`";
  let description = [{
    Example:

    ```mlir
    kernel.field @lr : f32
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       Arg<TypeAttr, "The type of the field.">:$type);
  let assemblyFormat = "$sym_name `:` $type attr-dict";
  let hasVerifier = 1;
}

def Kernel_MethodOp : Kernel_Op<"method", [
    HasParent<"ClassOp">, NoTerminator, SingleBlock,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`KAON_DEVICE void name(...) { ... }`";
  let description = [{
    `call`, `finish` and `keeps` are `const`. The body ends with `kernel.return` exactly if
    there is a result. `names` are the names of the parameters; those of
    `!kernel.index` have none.

    Example:

    ```mlir
    kernel.method reduced(%i: !kernel.index<0>, %r: !kernel.results<@Reductions0>) {
      %sum = kernel.get %r[0] : !kernel.results<@Reductions0> -> f64
      kernel.assign @norm, %sum : f64
    }
    ```
  }];
  let arguments = (ins
      Arg<Kernel_MethodKindAttr, "What the library calls it for.">:$kind,
      Arg<OptionalAttr<TypeAttr>, "The type of the result.">:$result_type,
      Arg<OptionalAttr<StrArrayAttr>, "The names of the parameters.">:$names);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    bool isConst() {
      return getKind() == MethodKind::Call || getKind() == MethodKind::Finish ||
             getKind() == MethodKind::Keeps;
    }
  }];
}

def Kernel_EntryOp : Kernel_Op<"entry", [
    HasParent<"::mlir::ModuleOp">, NoTerminator, SingleBlock, Symbol]> {
  let summary = "`KAON_KERNEL(threads, blocks) name(...) { ... }`";
  let description = [{
    `blocks` of `threads` threads each are to fit onto a multiprocessor at a time.

    Example:

    ```mlir
    kernel.entry @sgd threads 256 blocks 2
        (%matrices: !kernel.matrices<2>, %blocks: !kernel.blocks, %scalars: !kernel.scalars) {
      kernel.run elementwise<@Function>(%matrices, %blocks, %scalars)
          : !kernel.matrices<2>, !kernel.blocks, !kernel.scalars
    }
    ```
  }];
  let arguments = (ins
      SymbolNameAttr:$sym_name,
      Arg<I64Attr, "Threads of a block.">:$threads,
      Arg<I64Attr, "Blocks of a multiprocessor.">:$blocks,
      Arg<OptionalAttr<StrArrayAttr>, "The names of the parameters.">:$names);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Statements
//===----------------------------------------------------------------------===//

def Kernel_RunOp : Kernel_Op<"run", [
    HasParent<"EntryOp">, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`runRows<Step, 256, 4>(matrices, blocks, scalars);`";
  let description = [{
    Template arguments: the class of an elementwise or columns kernel, which has the
    method `keeps` if it is to run in place; class,
    threads and register groups of a rows kernel; the type of a transpose; main loop
    and epilogue of a product.

    Example:

    ```mlir
    kernel.run rows<@Step, 256, 4>(%matrices, %blocks, %scalars)
        : !kernel.matrices<3>, !kernel.blocks, !kernel.scalars
    ```
  }];
  let arguments = (ins
      Arg<Kernel_DriverAttr, "The driver.">:$driver,
      Arg<ArrayAttr, "Template arguments: symbols, integers, types.">:$template_args,
      Arg<Variadic<AnyType>, "The parameters of the entry.">:$operands);
  let assemblyFormat = [{
    $driver custom<TemplateArgs>($template_args) `(` $operands `)` attr-dict `:` type($operands)
  }];
  let hasVerifier = 1;
}

def Kernel_LetOp : Kernel_Op<"let", [AllTypesMatch<["value", "result"]>]> {
  let summary = "`float name = value;`";
  let description = [{
    Example:

    ```mlir
    %u = kernel.let "u" = %v : f32
    ```
  }];
  let arguments = (ins Arg<StrAttr, "The name.">:$name,
                       Arg<Kernel_Value, "The value.">:$value);
  let results = (outs Res<Kernel_Value, "The variable.">:$result);
  let assemblyFormat = "$name `=` $value attr-dict `:` type($value)";
}

def Kernel_SetOp : Kernel_Op<"set", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`get<i>(aggregate) = value;`";
  let description = [{
    Sets an operand of an element, a kept value or a contribution. An element is
    narrowed when it is stored.

    Example:

    ```mlir
    kernel.set %element[2], %v : !kernel.element<@List0>, f32
    ```
  }];
  let arguments = (ins Arg<Kernel_Aggregate, "What is changed.">:$aggregate,
                       Arg<I64Attr, "Number of the member.">:$index,
                       Arg<Kernel_Value, "The value.">:$value);
  let assemblyFormat = "$aggregate `[` $index `]` `,` $value attr-dict `:` type($aggregate) `,` type($value)";
}

def Kernel_AssignOp : Kernel_Op<"assign", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`field = value;`";
  let description = [{
    Example:

    ```mlir
    kernel.assign @lr, %v : f32
    ```
  }];
  let arguments = (ins Arg<FlatSymbolRefAttr, "A field of the class.">:$field,
                       Arg<Kernel_Value, "The value.">:$value);
  let assemblyFormat = "$field `,` $value attr-dict `:` type($value)";
}

def Kernel_StoreOp : Kernel_Op<"store"> {
  let summary = "`storeOfRow<T>(matrix, operand, row, value);`";
  let description = [{
    Narrows the value to the type in memory.

    Example:

    ```mlir
    kernel.store of_row %matrix[2] at %row, %v : <3>, f64 to f64
    ```
  }];
  let arguments = (ins
      Arg<Kernel_PlaceAttr, "Which element.">:$place,
      Arg<Kernel_MatrixType, "The matrix.">:$matrix,
      Arg<I64Attr, "The operand.">:$operand,
      Arg<I64, "The row or the column.">:$position,
      Arg<Kernel_Number, "The value.">:$value,
      Arg<TypeAttrOf<Kernel_Storage>, "The type in memory.">:$type);
  let assemblyFormat = [{
    $place $matrix `[` $operand `]` `at` $position `,` $value attr-dict
    `:` type($matrix) `,` type($value) `to` $type
  }];
  let hasVerifier = 1;
}

def Kernel_ReturnOp : Kernel_Op<"return", [HasParent<"MethodOp">]> {
  let summary = "`return value;`";
  let description = [{
    Example:

    ```mlir
    kernel.return %v : f32
    ```
  }];
  let arguments = (ins Arg<Kernel_Value, "The value.">:$value);
  let assemblyFormat = "$value attr-dict `:` type($value)";
}

//===----------------------------------------------------------------------===//
// Expressions
//===----------------------------------------------------------------------===//

def Kernel_LiteralOp : Kernel_Expression<"literal", [AllTypesMatch<["value", "result"]>]> {
  let summary = "`0.1f`, `true`, `floatOf(0x7fc00000)`";
  let description = [{
    Finite numbers are printed so that C++ reads the same bits; infinities and NaN
    are made from theirs.

    Example:

    ```mlir
    %c = kernel.literal 1.0 : f32
    ```
  }];
  let arguments = (ins Arg<TypedAttrInterface, "The value.">:$value);
  let results = (outs Res<AnyTypeOf<[I1, F32, F64], "i1, f32 or f64">, "The number.">:$result);
  let assemblyFormat = "attr-dict $value";
}

def Kernel_ScalarOp : Kernel_Expression<"scalar"> {
  let summary = "`scalars[i]`";
  let description = [{
    Example:

    ```mlir
    %s = kernel.scalar %scalars[0]
    ```
  }];
  let arguments = (ins Arg<Kernel_ScalarsType, "The scalars.">:$scalars,
                       Arg<I64Attr, "Number of the scalar.">:$index);
  let results = (outs Res<F64, "The scalar.">:$result);
  let assemblyFormat = "$scalars `[` $index `]` attr-dict";
}

// Reads what kernel.set may have changed: unlike expressions it has its place.
def Kernel_GetOp : Kernel_Op<"get", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`get<i>(aggregate)`";
  let description = [{
    Reads an operand of an element, in the type of arithmetic, a kept value, or the
    value of a reduction.

    Example:

    ```mlir
    %v = kernel.get %element[2] : !kernel.element<@List0> -> f32
    ```
  }];
  let arguments = (ins Arg<Kernel_Aggregate, "What is read.">:$aggregate,
                       Arg<I64Attr, "Number of the member.">:$index);
  let results = (outs Res<Kernel_Number, "The value.">:$result);
  let assemblyFormat = "$aggregate `[` $index `]` attr-dict `:` type($aggregate) `->` type($result)";
}

// Fields are assigned before they are read, and once.
def Kernel_ReadOp : Kernel_Expression<"read", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "`field`";
  let description = [{
    Example:

    ```mlir
    %lr = kernel.read @lr : f32
    ```
  }];
  let arguments = (ins Arg<FlatSymbolRefAttr, "A field of the class.">:$field);
  let results = (outs Res<Kernel_Value, "Its value.">:$result);
  let assemblyFormat = "$field attr-dict `:` type($result)";
}

def Kernel_LoadOp : Kernel_Expression<"load"> {
  let summary = "`loadOfRow<T>(matrix, operand, row)`";
  let description = [{
    Loads an element in the type of arithmetic.

    Example:

    ```mlir
    %v = kernel.load of_row %matrix[2] at %row : <3>, bf16 to f32
    %w = kernel.load single %matrix[1] : <3>, f64 to f64
    ```
  }];
  let arguments = (ins
      Arg<Kernel_PlaceAttr, "Which element.">:$place,
      Arg<Kernel_MatrixType, "The matrix.">:$matrix,
      Arg<I64Attr, "The operand.">:$operand,
      Arg<Optional<I64>, "The row or the column.">:$position,
      Arg<TypeAttrOf<Kernel_Storage>, "The type in memory.">:$type);
  let results = (outs Res<Kernel_Number, "The element.">:$result);
  let assemblyFormat = [{
    $place $matrix `[` $operand `]` (`at` $position^)? attr-dict
    `:` type($matrix) `,` $type `to` type($result)
  }];
  let hasVerifier = 1;
}

def Kernel_CallOp : Kernel_Expression<"call", [SameOperandsAndResultType]> {
  let summary = "`addRn(a, b)`: a call of a function of the library";
  let description = [{
    Example:

    ```mlir
    %c = kernel.call fma(%a, %b, %c) : f32
    ```
  }];
  let arguments = (ins Arg<Kernel_FunctionAttr, "The function.">:$function,
                       Arg<Variadic<Kernel_Number>, "The arguments.">:$args);
  let results = (outs Res<Kernel_Number, "What the function returns.">:$result);
  let assemblyFormat = "$function `(` $args `)` attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Kernel_ConvertOp : Kernel_Expression<"convert"> {
  let summary = "`toFloatRn(x)`, `double(x)`, `narrow<bf16>(x)`, `toFloat(x)`";
  let description = [{
    f64 to f32 and f32 to half precision round to nearest even; f32 to f64 and half
    precision to f32 are exact. There are no others.

    Example:

    ```mlir
    %y = kernel.convert %x : f64 to f32
    ```
  }];
  let arguments = (ins Arg<Kernel_Storage, "The number.">:$value);
  let results = (outs Res<Kernel_Storage, "The number in another type.">:$result);
  let assemblyFormat = "$value attr-dict `:` type($value) `to` type($result)";
  let hasVerifier = 1;
}

def Kernel_NegateOp : Kernel_Expression<"negate", [SameOperandsAndResultType]> {
  let summary = "`-x`";
  let description = [{
    Flips the sign, of a NaN and of zero as well.

    Example:

    ```mlir
    %y = kernel.negate %x : f32
    ```
  }];
  let arguments = (ins Arg<Kernel_Number, "The number.">:$value);
  let results = (outs Res<Kernel_Number, "Its negative.">:$result);
  let assemblyFormat = "$value attr-dict `:` type($value)";
}

def Kernel_CompareOp : Kernel_Expression<"compare", [SameTypeOperands]> {
  let summary = "`a < b`";
  let description = [{
    Example:

    ```mlir
    %c = kernel.compare lt %a, %b : f32
    ```
  }];
  let arguments = (ins Arg<Kernel_PredicateAttr, "The comparison.">:$predicate,
                       Arg<AnyTypeOf<[I1, F32, F64], "i1, f32 or f64">, "The left operand.">:$lhs,
                       Arg<AnyTypeOf<[I1, F32, F64], "i1, f32 or f64">, "The right operand.">:$rhs);
  let results = (outs Res<I1, "Whether it holds.">:$result);
  let assemblyFormat = "$predicate $lhs `,` $rhs attr-dict `:` type($lhs)";
}

class Kernel_Logic<string mnemonic, string cpp> : Kernel_Expression<mnemonic> {
  let summary = "`" # cpp # "`";
  let description = [{
    Example:

    ```mlir
    %c = kernel.}] # mnemonic # [{ %a, %b
    ```
  }];
  let arguments = (ins Arg<I1, "The left operand.">:$lhs, Arg<I1, "The right operand.">:$rhs);
  let results = (outs Res<I1, "The conjunction or disjunction.">:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict";
}
def Kernel_AndOp : Kernel_Logic<"and", "a && b">;
def Kernel_OrOp : Kernel_Logic<"or", "a || b">;

def Kernel_NotOp : Kernel_Expression<"not"> {
  let summary = "`!a`";
  let description = [{
    Example:

    ```mlir
    %b = kernel.not %a
    ```
  }];
  let arguments = (ins Arg<I1, "The operand.">:$value);
  let results = (outs Res<I1, "Its opposite.">:$result);
  let assemblyFormat = "$value attr-dict";
}

def Kernel_SelectOp : Kernel_Expression<"select", [AllTypesMatch<["left", "right", "result"]>]> {
  let summary = "`condition ? a : b`";
  let description = [{
    Example:

    ```mlir
    %v = kernel.select %c, %a, %b : f32
    ```
  }];
  let arguments = (ins Arg<I1, "The condition.">:$condition,
                       Arg<Kernel_Value, "The value if it holds.">:$left,
                       Arg<Kernel_Value, "The value otherwise.">:$right);
  let results = (outs Res<Kernel_Value, "One of them.">:$result);
  let assemblyFormat = "$condition `,` $left `,` $right attr-dict `:` type($left)";
}

#endif // KAON_DIALECT_KERNELOPS_TD
