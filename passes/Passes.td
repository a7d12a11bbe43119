//===-- Passes.td - the passes of Kaon -----------------------*- tablegen -*-===//
//
// In the order of the pipelines. Every pass states its numeric class:
//   bitwise        results keep their bits
//   reassociating  equal in exact arithmetic, rounded in another order
//   approximate    equal only up to a stated tolerance
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PASSES_PASSES_TD
#define KAON_PASSES_PASSES_TD

include "mlir/Pass/PassBase.td"

def VerifyProgramPass : Pass<"kaon-verify-program", "::mlir::ModuleOp"> {
  let summary = "Check that updates and programs fit together (bitwise)";
  let description = [{
    Checks what no single op can see, so that no later pass meets it half-way:

    * a parameter has elements;
    * the body of an update holds ops of `kaon`, `arith` and `math`, and
      `tensor.splat`, and nothing else;
    * arithmetic on matrices is in the compute type of the update, `f64` for an `f64`
      parameter, else `f32`, or in `f64`;
    * every `kaon.every` asks for the step argument of its own update;
    * the matrices of a program have names of their own;
    * updates that share a scalar set read as many scalars.

    That roles of arguments, results and symbols are right is the dialect's own
    verification, before and after every pass.

    Numeric class: bitwise (changes nothing).
  }];
}

def GramNewtonSchulzPass : Pass<"kaon-gram-newton-schulz", "::mlir::func::FuncOp"> {
  let summary = "Iterate on the Gram matrix where that is less work (approximate)";
  let description = [{
    For a GPU (`kaon.cuda` on the module), chooses the Gram form for every
    `kaon.newton_schulz` of a long matrix: with `T` steps and `s` segments, and the longer
    side `r` times the shorter one, `3 s r + 4 T - 3 s` instead of `T (3 r + 1)` cubes of the
    shorter side, symmetric products counted as halves. The form is chosen if it saves a
    tenth and the shorter side has `min-size` elements.

    In 16 bits, a singular value of zero leaves an eigenvalue of the Gram matrix that is
    wrong by one unit of rounding, and each step of a segment multiplies it by `a^2`;
    segments end before that exceeds 1/16, and before the product of their `a` exceeds 1/8 of
    the inverse of the unit. Results then have errors like those of the standard form. The
    decision is reported as a remark of category `kaon-gram-newton-schulz`.

    Example (`half = bf16`):

    ```mlir
    %o = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
        normalize max epsilon 0.0 scale 1.0 : tensor<512x2048xf32>
    ```

    gains `gram restarts [2]`.

    Numeric class: approximate. Equal in exact arithmetic; errors of 16-bit products are
    of the same order. Needs library ops that are not expanded.
  }];
  let options = [
    Option<"minSize", "min-size", "int64_t", /*default=*/"256",
           "Shorter sides below this are left alone: their launches cost more than their work">];
}

def ExpandUpdatesPass : Pass<"kaon-expand-updates", "::mlir::func::FuncOp"> {
  let summary = "Write library ops in terms of primitives (approximate)";
  let description = [{
    Expands `kaon.momentum`, `kaon.apply`, `kaon.norm`, `kaon.normalize` and
    `kaon.newton_schulz` into elementwise ops, reductions and products.

    Norms accept any finite input. For `f32` they are taken in `f64`, where squares
    neither overflow nor vanish; for `f64` the input is divided by its largest
    absolute value first. What has norm zero stays zero.

    A Newton-Schulz step with coefficients `(a, b, c)` becomes `A = X X^T`,
    `B = b A + c A A`, `X = a X + B X`, without `A A` where `c` is zero. Which side of
    a tall matrix the products are taken on is left to `kaon-orient-products`.

    Example:

    ```mlir
    %w1 = kaon.apply decoupled %w, %u step_size %s decay %d : tensor<4x6xf32>
    ```

    becomes

    ```mlir
    %one = arith.constant 1.0 : f64
    %keep = arith.subf %one, %d : f64
    // both scalars are rounded to f32 and splat
    %0 = arith.mulf %keep_splat, %w : tensor<4x6xf32>
    %1 = arith.mulf %s_splat, %u : tensor<4x6xf32>
    %2 = arith.subf %0, %1 : tensor<4x6xf32>
    ```

    Numeric class: approximate. Norms round differently from the formula in the
    compute type, always towards a smaller error; everything else is bitwise.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::math::MathDialect",
                           "::mlir::tensor::TensorDialect"];
}

def SplitPhasesPass : Pass<"kaon-split-phases", "::mlir::ModuleOp"> {
  let summary = "One function per kind of step (bitwise)";
  let description = [{
    The least common multiple of the periods of all `kaon.every` of an update is the
    number of its residues `r = (step - phase) mod period`. The update is cloned
    once per distinct combination of branches, as `@update.0`, `@update.1`, ... in
    the order in which residues first need them; branches not taken are gone, and
    so is what only they used. Programs get the period of all their updates. What
    asks for anything but the step of its update is refused.

    Example:

    ```mlir
    kaon.program @step { kaon.parameter @muon "w" scalars 0 phase 0 }
    ```

    where `@muon` refreshes every third step, at phase 1, becomes

    ```mlir
    kaon.program @step period 3 {
      kaon.parameter [@muon.0, @muon.1, @muon.0] "w" scalars 0 phase 0
    }
    ```

    Numeric class: bitwise.
  }];
  let options = [
    Option<"maxPeriod", "max-period", "int64_t", /*default=*/"240",
           "Largest number of kinds of steps a program may have">];
}

def OrientProductsPass : Pass<"kaon-orient-products", "::mlir::func::FuncOp"> {
  let summary = "Take products with a Gram matrix on the shorter side (reassociating)";
  let description = [{
    For any polynomial `P` without constant term, `P(X X^T) X = X P(X^T X)`. Where
    `X` has more rows than columns, the right-hand form multiplies smaller
    matrices; where it has more columns, the left-hand one does. The pass finds
    such polynomials in any expression made of products, sums, differences and
    scalings of one Gram matrix - a user's own iteration as well as an expanded
    `kaon.newton_schulz` - and rewrites them where all uses of the larger form can go.
    Remarks of category `kaon-orient-products` say what became smaller, and what did not.
    A `kaon.transpose` of an operand counts as the product's own transposition.

    Example (`X` is 6x4):

    ```mlir
    %a = kaon.matmul %x, %x transpose_b : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x6xf32>
    %y = kaon.matmul %a, %x : (tensor<6x6xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
    ```

    becomes

    ```mlir
    %a = kaon.matmul %x, %x transpose_a : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
    %y = kaon.matmul %x, %a : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
    ```

    Numeric class: reassociating.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::tensor::TensorDialect"];
}

def MarkSymmetricPass : Pass<"kaon-mark-symmetric", "::mlir::func::FuncOp"> {
  let summary = "Mark products whose result is symmetric (reassociating)";
  let description = [{
    Marks `X X^T` and `X^T X`, and products of two polynomials in one symmetric
    matrix, which commute. Elementwise ops on symmetric matrices keep symmetry, so
    that sums and scalings of marked products are recognised in turn. A
    `kaon.transpose` of an operand counts as the product's own transposition, and
    equal Gram matrices as one. A marked product computes one triangle and mirrors
    it.

    Example:

    ```mlir
    %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
    %b = kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    ```

    marks both products.

    Numeric class: reassociating. Products of a matrix with its own transpose, and
    squares of symmetric matrices, keep their bits.
  }];
}

def FoldMatmulEpiloguePass : Pass<"kaon-fold-matmul-epilogue", "::mlir::func::FuncOp"> {
  let summary = "Fold scalings and a sum into products (reassociating)";
  let description = [{
    `kaon.matmul` computes `alpha * op(A) op(B) + beta * C` in one pass over its
    result. Folds into it the scaling of its result by a host scalar, and then the
    sum or difference with another matrix, scaled or not, if the product has no
    other use. A product marked symmetric takes an addend only if that is marked
    too.

    What is folded neither overflows nor vanishes where the single ops do not:
    a second scaling is folded only if both factors are constants whose product is
    a normal number of the element type, and the scaling of a sum is not folded,
    because its terms may cancel.

    Example:

    ```mlir
    %p = kaon.matmul %a, %a symmetric : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = arith.mulf %c_splat, %p : tensor<4x4xf32>
    %t = arith.mulf %b_splat, %a : tensor<4x4xf32>
    %r = arith.addf %t, %s : tensor<4x4xf32>
    ```

    becomes

    ```mlir
    %r = kaon.matmul %a, %a symmetric alpha %c beta %b %a
        : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    ```

    Numeric class: reassociating. Constant factors are multiplied on the host, and
    an epilogue may round once where two ops rounded twice.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect"];
}

def NarrowProductsPass : Pass<"kaon-narrow-products", "::mlir::func::FuncOp"> {
  let summary = "Take products in half precision (approximate)";
  let description = [{
    Every `f32` product takes its operands and its addend in the 16-bit type that
    `kaon.cuda` on the module names, and gives its result in it. A matrix is rounded
    once, where it is defined, for all products that read it; what comes from that type
    is not rounded again. Other users of a product see its result widened. A `kaon.transpose`
    of a 16-bit vector, which would be a view of rows with gaps, is taken in `f32`. So is the
    sum with an addend that no product makes or reads, and with a parameter or a state
    always: it would lose bits to what changes it.

    Example (`half = bf16`):

    ```mlir
    %a = kaon.matmul %x, %x transpose_b symmetric : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
    %y = kaon.matmul %a, %x : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
    ```

    becomes

    ```mlir
    %h = arith.truncf %x : tensor<4x6xf32> to tensor<4x6xbf16>
    %a = kaon.matmul %h, %h transpose_b symmetric : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
    %p = kaon.matmul %a, %h : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
    %y = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
    ```

    Numeric class: approximate. Operands and results of products have the relative
    error of the 16-bit type, 2^-9 for `bf16` and 2^-12 for `f16`; `f16` ends at 65504,
    and is for what is normalized first. Needs simplified updates.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect", "::mlir::tensor::TensorDialect"];
}

def FoldNormsPass : Pass<"kaon-fold-norms", "::mlir::func::FuncOp"> {
  let summary = "Let products scale what was normalized (approximate)";
  let description = [{
    Dividing a matrix by its norm takes two passes over it: one for the norm, one to
    divide and round for products. Where only `bf16` products read the quotient, they
    can divide instead: the matrix is rounded in the pass that finds the norm, and each
    product gets the number as its `factor`, squared if it multiplies the matrix with
    itself. That is done with a matrix that is multiplied or divided by a single number
    which is divided by what was measured on it, by a reduction of nothing else, if each
    product that reads it is

    * of the matrix with itself, without an addend, or of it with something else, without
      an addend or with the matrix as addend;
    * not one that has a factor already: of two normalized matrices in one product, the
      first has its number applied there;
    * of it with a polynomial of matrices that were divided by their own norms, or their
      rows or columns by theirs (the reason is below).

    All others are left alone, and so is a matrix of one row, whose norm is known before
    the row leaves the chip, and one whose rows or columns have just been scaled: the
    kernel that saves it, if it must be saved, would not be elementwise.

    Sums of products are taken in `f32`, where products of a matrix near 1e-30 vanish and
    those of one near 1e30 overflow. So the matrix is multiplied by a power of two, the
    rescue, first if its number is beyond `2^32` or below `2^-32`: by the one among
    `2^-128`, `2^-64`, `2^64` and `2^128` for which the rest `number / rescue` is within
    `2^-32` and `2^32`. These reach from `2^-160` to `2^160`; the norms of `f32` matrices
    with `2^32` elements are between `2^-149` and `2^144`. The rescue is applied to the
    matrix in `f32`, before it is rounded, where the normalized matrix would have been
    computed; a power of two rounds like one. It is one for nearly all matrices, and then
    the kernel of that select has nothing to do, because its result lies over what is kept
    (`kaon.materialize` stores that in the first pass). A zero matrix, whose number is
    zero, has the rescue one and stays zero.

    With `x` the normalized matrix, products are of `y = x / rest`. If the norm of `x` is
    between `2^-26` and `2^31`, sums of products `y y^T` are below `2^126`, and the square
    of the rest is at least `2^-64`: neither overflows nor vanishes. Terms lose bits only
    below `2^-126`, which is `2^-62` after scaling (for `rest = 2^32`) and no more than
    `2^-10` of the square of the norm of `x`, less than half of the last digit of `bf16`.
    What a matrix is divided by is not bounded: `c * u / norm(u)` with a `c` beyond these
    limits overflows or vanishes that much earlier than without this pass.

    Mixed products, of `y` with another matrix `z`, are up to `2^32` times larger or
    smaller than those of `x` with `z`. Where `z` may be of any size, say a state that holds
    squares of gradients near 1e-30, they would vanish, or overflow, earlier than without
    this pass. So `z` must have its size from normalization, too: polynomials of normalized
    matrices have sizes around one, whatever a step is given, as long as their coefficients
    have. Scalars of the host are taken for such numbers, between `2^-60` and `2^60`. An epsilon
    that outweighs a norm leaves what it guards as small as it is, with so much less room.

    Each guard, the select of what is kept or moved, is a kernel of its own
    (`kaon-fuse-kernels`): one that had something else to write would always run. So the
    pass saves a pass over each matrix, and adds a few single numbers.

    Only for `half = bf16`: `f16` has no range for a matrix that is not normalized, which
    keeps its two passes. Every matrix is reported as a remark of category
    `kaon-fold-norms`, with what stands in the way if its norm is not folded.

    Example (`s` was measured on `u`):

    ```mlir
    %b = kaon.broadcast %s : tensor<1x1xf32> to tensor<4x6xf32>
    %x = arith.mulf %u, %b : tensor<4x6xf32>
    %h = arith.truncf %x : tensor<4x6xf32> to tensor<4x6xbf16>
    %a = kaon.matmul %h, %h transpose_b symmetric : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
    %y = kaon.matmul %a, %h : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
    ```
    becomes
    ```mlir
    // %rescue, %rest = %s / %rescue and %square = %rest * %rest, rounded to f32
    %0 = arith.truncf %u : tensor<4x6xf32> to tensor<4x6xbf16>
    %1 = kaon.materialize %0 : tensor<4x6xbf16>
    // %isOne: whether %rescue is one; %2: %u times %rescue, rounded
    %h = arith.select %isOne, %1, %2 : tensor<4x6xi1>, tensor<4x6xbf16>
    %a = kaon.matmul %h, %h transpose_b symmetric factor %square : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
    %y = kaon.matmul %a, %h factor %rest : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
    ```

    Numeric class: approximate. A matrix has the relative error of `bf16` before its
    number is applied instead of after. Needs narrow products.
  }];
  let dependentDialects = ["::kaon::KaonDialect", "::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

def BucketPass : Pass<"kaon-bucket", "::mlir::ModuleOp"> {
  let summary = "Group the matrices that a step handles together (bitwise)";
  let description = [{
    For every phase of every program, matrices with the same update form a bucket.
    As many of them run at once as fit into `max-concurrent-bytes`, counted by the
    size of the matrix, in rounds of equal size: many small ones fill all threads in
    one launch, large ones fill them alone and then stay in cache. Every bucket is
    reported as a remark of category `kaon-bucket`.

    Example:

    ```mlir
    kaon.program @step {
      kaon.parameter @muon_4x6 "a" scalars 0 phase 0
      kaon.parameter @muon_4x6 "b" scalars 0 phase 0
    }
    ```

    gains

    ```mlir
    kaon.phase 0 {
      kaon.bucket @muon_4x6 parameters [0, 1] concurrent 2
    }
    ```

    Numeric class: bitwise. Needs split phases.
  }];
  let options = [
    Option<"maxConcurrentBytes", "max-concurrent-bytes", "int64_t", /*default=*/"2 << 20",
           "Bytes of matrices that may be in flight at once">];
}

def FuseKernelsPass : Pass<"kaon-fuse-kernels", "::mlir::func::FuncOp"> {
  let summary = "Form kernels, each one pass over memory (reassociating)";
  let description = [{
    Moves all elementwise ops, reductions and broadcasts of an update into
    `kaon.kernel` ops. Products, transposes and reductions of the whole matrix cut
    the update into stages; within a stage, everything over one shape becomes one
    kernel, in which a row (or a column) stays in registers or cache between its
    norm and its use. What a later stage needs is computed there again if reading
    its inputs costs no more than storing and loading it, else it is stored.

    A sum of the whole matrix becomes a sum of each row, in `f64`, and a small
    kernel over the `1xM` row sums. Numbers are passed to kernels as scalars, so
    that equal kernels of different shapes stay equal.

    A matrix that equals a materialized one (`kaon.materialize`) unless a single number
    says otherwise is never computed together with others. Its kernel has one result,
    which can lie over the materialized matrix (`kaon-plan-memory`), and then nothing to
    do for most matrices.

    Every kernel is reported as a remark of category `kaon-fuse-kernels`, and so is a
    materialized matrix that is chosen or not in another way, by a kernel that always runs,
    and an argument that is copied for products or views.

    Example:

    ```mlir
    %n = kaon.reduce sum %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
    %b = kaon.broadcast %n : tensor<4x1xf32> to tensor<4x6xf32>
    %y = arith.divf %x, %b : tensor<4x6xf32>
    ```

    becomes

    ```mlir
    %y = kaon.kernel rows ins(%x : tensor<4x6xf32>) {
    ^bb0(%a: tensor<4x6xf32>):
      // the same three ops on %a
      kaon.yield %2 : tensor<4x6xf32>
    } -> tensor<4x6xf32>
    ```

    Numeric class: reassociating (sums of the whole matrix), else bitwise. Needs
    expanded updates and split phases.
  }];
  let dependentDialects = ["::kaon::KaonDialect", "::mlir::arith::ArithDialect",
                           "::mlir::tensor::TensorDialect"];
}

def FuseProductEpiloguePass : Pass<"kaon-fuse-product-epilogue", "::mlir::ModuleOp"> {
  let summary = "Let the last product change the parameter (approximate)";
  let description = [{
    An elementwise kernel that computes the new parameter from the old one, a 16-bit
    product and host scalars, and nothing else, becomes the epilogue of that product:
    the product is neither stored nor read again. The product must have no other use
    and not be symmetric, and nothing may read the old parameter afterwards, because the
    new one is written over it. Every epilogue is reported as a remark of category
    `kaon-fuse-product-epilogue`, and so is what stands in the way of one.

    Example:

    ```mlir
    %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
    %w1 = kaon.kernel elementwise ins(%w, %p : tensor<4x6xf32>, tensor<4x6xbf16>) scalars(%lr : f64) {
      // widens %p
    } -> tensor<4x6xf32>
    return %w1 : tensor<4x6xf32>
    ```

    becomes

    ```mlir
    %w1 = kaon.matmul %a, %x epilogue @kernel_93bd1f0c52d06e4a(%w : tensor<4x6xf32>) scalars(%lr)
        : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xf32>
    ```

    Numeric class: approximate. The kernel gets the product before it is rounded to 16
    bits, which is closer to the exact result. Needs kernels that are not outlined yet.
  }];
  let dependentDialects = ["::kaon::KaonDialect", "::mlir::func::FuncDialect",
                           "::mlir::tensor::TensorDialect"];
}

def PackOperandsPass : Pass<"kaon-pack-operands", "::mlir::func::FuncOp"> {
  let summary = "Pack the operands of products (bitwise)";
  let description = [{
    Inserts a `kaon.pack` per distinct operand of every `kaon.matmul`, sized by the
    module attribute `kaon.cpu`, and makes the product take packed operands. An
    operand that several products read on the same side is packed once.

    Example (`mr = 4`, `nr = 8`):

    ```mlir
    %d = kaon.matmul %a, %b : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
    ```

    becomes

    ```mlir
    %p = kaon.pack lhs %a : tensor<4x6xf32> -> tensor<1x24xf32>
    %q = kaon.pack rhs %b : tensor<6x8xf32> -> tensor<1x48xf32>
    %d = kaon.matmul %p, %q packed sizes [4, 8, 6]
        : (tensor<1x24xf32>, tensor<1x48xf32>) -> tensor<4x8xf32>
    ```

    Numeric class: bitwise.
  }];
  let dependentDialects = ["::kaon::KaonDialect"];
}

def OutlineKernelsPass : Pass<"kaon-outline-kernels", "::mlir::ModuleOp"> {
  let summary = "Make one function per distinct kernel, free of shapes (bitwise)";
  let description = [{
    Every `kaon.kernel` becomes a `kaon.launch` of a private function whose shapes
    are erased: a dimension that is not one becomes dynamic. Equal bodies share
    one function, named after a hash of its text, so that the same kernel has the
    same name in every module, whatever its locations and however it is printed. A
    function that has the name already is used only if its body is the same.

    Example:

    ```mlir
    %r = kaon.launch @kernel_93bd1f0c52d06e4a ins(%x : tensor<4x6xf32>) -> tensor<4x6xf32>
    ```

    Numeric class: bitwise.
  }];
  let dependentDialects = ["::kaon::KaonDialect", "::mlir::func::FuncDialect",
                           "::mlir::tensor::TensorDialect"];
}

def PlanMemoryPass : Pass<"kaon-plan-memory", "::mlir::ModuleOp"> {
  let summary = "Decide where every value lives (bitwise)";
  let description = [{
    Gives every result of an update a place (`kaon.buffers`) and every update the
    size of its workspace (`kaon.workspace`). The new parameter and the new states
    are written in place over the old ones where nothing reads an old value
    afterwards, else to the workspace and copied at the end, which a remark of category
    `kaon-plan-memory` says. Values whose lives do not meet share memory; a kernel, or a
    product with an addend, may overwrite an operand of its result's shape that nobody
    reads later. A kernel whose result is one of its operands as long as a single number
    says so overwrites that one, if it may; if not, a remark says that the kernel moves
    it. Offsets are multiples of 64 bytes.

    For CUDA offsets are multiples of 256 bytes, and rows of 16-bit matrices start at
    multiples of 16 bytes. What a 16-bit product reads or stores lies in the
    workspace, since the caller's rows need not be aligned; a product with an epilogue
    writes the new parameter over the old one.

    Buckets lower their concurrency until their workspaces fit into three times
    the bytes of the matrices of the program's largest bucket.

    The plan is executed symbolically before it is accepted, and once more when a
    step plan is made of it, so that a dump may be edited: every operand must still
    be in the memory it was written to, and every result where it belongs. Planned
    ops have memory effects and keep their order.

    Numeric class: bitwise. Needs outlined kernels.
  }];
  let dependentDialects = ["::kaon::KaonDialect", "::mlir::func::FuncDialect"];
}

def GroupBucketsPass : Pass<"kaon-group-buckets", "::mlir::ModuleOp"> {
  let summary = "Let buckets of a GPU share launches (bitwise)";
  let description = [{
    A bucket alone often has too few blocks for a GPU, and every launch costs time. On a
    GPU (`kaon.cuda` on the module), kernels find the shapes of their matrices in tables,
    so that one launch covers the matrices of several buckets. Buckets of a phase whose
    updates launch the same kernels become a `kaon.group`, which runs them in lock-step.

    Buckets are taken by the size of their matrices, largest first. Each joins the group
    with which it shares most launches, the first of several, or starts one if it shares
    none: its launches are aligned with those of the group along a longest common
    subsequence of kernels, and what is left over stays a launch of its own. So updates
    with the same kernels run in exact lock-step, and a Gram form and a standard one share
    what they have in common.

    All matrices of a group are in flight at once, each in a workspace of its own, so a
    group takes the workspaces of all its buckets. Their sum is at most
    `max-workspace-bytes` when a bucket with a workspace joins; with 0 only buckets
    without any workspace join others. Buckets that run in several rounds stay alone;
    those without any workspace need no rounds and get one.

    All blocks of a launch get the shared memory of the matrix that needs most. Where
    that would leave a bucket fewer than half of the blocks that a multiprocessor has
    room for, as with rows of a very wide matrix, the launch stays its own.

    Every group, and every bucket that either keeps out of one, is reported as a
    remark of category `kaon-group-buckets`. Leaves modules for the CPU alone.

    Example:

    ```mlir
    kaon.bucket @wide parameters [0, 1] concurrent 2    // kernels a, b, c
    kaon.bucket @square parameters [2] concurrent 1     // kernels a, c
    ```

    becomes

    ```mlir
    kaon.group launches [[0, 1], [0], [0, 1]] {
      kaon.bucket @wide parameters [0, 1] concurrent 2
      kaon.bucket @square parameters [2] concurrent 1
    }
    ```

    Numeric class: bitwise. Needs planned memory.
  }];
  let dependentDialects = ["::kaon::KaonDialect"];
  let options = [
    Option<"maxWorkspaceBytes", "max-workspace-bytes", "int64_t", /*default=*/"int64_t(1) << 30",
           "Bytes of workspace that a group may take">,
  ];
}

#endif // KAON_PASSES_PASSES_TD
