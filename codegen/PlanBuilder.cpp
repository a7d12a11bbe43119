//===-- PlanBuilder.cpp - from a planned module to a step plan ------------===//
//
// Walks each update once. Host scalars become instructions of the scalar
// program, launches, packs, products and transpositions become launches, and
// views of other values become nothing.
//
//===----------------------------------------------------------------------===//

#include "codegen/PlanBuilder.h"

#include "codegen/cpu/LibraryCalls.h"
#include "codegen/cpu/PackedLayout.h"
#include "dialect/Kaon.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "runtime/KernelAbi.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace kaon;
using runtime::ScalarInstruction;
using runtime::ScalarOpcode;
using runtime::ScalarProgram;

// The grain of a launch is decided here and nowhere else; the runtime obeys it.
// How much work one thread takes at a time: some ten microseconds, against
// which the cost of taking it, about one, is little, and which is short enough
// for threads to end together.
static constexpr int64_t grainBytes = int64_t(1) << 18;
static constexpr int64_t grainFlops = int64_t(1) << 20;

// Columns that one thread takes at a time at least, so that it reads whole
// cache lines and leaves those of others alone.
static constexpr int64_t grainColumns = 64;

/// The dialect's schedules and element types have the runtime's keywords; the
/// runtime knows more schedules.
static runtime::Schedule convertSchedule(Schedule schedule) {
  return *runtime::parseSchedule(stringifyEnum(schedule));
}

static bool isMatrix(Value value) {
  return isa<RankedTensorType>(value.getType());
}

namespace {
/// A matrix type with static sizes and an element type that has a place in a
/// plan.
struct MatrixType {
  int64_t rows, cols;
  runtime::ElementType element;
};
} // namespace

static FailureOr<MatrixType> convertMatrixType(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || tensor.getRank() != 2 || !tensor.hasStaticShape()) {
    return failure();
  }
  std::optional<runtime::ElementType> element =
      runtime::parseElementType(cpu::getKeyword(tensor.getElementType()));
  if (!element) {
    return failure();
  }
  return MatrixType{tensor.getDimSize(0), tensor.getDimSize(1), *element};
}

//===----------------------------------------------------------------------===//
// Work of one thread
//===----------------------------------------------------------------------===//

/// Items that one thread takes at a time, given the work of all.
static int64_t chooseGrain(runtime::Schedule schedule,
                           const runtime::Launch &launch) {
  auto enough = [&](int64_t work, int64_t wanted) {
    return work == 0 ? launch.items
                     : std::max<int64_t>(1, wanted * launch.items / work);
  };
  int64_t grain = std::min(enough(launch.bytes, grainBytes),
                           enough(launch.flops, grainFlops));
  if (schedule == runtime::Schedule::Columns) {
    return llvm::alignTo(grain, grainColumns);
  }
  return std::min(grain, launch.items);
}

//===----------------------------------------------------------------------===//
// Host scalars
//===----------------------------------------------------------------------===//

namespace {
/// Turns the host scalars of one update into its scalar program.
class ScalarBuilder {
public:
  explicit ScalarBuilder(ScalarProgram &program) : program(program) {}

  void defineArgument(Value value, int32_t index) {
    registers[value] = program.argument(index);
  }
  void defineStep(Value value) { registers[value] = program.step(); }

  /// Translates an op on host scalars.
  LogicalResult translate(Operation *op);

  /// The register of a host scalar.
  int32_t lookup(Value value) const { return registers.lookup(value); }

  /// The register of a number that is not in the module.
  int32_t getConstant(double value);

private:
  std::optional<int32_t> translateConstant(Attribute value);
  std::optional<int32_t> translateComparison(arith::CmpFPredicate predicate,
                                             int32_t a, int32_t b);
  std::optional<int32_t> translateComparison(arith::CmpIPredicate predicate,
                                             int32_t a, int32_t b);

  ScalarProgram &program;
  DenseMap<Value, int32_t> registers;
};
} // namespace

int32_t ScalarBuilder::getConstant(double value) {
  ScalarInstruction wanted;
  wanted.value = value;
  for (auto [index, instruction] : llvm::enumerate(program.instructions())) {
    if (instruction == wanted) {
      return static_cast<int32_t>(index);
    }
  }
  return program.append(wanted);
}

std::optional<int32_t> ScalarBuilder::translateConstant(Attribute value) {
  if (auto number = dyn_cast<FloatAttr>(value)) {
    return getConstant(number.getValueAsDouble());
  }
  auto number = dyn_cast<IntegerAttr>(value);
  if (!number) {
    return std::nullopt;
  }
  if (number.getType().isInteger(1)) {
    return getConstant(number.getValue().isZero() ? 0.0 : 1.0);
  }
  if (number.getValue().getSignificantBits() > 64) {
    return std::nullopt;
  }
  // Integers are held as f64, which is exact for those that step counts reach.
  int64_t integer = number.getInt();
  constexpr int64_t largest = int64_t(1) << 53;
  if (integer > largest || integer < -largest) {
    return std::nullopt;
  }
  return getConstant(static_cast<double>(integer));
}

std::optional<int32_t>
ScalarBuilder::translateComparison(arith::CmpFPredicate predicate, int32_t a,
                                   int32_t b) {
  auto negate = [&](int32_t value) {
    return program.operation(ScalarOpcode::Not, value);
  };
  switch (predicate) {
  case arith::CmpFPredicate::AlwaysFalse:
    return getConstant(0.0);
  case arith::CmpFPredicate::AlwaysTrue:
    return getConstant(1.0);
  case arith::CmpFPredicate::OEQ:
    return program.operation(ScalarOpcode::Equal, a, b);
  case arith::CmpFPredicate::OGT:
    return program.operation(ScalarOpcode::Less, b, a);
  case arith::CmpFPredicate::OGE:
    return program.operation(ScalarOpcode::LessEqual, b, a);
  case arith::CmpFPredicate::OLT:
    return program.operation(ScalarOpcode::Less, a, b);
  case arith::CmpFPredicate::OLE:
    return program.operation(ScalarOpcode::LessEqual, a, b);
  case arith::CmpFPredicate::ONE: {
    int32_t less = program.operation(ScalarOpcode::Less, a, b);
    int32_t greater = program.operation(ScalarOpcode::Less, b, a);
    return program.operation(ScalarOpcode::Or, less, greater);
  }
  case arith::CmpFPredicate::ORD:
    return negate(program.operation(ScalarOpcode::Unordered, a, b));
  case arith::CmpFPredicate::UEQ: {
    int32_t equal = program.operation(ScalarOpcode::Equal, a, b);
    int32_t unordered = program.operation(ScalarOpcode::Unordered, a, b);
    return program.operation(ScalarOpcode::Or, equal, unordered);
  }
  case arith::CmpFPredicate::UGT:
    return negate(program.operation(ScalarOpcode::LessEqual, a, b));
  case arith::CmpFPredicate::UGE:
    return negate(program.operation(ScalarOpcode::Less, a, b));
  case arith::CmpFPredicate::ULT:
    return negate(program.operation(ScalarOpcode::LessEqual, b, a));
  case arith::CmpFPredicate::ULE:
    return negate(program.operation(ScalarOpcode::Less, b, a));
  case arith::CmpFPredicate::UNE:
    return program.operation(ScalarOpcode::NotEqual, a, b);
  case arith::CmpFPredicate::UNO:
    return program.operation(ScalarOpcode::Unordered, a, b);
  }
  return std::nullopt;
}

std::optional<int32_t>
ScalarBuilder::translateComparison(arith::CmpIPredicate predicate, int32_t a,
                                   int32_t b) {
  switch (predicate) {
  case arith::CmpIPredicate::eq:
    return program.operation(ScalarOpcode::Equal, a, b);
  case arith::CmpIPredicate::ne:
    return program.operation(ScalarOpcode::NotEqual, a, b);
  case arith::CmpIPredicate::slt:
    return program.operation(ScalarOpcode::Less, a, b);
  case arith::CmpIPredicate::sle:
    return program.operation(ScalarOpcode::LessEqual, a, b);
  case arith::CmpIPredicate::sgt:
    return program.operation(ScalarOpcode::Less, b, a);
  case arith::CmpIPredicate::sge:
    return program.operation(ScalarOpcode::LessEqual, b, a);
  default:
    return std::nullopt;
  }
}

LogicalResult ScalarBuilder::translate(Operation *op) {
  SmallVector<int32_t, 3> sources = llvm::map_to_vector<3>(
      op->getOperands(), [&](Value value) { return lookup(value); });
  auto apply = [&](ScalarOpcode opcode) -> std::optional<int32_t> {
    sources.resize(3, 0);
    return program.operation(opcode, sources[0], sources[1], sources[2]);
  };
  std::optional<int32_t> result =
      llvm::TypeSwitch<Operation *, std::optional<int32_t>>(op)
          .Case([&](arith::ConstantOp constant) {
            return translateConstant(constant.getValue());
          })
          .Case([&](arith::CmpFOp compare) {
            return translateComparison(compare.getPredicate(), sources[0],
                                       sources[1]);
          })
          .Case([&](arith::CmpIOp compare) -> std::optional<int32_t> {
            // Truth is -1 as an i1, and 1 here: order is not the same.
            if (compare.getLhs().getType().isInteger(1)) {
              return std::nullopt;
            }
            return translateComparison(compare.getPredicate(), sources[0],
                                       sources[1]);
          })
          .Case([&](math::RsqrtOp) {
            int32_t root = program.operation(ScalarOpcode::Sqrt, sources[0]);
            return program.operation(ScalarOpcode::Div, getConstant(1.0), root);
          })
          // The step count is held as f64 already.
          .Case([&](arith::SIToFPOp) { return sources[0]; })
          .Case<arith::AddFOp, arith::AddIOp>(
              [&](auto) { return apply(ScalarOpcode::Add); })
          .Case<arith::SubFOp, arith::SubIOp>(
              [&](auto) { return apply(ScalarOpcode::Sub); })
          .Case<arith::MulFOp, arith::MulIOp>(
              [&](auto) { return apply(ScalarOpcode::Mul); })
          .Case([&](arith::DivFOp) { return apply(ScalarOpcode::Div); })
          .Case([&](arith::NegFOp) { return apply(ScalarOpcode::Neg); })
          .Case<arith::MinimumFOp, arith::MinSIOp>(
              [&](auto) { return apply(ScalarOpcode::Minimum); })
          .Case<arith::MaximumFOp, arith::MaxSIOp>(
              [&](auto) { return apply(ScalarOpcode::Maximum); })
          .Case([&](arith::SelectOp) { return apply(ScalarOpcode::Select); })
          .Case([&](arith::AndIOp) { return apply(ScalarOpcode::And); })
          .Case([&](arith::OrIOp) { return apply(ScalarOpcode::Or); })
          .Case([&](arith::XOrIOp) { return apply(ScalarOpcode::NotEqual); })
          .Case([&](math::SqrtOp) { return apply(ScalarOpcode::Sqrt); })
          .Case([&](math::ExpOp) { return apply(ScalarOpcode::Exp); })
          .Case([&](math::LogOp) { return apply(ScalarOpcode::Log); })
          .Case([&](math::PowFOp) { return apply(ScalarOpcode::Pow); })
          .Case([&](math::AbsFOp) { return apply(ScalarOpcode::Abs); })
          .Case([&](math::FloorOp) { return apply(ScalarOpcode::Floor); })
          .Case([&](math::CeilOp) { return apply(ScalarOpcode::Ceil); })
          .Case([&](math::FmaOp) { return apply(ScalarOpcode::Fma); })
          .Case([&](math::CopySignOp) { return apply(ScalarOpcode::CopySign); })
          .Default(std::optional<int32_t>());
  // Bitwise operations on wider integers are not what And, Or and NotEqual
  // compute.
  bool isBitwise = isa<arith::AndIOp, arith::OrIOp, arith::XOrIOp>(op) &&
                   !op->getResult(0).getType().isInteger(1);
  // A true boolean is 1 here, but -1 to signed integer arithmetic.
  bool isSignedBoolean =
      isa<arith::AddIOp, arith::SubIOp, arith::MulIOp, arith::MinSIOp,
          arith::MaxSIOp, arith::SIToFPOp, arith::CmpIOp>(op) &&
      op->getOperand(0).getType().isInteger(1);
  if (auto compare = dyn_cast<arith::CmpIOp>(op)) {
    isSignedBoolean &= compare.getPredicate() != arith::CmpIPredicate::eq &&
                       compare.getPredicate() != arith::CmpIPredicate::ne;
  }
  if (!result || isBitwise || isSignedBoolean) {
    return op->emitOpError() << "cannot be computed on the host once per step";
  }
  registers[op->getResult(0)] = *result;
  return success();
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

namespace {
/// Turns one update into a sequence.
class SequenceBuilder {
public:
  SequenceBuilder(ModuleOp module, const SymbolTable &symbols,
                  func::FuncOp update, runtime::StepPlan &plan)
      : module(module), symbols(symbols), update(update), plan(plan),
        scalars(sequence.program) {}

  FailureOr<runtime::Sequence> build();

private:
  LogicalResult defineArguments();
  LogicalResult defineResults(Operation *op);
  LogicalResult translate(Operation *op);
  LogicalResult translateLaunch(LaunchOp op);
  LogicalResult translatePack(PackOp op);
  LogicalResult translateProduct(MatmulOp op);
  LogicalResult translateTranspose(TransposeOp op);

  LogicalResult addLaunch(Operation *op, StringRef kernel,
                          runtime::Schedule schedule, ValueRange inputs,
                          ArrayRef<int32_t> registers, ArrayRef<int64_t> sizes,
                          int64_t items, int64_t flops);
  int32_t getKernel(StringRef name, runtime::Schedule schedule);
  FailureOr<CpuTargetAttr> getTarget(Operation *op);

  ModuleOp module;
  const SymbolTable &symbols;
  func::FuncOp update;
  runtime::StepPlan &plan;
  runtime::Sequence sequence;
  ScalarBuilder scalars;
  DenseMap<Value, runtime::Operand> places; // looked up only
};
} // namespace

LogicalResult SequenceBuilder::defineArguments() {
  int32_t numStates = 0, numScalars = 0;
  for (BlockArgument argument : update.getArguments()) {
    std::optional<Role> role = getArgumentRole(update, argument.getArgNumber());
    if (!role) {
      return update.emitOpError()
             << "expects a role for argument #" << argument.getArgNumber()
             << ", but it has none";
    }
    runtime::Operand place;
    switch (*role) {
    case Role::Scalar:
      scalars.defineArgument(argument, numScalars++);
      continue;
    case Role::Step:
      scalars.defineStep(argument);
      continue;
    case Role::Param:
      place.kind = runtime::BufferKind::Param;
      break;
    case Role::Grad:
      place.kind = runtime::BufferKind::Grad;
      break;
    case Role::State:
      place.kind = runtime::BufferKind::State;
      place.index = numStates++;
      break;
    }
    FailureOr<MatrixType> type = convertMatrixType(argument.getType());
    if (failed(type)) {
      return update.emitOpError()
             << "expects argument #" << argument.getArgNumber()
             << " to be a matrix of f16, bf16, f32 or f64 of known size, but "
                "got "
             << argument.getType();
    }
    place.rows = type->rows;
    place.cols = type->cols;
    place.type = type->element;
    places[argument] = place;
  }
  return success();
}

/// Notes where the results of `op` live.
LogicalResult SequenceBuilder::defineResults(Operation *op) {
  auto buffers =
      op->getAttrOfType<ArrayAttr>(KaonDialect::getBuffersAttrName());
  if (!buffers || buffers.size() != op->getNumResults()) {
    return op->emitOpError() << "expects " << op->getNumResults() << " "
                             << KaonDialect::getBuffersAttrName()
                             << ", but got " << (buffers ? buffers.size() : 0)
                             << "; kaon-plan-memory comes first";
  }
  for (auto [result, attribute] : llvm::zip_equal(op->getResults(), buffers)) {
    auto buffer = dyn_cast<BufferAttr>(attribute);
    FailureOr<MatrixType> type = convertMatrixType(result.getType());
    if (!buffer || failed(type)) {
      return op->emitOpError()
             << "expects result #" << cast<OpResult>(result).getResultNumber()
             << " to be a matrix of known size in a known buffer, but got "
             << result.getType() << " in " << attribute;
    }
    runtime::Operand place;
    place.rows = type->rows;
    place.cols = type->cols;
    place.type = type->element;
    switch (buffer.getKind()) {
    case BufferKind::Workspace:
      place.kind = runtime::BufferKind::Workspace;
      place.offset = buffer.getOffset();
      place.pitch = place.cols;
      break;
    case BufferKind::State:
      place.kind = runtime::BufferKind::State;
      place.index = static_cast<int32_t>(buffer.getOffset());
      break;
    case BufferKind::Param:
      place.kind = runtime::BufferKind::Param;
      break;
    }
    places[result] = place;
  }
  return success();
}

int32_t SequenceBuilder::getKernel(StringRef name, runtime::Schedule schedule) {
  for (auto [index, kernel] : llvm::enumerate(plan.kernels)) {
    if (kernel.name == name && kernel.schedule == schedule) {
      return static_cast<int32_t>(index);
    }
  }
  plan.kernels.push_back({name.str(), schedule});
  return static_cast<int32_t>(plan.kernels.size()) - 1;
}

LogicalResult SequenceBuilder::addLaunch(Operation *op, StringRef kernel,
                                         runtime::Schedule schedule,
                                         ValueRange inputs,
                                         ArrayRef<int32_t> registers,
                                         ArrayRef<int64_t> sizes, int64_t items,
                                         int64_t flops) {
  if (failed(defineResults(op))) {
    return failure();
  }
  runtime::Launch launch;
  launch.kernel = getKernel(kernel, schedule);
  launch.numInputs = static_cast<int32_t>(inputs.size());
  for (Value input : inputs) {
    launch.operands.push_back(places.lookup(input));
  }
  for (Value result : op->getResults()) {
    launch.operands.push_back(places.lookup(result));
  }
  launch.scalars.assign(registers.begin(), registers.end());
  launch.sizes.assign(sizes.begin(), sizes.end());
  launch.items = items;
  launch.flops = flops;
  launch.bytes = getMovedBytes(op);
  launch.grain = chooseGrain(schedule, launch);
  sequence.launches.push_back(std::move(launch));
  return success();
}

LogicalResult SequenceBuilder::translateLaunch(LaunchOp op) {
  auto kernel = symbols.lookup<func::FuncOp>(op.getKernel());
  std::optional<Schedule> schedule =
      kernel ? getKernelSchedule(kernel) : std::nullopt;
  if (!schedule) {
    return op.emitOpError() << "expects an outlined kernel, but '"
                            << op.getKernel() << "' is none";
  }
  int64_t sizes[] = {1, 1};
  auto widen = [&](ValueRange values) {
    for (Value value : values) {
      auto shape = cast<RankedTensorType>(value.getType()).getShape();
      sizes[0] = std::max(sizes[0], shape[0]);
      sizes[1] = std::max(sizes[1], shape[1]);
    }
  };
  widen(op.getInputs());
  widen(op.getResults());
  SmallVector<int32_t> registers = llvm::map_to_vector(
      op.getScalars(), [&](Value value) { return scalars.lookup(value); });
  return addLaunch(op, op.getKernel(), convertSchedule(*schedule),
                   op.getInputs(), registers, sizes,
                   sizes[*schedule == Schedule::Columns],
                   countKernelFlops(kernel, sizes));
}

FailureOr<CpuTargetAttr> SequenceBuilder::getTarget(Operation *op) {
  if (auto target =
          module->getAttrOfType<CpuTargetAttr>(KaonDialect::getCpuAttrName())) {
    return target;
  }
  return op->emitOpError() << "needs " << KaonDialect::getCpuAttrName()
                           << " on the module";
}

/// Width of a sliver.
static int64_t getTile(CpuTargetAttr target, PackSide side,
                       RankedTensorType type) {
  return side == PackSide::Lhs
             ? target.getMr()
             : cpu::tileColumns(target.getNr(), type.getElementTypeBitWidth());
}

/// Verifies that slivers of `extent` vectors of length `depth` have exactly the
/// room that the target's kernels write and read.
static LogicalResult verifySlivers(Operation *op, StringRef what, Value packed,
                                   CpuTargetAttr target, PackSide side,
                                   int64_t extent, int64_t depth) {
  auto type = cast<RankedTensorType>(packed.getType());
  int64_t tile = getTile(target, side, type);
  auto expected =
      RankedTensorType::get({cpu::packedSlivers(extent, tile),
                             cpu::roundUp(depth, cpu::packedDepthUnit) * tile},
                            type.getElementType());
  if (type == expected) {
    return success();
  }
  return op->emitOpError() << "expects " << what << " of type " << expected
                           << " for the module's "
                           << KaonDialect::getCpuAttrName() << ", but got "
                           << type;
}

LogicalResult SequenceBuilder::translatePack(PackOp op) {
  FailureOr<CpuTargetAttr> target = getTarget(op);
  if (failed(target)) {
    return failure();
  }
  int64_t extent = op.getOuterSize();
  if (failed(verifySlivers(op, "slivers", op.getResult(), *target, op.getSide(),
                           extent, op.getDepth()))) {
    return failure();
  }
  int64_t tile = getTile(*target, op.getSide(), op.getInput().getType());
  return addLaunch(op, cpu::getLibraryCall(op)->symbol(),
                   runtime::Schedule::Pack, op.getInput(), {},
                   {extent, op.getDepth()}, cpu::packedSlivers(extent, tile),
                   /*flops=*/0);
}

LogicalResult SequenceBuilder::translateProduct(MatmulOp op) {
  if (!op.isPacked()) {
    return op.emitOpError() << "reads operands that are not packed; "
                               "kaon-pack-operands comes first";
  }
  FailureOr<CpuTargetAttr> target = getTarget(op);
  if (failed(target)) {
    return failure();
  }
  auto [m, n, k] = op.getProductSizes();
  if (failed(verifySlivers(op, "left slivers", op.getLhs(), *target,
                           PackSide::Lhs, m, k)) ||
      failed(verifySlivers(op, "right slivers", op.getRhs(), *target,
                           PackSide::Rhs, n, k))) {
    return failure();
  }
  SmallVector<Value, 3> inputs{op.getLhs(), op.getRhs()};
  if (op.getAddend()) {
    inputs.push_back(op.getAddend());
  }
  int32_t alpha =
      op.getAlpha() ? scalars.lookup(op.getAlpha()) : scalars.getConstant(1.0);
  int32_t beta =
      op.getBeta() ? scalars.lookup(op.getBeta()) : scalars.getConstant(0.0);
  return addLaunch(
      op, cpu::getLibraryCall(op)->symbol(), runtime::Schedule::Matmul, inputs,
      {alpha, beta}, {m, n, k},
      cpu::matmulItems(m, n, target->getBlock(), op.getSymmetric()),
      countProductFlops(op));
}

LogicalResult SequenceBuilder::translateTranspose(TransposeOp op) {
  auto type = cast<RankedTensorType>(op.getInput().getType());
  int64_t rows = type.getDimSize(0), cols = type.getDimSize(1);
  if (op.isView()) {
    runtime::Operand place = places.lookup(op.getInput());
    std::swap(place.rows, place.cols);
    if (place.kind == runtime::BufferKind::Workspace) {
      place.pitch = place.cols;
    }
    places[op.getResult()] = place;
    return success();
  }
  return addLaunch(op, cpu::getLibraryCall(op)->symbol(),
                   runtime::Schedule::Transpose, op.getInput(), {},
                   {rows, cols}, runtime::ceilDiv(rows, KAON_TRANSPOSE_BLOCK),
                   /*flops=*/0);
}

LogicalResult SequenceBuilder::translate(Operation *op) {
  return llvm::TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](LaunchOp launch) { return translateLaunch(launch); })
      .Case([&](PackOp pack) { return translatePack(pack); })
      .Case([&](MatmulOp product) { return translateProduct(product); })
      .Case(
          [&](TransposeOp transpose) { return translateTranspose(transpose); })
      .Case([&](func::ReturnOp) { return success(); })
      .Default([&](Operation *) -> LogicalResult {
        bool isHostScalar = op->getNumResults() == 1 &&
                            !isMatrix(op->getResult(0)) &&
                            op->getNumRegions() == 0 &&
                            llvm::none_of(op->getOperands(), isMatrix);
        if (!isHostScalar) {
          return op->emitOpError() << "has no place in a step plan: expects "
                                      "launches, packs, packed products, "
                                      "transpositions and host scalars";
        }
        return scalars.translate(op);
      });
}

FailureOr<runtime::Sequence> SequenceBuilder::build() {
  sequence.name = update.getName().str();
  auto workspace =
      update->getAttrOfType<IntegerAttr>(KaonDialect::getWorkspaceAttrName());
  if (!workspace || !update.getBody().hasOneBlock()) {
    return update.emitOpError()
           << "expects one block and " << KaonDialect::getWorkspaceAttrName()
           << "; kaon-plan-memory comes first";
  }
  sequence.workspaceBytes =
      llvm::alignTo(workspace.getInt(), KAON_BUFFER_ALIGNMENT);
  if (failed(defineArguments())) {
    return failure();
  }
  for (Operation &op : update.getBody().front()) {
    if (failed(translate(&op))) {
      return failure();
    }
  }
  // Whoever edits a planned module by hand may not be right about memory.
  if (failed(checkBuffers(update))) {
    return failure();
  }
  return std::move(sequence);
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

namespace {
class PlanBuilder {
public:
  explicit PlanBuilder(ModuleOp module) : module(module), symbols(module) {}

  FailureOr<runtime::StepPlan> build();

private:
  LogicalResult addParameter(ParameterOp op);
  LogicalResult addPhase(PhaseOp op);
  FailureOr<int32_t> getSequence(BucketOp op);

  ModuleOp module;
  SymbolTable symbols;
  runtime::StepPlan plan;
  llvm::StringMap<int32_t> sequences;
  SmallVector<bool> isSetNamed;
};
} // namespace

LogicalResult PlanBuilder::addParameter(ParameterOp op) {
  auto update = symbols.lookup<func::FuncOp>(op.getUpdateAt(0).getValue());
  SmallVector<unsigned> params, grads;
  if (update) {
    params = getArgumentsWithRole(update, Role::Param);
    grads = getArgumentsWithRole(update, Role::Grad);
  }
  if (params.size() != 1 || grads.size() != 1) {
    return op.emitOpError()
           << "expects an update with one parameter and one gradient, but "
           << op.getUpdateAt(0).getValue() << " is none";
  }

  runtime::ParameterPlan parameter;
  parameter.name = op.getName().str();
  FailureOr<MatrixType> type =
      convertMatrixType(update.getArgument(params[0]).getType());
  FailureOr<MatrixType> gradType =
      convertMatrixType(update.getArgument(grads[0]).getType());
  if (failed(type) || failed(gradType)) {
    return op.emitOpError()
           << "expects matrices of known size, but '" << update.getName()
           << "' has " << update.getFunctionType();
  }
  parameter.rows = type->rows;
  parameter.cols = type->cols;
  parameter.paramType = type->element;
  parameter.gradType = gradType->element;
  for (unsigned index : getArgumentsWithRole(update, Role::State)) {
    FailureOr<MatrixType> stateType =
        convertMatrixType(update.getArgument(index).getType());
    if (failed(stateType)) {
      return op.emitOpError()
             << "expects states of known size, but argument #" << index
             << " of '" << update.getName() << "' has type "
             << update.getArgument(index).getType();
    }
    parameter.states.push_back({getArgumentName(update, index).str(),
                                stateType->rows, stateType->cols,
                                stateType->element});
  }

  runtime::ScalarSet set;
  for (unsigned index : getArgumentsWithRole(update, Role::Scalar)) {
    set.names.push_back(getArgumentName(update, index).str());
  }
  auto setIndex = static_cast<size_t>(op.getScalars());
  if (setIndex >= plan.scalarSets.size()) {
    plan.scalarSets.resize(setIndex + 1);
    isSetNamed.resize(setIndex + 1, false);
  }
  if (isSetNamed[setIndex] && plan.scalarSets[setIndex] != set) {
    return op.emitOpError() << "expects the scalar set " << setIndex
                            << " to have one list of names, but another update "
                               "that uses it has other scalars than '"
                            << update.getName() << "'";
  }
  isSetNamed[setIndex] = true;
  plan.scalarSets[setIndex] = std::move(set);
  parameter.scalarSet = static_cast<int32_t>(setIndex);
  plan.parameters.push_back(std::move(parameter));
  return success();
}

FailureOr<int32_t> PlanBuilder::getSequence(BucketOp op) {
  auto [found, isNew] = sequences.try_emplace(
      op.getUpdate(), static_cast<int32_t>(plan.sequences.size()));
  if (isNew) {
    auto update = symbols.lookup<func::FuncOp>(op.getUpdate());
    if (!update || !isUpdate(update)) {
      return op.emitOpError()
             << "expects an update, but '" << op.getUpdate() << "' is none";
    }
    FailureOr<runtime::Sequence> sequence =
        SequenceBuilder(module, symbols, update, plan).build();
    if (failed(sequence)) {
      return failure();
    }
    plan.sequences.push_back(std::move(*sequence));
  }
  return found->second;
}

LogicalResult PlanBuilder::addPhase(PhaseOp op) {
  std::vector<runtime::Bucket> &phase = plan.phases[op.getResidue()];
  for (BucketOp bucketOp : op.getBuckets()) {
    FailureOr<int32_t> sequence = getSequence(bucketOp);
    if (failed(sequence)) {
      return failure();
    }
    runtime::Bucket bucket;
    bucket.sequence = *sequence;
    for (int64_t member : bucketOp.getParameters()) {
      bucket.members.push_back(static_cast<int32_t>(member));
    }
    bucket.concurrent = static_cast<int32_t>(bucketOp.getConcurrent());
    phase.push_back(std::move(bucket));
  }
  return success();
}

FailureOr<runtime::StepPlan> PlanBuilder::build() {
  auto programs = llvm::to_vector(module.getOps<ProgramOp>());
  if (programs.size() != 1) {
    return module.emitOpError()
           << "expects one kaon.program to make a step plan of, but got "
           << programs.size();
  }
  ProgramOp program = programs.front();
  for (ParameterOp parameter : program.getParameters()) {
    if (failed(addParameter(parameter))) {
      return failure();
    }
  }
  if (program.getPhases().empty() && !plan.parameters.empty()) {
    return program.emitOpError() << "expects phases with buckets, but has "
                                    "none; kaon-bucket comes first";
  }
  plan.phases.resize(program.getNumPhases());
  for (PhaseOp phase : program.getPhases()) {
    if (failed(addPhase(phase))) {
      return failure();
    }
  }
  plan.workspaceBytes = plan.requiredWorkspaceBytes();
  runtime::Status status = plan.validate();
  if (!status.ok()) {
    return program.emitOpError()
           << "makes a step plan that is not valid: " << status.message();
  }
  return std::move(plan);
}

FailureOr<runtime::StepPlan> kaon::buildStepPlan(ModuleOp module) {
  return PlanBuilder(module).build();
}
