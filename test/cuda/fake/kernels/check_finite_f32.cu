#include "FiniteCheck.cuh"
using namespace kaon::device;
KAON_KERNEL(256, 2)
check_finite_f32(const Matrix<1> *matrices, const Block *blocks, u32 *flags) {
  runFiniteCheck<float>(matrices, blocks, flags);
}
