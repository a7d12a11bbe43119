//===-- Gemm.cuh - batched products with epilogues ------------------------===//
//
// A product kernel is a main loop (TileProduct, or WarpgroupProduct), a
// scheduler (TileScheduler) and an epilogue. Loop and epilogue are template
// arguments. An epilogue takes the sums of any main loop:
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

/// factor * (alpha * AB + beta * C), each term in one rounding in this order,
/// after alpha and beta have been multiplied by the factor. Scalars, which are
/// rounded to f32 first: alpha, then beta if there is a C.
template <typename T, Addend addend> class ScaledSum {
public:
  static constexpr int numScalars = 1 + (addend == Addend::matrix);

  KAON_DEVICE ScaledSum(const Product &product, const double *scalars)
      : alpha(toFloatRn(scalars[0])), beta(0),
        c(asGlobal(static_cast<const T *>(product.c))), pitch(product.pitchC),
        m(product.m), n(product.n) {
    if constexpr (addend == Addend::matrix) {
      beta = toFloatRn(scalars[1]);
    }
    if (product.factor) {
      float factor = *asGlobal(product.factor);
      alpha = mulRn(alpha, factor);
      beta = mulRn(beta, factor);
    }
  }

  /// Scales `columnBlocks` sums of a row, as WarpTile::forEachRow visits them;
  /// `row` and `column` are those of the result. Elements outside of it get any
  /// value.
  template <int columnBlocks, typename ElementOf>
  KAON_DEVICE void apply(int row, int column, ElementOf elementOf) const {
    // All loads come first, so that they overlap.
    u32 addends[columnBlocks] = {};
    if constexpr (addend == Addend::matrix) {
#pragma unroll
      for (int j = 0; j < columnBlocks; ++j) {
        addends[j] = loadAddends(row, column + j * 8);
      }
    }
#pragma unroll
    for (int j = 0; j < columnBlocks; ++j) {
      scale(elementOf(j, 0), addends[j]);
      scale(elementOf(j, 1), addends[j] >> 16);
    }
  }

private:
  /// The elements of C at (row, column) and (row, column + 1), where `column`
  /// is even: the right one may be the row's padding, which can be read.
  KAON_DEVICE u32 loadAddends(int row, int column) const {
    if (row >= m || column >= n) {
      return 0;
    }
    return loadWord(c + static_cast<i64>(row) * pitch + column);
  }

  /// `addendBits` holds the element of C in its lower half.
  KAON_DEVICE void scale(float &sum, u32 addendBits) const {
    sum = mulRn(alpha, sum);
    if constexpr (addend == Addend::matrix) {
      sum = fmaRn(beta, toFloat(T{static_cast<u16>(addendBits)}), sum);
    }
  }

  float alpha, beta;
  const T *c;
  i64 pitch;
  int m, n;
};

/// Stores the tile through shared memory, in rows of 16-byte accesses. D is
/// stored like A: aligned to 16 bytes, with a pitch that is a multiple of 8.
template <typename T, bool symmetric, Addend addend> struct StoreTile {
  static constexpr bool isSymmetric = symmetric;

  /// Elements of a staged row; the padding keeps both ways of writing it free
  /// of bank conflicts.
  static constexpr int stagedPitch = tileSize + copySize;
  static constexpr int sharedBytes =
      tileSize * stagedPitch * static_cast<int>(sizeof(T));

  template <typename Sums>
  KAON_DEVICE static void run(Sums &sums, const Product &product, Tile tile,
                              const double *scalars, char *shared) {
    int firstRow = tile.row * tileSize, firstColumn = tile.column * tileSize;
    ScaledSum<T, addend> scale(product, scalars);
    T *staged = reinterpret_cast<T *>(shared);
    sums.forEachRow([&](int row, int column, auto elementOf) {
      scale.template apply<Sums::columnBlocks>(firstRow + row,
                                               firstColumn + column, elementOf);
    });
    sums.forEachPair([&](int row, int column, float left, float right) {
      storePair(staged + row * stagedPitch + column, left, right);
    });
    groupBarrier<productThreads>();
    storeStaged(staged, product, firstRow, firstColumn);

    if (symmetric && tile.row != tile.column) {
      groupBarrier<productThreads>();
      sums.forEachPair([&](int row, int column, float left, float right) {
        staged[column * stagedPitch + row] = narrow<T>(left);
        staged[(column + 1) * stagedPitch + row] = narrow<T>(right);
      });
      groupBarrier<productThreads>();
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
        storeWords4(target, loadWords4(source));
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

  /// The first `count` of two neighbouring parameters, which are one access
  /// where they are aligned; the others become zero.
  KAON_DEVICE static void load(const Parameter *pointer, int count,
                               bool isAligned, float (&values)[2]) {
    if (isAligned && count >= 2) {
      loadPair(pointer, values);
      return;
    }
    values[0] = count > 0 ? toFloat(pointer[0]) : 0;
    values[1] = count > 1 ? toFloat(pointer[1]) : 0;
  }

  KAON_DEVICE static void store(Parameter *pointer, int count, bool isAligned,
                                const float (&values)[2]) {
    if (isAligned && count >= 2) {
      storePair(pointer, values[0], values[1]);
      return;
    }
    if (count > 0) {
      pointer[0] = narrow<Parameter>(values[0]);
    }
    if (count > 1) {
      pointer[1] = narrow<Parameter>(values[1]);
    }
  }

  template <typename Sums>
  KAON_DEVICE static void run(Sums &sums, const Product &product, Tile tile,
                              const double *scalars, char *) {
    using Scale = ScaledSum<T, addend>;
    Scale scale(product, scalars);
    Update update(scalars + Scale::numScalars);
    // Read once: stores to the parameter might change the table, as far as the
    // compiler can tell.
    auto *parameter = asGlobal(static_cast<Parameter *>(product.d));
    i64 pitch = product.pitchD;
    int m = product.m, n = product.n;
    sums.forEachRow([&](int tileRow, int tileColumn, auto elementOf) {
      int row = tile.row * tileSize + tileRow;
      int column = tile.column * tileSize + tileColumn;
      if (row >= m) {
        return;
      }
      // All loads of a row come before its stores, so that they overlap.
      Parameter *w = parameter + row * pitch + column;
      bool isAligned = isPairAligned(w);
      float values[Sums::columnBlocks][2];
#pragma unroll
      for (int j = 0; j < Sums::columnBlocks; ++j) {
        load(w + j * 8, n - (column + j * 8), isAligned, values[j]);
      }
      scale.template apply<Sums::columnBlocks>(row, column, elementOf);
#pragma unroll
      for (int j = 0; j < Sums::columnBlocks; ++j) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          values[j][side] = update(values[j][side], elementOf(j, side));
        }
        store(w + j * 8, n - (column + j * 8), isAligned, values[j]);
      }
    });
  }
};

/// Shared memory of a product kernel.
template <typename Loop, typename Epilogue>
constexpr int gemmSharedBytes =
    Loop::sharedBytes > Epilogue::sharedBytes ? Loop::sharedBytes
                                              : Epilogue::sharedBytes;

/// Computes the block's tile of the launch with Loop::threads threads.
template <typename Loop, typename Epilogue>
KAON_DEVICE void runGemm(const ProductList &list, const double *scalars) {
  // In memory rather than in registers, of which the loop needs all: what the
  // epilogue uses is read after it.
  const Product &product = list.products[findProduct(list, blockIndex())];
  Tile tile = productTile<Epilogue::isSymmetric>(
      product, blockIndex() - product.firstTile);
  char *shared = sharedMemory();
  typename Loop::Sums sums;
  // Threads without sums have no part in the epilogue.
  if (!Loop::run(sums, product, tile, shared)) {
    return;
  }
  Epilogue::run(sums, product, tile, scalars + product.firstScalar, shared);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_GEMM
