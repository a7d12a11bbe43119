//===-- ExpandUpdates.cpp - library ops become primitives -----------------===//
//
// Numeric class: approximate (norms), else bitwise.
//
//===----------------------------------------------------------------------===//

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include "llvm/ADT/TypeSwitch.h"

namespace kaon {
#define GEN_PASS_DEF_EXPANDUPDATESPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

namespace {

/// Builds the primitives of one library op at its place.
class Expander : public ImplicitLocOpBuilder {
public:
  explicit Expander(Operation *op) : ImplicitLocOpBuilder(op->getLoc(), op) {}

  void expand(MomentumOp op);
  void expand(ApplyOp op);
  void expand(NormOp op) { replace(op, norm(op.getInput(), op.getAlong())); }
  void expand(NormalizeOp op) {
    replace(op, normalize(op.getInput(), op.getAlong(), op.getMode(),
                          toDouble(op.getEpsilon()), toDouble(op.getScale())));
  }
  void expand(NewtonSchulzOp op);

private:
  /// One step of an iteration.
  struct Step {
    double a, b, c;
  };
  static double toDouble(const APFloat &number) {
    return number.convertToDouble();
  }

  template <typename Op> void replace(Op op, Value value) {
    op->getResult(0).replaceAllUsesWith(value);
    op->erase();
  }

  Value add(Value a, Value b) { return arith::AddFOp::create(*this, a, b); }
  Value sub(Value a, Value b) { return arith::SubFOp::create(*this, a, b); }
  Value mul(Value a, Value b) { return arith::MulFOp::create(*this, a, b); }
  Value div(Value a, Value b) { return arith::DivFOp::create(*this, a, b); }
  Value max(Value a, Value b) { return arith::MaximumFOp::create(*this, a, b); }
  Value min(Value a, Value b) { return arith::MinimumFOp::create(*this, a, b); }
  Value matmul(Value a, Value b, bool transposeB = false) {
    return MatmulOp::create(*this, a, b, /*transposeA=*/false, transposeB);
  }
  /// A product that is known to be symmetric.
  Value matmulSymmetric(Value a, Value b) {
    return MatmulOp::create(*this, a, b, /*transposeA=*/false,
                            /*transposeB=*/false, /*symmetric=*/true);
  }
  Value scale(double factor, Value matrix) {
    return mul(splat(factor, matrix), matrix);
  }

  /// Matrix filled with a host scalar (f64) or a number, shaped like `like`.
  Value splat(Value scalar, Value like) {
    return createSplat(*this, getLoc(), scalar, getMatrixType(like));
  }
  Value splat(double number, Value like) {
    return splat(createScalar(*this, getLoc(), number), like);
  }
  /// Like `splat`, for the numbers that every kernel may know.
  Value fill(double number, Value like) {
    return createFill(*this, getLoc(), number, getMatrixType(like));
  }

  Value convert(Value matrix, Type element) {
    return createConversion(*this, getLoc(), matrix, element);
  }

  Value reduce(ReduceKind kind, Value matrix, Along along) {
    return ReduceOp::create(*this, kind, matrix, along);
  }
  Value broadcast(Value matrix, Value like) {
    auto type = RankedTensorType::get(getMatrixType(like).getShape(),
                                      getMatrixType(matrix).getElementType());
    return matrix.getType() == type
               ? matrix
               : BroadcastOp::create(*this, type, matrix).getResult();
  }
  /// `value`, with `substitute` in place of zeros.
  Value replaceZeros(Value value, double substitute) {
    Value isZero = arith::CmpFOp::create(*this, arith::CmpFPredicate::OEQ,
                                         value, fill(0.0, value));
    return arith::SelectOp::create(*this, isZero, fill(substitute, value),
                                   value);
  }

  /// `scale * norm`, guarded by epsilon.
  Value guard(Value norm, NormalizeMode mode, Value epsilon, double scale) {
    Value scaled = scale == 1.0 ? norm : mul(norm, splat(scale, norm));
    return mode == NormalizeMode::Max ? max(scaled, epsilon)
                                      : add(scaled, epsilon);
  }

  /// An f64 matrix and its Euclidean norm divided by its largest absolute
  /// value, one where it is zero: squares of the quotients neither overflow nor
  /// vanish.
  struct Scaled {
    Value largest, quotients, norm;
  };
  Scaled scaleByLargest(Value matrix, Along along) {
    Value largest = replaceZeros(
        reduce(ReduceKind::Max, math::AbsFOp::create(*this, matrix), along),
        1.0);
    Value quotients = div(matrix, broadcast(largest, matrix));
    Value squares = reduce(ReduceKind::Sum, mul(quotients, quotients), along);
    return {largest, quotients, math::SqrtOp::create(*this, squares)};
  }

  /// Euclidean norm of an f32 matrix in f64, which holds every square of an f32
  /// number.
  Value wideNorm(Value wide, Along along) {
    return math::SqrtOp::create(
        *this, reduce(ReduceKind::Sum, mul(wide, wide), along));
  }

  /// An f32 matrix times non-negative f64 numbers, which may be larger or
  /// smaller than f32 holds: those of subnormal rows' inverse norms are. The
  /// second factor is one nearly always; else it continues in the direction of
  /// the first, so that nothing overflows or vanishes between them.
  Value mulInTwoFactors(Value matrix, Value number);

  /// The Gram matrix of the shorter side.
  Value gram(Value x, bool isTall) {
    return MatmulOp::create(*this, x, x, /*transposeA=*/isTall,
                            /*transposeB=*/!isTall, /*symmetric=*/true);
  }
  /// `b * gram + c * gram^2`
  Value polynomial(const Step &step, Value gram) {
    Value result = scale(step.b, gram);
    return step.c == 0.0
               ? result
               : add(result, scale(step.c, matmulSymmetric(gram, gram)));
  }
  Value iterateOnGram(Value x, ArrayRef<Step> steps);

  Value norm(Value matrix, Along along);
  Value normalize(Value matrix, Along along, NormalizeMode mode, double epsilon,
                  double scale);
};

} // namespace

Value Expander::norm(Value matrix, Along along) {
  Type element = getMatrixType(matrix).getElementType();
  if (element.isF64()) {
    Scaled scaled = scaleByLargest(matrix, along);
    return mul(scaled.largest, scaled.norm);
  }
  return convert(wideNorm(convert(matrix, getF64Type()), along), element);
}

Value Expander::normalize(Value matrix, Along along, NormalizeMode mode,
                          double epsilon, double scale) {
  if (mode == NormalizeMode::None) {
    return matrix;
  }
  Type element = getMatrixType(matrix).getElementType();
  if (element.isF64()) {
    // x / max(s |x|, eps) = q / max(s |q|, eps / largest), with q = x /
    // largest.
    Scaled scaled = scaleByLargest(matrix, along);
    Value relativeEpsilon = div(splat(epsilon, scaled.largest), scaled.largest);
    Value divisor =
        replaceZeros(guard(scaled.norm, mode, relativeEpsilon, scale), 1.0);
    return div(scaled.quotients, broadcast(divisor, matrix));
  }
  // One division per norm rather than one per element.
  Value wide = convert(matrix, getF64Type());
  Value norm = wideNorm(wide, along);
  Value divisor = guard(norm, mode, splat(epsilon, norm), scale);
  Value isZero = arith::CmpFOp::create(*this, arith::CmpFPredicate::OEQ, norm,
                                       fill(0.0, norm));
  Value inverse = arith::SelectOp::create(*this, isZero, fill(0.0, norm),
                                          div(fill(1.0, norm), divisor));
  // What the whole matrix is divided by goes into products, next to which a
  // multiplication in f64 costs nothing.
  return along == Along::All
             ? convert(mul(wide, broadcast(inverse, wide)), element)
             : mulInTwoFactors(matrix, inverse);
}

Value Expander::mulInTwoFactors(Value matrix, Value number) {
  Value first =
      min(max(number, fill(0x1p-126, number)), fill(0x1p+126, number));
  Type element = getMatrixType(matrix).getElementType();
  for (Value factor : {first, div(number, first)}) {
    matrix = mul(matrix, broadcast(convert(factor, element), matrix));
  }
  return matrix;
}

void Expander::expand(MomentumOp op) {
  Value gradient = op.getGradient(), momentum = op.getMomentum(),
        mu = op.getCoefficient();
  bool lerp = op.getForm() == MomentumForm::Lerp;
  Value decay = splat(mu, momentum);
  // Both terms below are shared by the two results.
  Value gained =
      lerp ? mul(splat(sub(createScalar(*this, getLoc(), 1.0), mu), gradient),
                 gradient)
           : gradient;
  Value newMomentum = add(mul(decay, momentum), gained);
  Value update =
      op.getNesterov() ? add(gained, mul(decay, newMomentum)) : newMomentum;
  op.getUpdate().replaceAllUsesWith(update);
  op.getNewMomentum().replaceAllUsesWith(newMomentum);
  op->erase();
}

void Expander::expand(ApplyOp op) {
  Value param = op.getParam(), decay = op.getDecay();
  Value step = mul(splat(op.getStepSize(), param), op.getUpdate());
  switch (op.getForm()) {
  case ApplyForm::Decoupled: {
    Value keep = sub(createScalar(*this, getLoc(), 1.0), decay);
    return replace(op, sub(mul(splat(keep, param), param), step));
  }
  case ApplyForm::After: {
    Value moved = sub(param, step);
    return replace(op, sub(moved, mul(splat(decay, moved), moved)));
  }
  case ApplyForm::Cautious: {
    Value moved = sub(param, step);
    Value agrees =
        arith::CmpFOp::create(*this, arith::CmpFPredicate::OGE,
                              mul(op.getUpdate(), param), fill(0.0, param));
    Value decayed = sub(moved, mul(splat(decay, param), param));
    return replace(op, arith::SelectOp::create(*this, agrees, decayed, moved));
  }
  }
  llvm_unreachable("all forms of apply are handled");
}

/// Steps that act on the Gram matrix R of x: each maps x to (Z + a I) x with
/// Z = b R + c R^2, and R to (Z + a I) R (Z + a I), all of which commute. What
/// they do to x is gathered as `factor + identity * I`. Adding a I to a matrix
/// would round its small elements as its diagonal: it stays apart.
Value Expander::iterateOnGram(Value x, ArrayRef<Step> steps) {
  ArrayRef<int64_t> shape = getMatrixType(x).getShape();
  bool isTall = shape[0] > shape[1];
  Value r = gram(x, isTall), factor;
  double identity = 1.0;
  for (const Step &step : steps) {
    Value z = polynomial(step, r);
    if (factor) {
      // (factor + identity I) (Z + a I)
      Value product = add(scale(step.a, factor), matmulSymmetric(factor, z));
      factor = add(product, scale(identity, z));
    } else {
      factor = z;
    }
    identity *= step.a;
    if (&step != &steps.back()) {
      Value half = add(scale(step.a, r), matmulSymmetric(r, z));
      r = add(scale(step.a, half), matmulSymmetric(z, half));
    }
  }
  Value moved = isTall ? matmul(x, factor) : matmul(factor, x);
  return add(scale(identity, x), moved);
}

void Expander::expand(NewtonSchulzOp op) {
  Value x = normalize(op.getInput(), Along::All, op.getMode(),
                      toDouble(op.getEpsilon()), toDouble(op.getScale()));
  ArrayRef<double> coefficients = op.getCoefficients();
  SmallVector<Step> steps;
  for (size_t i = 0; i + 2 < coefficients.size(); i += 3) {
    steps.push_back(
        {coefficients[i], coefficients[i + 1], coefficients[i + 2]});
  }
  if (std::optional<ArrayRef<int64_t>> restarts = op.getRestarts()) {
    SmallVector<int64_t> ends(*restarts);
    ends.push_back(op.getSteps());
    int64_t begin = 0;
    for (int64_t end : ends) {
      if (begin < end) {
        x = iterateOnGram(
            x, ArrayRef(steps).slice(begin, static_cast<size_t>(end - begin)));
      }
      begin = end;
    }
    return replace(op, x);
  }
  for (auto [a, b, c] : steps) {
    Value gram = matmul(x, x, /*transposeB=*/true);
    Value polynomial = mul(splat(b, gram), gram);
    if (c != 0.0) {
      polynomial = add(polynomial, mul(splat(c, gram), matmul(gram, gram)));
    }
    x = add(mul(splat(a, x), x), matmul(polynomial, x));
  }
  replace(op, x);
}

namespace {

struct ExpandUpdatesPass
    : kaon::impl::ExpandUpdatesPassBase<ExpandUpdatesPass> {
  void runOnOperation() override {
    getOperation().walk([](Operation *op) {
      TypeSwitch<Operation *>(op)
          .Case<MomentumOp, ApplyOp, NormOp, NormalizeOp, NewtonSchulzOp>(
              [](auto libraryOp) { Expander(libraryOp).expand(libraryOp); });
    });
  }
};

} // namespace
