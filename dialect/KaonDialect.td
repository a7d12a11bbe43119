//===-- KaonDialect.td - dialect and base classes ------------*- tablegen -*-===//
//
// The dialect, its op base class and the type constraints shared by all ops.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_DIALECT_KAONDIALECT_TD
#define KAON_DIALECT_KAONDIALECT_TD

include "mlir/Interfaces/SideEffectInterfaces.td"
include "mlir/IR/OpBase.td"

def KaonDialect : Dialect {
  let name = "kaon";
  let cppNamespace = "::kaon";
  let summary = "Updates of matrix optimizers";
  let description = [{
    An *update* maps a parameter, its gradient and its states to the new
    parameter and the new states. It is a `func.func` that carries the unit
    attribute `kaon.update`, and whose arguments carry their role:

    ```mlir
    func.func @sgd(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                   %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                   %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                   %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
        -> tensor<4x6xf32> attributes {kaon.update} {
      %zero = arith.constant 0.0 : f64
      %w1 = kaon.apply decoupled %w, %g step_size %lr decay %zero : tensor<4x6xf32>
      return %w1 : tensor<4x6xf32>
    }
    ```

    Values are matrices: ranked tensors of rank 2. One value per row is an
    `Mx1` matrix, one per column `1xN`, a single device scalar `1x1`. Host
    scalars (hyperparameters, expressions over them and over the step count)
    are plain `f64` values, computed once per step on the host. Elementwise
    arithmetic uses the `arith` and `math` dialects; broadcasting is explicit.

    Discardable attributes of the dialect, all verified:

    | Attribute | On | Meaning |
    | --- | --- | --- |
    | `kaon.update` | function | the function is an update |
    | `kaon.role`, `kaon.name` | argument of an update | what the argument is, and the user's name for it |
    | `kaon.init` | state argument | value of every element before the first step |
    | `kaon.kernel` | function | the function is the body of a kernel with this schedule |
    | `kaon.library` | function | the declared function is the library kernel of this name |
    | `kaon.buffers` | op of an update | where each result lives |
    | `kaon.workspace` | update | bytes of scratch memory that one matrix needs |
    | `kaon.cpu` | module | what is known of the processor the module is compiled for |
    | `kaon.cuda` | module | what is known of the GPU the module is compiled for; not along with `kaon.cpu` |

    Ops that carry `kaon.buffers` are statements rather than functions: each has
    memory effects, and is right only where it stands. Planned IR is not to be
    reordered; `kaon-plan-memory` and every step plan that is built check it.

    Version log:
      * 0.1.0: update math, programs, kernels.
  }];
  let dependentDialects = ["::mlir::arith::ArithDialect",
                           "::mlir::tensor::TensorDialect"];
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;

  let extraClassDeclaration = [{
    static constexpr ::llvm::StringLiteral getUpdateAttrName() { return "kaon.update"; }
    static constexpr ::llvm::StringLiteral getRoleAttrName() { return "kaon.role"; }
    static constexpr ::llvm::StringLiteral getNameAttrName() { return "kaon.name"; }
    static constexpr ::llvm::StringLiteral getInitAttrName() { return "kaon.init"; }
    static constexpr ::llvm::StringLiteral getKernelAttrName() { return "kaon.kernel"; }
    static constexpr ::llvm::StringLiteral getLibraryAttrName() { return "kaon.library"; }
    static constexpr ::llvm::StringLiteral getBuffersAttrName() { return "kaon.buffers"; }
    static constexpr ::llvm::StringLiteral getWorkspaceAttrName() { return "kaon.workspace"; }
    static constexpr ::llvm::StringLiteral getCpuAttrName() { return "kaon.cpu"; }
    static constexpr ::llvm::StringLiteral getCudaAttrName() { return "kaon.cuda"; }
  }];
}

//===----------------------------------------------------------------------===//
// Base classes and type constraints
//===----------------------------------------------------------------------===//

// A function of its operands, until `kaon.buffers` says which memory it reads and
// writes: then it may not be merged, dropped or moved any more.
def Kaon_PureUntilPlanned : TraitList<[
    AlwaysSpeculatable, DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]>;

class Kaon_Op<string mnemonic, list<Trait> traits = []>
    : Op<KaonDialect, mnemonic, traits>;

def Kaon_ComputeType : AnyTypeOf<[F32, F64], "f32 or f64">;
def Kaon_StorageType : AnyTypeOf<[BF16, F16, F32, F64], "bf16, f16, f32 or f64">;

class Kaon_MatrixOf<Type element> : Type<
    And<[CPred<"::llvm::isa<::mlir::RankedTensorType>($_self)">,
         CPred<"::llvm::cast<::mlir::RankedTensorType>($_self).getRank() == 2">,
         CPred<"!::llvm::cast<::mlir::RankedTensorType>($_self).getEncoding()">,
         Concat<"[](::mlir::Type elementType) { return ",
                SubstLeaves<"$_self", "elementType", element.predicate>,
                "; }(::llvm::cast<::mlir::RankedTensorType>($_self).getElementType())">]>,
    "rank-2 tensor of " # element.summary, "::mlir::RankedTensorType">;

// Arithmetic happens in the compute type; memory may hold narrower ones.
def Kaon_Matrix : Kaon_MatrixOf<Kaon_ComputeType>;
def Kaon_StorageMatrix : Kaon_MatrixOf<Kaon_StorageType>;
// A number that only the device knows.
def Kaon_DeviceNumber : Type<
    CPred<"$_self == ::mlir::RankedTensorType::get({1, 1}, ::mlir::Float32Type::get($_self.getContext()))">,
    "tensor<1x1xf32>", "::mlir::RankedTensorType">,
    BuildableType<"::mlir::RankedTensorType::get({1, 1}, $_builder.getF32Type())">;
// What regions yield: matrices and host scalars.
def Kaon_Value : AnyTypeOf<[Kaon_StorageMatrix, F64], "rank-2 tensor of bf16, f16, f32 or f64, or f64">;

#endif // KAON_DIALECT_KAONDIALECT_TD
