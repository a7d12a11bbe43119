//===-- ProductEpilogues.cuh - epilogues of the kernels of tests ----------===//
//
// What ProductKernels.cuh and WarpgroupKernels.cuh have in common.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_KERNELS_PRODUCTEPILOGUES
#define KAON_TEST_CUDA_KERNELS_PRODUCTEPILOGUES

#include "Gemm.cuh"

namespace kernels {

using namespace kaon::device;

template <typename T, bool symmetric>
using Plain = StoreTile<T, symmetric, Addend::none>;
template <typename T, bool symmetric>
using WithAddend = StoreTile<T, symmetric, Addend::matrix>;

/// The last product of an iteration: the parameter by decay and step.
class DecoupledUpdate {
public:
  KAON_DEVICE explicit DecoupledUpdate(const double *scalars)
      : keep(toFloatRn(scalars[0])), step(toFloatRn(scalars[1])) {}

  KAON_DEVICE float operator()(float w, float product) const {
    return subRn(mulRn(keep, w), mulRn(step, product));
  }

private:
  float keep, step;
};

template <typename T, typename Parameter>
using Apply = ApplyTile<T, Parameter, Addend::matrix, DecoupledUpdate>;

} // namespace kernels

#endif // KAON_TEST_CUDA_KERNELS_PRODUCTEPILOGUES
