//===-- WarpgroupKernels.cuh - the same products with the loop of sm_90a --===//
//
// The kernels of ProductKernels.cuh with WarpgroupProduct in the place of
// TileProduct. NVRTC compiles this text for sm_90a, the shim runs it.
//
//===----------------------------------------------------------------------===//

#include "ProductEpilogues.cuh"
#include "WarpgroupProduct.cuh"

namespace kernels {

template <typename T>
using OuterWarpgroups =
    WarpgroupProduct<T, Contiguous::depth, Contiguous::depth>;
template <typename T>
using ShortWarpgroups =
    WarpgroupProduct<T, Contiguous::depth, Contiguous::extent>;
template <typename T>
using TallWarpgroups =
    WarpgroupProduct<T, Contiguous::extent, Contiguous::extent>;
/// X^T * S of a tall X and a symmetric S.
template <typename T>
using TurnedWarpgroups =
    WarpgroupProduct<T, Contiguous::extent, Contiguous::depth>;

} // namespace kernels

KAON_KERNEL(288, 2)
outer_symmetric_wgmma_bf16(const kernels::ProductList list,
                           const double *scalars) {
  using namespace kernels;
  runGemm<OuterWarpgroups<bf16>, Plain<bf16, true>>(list, scalars);
}
KAON_KERNEL(288, 2)
outer_dense_wgmma_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<OuterWarpgroups<bf16>, Plain<bf16, false>>(list, scalars);
}
KAON_KERNEL(288, 2)
outer_symmetric_add_wgmma_f16(const kernels::ProductList list,
                              const double *scalars) {
  using namespace kernels;
  runGemm<OuterWarpgroups<f16>, WithAddend<f16, true>>(list, scalars);
}
KAON_KERNEL(288, 2)
short_add_wgmma_bf16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<ShortWarpgroups<bf16>, WithAddend<bf16, false>>(list, scalars);
}
KAON_KERNEL(288, 2)
tall_symmetric_wgmma_bf16(const kernels::ProductList list,
                          const double *scalars) {
  using namespace kernels;
  runGemm<TallWarpgroups<bf16>, Plain<bf16, true>>(list, scalars);
}
KAON_KERNEL(288, 2)
turned_dense_wgmma_f16(const kernels::ProductList list, const double *scalars) {
  using namespace kernels;
  runGemm<TurnedWarpgroups<f16>, Plain<f16, false>>(list, scalars);
}
KAON_KERNEL(288, 2)
short_apply_wgmma_bf16_f32(const kernels::ProductList list,
                           const double *scalars) {
  using namespace kernels;
  runGemm<ShortWarpgroups<bf16>, Apply<bf16, float>>(list, scalars);
}
KAON_KERNEL(288, 2)
short_apply_wgmma_f16_bf16(const kernels::ProductList list,
                           const double *scalars) {
  using namespace kernels;
  runGemm<ShortWarpgroups<f16>, Apply<f16, bf16>>(list, scalars);
}
