//===-- TestPlans.h - plans and kernels made by hand ------------*- C++ -*-===//
//
// Small plans whose kernels are ordinary C++ functions, so that the runtime is
// tested without the compiler.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_UNIT_TESTPLANS_H
#define KAON_TEST_UNIT_TESTPLANS_H

#include "runtime/KernelTable.h"
#include "runtime/StepPlan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kaon::runtime::test {

/// An operand of f32.
Operand operand(BufferKind kind, int64_t rows, int64_t cols, int32_t index = 0,
                int64_t offset = 0);

/// Has kernels take what their first launches give them.
void signKernels(StepPlan &plan);

/// Momentum descent, one launch: m = mu * m + g, w = w - rate * m with
/// rate = lr / step. Scalars: lr, mu. States: m.
struct MomentumPlan {
  /// Adds a matrix; matrices of one shape share a bucket.
  MomentumPlan &add(std::string name, int64_t rows, int64_t cols,
                    int32_t scalarSet = 0);

  StepPlan plan = base();

private:
  static StepPlan base();
};

/// A period of 2 and no states. Odd steps, three launches: transposes g into
/// the workspace and back, then w = w - rate * g. Even steps, one launch: w = w
/// - rate * g / (sum of |g| over the row). Scalar: rate.
StepPlan periodicPlan(int64_t rows, int64_t cols, int32_t numParameters,
                      int32_t concurrent);

/// The kernels of both plans.
KernelTable testKernels();

/// Items that the last launches ran, for tests of how work is divided: the
/// number of kernel calls, and the largest `sizes[1]` seen.
struct CallCounter {
  int64_t calls = 0;
  int64_t mostColumns = 0;
};
CallCounter readCallCounter();
void resetCallCounter();

/// A model's memory for a plan: parameters, gradients, states of f32, each
/// filled with numbers that depend on its position.
class Model {
public:
  explicit Model(const StepPlan &plan, int64_t padding = 0);

  std::vector<KaonBuffer> buffers;
  std::vector<std::vector<float>> memory; // as buffers

  float &at(size_t buffer, int64_t row, int64_t col) {
    return memory[buffer]
                 [static_cast<size_t>(row * buffers[buffer].row_stride + col)];
  }
};

} // namespace kaon::runtime::test

#endif // KAON_TEST_UNIT_TESTPLANS_H
