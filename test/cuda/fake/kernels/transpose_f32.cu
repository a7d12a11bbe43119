#include "Transpose.cuh"
using namespace kaon::device;
KAON_KERNEL(256, 4)
transpose_f32(const Matrix<2> *matrices, const Block *blocks, const double *) {
  runTranspose<float>(matrices, blocks);
}
