//===-- KernelBuilder.cpp - building the bodies of kernels ----------------===//

#include "codegen/cpu/KernelBuilder.h"

#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace kaon::cpu {

func::FuncOp KernelBuilder::createKernel(ModuleOp module, StringRef name,
                                         KernelArguments &arguments) {
  setInsertionPointToEnd(module.getBody());
  Type pointer = pointerType(), i64 = getI64Type();
  auto kernel = func::FuncOp::create(
      *this, name, getFunctionType({pointer, pointer, pointer, i64, i64}, {}));
  for (unsigned i : {0u, 1u, 2u}) {
    kernel.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(),
                      getUnitAttr());
    kernel.setArgAttr(i, LLVM::LLVMDialect::getReadonlyAttrName(),
                      getUnitAttr());
  }
  Block *entry = kernel.addEntryBlock();
  setInsertionPointToEnd(entry);
  func::ReturnOp::create(*this);
  setInsertionPointToStart(entry);
  arguments = {entry->getArgument(0), entry->getArgument(1),
               entry->getArgument(2), entry->getArgument(3),
               entry->getArgument(4)};
  return kernel;
}

//===----------------------------------------------------------------------===//
// Integers
//===----------------------------------------------------------------------===//

Value KernelBuilder::index(int64_t value) {
  return arith::ConstantIntOp::create(*this, value, 64);
}
Value KernelBuilder::add(Value a, Value b) {
  return arith::AddIOp::create(*this, a, b);
}
Value KernelBuilder::sub(Value a, Value b) {
  return arith::SubIOp::create(*this, a, b);
}
Value KernelBuilder::mul(Value a, Value b) {
  return arith::MulIOp::create(*this, a, b);
}
Value KernelBuilder::div(Value a, Value b) {
  return arith::DivUIOp::create(*this, a, b);
}
Value KernelBuilder::rem(Value a, Value b) {
  return arith::RemUIOp::create(*this, a, b);
}
Value KernelBuilder::min(Value a, Value b) {
  return arith::MinSIOp::create(*this, a, b);
}
Value KernelBuilder::max(Value a, Value b) {
  return arith::MaxSIOp::create(*this, a, b);
}

Value KernelBuilder::compare(arith::CmpIPredicate predicate, Value a, Value b) {
  return arith::CmpIOp::create(*this, predicate, a, b);
}

Value KernelBuilder::select(Value condition, Value a, Value b) {
  return arith::SelectOp::create(*this, condition, a, b);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

static unsigned alignmentOf(Type type) {
  return std::max(1u, getElementTypeOrSelf(type).getIntOrFloatBitWidth() / 8);
}

Value KernelBuilder::address(Value base, Type element, Value offset) {
  return LLVM::GEPOp::create(*this, pointerType(), element, base,
                             ArrayRef<LLVM::GEPArg>{offset});
}

Value KernelBuilder::address(Value base, Type element, int64_t offset) {
  if (offset == 0) {
    return base;
  }
  return LLVM::GEPOp::create(
      *this, pointerType(), element, base,
      ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(offset)});
}

Value KernelBuilder::load(Type type, Value pointer) {
  unsigned alignment = isa<LLVM::LLVMPointerType>(type) ? 8 : alignmentOf(type);
  return LLVM::LoadOp::create(*this, type, pointer, alignment);
}

void KernelBuilder::store(Value value, Value pointer) {
  LLVM::StoreOp::create(*this, value, pointer, alignmentOf(value.getType()));
}

Value KernelBuilder::loadMasked(VectorType type, Value pointer, Value mask) {
  Value zero = arith::ConstantOp::create(*this, getZeroAttr(type));
  return LLVM::MaskedLoadOp::create(*this, type, pointer, mask, zero,
                                    getI32IntegerAttr(alignmentOf(type)),
                                    /*nontemporal=*/UnitAttr());
}

void KernelBuilder::storeMasked(Value value, Value pointer, Value mask) {
  LLVM::MaskedStoreOp::create(*this, value, pointer, mask,
                              getI32IntegerAttr(alignmentOf(value.getType())));
}

Value KernelBuilder::stackArray(Type element, int64_t count) {
  return LLVM::AllocaOp::create(*this, pointerType(), element, index(count),
                                /*alignment=*/64);
}

Value KernelBuilder::bufferData(const KernelArguments &arguments, int64_t i) {
  return load(pointerType(), address(arguments.buffers, getI64Type(), 2 * i));
}

Value KernelBuilder::bufferStride(const KernelArguments &arguments, int64_t i) {
  return load(getI64Type(),
              address(arguments.buffers, getI64Type(), 2 * i + 1));
}

Value KernelBuilder::scalar(const KernelArguments &arguments, int64_t i) {
  return load(getF64Type(), address(arguments.scalars, getF64Type(), i));
}

Value KernelBuilder::size(const KernelArguments &arguments, int64_t i) {
  return load(getI64Type(), address(arguments.sizes, getI64Type(), i));
}

//===----------------------------------------------------------------------===//
// Control
//===----------------------------------------------------------------------===//

KernelBuilder::Values
KernelBuilder::loop(Value begin, Value end, int64_t step, ValueRange init,
                    function_ref<Values(Value, ValueRange)> body) {
  Value stepValue = index(step);
  auto loop =
      scf::ForOp::create(*this, begin, end, stepValue, init,
                         [&](OpBuilder &, Location, Value iv, ValueRange args) {
                           // The nested builder shares nothing with this one:
                           // move the insertion point.
                           InsertionGuard guard(*this);
                           setInsertionPointToEnd(iv.getParentBlock());
                           Values next = body(iv, args);
                           scf::YieldOp::create(*this, next);
                         });
  return Values(loop.getResults());
}

void KernelBuilder::loop(Value begin, Value end, int64_t step,
                         function_ref<void(Value)> body) {
  loop(begin, end, step, {}, [&](Value iv, ValueRange) {
    body(iv);
    return Values();
  });
}

void KernelBuilder::ifThen(Value condition, function_ref<void()> then) {
  auto op = scf::IfOp::create(*this, condition, /*withElseRegion=*/false);
  InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  then();
}

void KernelBuilder::ifElse(Value condition, function_ref<void()> then,
                           function_ref<void()> otherwise) {
  auto op = scf::IfOp::create(*this, condition, /*withElseRegion=*/true);
  InsertionGuard guard(*this);
  setInsertionPointToStart(op.thenBlock());
  then();
  setInsertionPointToStart(op.elseBlock());
  otherwise();
}

//===----------------------------------------------------------------------===//
// Vectors
//===----------------------------------------------------------------------===//

Value KernelBuilder::splat(Value scalar, int64_t lanes) {
  return vector::BroadcastOp::create(
      *this, VectorType::get({lanes}, scalar.getType()), scalar);
}

Value KernelBuilder::shuffle(Value a, Value b, ArrayRef<int64_t> lanes) {
  return vector::ShuffleOp::create(*this, a, b, lanes);
}

Value KernelBuilder::laneMask(int64_t lanes, Value count) {
  auto numbers = llvm::to_vector(llvm::seq<int32_t>(0, lanes));
  auto type = VectorType::get({lanes}, getI32Type());
  Value iota = arith::ConstantOp::create(
      *this, DenseIntElementsAttr::get(type, numbers));
  Value bound =
      arith::TruncIOp::create(*this, getI32Type(), min(count, index(lanes)));
  return compare(arith::CmpIPredicate::slt, iota, splat(bound, lanes));
}

KernelBuilder::Values KernelBuilder::transpose(Values rows) {
  // Swaps ever smaller off-diagonal squares; every step of 128 bits or wider is
  // one instruction per row.
  int64_t width = rows.size();
  for (int64_t half = width / 2; half > 0; half /= 2) {
    SmallVector<int64_t> low(width), high(width);
    for (int64_t lane = 0; lane < width; ++lane) {
      bool upper = lane & half;
      low[lane] = upper ? width + lane - half : lane;
      high[lane] = upper ? width + lane : lane + half;
    }
    for (int64_t i = 0; i < width; ++i) {
      if (i & half) {
        continue;
      }
      Value a = rows[i], b = rows[i + half];
      rows[i] = shuffle(a, b, low);
      rows[i + half] = shuffle(a, b, high);
    }
  }
  return rows;
}

} // namespace kaon::cpu
