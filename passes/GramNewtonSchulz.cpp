//===-- GramNewtonSchulz.cpp - iterate on the Gram matrix -----------------===//
//
// Numeric class: approximate.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Remarks.h"
#include "passes/Passes.h"
#include "passes/Support.h"

#include <cmath>

namespace kaon {
#define GEN_PASS_DEF_GRAMNEWTONSCHULZPASS
#include "passes/Passes.h.inc"
} // namespace kaon

using namespace mlir;
using namespace kaon;

// What a restart keeps small, as multiples of one unit of rounding. A singular
// value of zero leaves an eigenvalue of the Gram matrix that is wrong by one
// unit, and every step multiplies it by the square of `a`; above one, the
// polynomial throws it out. Factors of a segment are products of `a` there, and
// so is the rounding error of what is large in them.
static constexpr double maxEigenvalueError = 1.0 / 16, maxFactorError = 1.0 / 8;

/// The Gram form must save this share of the work to be worth its smaller
/// launches.
static constexpr double worthwhileWork = 0.9;

/// Steps before which the product is restarted from the matrix itself: segments
/// are as long as errors stay small.
static SmallVector<int64_t> chooseRestarts(ArrayRef<double> coefficients,
                                           double unit) {
  SmallVector<int64_t> restarts;
  double eigenvalue = unit, factor = unit;
  for (size_t i = 0; i < coefficients.size(); i += 3) {
    double slope = std::abs(coefficients[i]);
    factor *= slope;
    bool isTooLong = eigenvalue > maxEigenvalueError || factor > maxFactorError;
    if (i > 0 && isTooLong) {
      restarts.push_back(static_cast<int64_t>(i / 3));
      eigenvalue = unit;
      factor = unit * slope;
    }
    // The next step of the segment finds the Gram matrix that this one leaves.
    eigenvalue *= slope * slope;
  }
  return restarts;
}

namespace {

/// Multiplications of a form, in units of the cube of the shorter side, when
/// the longer one is `ratio` times as long and symmetric products cost half.
struct Work {
  double standard, gram;

  Work(double ratio, double steps, double segments)
      : standard(steps * (3 * ratio + 1)),
        gram(3 * segments * ratio + 4 * steps - 3 * segments) {}
};

struct GramNewtonSchulzPass
    : kaon::impl::GramNewtonSchulzPassBase<GramNewtonSchulzPass> {
  using GramNewtonSchulzPassBase::GramNewtonSchulzPassBase;

  void runOnOperation() override {
    CudaTargetAttr target = getCudaTarget(getOperation());
    if (!target) {
      return;
    }
    // Half of the last digit.
    double unit = std::ldexp(
        0.5, -static_cast<int>(target.getHalfType().getFPMantissaWidth()));
    getOperation().walk([&](NewtonSchulzOp op) { choose(op, unit); });
  }

  void choose(NewtonSchulzOp op, double unit) {
    ArrayRef<double> coefficients = op.getCoefficients();
    ArrayRef<int64_t> shape = op.getInput().getType().getShape();
    int64_t shorter = std::min(shape[0], shape[1]);
    // Without the square of the Gram matrix there is little to save.
    bool isQuintic = true;
    for (int64_t i = 0; i < op.getSteps(); ++i) {
      isQuintic &= coefficients[3 * i + 2] != 0.0;
    }
    if (op.getRestarts() || !isQuintic || shorter < minSize ||
        !op.getInput().getType().getElementType().isF32()) {
      return;
    }
    SmallVector<int64_t> restarts = chooseRestarts(coefficients, unit);
    double ratio = static_cast<double>(std::max(shape[0], shape[1])) /
                   static_cast<double>(shorter);
    Work work(ratio, static_cast<double>(op.getSteps()),
              static_cast<double>(restarts.size() + 1));
    auto options = remark::RemarkOpts::name("Gram")
                       .category("kaon-gram-newton-schulz")
                       .function(op->getParentOfType<func::FuncOp>().getName());
    if (work.gram > worthwhileWork * work.standard) {
      remark::missed(op.getLoc(), options) << remark::add(
          "{0}x{1}: the Gram form takes {2}% of the work", shape[0], shape[1],
          static_cast<int64_t>(100 * work.gram / work.standard));
      return;
    }
    op.setRestarts(restarts);
    remark::passed(op.getLoc(), options)
        << remark::add("{0}x{1}: the Gram form with {2} restarts takes {3}% of "
                       "the work",
                       shape[0], shape[1], restarts.size(),
                       static_cast<int64_t>(100 * work.gram / work.standard));
  }
};

} // namespace
