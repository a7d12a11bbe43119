//===-- KaonVerifiers.cpp - verification ----------------------------------===//
//
// Every rule that TableGen's constraints cannot say. A helper takes an error
// factory, so that one rule has one wording wherever it is checked: on an op,
// on an attribute or on a function. Messages name the wish and the finding.
//
//===----------------------------------------------------------------------===//

#include "dialect/Kaon.h"
#include "mlir/IR/BuiltinOps.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>

using namespace mlir;
using namespace kaon;

using EmitErrorFn = llvm::function_ref<InFlightDiagnostic()>;

//===----------------------------------------------------------------------===//
// Shared rules
//===----------------------------------------------------------------------===//

/// `4x6`, with `?` for what is unknown.
static std::string formatShape(ArrayRef<int64_t> shape) {
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::interleave(
      shape, os,
      [&](int64_t size) {
        if (ShapedType::isDynamic(size)) {
          os << '?';
        } else {
          os << size;
        }
      },
      "x");
  return text;
}

/// Verifies that:
/// - epsilon is finite and not negative
/// - scale is finite and positive
static LogicalResult verifyGuard(const APFloat &epsilon, const APFloat &scale,
                                 EmitErrorFn emitError) {
  double eps = epsilon.convertToDouble(), factor = scale.convertToDouble();
  if (!std::isfinite(eps) || eps < 0) {
    return emitError() << "expects a finite, non-negative epsilon, but got "
                       << eps;
  }
  if (!std::isfinite(factor) || factor <= 0) {
    return emitError() << "expects a finite, positive scale, but got "
                       << factor;
  }
  return success();
}

bool kaon::hasBoundedSize(RankedTensorType type) {
  int64_t room = maxMatrixElements;
  for (int64_t size : type.getShape()) {
    if (!ShapedType::isDynamic(size)) {
      room /= std::max<int64_t>(size, 1);
    }
  }
  return room > 0;
}

/// Verifies that matrices are small enough to count their elements, bytes and
/// operations.
static LogicalResult verifyBoundedSizes(TypeRange types,
                                        EmitErrorFn emitError) {
  for (Type type : types) {
    auto matrix = dyn_cast<RankedTensorType>(type);
    if (matrix && !hasBoundedSize(matrix)) {
      return emitError() << "expects matrices of at most " << maxMatrixElements
                         << " elements, but got "
                         << formatShape(matrix.getShape());
    }
  }
  return success();
}

/// Verifies that both matrices have the same element type.
static LogicalResult verifySameElementType(RankedTensorType actual,
                                           RankedTensorType expected,
                                           StringRef what,
                                           EmitErrorFn emitError) {
  if (actual.getElementType() == expected.getElementType()) {
    return success();
  }
  return emitError() << "expects " << what << " of "
                     << expected.getElementType() << ", but got "
                     << actual.getElementType();
}

//===----------------------------------------------------------------------===//
// Attributes
//===----------------------------------------------------------------------===//

LogicalResult BufferAttr::verify(EmitErrorFn emitError, BufferKind kind,
                                 int64_t offset) {
  if (offset < 0) {
    return emitError() << "expects a non-negative "
                       << (kind == BufferKind::Workspace ? "offset" : "index")
                       << ", but got " << offset;
  }
  if (kind == BufferKind::Param && offset != 0) {
    return emitError() << "expects index 0 of the only parameter, but got "
                       << offset;
  }
  return success();
}

LogicalResult CpuTargetAttr::verify(EmitErrorFn emitError, int64_t vectorBits,
                                    int64_t mr, int64_t nr, int64_t kc,
                                    int64_t block) {
  // Kernels move data in squares: 4 x 4 for the left operand and depth, and of
  // 256 bits, 8 f32 or 4 of the half as many f64 columns, for the right one. A
  // tile that cuts a square makes them write past its end. The upper bounds
  // only keep sizes in 64 bits and kernels in proportion.
  struct Parameter {
    StringRef name;
    int64_t value, unit, largest;
  };
  for (auto [name, value, unit, largest] :
       {Parameter{"mr", mr, 1, 64}, Parameter{"nr", nr, 8, 256},
        Parameter{"kc", kc, 4, 1 << 20},
        Parameter{"block", block, 1, 1 << 20}}) {
    int64_t smallest = std::max<int64_t>(unit, 4);
    if (value < smallest || value > largest || value % unit != 0) {
      InFlightDiagnostic diagnostic = emitError();
      diagnostic << "expects " << name << " to be ";
      if (unit > 1) {
        diagnostic << "a multiple of " << unit << " ";
      }
      return diagnostic << "from " << smallest << " to " << largest
                        << ", but got " << value;
    }
  }
  if (!llvm::is_contained({64, 128, 256, 512}, vectorBits)) {
    return emitError()
           << "expects vector_bits to be 64, 128, 256 or 512, but got "
           << vectorBits;
  }
  if (nr % (vectorBits / 32) != 0) {
    return emitError() << "expects nr to be a multiple of the "
                       << vectorBits / 32 << " f32 lanes of a vector, but got "
                       << nr;
  }
  if (block % mr != 0 || block % nr != 0) {
    return emitError() << "expects block to be a multiple of mr (" << mr
                       << ") and nr (" << nr << "), but got " << block;
  }
  return success();
}

LogicalResult CudaTargetAttr::verify(EmitErrorFn emitError, HalfType,
                                     int64_t sharedBytes, MainLoop mainLoop) {
  // What every GPU has, and more than any has.
  constexpr int64_t least = 48 << 10, most = 1 << 20;
  if (sharedBytes < least || sharedBytes > most) {
    return emitError() << "expects shared_bytes to be from " << least << " to "
                       << most << ", but got " << sharedBytes;
  }
  // Two blocks of a product by warpgroups share a multiprocessor.
  constexpr int64_t leastForWgmma = 227 << 10;
  if (mainLoop == MainLoop::Wgmma && sharedBytes < leastForWgmma) {
    return emitError() << "expects shared_bytes of at least " << leastForWgmma
                       << " for main_loop = wgmma, but got " << sharedBytes;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Update math
//===----------------------------------------------------------------------===//

LogicalResult NewtonSchulzOp::verify() {
  auto error = [&] { return emitOpError(); };
  ArrayRef<double> coefficients = getCoefficients();
  if (coefficients.size() % 3 != 0) {
    return error() << "expects 3 coefficients per step (a, b, c), but got "
                   << coefficients.size();
  }
  for (auto [i, coefficient] : llvm::enumerate(coefficients)) {
    if (!std::isfinite(coefficient)) {
      return error() << "expects finite coefficients, but #" << i << " is "
                     << coefficient;
    }
  }
  int64_t previous = 0;
  for (int64_t restart : getRestarts().value_or(ArrayRef<int64_t>())) {
    if (restart <= previous || restart >= getSteps()) {
      return error() << "expects ascending restarts in [1, " << getSteps()
                     << "), but got " << restart << " after " << previous;
    }
    previous = restart;
  }
  return verifyGuard(getEpsilon(), getScale(), error);
}

LogicalResult NormalizeOp::verify() {
  return verifyGuard(getEpsilon(), getScale(), [&] { return emitOpError(); });
}

LogicalResult BroadcastOp::verify() {
  auto error = [&] { return emitOpError(); };
  RankedTensorType from = getInput().getType(), to = getResult().getType();
  if (failed(verifySameElementType(to, from, "a result", error)) ||
      failed(verifyBoundedSizes(to, error))) {
    return failure();
  }
  for (unsigned dim = 0; dim < 2; ++dim) {
    int64_t source = from.getDimSize(dim), target = to.getDimSize(dim);
    if (source != 1 && source != target) {
      return emitOpError() << "expects dimension " << dim
                           << " of the operand to be 1 or that of the result, "
                              "but got "
                           << formatShape(from.getShape()) << " and "
                           << formatShape(to.getShape());
    }
  }
  return success();
}

static bool isHalf(RankedTensorType type) {
  return isa<BFloat16Type, Float16Type>(type.getElementType());
}

/// Verifies that packed slivers have room for `count` vectors of length
/// `depth`. How wide slivers are and how they are padded is the target's
/// business.
static LogicalResult verifyPackedType(RankedTensorType type, int64_t count,
                                      int64_t depth, StringRef what,
                                      EmitErrorFn emitError) {
  int64_t needed;
  if (type.hasStaticShape() && hasBoundedSize(type) &&
      type.getDimSize(0) <= count && !llvm::MulOverflow(count, depth, needed) &&
      type.getNumElements() >= needed) {
    return success();
  }
  return emitError() << "expects " << what << " with room for " << count
                     << " vectors of length " << depth << ", but got "
                     << formatShape(type.getShape());
}

/// Verifies the shapes of operands as they lie in memory, or packed.
static LogicalResult verifyProductShapes(MatmulOp op, EmitErrorFn error) {
  RankedTensorType lhs = op.getLhs().getType(), rhs = op.getRhs().getType();
  bool transposeA = op.getTransposeA(), transposeB = op.getTransposeB();
  if (std::optional<ArrayRef<int64_t>> sizes = op.getSizes()) {
    if (sizes->size() != 3 ||
        llvm::any_of(*sizes, [](int64_t size) { return size <= 0; })) {
      return error() << "expects 3 positive sizes (m, n, k), but got ["
                     << *sizes << "]";
    }
    if (transposeA || transposeB) {
      return error() << "expects packed operands without transposition: "
                        "kaon.pack transposes";
    }
    if (isHalf(lhs)) {
      return error() << "expects packed operands of f32 or f64, but got "
                     << lhs.getElementType();
    }
    auto [m, n, k] = op.getProductSizes();
    if (failed(verifyPackedType(lhs, m, k, "left slivers", error)) ||
        failed(verifyPackedType(rhs, n, k, "right slivers", error))) {
      return failure();
    }
  } else if (lhs.getDimSize(transposeA ? 0 : 1) !=
             rhs.getDimSize(transposeB ? 1 : 0)) {
    return error() << "expects operands whose inner dimensions agree, but got "
                   << formatShape(lhs.getShape())
                   << (transposeA ? " transposed" : "") << " and "
                   << formatShape(rhs.getShape())
                   << (transposeB ? " transposed" : "");
  }
  auto [m, n, k] = op.getProductSizes();
  RankedTensorType result = op.getResult().getType();
  if (result.getShape() != ArrayRef<int64_t>{m, n}) {
    return error() << "expects a result of shape " << formatShape({m, n})
                   << ", but got " << formatShape(result.getShape());
  }
  if (op.getSymmetric() && m != n) {
    return error() << "expects a symmetric result to be square, but got "
                   << formatShape(result.getShape());
  }
  return success();
}

/// Verifies that:
/// - an epilogue comes with the parameter, and scalars only with an epilogue
/// - the product is of a 16-bit type, not symmetric, and becomes the parameter
static LogicalResult verifyEpilogue(MatmulOp op, EmitErrorFn error) {
  if (!op.getEpilogue()) {
    if (op.getParam() || !op.getScalars().empty()) {
      return error() << "expects a parameter and scalars with an epilogue "
                        "only";
    }
    return success();
  }
  if (!op.getParam()) {
    return error() << "expects an epilogue to have a parameter";
  }
  if (op.getParam().getType() != op.getResult().getType()) {
    return error() << "expects the type of the result "
                   << op.getResult().getType()
                   << " for the parameter of the epilogue, but got "
                   << op.getParam().getType();
  }
  if (!isHalf(op.getLhs().getType())) {
    return error() << "expects operands of bf16 or f16 for a product with an "
                      "epilogue, but got "
                   << op.getLhs().getType().getElementType();
  }
  if (op.getSymmetric()) {
    return error() << "expects a product with an epilogue not to be symmetric: "
                      "nothing mirrors the parameter";
  }
  return success();
}

LogicalResult MatmulOp::verify() {
  auto error = [&] { return emitOpError(); };
  RankedTensorType lhs = getLhs().getType(), result = getResult().getType();
  if (failed(verifySameElementType(getRhs().getType(), lhs, "a right operand",
                                   error)) ||
      (!getEpilogue() &&
       failed(verifySameElementType(result, lhs, "a result", error))) ||
      failed(verifyBoundedSizes(result, error)) ||
      failed(verifyProductShapes(*this, error))) {
    return failure();
  }
  if (static_cast<bool>(getBeta()) != static_cast<bool>(getAddend())) {
    return error() << "expects beta and an addend together, but got "
                   << (getBeta() ? "beta only" : "an addend only");
  }
  Type product = result.clone(lhs.getElementType());
  if (getAddend() && getAddend().getType() != product) {
    return error() << "expects an addend of the "
                   << (getEpilogue() ? "product" : "result") << "'s type "
                   << product << ", but got " << getAddend().getType();
  }
  if (getFactor() && !isHalf(lhs)) {
    return error() << "expects operands of bf16 or f16 for a product with a "
                      "factor, but got "
                   << lhs.getElementType();
  }
  return verifyEpilogue(*this, error);
}

/// Verifies that `types` equals `expected`, one by one.
static LogicalResult verifyTypesMatch(TypeRange types, TypeRange expected,
                                      StringRef what, EmitErrorFn emitError) {
  if (types.size() != expected.size()) {
    return emitError() << "expects " << expected.size() << " " << what
                       << ", but got " << types.size();
  }
  for (auto [i, actual, wanted] : llvm::enumerate(types, expected)) {
    if (actual != wanted) {
      return emitError() << "expects " << what << " #" << i << " to be "
                         << wanted << ", but got " << actual;
    }
  }
  return success();
}

LogicalResult EveryOp::verify() {
  int64_t period = getPeriod(), phase = getPhase();
  if (period < 1) {
    return emitOpError() << "expects a period of at least 1, but got "
                         << period;
  }
  if (phase < 0 || phase >= period) {
    return emitOpError() << "expects a phase in [0, " << period << "), but got "
                         << phase;
  }
  return success();
}

LogicalResult EveryOp::verifyRegions() {
  for (Region &region : getOperation()->getRegions()) {
    if (region.getNumArguments() != 0) {
      return emitOpError() << "expects regions without arguments, but got "
                           << region.getNumArguments();
    }
    // RegionBranchOpInterface compares what is yielded with the results.
    if (!isa<YieldOp>(region.front().getTerminator())) {
      return emitOpError() << "expects regions that end in kaon.yield";
    }
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

LogicalResult ProgramOp::verify() {
  if (getNumPhases() < 1) {
    return emitOpError() << "expects a period of at least 1, but got "
                         << getNumPhases();
  }
  return success();
}

/// Verifies that:
/// - the body holds parameters, then phases, and nothing else
/// - a parameter has one update or one per residue
/// - phases, if there are any, are the residues 0, 1, ... up to the period
/// - each phase handles every parameter once, with the update that the
///   parameter has at this residue
LogicalResult ProgramOp::verifyRegions() {
  int64_t period = getNumPhases();
  bool seenPhase = false;
  for (Operation &op : getBody().front()) {
    if (isa<PhaseOp>(op)) {
      seenPhase = true;
    } else if (!isa<ParameterOp>(op)) {
      return op.emitOpError() << "cannot be part of a program; expects "
                                 "kaon.parameter and kaon.phase";
    } else if (seenPhase) {
      return op.emitOpError() << "expects to come before every kaon.phase";
    }
  }

  SmallVector<ParameterOp> parameters(getParameters());
  for (ParameterOp parameter : parameters) {
    int64_t updates = parameter.getUpdates().size();
    if (updates != 1 && updates != period) {
      return parameter.emitOpError()
             << "expects 1 update or one for each of the " << period
             << " residues, but got " << updates;
    }
  }
  if (!seenPhase) {
    return success();
  }

  int64_t residue = 0;
  for (PhaseOp phase : getPhases()) {
    if (static_cast<int64_t>(phase.getResidue()) != residue) {
      return phase.emitOpError() << "expects residue " << residue
                                 << " here, but got " << phase.getResidue();
    }
    SmallVector<BucketOp> owners(parameters.size());
    for (BucketOp bucket : phase.getBuckets()) {
      for (int64_t index : bucket.getParameters()) {
        if (index < 0 || index >= static_cast<int64_t>(parameters.size())) {
          return bucket.emitOpError()
                 << "expects parameters in [0, " << parameters.size()
                 << "), but got " << index;
        }
        if (owners[index]) {
          InFlightDiagnostic diagnostic = bucket.emitOpError()
                                          << "handles parameter " << index
                                          << ", which another bucket of phase "
                                          << residue << " handles";
          diagnostic.attachNote(owners[index].getLoc()) << "the other bucket";
          return diagnostic;
        }
        owners[index] = bucket;
        FlatSymbolRefAttr update = parameters[index].getUpdateAt(residue);
        if (update != bucket.getUpdateAttr()) {
          InFlightDiagnostic diagnostic =
              bucket.emitOpError()
              << "runs " << bucket.getUpdateAttr() << " on parameter " << index
              << ", whose update at residue " << residue << " is " << update;
          diagnostic.attachNote(parameters[index].getLoc()) << "the parameter";
          return diagnostic;
        }
      }
    }
    for (auto [index, owner] : llvm::enumerate(owners)) {
      if (!owner) {
        return phase.emitOpError()
               << "expects a bucket for every parameter, but parameter "
               << index << " has none";
      }
    }
    ++residue;
  }
  if (residue != period) {
    return emitOpError() << "expects a kaon.phase for each of the " << period
                         << " residues, but got " << residue;
  }
  return success();
}

LogicalResult ParameterOp::verify() {
  if (getUpdates().empty()) {
    return emitOpError() << "expects at least 1 update, but got 0";
  }
  // A plan has a place for every set up to the largest one.
  constexpr int64_t maxScalarSets = int64_t(1) << 20;
  auto scalars = static_cast<int64_t>(getScalars());
  if (scalars < 0 || scalars >= maxScalarSets) {
    return emitOpError() << "expects a scalar set in [0, " << maxScalarSets
                         << "), but got " << scalars;
  }
  if (static_cast<int64_t>(getPhase()) < 0) {
    return emitOpError() << "expects a non-negative phase, but got "
                         << static_cast<int64_t>(getPhase());
  }
  return success();
}

LogicalResult PhaseOp::verify() {
  if (static_cast<int64_t>(getResidue()) < 0) {
    return emitOpError() << "expects a non-negative residue, but got "
                         << static_cast<int64_t>(getResidue());
  }
  return success();
}

LogicalResult PhaseOp::verifyRegions() {
  for (Operation &op : getBody().front()) {
    if (!isa<BucketOp, GroupOp>(op)) {
      return op.emitOpError()
             << "cannot be part of a phase; expects kaon.bucket and kaon.group";
    }
  }
  return success();
}

LogicalResult GroupOp::verify() {
  auto numBuckets = static_cast<int64_t>(llvm::range_size(getBody().front()));
  if (numBuckets < 2) {
    return emitOpError() << "expects at least 2 buckets, but got "
                         << numBuckets;
  }
  for (auto [launch, participants] : llvm::enumerate(getParticipants())) {
    ArrayRef<int64_t> buckets = participants.asArrayRef();
    if (buckets.empty()) {
      return emitOpError() << "expects launches of at least 1 bucket, but #"
                           << launch << " has none";
    }
    for (auto [position, bucket] : llvm::enumerate(buckets)) {
      if (bucket < 0 || bucket >= numBuckets) {
        return emitOpError()
               << "expects buckets in [0, " << numBuckets << "), but launch #"
               << launch << " has " << bucket;
      }
      if (position > 0 && bucket <= buckets[position - 1]) {
        return emitOpError()
               << "expects ascending buckets, but in launch #" << launch << " "
               << bucket << " follows " << buckets[position - 1];
      }
    }
  }
  return success();
}

LogicalResult GroupOp::verifyRegions() {
  for (Operation &op : getBody().front()) {
    auto bucket = dyn_cast<BucketOp>(op);
    if (!bucket) {
      return op.emitOpError()
             << "cannot be part of a group; expects kaon.bucket";
    }
    auto members = static_cast<int64_t>(bucket.getParameters().size());
    auto concurrent = static_cast<int64_t>(bucket.getConcurrent());
    if (concurrent != members) {
      return bucket.emitOpError()
             << "expects all " << members
             << " parameters of a bucket of a group in flight, but got "
             << concurrent;
    }
  }
  return success();
}

LogicalResult BucketOp::verify() {
  ArrayRef<int64_t> members = getParameters();
  if (members.empty()) {
    return emitOpError() << "expects at least 1 parameter, but got 0";
  }
  for (size_t i = 1; i < members.size(); ++i) {
    if (members[i - 1] >= members[i]) {
      return emitOpError() << "expects ascending parameters, but " << members[i]
                           << " follows " << members[i - 1];
    }
  }
  int64_t concurrent = getConcurrent();
  if (concurrent < 1 || concurrent > static_cast<int64_t>(members.size())) {
    return emitOpError() << "expects between 1 and " << members.size()
                         << " parameters in flight, but got " << concurrent;
  }
  return success();
}

/// Verifies that `symbol` names an update.
static LogicalResult verifyNamesUpdate(Operation *user,
                                       SymbolTableCollection &tables,
                                       FlatSymbolRefAttr symbol) {
  auto function = tables.lookupNearestSymbolFrom<func::FuncOp>(user, symbol);
  if (!function) {
    return user->emitOpError()
           << "refers to " << symbol << ", which is not a function";
  }
  if (!isUpdate(function)) {
    InFlightDiagnostic diagnostic = user->emitOpError()
                                    << "refers to " << symbol
                                    << ", which is not an update";
    diagnostic.attachNote(function.getLoc())
        << "the function has no kaon.update";
    return diagnostic;
  }
  return success();
}

LogicalResult ParameterOp::verifySymbolUses(SymbolTableCollection &tables) {
  for (auto symbol : getUpdates().getAsRange<FlatSymbolRefAttr>()) {
    if (failed(verifyNamesUpdate(*this, tables, symbol))) {
      return failure();
    }
  }
  return success();
}

LogicalResult BucketOp::verifySymbolUses(SymbolTableCollection &tables) {
  return verifyNamesUpdate(*this, tables, getUpdateAttr());
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

/// Verifies that a kernel's operands and results fit its schedule:
/// - every dimension is that of the full matrix or one
/// - elementwise: operands are full or 1x1
/// - results have every unit of work: all elements, all rows, or all columns
static LogicalResult verifyKernelShapes(Schedule schedule, TypeRange inputs,
                                        TypeRange results,
                                        EmitErrorFn emitError) {
  if (failed(verifyBoundedSizes(inputs, emitError)) ||
      failed(verifyBoundedSizes(results, emitError))) {
    return failure();
  }
  // The full shape: in each dimension the one size that is not one.
  SmallVector<int64_t, 2> full{1, 1};
  for (Type type : llvm::concat<const Type>(inputs, results)) {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
    for (unsigned dim = 0; dim < 2; ++dim) {
      if (full[dim] == 1) {
        full[dim] = shape[dim];
      } else if (shape[dim] != 1 && shape[dim] != full[dim]) {
        return emitError() << "expects matrices of one shape, its rows, its "
                              "columns or 1x1, but got "
                           << formatShape(full) << " and "
                           << formatShape(shape);
      }
    }
  }

  if (schedule == Schedule::Elementwise) {
    for (auto [i, type] : llvm::enumerate(inputs)) {
      ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
      if (shape != ArrayRef<int64_t>(full) &&
          shape != ArrayRef<int64_t>{1, 1}) {
        return emitError() << "expects elementwise operands of shape "
                           << formatShape(full) << " or 1x1, but #" << i
                           << " is " << formatShape(shape);
      }
    }
  }
  for (auto [i, type] : llvm::enumerate(results)) {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(type).getShape();
    bool rows = schedule == Schedule::Columns || shape[0] == full[0];
    bool columns = schedule == Schedule::Rows || shape[1] == full[1];
    if (!rows || !columns) {
      return emitError() << "expects results of the " << stringifyEnum(schedule)
                         << " schedule to span all of " << formatShape(full)
                         << ", but #" << i << " is " << formatShape(shape);
    }
  }
  return success();
}

/// Verifies that a kernel's body holds only what its schedule can execute.
static LogicalResult verifyKernelBody(Schedule schedule, Block &body) {
  for (Operation &op : body) {
    if (auto reduce = dyn_cast<ReduceOp>(op)) {
      Along along = reduce.getAlong();
      if ((schedule == Schedule::Rows && along == Along::Row) ||
          (schedule == Schedule::Columns && along == Along::Column)) {
        continue;
      }
      return op.emitOpError() << "along " << stringifyEnum(along)
                              << " cannot be part of a kernel with the "
                              << stringifyEnum(schedule) << " schedule";
    }
    if (isa<BroadcastOp, YieldOp>(op)) {
      continue;
    }
    if (isa_and_present<KaonDialect>(op.getDialect()) ||
        op.getNumRegions() != 0) {
      return op.emitOpError() << "cannot be part of a kernel; expects "
                                 "elementwise ops, kaon.reduce and "
                                 "kaon.broadcast";
    }
  }
  return success();
}

LogicalResult KernelOp::verify() {
  return verifyKernelShapes(getSchedule(), getInputs().getTypes(),
                            getResultTypes(), [&] { return emitOpError(); });
}

LogicalResult KernelOp::verifyRegions() {
  Block &body = getBody().front();
  if (failed(verifyTypesMatch(
          body.getArgumentTypes(), getOperation()->getOperandTypes(),
          "block arguments", [&] { return emitOpError(); }))) {
    return failure();
  }
  auto yield = dyn_cast<YieldOp>(body.getTerminator());
  if (!yield) {
    return emitOpError() << "expects a body that ends in kaon.yield";
  }
  if (failed(verifyTypesMatch(yield.getOperandTypes(), getResultTypes(),
                              "yielded values",
                              [&] { return yield.emitOpError(); }))) {
    return failure();
  }
  return verifyKernelBody(getSchedule(), body);
}

LogicalResult PackOp::verify() {
  RankedTensorType from = getInput().getType(), to = getResult().getType();
  if (failed(verifySameElementType(to, from, "a result",
                                   [&] { return emitOpError(); }))) {
    return failure();
  }
  if (!from.hasStaticShape() || !hasBoundedSize(from)) {
    return emitOpError() << "expects an operand of known sizes and at most "
                         << maxMatrixElements << " elements, but got "
                         << formatShape(from.getShape());
  }
  return verifyPackedType(to, getOuterSize(), getDepth(), "slivers",
                          [&] { return emitOpError(); });
}

/// Verifies that the erased type of a kernel's argument or result stands for
/// `actual`: sizes are equal, or unknown in the kernel.
static bool matchesErasedType(Type actual, Type erased) {
  auto actualTensor = dyn_cast<RankedTensorType>(actual);
  auto erasedTensor = dyn_cast<RankedTensorType>(erased);
  if (!actualTensor || !erasedTensor) {
    return actual == erased;
  }
  return actualTensor.getElementType() == erasedTensor.getElementType() &&
         llvm::all_of_zip(actualTensor.getShape(), erasedTensor.getShape(),
                          [](int64_t size, int64_t pattern) {
                            return size == pattern ||
                                   ShapedType::isDynamic(pattern);
                          });
}

/// The outlined kernel that `user` refers to; null after an error.
static func::FuncOp verifyNamesKernel(Operation *user,
                                      SymbolTableCollection &tables,
                                      FlatSymbolRefAttr symbol) {
  auto function = tables.lookupNearestSymbolFrom<func::FuncOp>(user, symbol);
  if (!function) {
    user->emitOpError() << "refers to " << symbol
                        << ", which is not a function";
    return {};
  }
  if (!getKernelSchedule(function)) {
    InFlightDiagnostic diagnostic = user->emitOpError()
                                    << "refers to " << symbol
                                    << ", which is not a kernel";
    diagnostic.attachNote(function.getLoc())
        << "the function has no kaon.kernel";
    return {};
  }
  return function;
}

/// Verifies that values of types `actual` can be what a kernel calls `erased`.
static LogicalResult verifyErasedTypes(Operation *user,
                                       FlatSymbolRefAttr kernel,
                                       TypeRange actual, TypeRange erased,
                                       StringRef what) {
  if (actual.size() != erased.size()) {
    return user->emitOpError()
           << "expects " << erased.size() << " " << what << " as " << kernel
           << " has, but got " << actual.size();
  }
  for (auto [i, type, pattern] : llvm::enumerate(actual, erased)) {
    if (!matchesErasedType(type, pattern)) {
      return user->emitOpError()
             << "expects " << what << " #" << i << " to match " << pattern
             << " of " << kernel << ", but got " << type;
    }
  }
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &tables) {
  func::FuncOp function = verifyNamesKernel(*this, tables, getKernelAttr());
  if (!function ||
      failed(verifyErasedTypes(*this, getKernelAttr(),
                               getOperation()->getOperandTypes(),
                               function.getArgumentTypes(), "operands"))) {
    return failure();
  }
  return verifyErasedTypes(*this, getKernelAttr(), getResultTypes(),
                           function.getResultTypes(), "results");
}

LogicalResult MatmulOp::verifySymbolUses(SymbolTableCollection &tables) {
  FlatSymbolRefAttr symbol = getEpilogueAttr();
  if (!symbol) {
    return success();
  }
  func::FuncOp function = verifyNamesKernel(*this, tables, symbol);
  if (!function) {
    return failure();
  }
  if (getKernelSchedule(function) != Schedule::Elementwise) {
    return emitOpError() << "expects an elementwise kernel as its epilogue, "
                            "but "
                         << symbol << " has the schedule "
                         << stringifyEnum(*getKernelSchedule(function));
  }
  RankedTensorType result = getResult().getType();
  SmallVector<Type> operands{result.clone(getLhs().getType().getElementType()),
                             getParam().getType()};
  llvm::append_range(operands, getScalars().getTypes());
  if (failed(verifyErasedTypes(*this, symbol, operands,
                               function.getArgumentTypes(),
                               "operands of the epilogue"))) {
    return failure();
  }
  return verifyErasedTypes(*this, symbol, result, function.getResultTypes(),
                           "results of the epilogue");
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

/// A matrix with known sizes of a type that can be stored, or null.
static RankedTensorType getStoredMatrix(Type type) {
  auto matrix = dyn_cast<RankedTensorType>(type);
  if (matrix && matrix.getRank() == 2 && matrix.hasStaticShape() &&
      !matrix.getEncoding() &&
      isa<BFloat16Type, Float16Type, Float32Type, Float64Type>(
          matrix.getElementType())) {
    return matrix;
  }
  return {};
}

/// Verifies the arguments of an update:
/// - each has a role, in the order param, grad, states, scalars, step
/// - there is one param, one grad and one step
/// - types fit the roles
/// - names are given once
static LogicalResult verifyUpdateArguments(func::FuncOp function) {
  auto error = [&](unsigned index) {
    return function.emitOpError() << "argument #" << index << " ";
  };
  unsigned count[5] = {};
  std::optional<Role> previous;
  RankedTensorType param;
  llvm::StringSet<> names;
  for (auto [i, type] : llvm::enumerate(function.getArgumentTypes())) {
    std::optional<Role> role = getArgumentRole(function, i);
    if (!role) {
      return error(i) << "of an update expects a kaon.role";
    }
    if (previous && *role < *previous) {
      return error(i) << "is a " << stringifyEnum(*role) << " after a "
                      << stringifyEnum(*previous)
                      << ", but the order is param, grad, state, scalar, step";
    }
    previous = role;
    unsigned seen = ++count[static_cast<unsigned>(*role)];
    if (seen > 1 && *role != Role::State && *role != Role::Scalar) {
      return error(i) << "is a second " << stringifyEnum(*role)
                      << ", but an update has one";
    }
    StringRef name = getArgumentName(function, i);
    if (!name.empty() && !names.insert(name).second) {
      return error(i) << "expects a name of its own, but \"" << name
                      << "\" is taken";
    }

    if (*role == Role::Scalar || *role == Role::Step) {
      bool isScalar = *role == Role::Scalar;
      if (isScalar ? !type.isF64() : !type.isInteger(64)) {
        return error(i) << "is a " << stringifyEnum(*role) << " and expects "
                        << (isScalar ? "f64" : "i64") << ", but got " << type;
      }
      continue;
    }
    RankedTensorType matrix = getStoredMatrix(type);
    if (!matrix) {
      return error(i) << "is a " << stringifyEnum(*role)
                      << " and expects a matrix of known sizes, but got "
                      << type;
    }
    ArrayRef<int64_t> shape = matrix.getShape();
    if (failed(verifyBoundedSizes(type, [&] { return error(i); }))) {
      return failure();
    }
    if (*role == Role::Param) {
      param = matrix;
      continue;
    }
    if (!param) {
      break; // Reported below as a missing parameter.
    }
    ArrayRef<int64_t> full = param.getShape();
    if (*role == Role::Grad) {
      if (shape != full) {
        return error(i) << "is a gradient and expects the shape of the "
                           "parameter, "
                        << formatShape(full) << ", but got "
                        << formatShape(shape);
      }
      continue;
    }
    if ((shape[0] != full[0] && shape[0] != 1) ||
        (shape[1] != full[1] && shape[1] != 1)) {
      return error(i) << "is a state and expects the shape of the parameter, "
                      << formatShape(full)
                      << ", or one value per row, per column or in all, but "
                         "got "
                      << formatShape(shape);
    }
    Type compute = param.getElementType().isF64()
                       ? param.getElementType()
                       : Float32Type::get(function.getContext());
    if (matrix.getElementType() != compute) {
      return error(i) << "is a state and expects the compute type " << compute
                      << ", but got " << matrix.getElementType();
    }
  }
  for (Role role : {Role::Param, Role::Grad, Role::Step}) {
    if (count[static_cast<unsigned>(role)] == 0) {
      return function.emitOpError()
             << "is an update and expects a " << stringifyEnum(role)
             << " argument, but has none";
    }
  }
  return success();
}

/// Verifies that an update returns the new parameter and the new states.
static LogicalResult verifyUpdateResults(func::FuncOp function) {
  SmallVector<Type> expected{
      function.getArgumentTypes()[getArgumentsWithRole(function, Role::Param)
                                      .front()]};
  for (unsigned index : getArgumentsWithRole(function, Role::State)) {
    expected.push_back(function.getArgumentTypes()[index]);
  }
  return verifyTypesMatch(function.getResultTypes(), expected, "results", [&] {
    return function.emitOpError() << "is an update and ";
  });
}

static LogicalResult verifyUpdate(func::FuncOp function) {
  // An attribute of another kind is verifyRegionArgAttribute's to report.
  for (unsigned i = 0, e = function.getNumArguments(); i < e; ++i) {
    Attribute role = function.getArgAttr(i, KaonDialect::getRoleAttrName());
    if (role && !isa<RoleAttr>(role)) {
      return success();
    }
  }
  if (failed(verifyUpdateArguments(function)) ||
      failed(verifyUpdateResults(function))) {
    return failure();
  }
  if (!function.getBody().hasOneBlock()) {
    return function.emitOpError()
           << "is an update and expects 1 block, but has "
           << function.getBody().getBlocks().size();
  }
  Block &body = function.getBody().front();
  // A block without any terminator is reported as such.
  if (body.mightHaveTerminator() && !isa<func::ReturnOp>(body.back())) {
    return function.emitOpError()
           << "is an update and expects a body that ends in func.return";
  }
  return success();
}

/// Verifies an outlined kernel: matrices, then host scalars, and a single block
/// that the schedule can execute.
static LogicalResult verifyKernelFunction(func::FuncOp function,
                                          Schedule schedule) {
  auto isMatrix = [](Type type) {
    auto matrix = dyn_cast<RankedTensorType>(type);
    return matrix && matrix.getRank() == 2;
  };
  ArrayRef<Type> arguments = function.getArgumentTypes();
  ArrayRef<Type> inputs = arguments.take_while(isMatrix);
  for (auto [i, type] : llvm::enumerate(arguments)) {
    if (i >= inputs.size() && !type.isF64()) {
      return function.emitOpError()
             << "is a kernel and expects matrices, then f64 scalars, but "
                "argument #"
             << i << " is " << type;
    }
  }
  for (auto [i, type] : llvm::enumerate(function.getResultTypes())) {
    if (!isMatrix(type)) {
      return function.emitOpError() << "is a kernel and expects matrices as "
                                       "results, but #"
                                    << i << " is " << type;
    }
  }
  if (!function.getBody().hasOneBlock()) {
    return function.emitOpError() << "is a kernel and expects 1 block, but has "
                                  << function.getBody().getBlocks().size();
  }
  if (failed(verifyKernelShapes(schedule, inputs, function.getResultTypes(),
                                [&] { return function.emitOpError(); }))) {
    return failure();
  }
  return verifyKernelBody(schedule, function.getBody().front());
}

/// Verifies that each result of an op has one buffer. Whether it is the right
/// one, `checkBuffers` tells.
static LogicalResult verifyBuffers(Operation *op, Attribute value) {
  auto buffers = dyn_cast<ArrayAttr>(value);
  if (!buffers || !llvm::all_of(buffers, llvm::IsaPred<BufferAttr>)) {
    return op->emitOpError()
           << "expects kaon.buffers to be an array of #kaon.buffer, but got "
           << value;
  }
  if (buffers.size() != op->getNumResults()) {
    return op->emitOpError()
           << "expects one buffer for each of the " << op->getNumResults()
           << " results, but got " << buffers.size();
  }
  return success();
}

LogicalResult KaonDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attribute) {
  StringRef name = attribute.getName();
  Attribute value = attribute.getValue();
  auto expects = [&](StringRef wish) {
    return op->emitOpError()
           << "expects " << name << " to be " << wish << ", but got " << value;
  };
  auto function = dyn_cast<func::FuncOp>(op);

  if (name == getUpdateAttrName()) {
    if (!function) {
      return op->emitOpError() << "has " << name << ", but is not a function";
    }
    if (!isa<UnitAttr>(value)) {
      return expects("a unit attribute");
    }
    return verifyUpdate(function);
  }
  if (name == getKernelAttrName()) {
    if (!function) {
      return op->emitOpError() << "has " << name << ", but is not a function";
    }
    auto schedule = dyn_cast<ScheduleAttr>(value);
    return schedule ? verifyKernelFunction(function, schedule.getValue())
                    : expects("a #kaon.schedule");
  }
  if (name == getLibraryAttrName()) {
    bool valid = function && function.isDeclaration() && isa<StringAttr>(value);
    return valid ? success()
                 : expects("the name of a library kernel, on the declaration "
                           "of a function");
  }
  if (name == getWorkspaceAttrName()) {
    if (!function || !isUpdate(function)) {
      return op->emitOpError() << "has " << name << ", but is not an update";
    }
    auto bytes = dyn_cast<IntegerAttr>(value);
    bool valid = bytes && bytes.getType().isInteger(64) && bytes.getInt() >= 0;
    return valid ? success() : expects("a non-negative i64");
  }
  if (name == getBuffersAttrName()) {
    return verifyBuffers(op, value);
  }
  if (name == getCpuAttrName()) {
    if (!isa<ModuleOp>(op)) {
      return op->emitOpError() << "has " << name << ", but is not a module";
    }
    return isa<CpuTargetAttr>(value) ? success()
                                     : expects("a #kaon.cpu_target");
  }
  if (name == getCudaAttrName()) {
    if (!isa<ModuleOp>(op)) {
      return op->emitOpError() << "has " << name << ", but is not a module";
    }
    if (op->hasAttr(getCpuAttrName())) {
      return op->emitOpError() << "expects one target, but has both "
                               << getCpuAttrName() << " and " << name;
    }
    return isa<CudaTargetAttr>(value) ? success()
                                      : expects("a #kaon.cuda_target");
  }
  return op->emitOpError() << "has unknown attribute " << name;
}

LogicalResult KaonDialect::verifyRegionArgAttribute(Operation *op,
                                                    unsigned regionIndex,
                                                    unsigned argIndex,
                                                    NamedAttribute attribute) {
  StringRef name = attribute.getName();
  Attribute value = attribute.getValue();
  auto error = [&] {
    return op->emitOpError() << "argument #" << argIndex << " ";
  };
  auto function = dyn_cast<func::FuncOp>(op);
  if (!function || !isUpdate(function)) {
    return error() << "has " << name
                   << ", which only arguments of an update can have";
  }

  if (name == getRoleAttrName()) {
    return isa<RoleAttr>(value) ? success()
                                : error() << "expects " << name
                                          << " to be a #kaon.role, but got "
                                          << value;
  }
  if (name == getNameAttrName()) {
    auto text = dyn_cast<StringAttr>(value);
    return text && !text.empty() ? success()
                                 : error() << "expects " << name
                                           << " to be a string that is not "
                                              "empty, but got "
                                           << value;
  }
  if (name == getInitAttrName()) {
    std::optional<Role> role = getArgumentRole(function, argIndex);
    if (role != Role::State) {
      return error() << "has " << name << ", which only states have";
    }
    auto number = dyn_cast<FloatAttr>(value);
    bool valid = number && number.getType().isF64();
    return valid ? success()
                 : error() << "expects " << name << " to be an f64, but got "
                           << value;
  }
  return error() << "has unknown attribute " << name;
}
