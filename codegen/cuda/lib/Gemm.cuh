//===-- Gemm.cuh - batched products with epilogues ------------------------===//
//
// A product kernel is a main loop (TileProduct), a scheduler (TileScheduler)
// and an epilogue, which is a class template argument:
//
//   StoreTile   rounds to half precision and stores the tile, and its mirror
//               image where the result is symmetric;
//   ApplyTile   changes the parameter by the product, which is never stored.
//
// Both first scale the f32 sums by ScaledSum.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_GEMM
#define KAON_CODEGEN_CUDA_LIB_GEMM

#include "TileProduct.cuh"

namespace kaon::device {

enum class Addend { none, matrix };
enum class Diagonal { none, add };

/// alpha * factor * AB + beta * C + gamma * I, each term in one rounding in
/// this order. Scalars, which are rounded to f32 first: alpha, then beta if
/// there is a C, then gamma if there is a diagonal.
template <typename T, Addend addend, Diagonal diagonal> class ScaledSum {
public:
  static constexpr int numScalars =
      1 + (addend == Addend::matrix) + (diagonal == Diagonal::add);

  KAON_DEVICE ScaledSum(const Product &product, const double *scalars)
      : alpha(toFloatRn(scalars[0])), beta(0), gamma(0),
        c(asGlobal(static_cast<const T *>(product.c))), pitch(product.pitchC),
        m(product.m), n(product.n) {
    if (product.factor) {
      alpha = mulRn(alpha, *product.factor);
    }
    if constexpr (addend == Addend::matrix) {
      beta = toFloatRn(scalars[1]);
    }
    if constexpr (diagonal == Diagonal::add) {
      gamma = toFloatRn(scalars[numScalars - 1]);
    }
  }

  /// Scales the sums of elements (row, column) and (row, column + 1), where
  /// `column` is even. Elements outside of the result get any value.
  KAON_DEVICE void apply(int row, int column, float &left, float &right) const {
    left = mulRn(alpha, left);
    right = mulRn(alpha, right);
    if constexpr (addend == Addend::matrix) {
      if (row < m && column < n) {
        // The right element may be the row's padding, which can be read.
        u32 pair = *reinterpret_cast<const u32 *>(
            c + static_cast<i64>(row) * pitch + column);
        left = fmaRn(beta, toFloat(T{static_cast<u16>(pair)}), left);
        right = fmaRn(beta, toFloat(T{static_cast<u16>(pair >> 16)}), right);
      }
    }
    if constexpr (diagonal == Diagonal::add) {
      left = row == column ? addRn(left, gamma) : left;
      right = row == column + 1 ? addRn(right, gamma) : right;
    }
  }

private:
  float alpha, beta, gamma;
  const T *c;
  i64 pitch;
  int m, n;
};

/// Stores the tile through shared memory, in rows of 16-byte accesses. D is
/// stored like A: aligned to 16 bytes, with a pitch that is a multiple of 8.
template <typename T, bool symmetric, Addend addend, Diagonal diagonal>
struct StoreTile {
  static constexpr bool isSymmetric = symmetric;

  /// Elements of a staged row; the padding keeps both ways of writing it free
  /// of bank conflicts.
  static constexpr int stagedPitch = tileSize + copySize;
  static constexpr int sharedBytes =
      tileSize * stagedPitch * static_cast<int>(sizeof(T));

  KAON_DEVICE static void run(WarpTile &sums, const Product &product, Tile tile,
                              const double *scalars, char *shared) {
    int firstRow = tile.row * tileSize, firstColumn = tile.column * tileSize;
    ScaledSum<T, addend, diagonal> scale(product, scalars);
    T *staged = reinterpret_cast<T *>(shared);
    sums.forEachPair([&](int row, int column, float &left, float &right) {
      scale.apply(firstRow + row, firstColumn + column, left, right);
      *reinterpret_cast<u32 *>(staged + row * stagedPitch + column) =
          packPair(narrow<T>(left).bits, narrow<T>(right).bits);
    });
    blockBarrier();
    storeStaged(staged, product, firstRow, firstColumn);

    if (symmetric && tile.row != tile.column) {
      blockBarrier();
      sums.forEachPair([&](int row, int column, float left, float right) {
        staged[column * stagedPitch + row] = narrow<T>(left);
        staged[(column + 1) * stagedPitch + row] = narrow<T>(right);
      });
      blockBarrier();
      storeStaged(staged, product, firstColumn, firstRow);
    }
  }

private:
  /// Stores the staged tile with its first element at (firstRow, firstColumn).
  KAON_DEVICE static void storeStaged(const T *staged, const Product &product,
                                      int firstRow, int firstColumn) {
    constexpr int copiesPerRow = tileSize / copySize;
    // Read once, as in ApplyTile.
    T *d = asGlobal(static_cast<T *>(product.d));
    i64 pitch = product.pitchD;
    int m = product.m, n = product.n;
    for (int index = static_cast<int>(threadIndex());
         index < tileSize * copiesPerRow; index += productThreads) {
      int row = index / copiesPerRow, column = index % copiesPerRow * copySize;
      const T *source = staged + row * stagedPitch + column;
      int rest = n - (firstColumn + column);
      if (firstRow + row >= m || rest <= 0) {
        continue;
      }
      T *target = d + (firstRow + row) * pitch + firstColumn + column;
      if (rest >= copySize) {
        storeWords(target, loadWords(source));
      } else {
        for (int i = 0; i < rest; ++i) {
          target[i] = source[i];
        }
      }
    }
  }
};

/// Changes a parameter, whose rows may lie anywhere, by the scaled product:
/// w = update(w, product). The class is made from the scalars that follow those
/// of ScaledSum:
///
///   struct Update {
///     KAON_DEVICE explicit Update(const double *scalars);
///     KAON_DEVICE float operator()(float w, float product) const;
///   };
template <typename T, typename Parameter, Addend addend, typename Update>
struct ApplyTile {
  static constexpr bool isSymmetric = false;
  static constexpr int sharedBytes = 0;

  KAON_DEVICE static void run(WarpTile &sums, const Product &product, Tile tile,
                              const double *scalars, char *) {
    using Scale = ScaledSum<T, addend, Diagonal::none>;
    Scale scale(product, scalars);
    Update update(scalars + Scale::numScalars);
    // Read once: stores to the parameter might change the table, as far as the
    // compiler can tell.
    auto *parameter = asGlobal(static_cast<Parameter *>(product.d));
    i64 pitch = product.pitchD;
    int m = product.m, n = product.n;
    sums.forEachPair([&](int tileRow, int tileColumn, float left, float right) {
      int row = tile.row * tileSize + tileRow;
      int column = tile.column * tileSize + tileColumn;
      if (row >= m) {
        return;
      }
      scale.apply(row, column, left, right);
      Parameter *w = parameter + row * pitch + column;
      if (column < n) {
        w[0] = narrow<Parameter>(update(toFloat(w[0]), left));
      }
      if (column + 1 < n) {
        w[1] = narrow<Parameter>(update(toFloat(w[1]), right));
      }
    });
  }
};

/// Shared memory of a product kernel.
template <typename Loop, typename Epilogue>
constexpr int gemmSharedBytes =
    Loop::sharedBytes > Epilogue::sharedBytes ? Loop::sharedBytes
                                              : Epilogue::sharedBytes;

/// Computes tile number `block` of the launch, with productThreads threads.
template <typename Loop, typename Epilogue>
KAON_DEVICE void runGemm(const ProductList &list, const double *scalars) {
  // In memory rather than in registers, of which the loop needs all: what the
  // epilogue uses is read after it.
  const Product &product = list.products[findProduct(list, blockIndex())];
  Tile tile = productTile<Epilogue::isSymmetric>(
      product, blockIndex() - product.firstTile);
  char *shared = sharedMemory();
  WarpTile sums;
  Loop::run(sums, product, tile, shared);
  Epilogue::run(sums, product, tile, scalars + product.firstScalar, shared);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_GEMM
