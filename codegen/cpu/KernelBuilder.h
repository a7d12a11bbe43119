//===-- KernelBuilder.h - building the bodies of kernels --------*- C++ -*-===//
//
// A builder for kernel bodies: i64 index arithmetic, counted loops, pointers
// and vectors, in `scf`, `arith`, `math`, `vector` and `llvm`. It adds nothing
// to those dialects but brevity.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CPU_KERNELBUILDER_H
#define KAON_CODEGEN_CPU_KERNELBUILDER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace kaon::cpu {

/// The arguments of a kernel as runtime/KernelAbi.h lists them.
struct KernelArguments {
  mlir::Value buffers, scalars, sizes, begin, end;
};

class KernelBuilder : public mlir::ImplicitLocOpBuilder {
public:
  using Values = llvm::SmallVector<mlir::Value>;

  explicit KernelBuilder(mlir::Location loc, mlir::MLIRContext *context)
      : ImplicitLocOpBuilder(loc, context) {}

  /// Creates a public function with the kernel ABI and sets the insertion point
  /// to its entry block, which ends in a return.
  mlir::func::FuncOp createKernel(mlir::ModuleOp module, llvm::StringRef name,
                                  KernelArguments &arguments);

  mlir::LLVM::LLVMPointerType pointerType() {
    return mlir::LLVM::LLVMPointerType::get(getContext());
  }

  //===--- integers ---------------------------------------------------------//

  mlir::Value index(int64_t value);
  mlir::Value add(mlir::Value a, mlir::Value b);
  mlir::Value add(mlir::Value a, int64_t b) {
    return b == 0 ? a : add(a, index(b));
  }
  mlir::Value sub(mlir::Value a, mlir::Value b);
  mlir::Value sub(mlir::Value a, int64_t b) { return sub(a, index(b)); }
  mlir::Value mul(mlir::Value a, mlir::Value b);
  mlir::Value mul(mlir::Value a, int64_t b) {
    return b == 1 ? a : mul(a, index(b));
  }
  /// Division of non-negative numbers.
  mlir::Value div(mlir::Value a, mlir::Value b);
  mlir::Value div(mlir::Value a, int64_t b) { return div(a, index(b)); }
  mlir::Value rem(mlir::Value a, mlir::Value b);
  mlir::Value ceilDiv(mlir::Value a, int64_t b) {
    return div(add(a, b - 1), b);
  }
  mlir::Value roundDown(mlir::Value a, int64_t b) { return mul(div(a, b), b); }
  mlir::Value roundUp(mlir::Value a, int64_t b) {
    return mul(ceilDiv(a, b), b);
  }
  mlir::Value min(mlir::Value a, mlir::Value b);
  mlir::Value max(mlir::Value a, mlir::Value b);
  mlir::Value compare(mlir::arith::CmpIPredicate predicate, mlir::Value a,
                      mlir::Value b);
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b);

  //===--- memory -----------------------------------------------------------//

  /// Address of element `offset` of an array of `element` at `base`.
  mlir::Value address(mlir::Value base, mlir::Type element, mlir::Value offset);
  mlir::Value address(mlir::Value base, mlir::Type element, int64_t offset);
  /// Loads or stores a scalar or a vector that is aligned like its element.
  mlir::Value load(mlir::Type type, mlir::Value pointer);
  void store(mlir::Value value, mlir::Value pointer);
  /// Loads `count` leading lanes; the others are zero.
  mlir::Value loadMasked(mlir::VectorType type, mlir::Value pointer,
                         mlir::Value mask);
  void storeMasked(mlir::Value value, mlir::Value pointer, mlir::Value mask);
  /// An array on the stack, aligned for every vector. Only in the entry block.
  mlir::Value stackArray(mlir::Type element, int64_t count);

  /// Fields of entry `i` of the kernel's buffers, and of its other arrays.
  mlir::Value bufferData(const KernelArguments &arguments, int64_t i);
  mlir::Value bufferStride(const KernelArguments &arguments, int64_t i);
  mlir::Value scalar(const KernelArguments &arguments, int64_t i);
  mlir::Value size(const KernelArguments &arguments, int64_t i);

  //===--- control ----------------------------------------------------------//

  /// A loop over [begin, end) by `step`. `body` receives the induction variable
  /// and the carried values and returns their next values.
  Values loop(mlir::Value begin, mlir::Value end, int64_t step,
              mlir::ValueRange init,
              llvm::function_ref<Values(mlir::Value, mlir::ValueRange)> body);
  void loop(mlir::Value begin, mlir::Value end, int64_t step,
            llvm::function_ref<void(mlir::Value)> body);
  void ifThen(mlir::Value condition, llvm::function_ref<void()> then);
  void ifElse(mlir::Value condition, llvm::function_ref<void()> then,
              llvm::function_ref<void()> otherwise);

  //===--- vectors ----------------------------------------------------------//

  mlir::Value splat(mlir::Value scalar, int64_t lanes);
  mlir::Value shuffle(mlir::Value a, mlir::Value b,
                      llvm::ArrayRef<int64_t> lanes);
  /// Whether each of `lanes` lanes is below `count`.
  mlir::Value laneMask(int64_t lanes, mlir::Value count);
  /// The transpose of a square of vectors, in registers; a power of two.
  Values transpose(Values rows);
};

} // namespace kaon::cpu

#endif // KAON_CODEGEN_CPU_KERNELBUILDER_H
