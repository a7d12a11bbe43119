//===-- KaonAttrs.td - enums and attributes ------------------*- tablegen -*-===//
//
// Every choice an op offers is an enum, printed as a bare keyword in the op and
// as `#kaon.<mnemonic><keyword>` elsewhere.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONATTRS_TD
#define KAON_DIALECT_KAONATTRS_TD

include "dialect/KaonDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

class Kaon_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::kaon";
  let genSpecializedAttr = 0;
}

class Kaon_EnumAttr<EnumInfo info, string mnemonic, string text>
    : EnumAttr<KaonDialect, info, mnemonic> {
  let assemblyFormat = "`<` $value `>`";
  let description = text;
}

//===----------------------------------------------------------------------===//
// Keywords of update math
//===----------------------------------------------------------------------===//

def Kaon_MomentumForm : Kaon_Enum<"MomentumForm", "how a momentum accumulates", [
    I32EnumAttrCase<"Lerp", 0, "lerp">,
    I32EnumAttrCase<"HeavyBall", 1, "heavy_ball">]>;
def Kaon_MomentumFormAttr : Kaon_EnumAttr<Kaon_MomentumForm, "momentum_form",
    "`lerp`: weighted mean of momentum and gradient; `heavy_ball`: decayed sum of gradients.">;

def Kaon_Along : Kaon_Enum<"Along", "which elements are taken together", [
    I32EnumAttrCase<"Row", 0, "row">,
    I32EnumAttrCase<"Column", 1, "column">,
    I32EnumAttrCase<"All", 2, "all">]>;
def Kaon_AlongAttr : Kaon_EnumAttr<Kaon_Along, "along",
    "`row`: one result per row (`Mx1`); `column`: one per column (`1xN`); `all`: a single one (`1x1`).">;

def Kaon_NormalizeMode : Kaon_Enum<"NormalizeMode", "how epsilon guards a division by a norm", [
    I32EnumAttrCase<"Max", 0, "max">,
    I32EnumAttrCase<"Add", 1, "add">,
    I32EnumAttrCase<"None", 2, "none">]>;
def Kaon_NormalizeModeAttr : Kaon_EnumAttr<Kaon_NormalizeMode, "normalize_mode",
    "`max`: divide by `max(scale * norm, epsilon)`; `add`: divide by `scale * norm + epsilon`; `none`: do not divide.">;

def Kaon_ReduceKind : Kaon_Enum<"ReduceKind", "what a reduction computes", [
    I32EnumAttrCase<"Sum", 0, "sum">,
    I32EnumAttrCase<"Max", 1, "max">,
    I32EnumAttrCase<"Min", 2, "min">]>;
def Kaon_ReduceKindAttr : Kaon_EnumAttr<Kaon_ReduceKind, "reduce_kind",
    "`sum`, `max` or `min` of the elements.">;

def Kaon_ApplyForm : Kaon_Enum<"ApplyForm", "how weight decay joins an update", [
    I32EnumAttrCase<"Decoupled", 0, "decoupled">,
    I32EnumAttrCase<"After", 1, "after">,
    I32EnumAttrCase<"Cautious", 2, "cautious">]>;
def Kaon_ApplyFormAttr : Kaon_EnumAttr<Kaon_ApplyForm, "apply_form",
    "`decoupled`: decay the old parameter; `after`: decay the new one; `cautious`: decay only where the update agrees in sign with the parameter.">;

//===----------------------------------------------------------------------===//
// Functions, kernels, memory
//===----------------------------------------------------------------------===//

def Kaon_Role : Kaon_Enum<"Role", "what an argument of an update is", [
    I32EnumAttrCase<"Param", 0, "param">,
    I32EnumAttrCase<"Grad", 1, "grad">,
    I32EnumAttrCase<"State", 2, "state">,
    I32EnumAttrCase<"Scalar", 3, "scalar">,
    I32EnumAttrCase<"Step", 4, "step">]>;
def Kaon_RoleAttr : Kaon_EnumAttr<Kaon_Role, "role", [{
    Arguments of an update come in this order: one `param`, one `grad`, any
    number of `state`, any number of `scalar` (`f64`), one `step` (`i64`, 1 at
    the first step).}]>;

def Kaon_Schedule : Kaon_Enum<"Schedule", "how a kernel walks over its matrices", [
    I32EnumAttrCase<"Elementwise", 0, "elementwise">,
    I32EnumAttrCase<"Rows", 1, "rows">,
    I32EnumAttrCase<"Columns", 2, "columns">]>;
def Kaon_ScheduleAttr : Kaon_EnumAttr<Kaon_Schedule, "schedule", [{
    `elementwise`: element by element, over flattened memory where it is
    contiguous; `rows`: one row is one unit of work; `columns`: a block of
    columns is one unit of work.}]>;

def Kaon_PackSide : Kaon_Enum<"PackSide", "which operand of a product is packed", [
    I32EnumAttrCase<"Lhs", 0, "lhs">,
    I32EnumAttrCase<"Rhs", 1, "rhs">]>;
def Kaon_PackSideAttr : Kaon_EnumAttr<Kaon_PackSide, "pack_side",
    "`lhs`: slivers of rows; `rhs`: slivers of columns.">;

def Kaon_BufferKind : Kaon_Enum<"BufferKind", "which memory a value lives in", [
    I32EnumAttrCase<"Workspace", 0, "workspace">,
    I32EnumAttrCase<"State", 1, "state">,
    I32EnumAttrCase<"Param", 2, "param">]>;

def Kaon_BufferAttr : AttrDef<KaonDialect, "Buffer"> {
  let mnemonic = "buffer";
  let summary = "Where a value lives";
  let description = [{
    `#kaon.buffer<workspace, 4096>`: at byte 4096 of the matrix's workspace.
    `#kaon.buffer<state, 1>`: in place over the second state.
    `#kaon.buffer<param, 0>`: in place over the parameter.
  }];
  let parameters = (ins EnumParameter<Kaon_BufferKind>:$kind, "int64_t":$offset);
  let assemblyFormat = "`<` $kind `,` $offset `>`";
  let genVerifyDecl = 1;
}
def Kaon_BufferArrayAttr : TypedArrayAttrBase<Kaon_BufferAttr, "array of #kaon.buffer">;

def Kaon_CpuTargetAttr : AttrDef<KaonDialect, "CpuTarget"> {
  let mnemonic = "cpu_target";
  let summary = "Register tile and cache blocking of the matrix product";
  let description = [{
    `vector_bits`: width of a vector register. `mr`, `nr`: rows and columns of
    the f32 register tile (f64 uses half of `nr`). `kc`: depth of one pass over
    packed slivers. `block`: rows and columns of the tile of the result that is
    one unit of work.

    Kernels move data in squares, which limits the tile: `mr` is at least 4, `nr`
    a multiple of 8 and of the f32 lanes of a vector, `kc` a multiple of 4, and
    `block` one of `mr` and `nr`.
  }];
  let parameters = (ins "int64_t":$vector_bits, "int64_t":$mr, "int64_t":$nr,
                        "int64_t":$kc, "int64_t":$block);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}

def Kaon_HalfType : Kaon_Enum<"HalfType", "which 16-bit type products take", [
    I32EnumAttrCase<"BF16", 0, "bf16">,
    I32EnumAttrCase<"F16", 1, "f16">]>;

def Kaon_MainLoop : Kaon_Enum<"MainLoop", "how a product's main loop uses the tensor cores", [
    I32EnumAttrCase<"Mma", 0, "mma">,
    I32EnumAttrCase<"Wgmma", 1, "wgmma">]>;

def Kaon_MainLoopParameter : EnumParameter<Kaon_MainLoop> {
  let defaultValue = "::kaon::MainLoop::Mma";
}

def Kaon_CudaTargetAttr : AttrDef<KaonDialect, "CudaTarget"> {
  let mnemonic = "cuda_target";
  let summary = "What the schedule for a GPU depends on";
  let description = [{
    `half`: the type of the operands and results of products. `shared_bytes`: shared
    memory that one block may have, which decides how long a row may be to stay on
    the chip; 166912 on sm_80, 232448 on sm_90 and sm_100. `main_loop`: what multiplies,
    `mma` if nothing else is said, which every architecture has; `wgmma` is for sm_90a,
    and for products whose operands are in the workspace.

    Example: `#kaon.cuda_target<half = bf16, shared_bytes = 166912>`.
  }];
  let parameters = (ins EnumParameter<Kaon_HalfType>:$half, "int64_t":$shared_bytes,
                        Kaon_MainLoopParameter:$main_loop);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The type that `half` names.
    ::mlir::FloatType getHalfType() const;
  }];
}

#endif // KAON_DIALECT_KAONATTRS_TD
