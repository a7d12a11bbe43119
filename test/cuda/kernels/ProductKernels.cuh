//===-- ProductKernels.cuh - products as a compiler would emit them -------===//
//
// The products of Newton-Schulz iterations, short and tall. NVRTC compiles this
// text for every architecture, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "ProductEpilogues.cuh"

namespace kernels {

using namespace kaon::device;

/// X * X^T and S * S: both operands have k contiguous.
template <typename T>
using OuterLoop = TileProduct<T, Contiguous::depth, Contiguous::depth>;
/// S * X of a short X.
template <typename T>
using ShortLoop = TileProduct<T, Contiguous::depth, Contiguous::extent>;
/// X^T * X of a tall X.
template <typename T>
using TallLoop = TileProduct<T, Contiguous::extent, Contiguous::extent>;

} // namespace kernels

KAON_KERNEL(256, 2)
outer_symmetric_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<OuterLoop<bf16>, Plain<bf16, true>>(list, scalars);
}
KAON_KERNEL(256, 2)
outer_dense_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<OuterLoop<bf16>, Plain<bf16, false>>(list, scalars);
}
KAON_KERNEL(256, 2)
outer_symmetric_add_f16(const kernels::ProductList list,
                        const double *scalars) {
  using namespace kernels;
  runGemm<OuterLoop<f16>, WithAddend<f16, true>>(list, scalars);
}
KAON_KERNEL(256, 2)
short_add_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<ShortLoop<bf16>, WithAddend<bf16, false>>(list, scalars);
}
KAON_KERNEL(256, 2)
tall_symmetric_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<TallLoop<bf16>, Plain<bf16, true>>(list, scalars);
}
KAON_KERNEL(256, 2)
tall_dense_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<TallLoop<bf16>, Plain<bf16, false>>(list, scalars);
}
KAON_KERNEL(256, 2)
short_apply_bf16_f32(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<ShortLoop<bf16>, Apply<bf16, float>>(list, scalars);
}
KAON_KERNEL(256, 2)
short_apply_f16_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<ShortLoop<f16>, Apply<f16, bf16>>(list, scalars);
}
