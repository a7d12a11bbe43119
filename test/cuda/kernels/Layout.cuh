//===-- Layout.cuh - the layout of tables on both sides -------------------===//
//
// The host writes tables that the GPU reads. Compiled by NVRTC and by the host
// compiler.
//
//===----------------------------------------------------------------------===//

#include "Gemm.cuh"
#include "Matrices.cuh"

// What `offsetof` of the standard headers expands to.
#ifdef __CUDACC__
#define KAON_OFFSET(type, member) __INTADDR__(&(((type *)0)->member))
#else
#define KAON_OFFSET(type, member) __builtin_offsetof(type, member)
#endif

namespace kernels {

using namespace kaon::device;

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(Words4) == 16);

static_assert(sizeof(Matrix<4>) == 88);
static_assert(KAON_OFFSET(Matrix<4>, strides) == 32);
static_assert(KAON_OFFSET(Matrix<4>, rows) == 64);
static_assert(KAON_OFFSET(Matrix<4>, columns) == 72);
static_assert(KAON_OFFSET(Matrix<4>, firstScalar) == 80);
static_assert(sizeof(Block) == 12);
static_assert(KAON_OFFSET(Block, first) == 4);
static_assert(KAON_OFFSET(Block, count) == 8);

static_assert(sizeof(Product) == 80);
static_assert(KAON_OFFSET(Product, factor) == 32);
static_assert(KAON_OFFSET(Product, m) == 40);
static_assert(KAON_OFFSET(Product, pitchA) == 52);
static_assert(KAON_OFFSET(Product, firstTile) == 68);
static_assert(KAON_OFFSET(Product, firstScalar) == 72);
static_assert(sizeof(ProductList) == 16);
static_assert(KAON_OFFSET(ProductList, count) == 8);
static_assert(KAON_OFFSET(ProductList, tilesPerProduct) == 12);

} // namespace kernels
