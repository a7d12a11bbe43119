//===-- Layout.cuh - the layout of tables on both sides -------------------===//
//
// The host writes tables that the GPU reads. Compiled by NVRTC and by the host
// compiler.
//
//===----------------------------------------------------------------------===//

#include "Gemm.cuh"
#include "Norms.cuh"
#include "Rows.cuh"

// What `offsetof` of the standard headers expands to.
#ifdef __CUDACC__
#define KAON_OFFSET(type, member) __INTADDR__(&(((type *)0)->member))
#else
#define KAON_OFFSET(type, member) __builtin_offsetof(type, member)
#endif

namespace kernels {

using namespace kaon::device;

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(Words4) == 16);

static_assert(sizeof(ElementwiseTensor<4>) == 48);
static_assert(KAON_OFFSET(ElementwiseTensor<4>, size) == 32);
static_assert(KAON_OFFSET(ElementwiseTensor<4>, firstScalar) == 40);
static_assert(sizeof(Chunk) == 8 && sizeof(PartialSums) == 8);

using TestRowMatrix = RowMatrix<2, 1>;
static_assert(sizeof(TestRowMatrix) == 64);
static_assert(KAON_OFFSET(TestRowMatrix, second) == 16);
static_assert(KAON_OFFSET(TestRowMatrix, firstStride) == 24);
static_assert(KAON_OFFSET(TestRowMatrix, secondStride) == 40);
static_assert(KAON_OFFSET(TestRowMatrix, columns) == 48);
static_assert(KAON_OFFSET(TestRowMatrix, firstScalar) == 56);
static_assert(sizeof(RowBlock) == 12);

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
