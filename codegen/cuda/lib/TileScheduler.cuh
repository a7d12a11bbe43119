//===-- TileScheduler.cuh - which tile of which product a block computes --===//
//
// One launch computes the products of a whole bucket. Tiles are numbered
// through all of them; a product with a symmetric result has only the tiles on
// and below the diagonal. Equal shapes (a batch) find their product by a
// division, unequal ones (a group) by a search in the table.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_TILESCHEDULER
#define KAON_CODEGEN_CUDA_LIB_TILESCHEDULER

#include "Vector.cuh"

namespace kaon::device {

/// Rows and columns of an output tile.
constexpr int tileSize = 128;

/// D = op(A) * op(B) and what the epilogue makes of it. Pitches are the
/// distances between rows in elements.
struct Product {
  /// Half precision, aligned to 16 bytes, with pitches that are multiples of 8.
  const void *a;
  const void *b;
  /// The addend, stored like A and shaped like D; null if the epilogue has
  /// none.
  const void *c;
  void *d;
  /// Multiplies the product and the addend, such as the reciprocal of a norm;
  /// null for 1.
  const float *factor;
  i32 m, n, k;
  i32 pitchA, pitchB, pitchC, pitchD;
  /// Tiles of the products before this one.
  u32 firstTile;
  /// Position of the product's first scalar in the launch's scalars.
  u32 firstScalar;
};

/// The products of a launch.
struct ProductList {
  const Product *products;
  u32 count;
  /// Tiles of every product if all have the same number, otherwise 0.
  u32 tilesPerProduct;
};

/// Position of a tile in units of tiles.
struct Tile {
  int row, column;
};

/// Index of the product that tile number `tile` of the launch belongs to.
KAON_DEVICE u32 findProduct(const ProductList &list, u32 tile) {
  if (list.tilesPerProduct != 0) {
    return tile / list.tilesPerProduct;
  }
  u32 low = 0, high = list.count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (list.products[middle].firstTile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Tiles of a triangle with up to 65535 rows.
constexpr u32 triangle(u32 rows) { return rows * (rows + 1) / 2; }

/// Tile `index` of the lower triangle, numbered row by row.
KAON_DEVICE Tile triangularTile(u32 index) {
  // The rounded root is a guess close to the row, which the loops make exact.
  float root = sqrtRn(fmaRn(8.0f, static_cast<float>(index), 1.0f));
  u32 row = static_cast<u32>(mulRn(subRn(root, 1.0f), 0.5f));
  while (triangle(row + 1) <= index) {
    ++row;
  }
  while (triangle(row) > index) {
    --row;
  }
  return {static_cast<int>(row), static_cast<int>(index - triangle(row))};
}

/// Tile `index` of a full grid. Tiles are numbered down strips of eight rows,
/// so that blocks that run together share operands in the L2 cache.
KAON_DEVICE Tile denseTile(u32 index, u32 rows, u32 columns) {
  constexpr u32 stripRows = 8;
  u32 strip = index / (stripRows * columns);
  u32 rest = index % (stripRows * columns);
  u32 rowsLeft = rows - strip * stripRows;
  u32 height = rowsLeft < stripRows ? rowsLeft : stripRows;
  return {static_cast<int>(strip * stripRows + rest % height),
          static_cast<int>(rest / height)};
}

/// Tiles of a product.
constexpr u32 productTiles(i32 m, i32 n, bool symmetric) {
  u32 rows = divideUp(m, tileSize), columns = divideUp(n, tileSize);
  return symmetric ? triangle(rows) : rows * columns;
}

template <bool symmetric>
KAON_DEVICE Tile productTile(const Product &product, u32 index) {
  if constexpr (symmetric) {
    return triangularTile(index);
  } else {
    return denseTile(index, divideUp(product.m, tileSize),
                     divideUp(product.n, tileSize));
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_TILESCHEDULER
