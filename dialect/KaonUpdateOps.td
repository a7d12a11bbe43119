//===-- KaonUpdateOps.td - update math -----------------------*- tablegen -*-===//
//
// Pure math on matrices: what a user's update is made of.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONUPDATEOPS_TD
#define KAON_DIALECT_KAONUPDATEOPS_TD

include "dialect/KaonAttrs.td"
include "dialect/KaonDialect.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

// An op that computes matrices from matrices, without side effects.
class Kaon_MathOp<string mnemonic, list<Trait> traits = [], Trait effects = Pure>
    : Kaon_Op<mnemonic, !listconcat(traits, [
          effects, DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>])>;

def Kaon_MomentumOp : Kaon_MathOp<"momentum",
    [AllTypesMatch<["gradient", "momentum", "update", "newMomentum"]>]> {
  let summary = "Accumulate a gradient into a momentum";
  let description = [{
    Returns the update direction `u` and the new momentum `m1`, from gradient
    `g`, momentum `m` and coefficient `mu`:

    | Form | `m1` | `u` with `nesterov` | `u` without |
    | --- | --- | --- | --- |
    | `lerp` | `mu * m + (1 - mu) * g` | `(1 - mu) * g + mu * m1` | `m1` |
    | `heavy_ball` | `mu * m + g` | `g + mu * m1` | `m1` |

    Numerics: `1 - mu` is computed in f64 on the host and rounded to the compute
    type once; every product and sum rounds in the compute type.

    Example:

    ```mlir
    %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_MomentumFormAttr, "How the momentum accumulates.">:$form,
      Arg<Kaon_Matrix, "The gradient.">:$gradient,
      Arg<Kaon_Matrix, "The momentum before this step.">:$momentum,
      Arg<F64, "The coefficient, usually in [0, 1).">:$coefficient,
      Arg<UnitAttr, "Whether the update looks one step ahead.">:$nesterov);
  let results = (outs
      Res<Kaon_Matrix, "The direction to update along.">:$update,
      Res<Kaon_Matrix, "The momentum after this step.">:$newMomentum);
  let assemblyFormat = [{
    custom<Keyword>($form) $gradient `,` $momentum `,` $coefficient
    (`nesterov` $nesterov^)? attr-dict `:` type($gradient)
  }];
}

def Kaon_NewtonSchulzOp : Kaon_MathOp<"newton_schulz", [AllTypesMatch<["input", "result"]>]> {
  let summary = "Orthogonalize a matrix by a Newton-Schulz iteration";
  let description = [{
    The input is divided by its Frobenius norm as `normalize` says, then each
    step with coefficients `(a, b, c)` maps

    ```
    x <- a * x + (b * (x x^T) + c * (x x^T)^2) x
    ```

    which drives every singular value of `x` towards one. `coefficients` holds
    three numbers per step, flat. `normalize max` divides by
    `max(scale * |x|, epsilon)`, `add` by `scale * |x| + epsilon`, `none` does not
    divide. `scale` leaves room for norms that are slightly too small.

    With `gram restarts` the steps act on the Gram matrix of the shorter side, and what
    they do to `x` is gathered in one small factor; before each step listed, the factor
    is applied to `x` and the Gram matrix computed anew. In exact arithmetic the result
    is the same; for long matrices it takes fewer operations. Restarts keep rounding
    errors from growing.

    Numerics: the norm neither overflows nor vanishes for finite input. A zero
    matrix gives zero. Products round as `kaon.matmul` does. The iteration may be
    evaluated on `x^T`, whichever side is shorter, which reassociates sums.

    Example:

    ```mlir
    %o = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315]
        normalize max epsilon 1.0e-7 scale 1.0 : tensor<4x6xf32>
    %p = kaon.newton_schulz %u coefficients [1.875, -1.25, 0.375, 1.875, -1.25, 0.375]
        normalize max epsilon 1.0e-7 scale 1.0 gram restarts [1] : tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_Matrix, "The matrix to orthogonalize.">:$input,
      Arg<DenseF64ArrayAttr, "Three coefficients per step.">:$coefficients,
      Arg<Kaon_NormalizeModeAttr, "How the input is divided by its norm.">:$mode,
      Arg<F64Attr, "Guards the division.">:$epsilon,
      Arg<F64Attr, "Multiplies the norm.">:$scale,
      Arg<OptionalAttr<DenseI64ArrayAttr>, "Steps before which the Gram form starts anew.">:$restarts);
  let results = (outs Res<Kaon_Matrix, "The orthogonalized matrix.">:$result);
  let assemblyFormat = [{
    $input `coefficients` custom<Numbers>($coefficients) `normalize` custom<Keyword>($mode)
    `epsilon` $epsilon `scale` $scale (`gram` `restarts` $restarts^)? attr-dict `:` type($input)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
  let extraClassDeclaration = [{
    /// Steps of the iteration.
    int64_t getSteps() { return getCoefficients().size() / 3; }
  }];
}

def Kaon_NormalizeOp : Kaon_MathOp<"normalize", [AllTypesMatch<["input", "result"]>]> {
  let summary = "Divide rows, columns or the whole matrix by their Euclidean norm";
  let description = [{
    `along row` divides each row by its own norm, `along column` each column,
    `along all` the matrix by its Frobenius norm. `max` divides by
    `max(scale * norm, epsilon)`, `add` by `scale * norm + epsilon`, `none` is the
    identity.

    Numerics: norms neither overflow nor vanish for finite input. What has norm
    zero stays zero, whatever epsilon is.

    Example:

    ```mlir
    %y = kaon.normalize %x along row max epsilon 1.0e-12 scale 1.0 : tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_Matrix, "The matrix to normalize.">:$input,
      Arg<Kaon_AlongAttr, "What is normalized together.">:$along,
      Arg<Kaon_NormalizeModeAttr, "How epsilon guards the division.">:$mode,
      Arg<F64Attr, "Guards the division.">:$epsilon,
      Arg<F64Attr, "Multiplies the norm.">:$scale);
  let results = (outs Res<Kaon_Matrix, "The normalized matrix.">:$result);
  let assemblyFormat = [{
    $input `along` custom<Keyword>($along) custom<Keyword>($mode)
    `epsilon` $epsilon `scale` $scale attr-dict `:` type($input)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Kaon_NormOp : Kaon_MathOp<"norm", [InferTypeOpAdaptor]> {
  let summary = "Euclidean norm of rows, columns or the whole matrix";
  let description = [{
    `along row` gives `Mx1`, `along column` `1xN`, `along all` `1x1` (the Frobenius
    norm).

    Numerics: neither overflows nor vanishes for finite input whose norm the
    result type can hold.

    Example:

    ```mlir
    %n = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_Matrix, "The matrix.">:$input,
      Arg<Kaon_AlongAttr, "What one norm is taken of.">:$along);
  let results = (outs Res<Kaon_Matrix, "The norms.">:$result);
  let assemblyFormat = [{
    $input `along` custom<Keyword>($along) attr-dict `:` type($input) `->` type($result)
  }];
}

def Kaon_ReduceOp : Kaon_MathOp<"reduce", [InferTypeOpAdaptor]> {
  let summary = "Sum, maximum or minimum of rows, columns or the whole matrix";
  let description = [{
    `along row` gives `Mx1`, `along column` `1xN`, `along all` `1x1`.

    Numerics: a sum accumulates in f64, in an order that depends on the shape
    alone, and is rounded once at the end; a sum of one element is that element.
    `max` and `min` propagate NaN.

    Example:

    ```mlir
    %s = kaon.reduce sum %x along all : tensor<4x6xf32> -> tensor<1x1xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_ReduceKindAttr, "What is computed.">:$kind,
      Arg<Kaon_Matrix, "The matrix to reduce.">:$input,
      Arg<Kaon_AlongAttr, "What is reduced to one value.">:$along);
  let results = (outs Res<Kaon_Matrix, "The reduced values.">:$result);
  let assemblyFormat = [{
    custom<Keyword>($kind) $input `along` custom<Keyword>($along) attr-dict
    `:` type($input) `->` type($result)
  }];
  let hasFolder = 1;
}

def Kaon_BroadcastOp : Kaon_MathOp<"broadcast"> {
  let summary = "Repeat rows, columns or a single value";
  let description = [{
    Every dimension of the input either equals that of the result or is one and
    is repeated.

    Numerics: exact.

    Example:

    ```mlir
    %b = kaon.broadcast %s : tensor<4x1xf32> to tensor<4x6xf32>
    ```
  }];
  let arguments = (ins Arg<Kaon_StorageMatrix, "The values to repeat.">:$input);
  let results = (outs Res<Kaon_StorageMatrix, "The repeated values.">:$result);
  let assemblyFormat = "$input attr-dict `:` type($input) `to` type($result)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Kaon_MaterializeOp : Kaon_MathOp<"materialize", [AllTypesMatch<["input", "result"]>]> {
  let summary = "Keep a matrix in memory";
  let description = [{
    The matrix itself. Where kernels are formed, it is stored by the first kernel that
    can compute it, and later ones load it, which otherwise might compute it again from
    what it is made of.

    Numerics: exact.

    Example:

    ```mlir
    %h = kaon.materialize %x : tensor<4x6xbf16>
    ```
  }];
  let arguments = (ins Arg<Kaon_StorageMatrix, "The matrix.">:$input);
  let results = (outs Res<Kaon_StorageMatrix, "The matrix.">:$result);
  let assemblyFormat = "$input attr-dict `:` type($input)";
}

def Kaon_TransposeOp : Kaon_MathOp<"transpose", [InferTypeOpAdaptor], Kaon_PureUntilPlanned> {
  let summary = "Transpose a matrix";
  let description = [{
    Numerics: exact. Between `Mx1` and `1xM` it is a view and costs nothing.

    Example:

    ```mlir
    %t = kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>
    ```
  }];
  let arguments = (ins Arg<Kaon_StorageMatrix, "The matrix.">:$input);
  let results = (outs Res<Kaon_StorageMatrix, "Its transpose.">:$result);
  let assemblyFormat = "$input attr-dict `:` type($input) `->` type($result)";
  let hasFolder = 1;
  let hasCanonicalizer = 1;
  let extraClassDeclaration = [{
    /// Whether the transpose is a mere view: one dimension is one.
    bool isView() {
      auto shape = getInput().getType().getShape();
      return shape[0] == 1 || shape[1] == 1;
    }
  }];
}

def Kaon_MatmulOp : Kaon_MathOp<"matmul", [
    AttrSizedOperandSegments, DeclareOpInterfaceMethods<SymbolUserOpInterface>], Kaon_PureUntilPlanned> {
  let summary = "Matrix product with optional transpositions and epilogue";
  let description = [{
    `result = factor * (alpha * op(lhs) op(rhs) + beta * addend)`, where `op`
    transposes if the operand's flag is set. Without `alpha` it is one; `beta` and
    `addend` come together or not at all. `factor` is a number that the device
    computes, such as the inverse of a norm, where `alpha` and `beta` are the host's;
    without it there is none. `symmetric` promises that `op(lhs) op(rhs)` (and the
    addend) equal their transposes in exact arithmetic, so that one triangle is
    computed and mirrored.

    After packing the operands are panels made by `kaon.pack`, and
    `packed sizes [m, n, k]` holds the sizes that can no longer be read from their
    types.

    Numerics: each element is accumulated in the compute type over ascending `k`
    with fused multiply-adds, in blocks whose length is `kc` of the target
    description, each from zero. The element starts as `beta * addend`, rounded, or
    as zero, and gains `alpha` times the sum of one block after the other, each by
    one fused multiply-add. So `alpha` multiplies blocks, not the whole sum: where
    those overflow and cancel, the result is not what scaling the sum would give. A
    symmetric result is exactly symmetric.

    Operands, addend and result may be of a 16-bit type (`kaon-narrow-products`):
    products of elements are exact and are accumulated in f32, in the order that the
    hardware has; alpha, beta and the addend join in f32, and the result is rounded
    once. Only such products have a `factor`: alpha and beta are multiplied by it in
    f32 before they join, one rounding each.

    With an `epilogue`, the product is not stored. It is handed in f32, before it is
    rounded, to an elementwise kernel `(product, parameter, scalars) -> new parameter`,
    whose result takes the product's place (`kaon-fuse-product-epilogue`).

    Example:

    ```mlir
    %d = kaon.matmul %a, %b transpose_b symmetric
        : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
    %e = kaon.matmul %d, %a alpha %x beta %y %c
        : (tensor<4x4xf32>, tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    %h = kaon.matmul %f, %f symmetric alpha %x factor %n
        : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    %w1 = kaon.matmul %f, %g epilogue @kernel_x(%w : tensor<4x6xf32>) scalars(%lr)
        : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_StorageMatrix, "The left operand.">:$lhs,
      Arg<Kaon_StorageMatrix, "The right operand.">:$rhs,
      Arg<Optional<F64>, "Factor of the product, one if absent.">:$alpha,
      Arg<Optional<F64>, "Factor of the addend.">:$beta,
      Arg<Optional<Kaon_StorageMatrix>, "The matrix that is added.">:$addend,
      Arg<Optional<Kaon_DeviceNumber>, "Factor of the product and the addend.">:$factor,
      Arg<Optional<Kaon_StorageMatrix>, "The parameter that the epilogue changes.">:$param,
      Arg<Variadic<F64>, "Host scalars of the epilogue.">:$scalars,
      Arg<UnitAttr, "Whether the left operand is transposed.">:$transpose_a,
      Arg<UnitAttr, "Whether the right operand is transposed.">:$transpose_b,
      Arg<UnitAttr, "Whether the result is known to be symmetric.">:$symmetric,
      Arg<OptionalAttr<FlatSymbolRefAttr>, "The kernel function of the epilogue.">:$epilogue,
      Arg<OptionalAttr<DenseI64ArrayAttr>, "m, n and k of packed operands.">:$sizes);
  let results = (outs Res<Kaon_StorageMatrix, "The product, or the new parameter.">:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs (`transpose_a` $transpose_a^)? (`transpose_b` $transpose_b^)?
    (`symmetric` $symmetric^)? (`packed` `sizes` $sizes^)?
    (`alpha` $alpha^)? (`beta` $beta^ $addend)? (`factor` $factor^)?
    (`epilogue` $epilogue^ `(` $param `:` type($param) `)`)?
    (`scalars` `(` $scalars^ `)`)? attr-dict
    `:` `(` type($lhs) `,` type($rhs) (`,` type($addend)^)? `)` `->` type($result)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
  let builders = [
    OpBuilder<(ins "::mlir::Value":$lhs, "::mlir::Value":$rhs,
                   CArg<"bool", "false">:$transposeA, CArg<"bool", "false">:$transposeB,
                   CArg<"bool", "false">:$symmetric)>,
    // A product with operands as they are and without an epilogue.
    OpBuilder<(ins "::mlir::Type":$result, "::mlir::Value":$lhs, "::mlir::Value":$rhs,
                   "::mlir::Value":$alpha, "::mlir::Value":$beta, "::mlir::Value":$addend,
                   "::mlir::Value":$factor, "bool":$transposeA, "bool":$transposeB, "bool":$symmetric)>
  ];
  let extraClassDeclaration = [{
    /// Whether the operands are packed panels.
    bool isPacked() { return getSizes().has_value(); }
    /// Rows of the result, columns of the result, length of the sums.
    ::std::array<int64_t, 3> getProductSizes();
  }];
}

def Kaon_ApplyOp : Kaon_MathOp<"apply", [AllTypesMatch<["param", "update", "result"]>]> {
  let summary = "Change a parameter: the step and the weight decay";
  let description = [{
    The single place where a parameter changes. With step size `s` and decay `d`:

    | Form | Result |
    | --- | --- |
    | `decoupled` | `(1 - d) * w - s * u` |
    | `after` | `w1 - d * w1` where `w1 = w - s * u` |
    | `cautious` | `w - s * u - d * w` where `u * w >= 0`, else `w - s * u` |

    Numerics: `1 - d` is computed in f64 on the host; scalars round once to the
    compute type; every other operation rounds in the compute type, in the order
    written.

    Example:

    ```mlir
    %w1 = kaon.apply decoupled %w, %u step_size %s decay %d : tensor<4x6xf32>
    ```
  }];
  let arguments = (ins
      Arg<Kaon_ApplyFormAttr, "How the decay joins.">:$form,
      Arg<Kaon_Matrix, "The parameter before the step.">:$param,
      Arg<Kaon_Matrix, "The direction, subtracted.">:$update,
      Arg<F64, "Factor of the update.">:$stepSize,
      Arg<F64, "Factor of the decay.">:$decay);
  let results = (outs Res<Kaon_Matrix, "The parameter after the step.">:$result);
  let assemblyFormat = [{
    custom<Keyword>($form) $param `,` $update `step_size` $stepSize `decay` $decay
    attr-dict `:` type($param)
  }];
}

def Kaon_EveryOp : Kaon_Op<"every", [
    RecursiveMemoryEffects, RecursivelySpeculatable, SingleBlock,
    DeclareOpInterfaceMethods<RegionBranchOpInterface>,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "Do one thing on every K-th step and another on the others";
  let description = [{
    The first region is evaluated iff `(step - phase) mod period == 0`, with the
    parameter's own phase offset (see `kaon.parameter`) added to `phase`; the second
    region otherwise. Both may use values defined outside, and yield the results.

    The step that is known only at run time never reaches a kernel: the choice is
    made once per step on the host (`kaon-split-phases`).

    Example:

    ```mlir
    %o = kaon.every %step period 3 phase 1 -> tensor<4x6xf32> {
      %a = kaon.newton_schulz %u coefficients [1.5, -0.5, 0.0]
          normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
      kaon.yield %a : tensor<4x6xf32>
    } else {
      %b = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : tensor<4x6xf32>
      kaon.yield %b : tensor<4x6xf32>
    }
    ```
  }];
  let arguments = (ins
      Arg<I64, "The step count, 1 at the first step.">:$step,
      Arg<I64Attr, "Length of the period, positive.">:$period,
      Arg<I64Attr, "Which step of the period takes the first region.">:$phase);
  let results = (outs Res<Variadic<Kaon_Value>, "What the taken region yields.">:$results);
  let regions = (region SizedRegion<1>:$taken, SizedRegion<1>:$otherwise);
  let assemblyFormat = [{
    $step `period` $period `phase` $phase `->` type($results)
    attr-dict-with-keyword $taken `else` $otherwise
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let hasCanonicalizer = 1;
}

def Kaon_YieldOp : Kaon_Op<"yield", [
    Pure, ReturnLike, Terminator, ParentOneOf<["EveryOp", "KernelOp"]>]> {
  let summary = "Return values from a region";
  let description = [{
    Ends the regions of `kaon.every` and `kaon.kernel`.

    Example:

    ```mlir
    kaon.yield %a : tensor<4x6xf32>
    ```
  }];
  let arguments = (ins Arg<Variadic<Kaon_Value>, "The results of the region.">:$operands);
  let assemblyFormat = "attr-dict ($operands^ `:` type($operands))?";
}

#endif // KAON_DIALECT_KAONUPDATEOPS_TD
