//===-- KaonProgramOps.td - programs and kernels -------------*- tablegen -*-===//
//
// Which update belongs to which matrix of a model, what runs when, and what is
// one kernel.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONPROGRAMOPS_TD
#define KAON_DIALECT_KAONPROGRAMOPS_TD

include "dialect/KaonAttrs.td"
include "dialect/KaonDialect.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

def Kaon_ProgramOp : Kaon_Op<"program", [
    HasParent<"::mlir::ModuleOp">, IsolatedFromAbove, NoTerminator, SingleBlock, Symbol]> {
  let summary = "The matrices of a model and what each step does with them";
  let description = [{
    Holds one `kaon.parameter` per matrix, in order: the index of a matrix is its
    position. `period` is the number of different kinds of steps, one unless
    `kaon-split-phases` found an `every`. After `kaon-bucket` it also holds one
    `kaon.phase` per residue of the step count.

    Example:

    ```mlir
    kaon.program @step period 3 {
      kaon.parameter [@muon.0, @muon.1, @muon.1] "blocks.0.attn.weight" scalars 0 phase 0
    }
    ```
  }];
  let arguments = (ins
      Arg<SymbolNameAttr, "The program's name.">:$sym_name,
      Arg<OptionalAttr<I64Attr>, "How many kinds of steps there are, one if absent.">:$period);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name (`period` $period^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// How many kinds of steps there are.
    int64_t getNumPhases() { return getPeriod().value_or(1); }
    /// The matrices, in order.
    auto getParameters() { return getBody().front().getOps<::kaon::ParameterOp>(); }
    /// The kinds of steps; none before bucketing.
    auto getPhases() { return getBody().front().getOps<::kaon::PhaseOp>(); }
  }];
}

def Kaon_ParameterOp : Kaon_Op<"parameter", [
    HasParent<"ProgramOp">, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "One matrix of the model";
  let description = [{
    Names the update of this matrix: one symbol, or, once phases are split, one per
    residue `r = (step - phase) mod period`. A single symbol serves all residues.
    `scalars` is the index of the scalar set whose values the update receives at
    each step. `phase` is this matrix's phase offset, in `[0, period)` once phases
    are split.

    Example:

    ```mlir
    kaon.parameter @muon_4x6_f32 "blocks.0.attn.weight" scalars 0 phase 0
    ```
  }];
  let arguments = (ins
      Arg<FlatSymbolRefArrayAttr, "The update, or one per residue.">:$updates,
      Arg<StrAttr, "The parameter's name in the model.">:$name,
      Arg<I64Attr, "Index of the scalar set.">:$scalars,
      Arg<I64Attr, "Phase offset.">:$phase);
  let assemblyFormat = [{
    custom<Updates>($updates) $name `scalars` $scalars `phase` $phase attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The update that runs at steps with `step mod period == residue`.
    ::mlir::FlatSymbolRefAttr getUpdateAt(int64_t residue);
  }];
}

def Kaon_PhaseOp : Kaon_Op<"phase", [HasParent<"ProgramOp">, NoTerminator, SingleBlock]> {
  let summary = "What the steps of one residue do";
  let description = [{
    Holds the buckets, and the groups of them, that run, in order, at steps with
    `step mod period == residue`.

    Example:

    ```mlir
    kaon.phase 0 {
      kaon.bucket @muon_4x6_f32.1 parameters [0, 3] concurrent 2
    }
    ```
  }];
  let arguments = (ins Arg<I64Attr, "Step count modulo the period.">:$residue);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$residue attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// The buckets, in order, those of groups among them.
    ::llvm::SmallVector<::kaon::BucketOp> getBuckets();
  }];
}

def Kaon_GroupOp : Kaon_Op<"group", [HasParent<"PhaseOp">, NoTerminator, SingleBlock]> {
  let summary = "Buckets that run in lock-step";
  let description = [{
    On a GPU, kernels find the shapes of their matrices in tables, so that one launch
    of the device may cover matrices of several buckets. `launches` are those of the
    device, in order: each lists the buckets of the group, by position, that take part
    with the next launch of their update. All that take part launch the same kernel, and all
    matrices of a group are in flight at once, in workspaces of their own. That the
    kernels are the same and that no launch of an update is left over is checked when
    a step plan is made.

    Example:

    ```mlir
    kaon.group launches [[0, 1], [0], [0, 1]] {
      kaon.bucket @muon_8x8_f32 parameters [1] concurrent 1
      kaon.bucket @muon_4x6_f32 parameters [0, 3] concurrent 2
    }
    ```
  }];
  let arguments = (ins
      TypedArrayAttrBase<DenseI64ArrayAttr,
                         "for each launch of the device, the buckets that take part">:$launches);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "`launches` custom<Lists>($launches) attr-dict-with-keyword $body";
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// The buckets, in order.
    auto getBuckets() { return getBody().front().getOps<::kaon::BucketOp>(); }
    /// For each launch of the device, the buckets that take part.
    auto getParticipants() {
      return getLaunches().getAsRange<::mlir::DenseI64ArrayAttr>();
    }
  }];
}

def Kaon_BucketOp : Kaon_Op<"bucket", [
    ParentOneOf<["PhaseOp", "GroupOp"]>, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Matrices that are handled together";
  let description = [{
    `parameters` are the indices of matrices whose update at this residue is the
    same function; `concurrent` says how many of them are in flight at once, and so
    how many workspaces the bucket needs.

    Example:

    ```mlir
    kaon.bucket @muon_4x6_f32.1 parameters [0, 3] concurrent 2
    ```
  }];
  let arguments = (ins
      Arg<FlatSymbolRefAttr, "The update of all members.">:$update,
      Arg<DenseI64ArrayAttr, "Indices of the members, ascending.">:$parameters,
      Arg<I64Attr, "How many members are in flight at once.">:$concurrent);
  let assemblyFormat = "$update `parameters` $parameters `concurrent` $concurrent attr-dict";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

def Kaon_KernelOp : Kaon_Op<"kernel", [
    AttrSizedOperandSegments, IsolatedFromAbove, RecursiveMemoryEffects, RecursivelySpeculatable,
    SingleBlock]> {
  let summary = "A region that is one pass over memory";
  let description = [{
    The body receives the inputs and the host scalars as block arguments, and
    computes with elementwise ops, `kaon.reduce` and `kaon.broadcast` only.
    `elementwise` admits neither reductions nor operands other than full matrices
    of one shape and `1x1`; `rows` admits reductions along rows; `columns` those
    along columns.

    Example:

    ```mlir
    %r = kaon.kernel rows ins(%g : tensor<4x6xf32>) scalars(%mu : f64) {
    ^bb0(%a: tensor<4x6xf32>, %s: f64):
      %n = kaon.reduce max %a along row : tensor<4x6xf32> -> tensor<4x1xf32>
      kaon.yield %n : tensor<4x1xf32>
    } -> tensor<4x1xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_ScheduleAttr, "How the kernel walks over its matrices.">:$schedule,
      Arg<Variadic<Kaon_StorageMatrix>, "The matrices that are read.">:$inputs,
      Arg<Variadic<F64>, "Host scalars.">:$scalars);
  let results = (outs Res<Variadic<Kaon_StorageMatrix>, "The matrices that are written.">:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    custom<Keyword>($schedule) (`ins` `(` $inputs^ `:` type($inputs) `)`)?
    (`scalars` `(` $scalars^ `:` type($scalars) `)`)? attr-dict-with-keyword
    $body `->` type($results)
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
}

def Kaon_LaunchOp : Kaon_Op<"launch", [
    AttrSizedOperandSegments, Kaon_PureUntilPlanned,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Run an outlined kernel";
  let description = [{
    Calls a function that carries `kaon.kernel`. The function's shapes are erased:
    one kernel serves matrices of every size, so its types match those of the
    operands only up to dynamic dimensions.

    Example:

    ```mlir
    %r:2 = kaon.launch @kernel_x ins(%g, %m : tensor<4x6xf32>, tensor<4x6xf32>)
        scalars(%mu : f64) -> tensor<4x6xf32>, tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<FlatSymbolRefAttr, "The kernel function.">:$kernel,
      Arg<Variadic<Kaon_StorageMatrix>, "The matrices that are read.">:$inputs,
      Arg<Variadic<F64>, "Host scalars.">:$scalars);
  let results = (outs Res<Variadic<Kaon_StorageMatrix>, "The matrices that are written.">:$results);
  let assemblyFormat = [{
    $kernel (`ins` `(` $inputs^ `:` type($inputs) `)`)?
    (`scalars` `(` $scalars^ `:` type($scalars) `)`)? attr-dict `->` type($results)
  }];
}

def Kaon_PackOp : Kaon_Op<"pack", [Kaon_PureUntilPlanned,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "Pack an operand of a product into slivers";
  let description = [{
    `lhs` packs slivers of `r` rows of `op(input)`, `rhs` slivers of `r` columns, where
    `op` transposes if `transpose` is set. The result has one row per sliver, which
    holds `r` adjacent values for each position along the sum. The padding of the
    sum's length is filled with zeros. What a last sliver lacks is
    unspecified, since no result depends on it. The width `r` and the padding are the
    target's: `kaon.cpu` on the module.

    Numerics: exact.

    Example:

    ```mlir
    %p = kaon.pack lhs %x : tensor<20x6xf32> -> tensor<2x96xf32>
    %q = kaon.pack rhs %x transpose : tensor<20x6xf32> -> tensor<1x256xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_PackSideAttr, "Which operand of a product this is.">:$side,
      Arg<Kaon_Matrix, "The matrix to pack.">:$input,
      Arg<UnitAttr, "Whether the matrix is transposed first.">:$transpose);
  let results = (outs Res<Kaon_Matrix, "The slivers.">:$result);
  let assemblyFormat = [{
    custom<Keyword>($side) $input (`transpose` $transpose^)? attr-dict
    `:` type($input) `->` type($result)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// Length of the packed operand across slivers (m or n).
    int64_t getOuterSize() {
      auto shape = getInput().getType().getShape();
      return shape[(getSide() == ::kaon::PackSide::Lhs) == getTranspose() ? 1 : 0];
    }
    /// Length of the sums (k).
    int64_t getDepth() {
      auto shape = getInput().getType().getShape();
      return shape[(getSide() == ::kaon::PackSide::Lhs) == getTranspose() ? 0 : 1];
    }
  }];
}

#endif // KAON_DIALECT_KAONPROGRAMOPS_TD
