//===-- LibraryKernels.cpp - pack, matmul and transpose kernels -----------===//

#include "codegen/cpu/LibraryKernels.h"

#include "codegen/cpu/KernelBuilder.h"
#include "codegen/cpu/PackedLayout.h"
#include "dialect/Kaon.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "runtime/KernelAbi.h"

using namespace mlir;

namespace kaon::cpu {

using Values = KernelBuilder::Values;
using Predicate = arith::CmpIPredicate;

/// Rows of the squares that are transposed in registers: 256-bit vectors.
static int64_t squareSize(Type element) {
  return 256 / element.getIntOrFloatBitWidth();
}

static Value zeroOf(KernelBuilder &b, Type type) {
  return arith::ConstantOp::create(b, b.getZeroAttr(type));
}

/// Copies element by element what lies inside [0, rows) x [0, cols) of a source
/// square of `height` x `width` at (row, col), and zeros elsewhere.
/// `place(r, c)` is the destination's offset for local coordinates.
static void copyEdge(KernelBuilder &b, FloatType element, Value source,
                     Value stride, Value row, Value col, Value rows, Value cols,
                     Value height, Value width, Value destination,
                     function_ref<Value(Value, Value)> place) {
  Value zero = b.index(0);
  b.loop(zero, height, 1, [&](Value r) {
    Value sourceRow = b.add(row, r);
    b.loop(zero, width, 1, [&](Value c) {
      Value sourceCol = b.add(col, c);
      Value inside =
          arith::AndIOp::create(b, b.compare(Predicate::slt, sourceRow, rows),
                                b.compare(Predicate::slt, sourceCol, cols));
      Value target = b.address(destination, element, place(r, c));
      b.ifElse(
          inside,
          [&] {
            Value offset = b.add(b.mul(sourceRow, stride), sourceCol);
            b.store(b.load(element, b.address(source, element, offset)),
                    target);
          },
          [&] { b.store(zeroOf(b, element), target); });
    });
  });
}

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

namespace {
/// One pack kernel under construction.
struct Packer {
  KernelBuilder &b;
  FloatType element;
  /// Tile extent along the sliver's dimension.
  int64_t tile;
  Value source, stride, extent, depth;

  Value at(Value row, Value col) {
    return b.address(source, element, b.add(b.mul(row, stride), col));
  }
  VectorType vector(int64_t lanes) { return VectorType::get({lanes}, element); }

  /// The four bodies pack `count` steps of depth from depth `k0` on, for the
  /// sliver whose first row or column is `first`, to `out`.
  void lhsPlain(Value first, Value k0, Value count, Value out);
  void lhsTransposed(Value first, Value k0, Value count, Value out);
  void rhsPlain(Value first, Value k0, Value count, Value out);
  void rhsTransposed(Value first, Value k0, Value count, Value out);
};
} // namespace

void Packer::lhsPlain(Value first, Value k0, Value count, Value out) {
  // Rows are contiguous along k: pieces of four elements are copied. Rows past
  // the extent repeat the last one; they only reach elements never stored.
  Values rows;
  Value last = b.sub(extent, 1);
  for (int64_t i = 0; i < tile; ++i) {
    rows.push_back(at(b.min(b.add(first, i), last), k0));
  }
  Value whole = b.roundDown(b.min(count, b.sub(depth, k0)), packedDepthUnit);
  b.loop(b.index(0), whole, packedDepthUnit, [&](Value k) {
    Value target = b.address(out, element, b.mul(k, tile));
    for (int64_t i = 0; i < tile; ++i) {
      Value piece =
          b.load(vector(packedDepthUnit), b.address(rows[i], element, k));
      b.store(piece, b.address(target, element, i * packedDepthUnit));
    }
  });
  copyEdge(b, element, source, stride, first, b.add(k0, whole), extent, depth,
           b.index(tile), b.sub(count, whole),
           b.address(out, element, b.mul(whole, tile)), [&](Value r, Value c) {
             return b.add(b.mul(r, packedDepthUnit), c);
           });
}

void Packer::lhsTransposed(Value first, Value k0, Value count, Value out) {
  Value whole = b.roundDown(b.min(count, b.sub(depth, k0)), packedDepthUnit);
  Value full = b.compare(Predicate::sle, b.add(first, tile), extent);
  Value vectorized = b.select(full, whole, b.index(0));
  b.loop(b.index(0), vectorized, packedDepthUnit, [&](Value k) {
    Value target = b.address(out, element, b.mul(k, tile));
    Values rows;
    for (int64_t u = 0; u < packedDepthUnit; ++u) {
      rows.push_back(at(b.add(b.add(k0, k), u), first));
    }
    for (int64_t group = 0; group < tile; group += packedDepthUnit) {
      // The last group overlaps its neighbour when the tile is no multiple.
      int64_t column = std::min(group, tile - packedDepthUnit);
      Values square;
      for (Value row : rows) {
        square.push_back(
            b.load(vector(packedDepthUnit), b.address(row, element, column)));
      }
      square = b.transpose(square);
      for (auto [i, piece] : llvm::enumerate(square)) {
        b.store(piece,
                b.address(target, element, (column + i) * packedDepthUnit));
      }
    }
  });
  copyEdge(b, element, source, stride, b.add(k0, vectorized), first, depth,
           extent, b.sub(count, vectorized), b.index(tile),
           b.address(out, element, b.mul(vectorized, tile)),
           [&](Value r, Value c) {
             Value unit = b.mul(b.roundDown(r, packedDepthUnit), tile);
             return b.add(b.add(unit, b.rem(r, b.index(packedDepthUnit))),
                          b.mul(c, packedDepthUnit));
           });
}

void Packer::rhsPlain(Value first, Value k0, Value count, Value out) {
  Value inside = b.min(count, b.sub(depth, k0));
  Value full = b.compare(Predicate::sle, b.add(first, tile), extent);
  Value vectorized = b.select(full, inside, b.index(0));
  b.loop(b.index(0), vectorized, 1, [&](Value k) {
    Value row = b.load(vector(tile), at(b.add(k0, k), first));
    b.store(row, b.address(out, element, b.mul(k, tile)));
  });
  copyEdge(b, element, source, stride, b.add(k0, vectorized), first, depth,
           extent, b.sub(count, vectorized), b.index(tile),
           b.address(out, element, b.mul(vectorized, tile)),
           [&](Value r, Value c) { return b.add(b.mul(r, tile), c); });
}

void Packer::rhsTransposed(Value first, Value k0, Value count, Value out) {
  int64_t size = squareSize(element);
  Value last = b.sub(extent, 1);
  Value whole = b.roundDown(b.min(count, b.sub(depth, k0)), size);
  b.loop(b.index(0), b.index(tile), size, [&](Value group) {
    // Rows past the extent repeat the last one, as in lhsPlain.
    Values rows;
    for (int64_t i = 0; i < size; ++i) {
      rows.push_back(at(b.min(b.add(b.add(first, group), i), last), k0));
    }
    Value column = b.address(out, element, group);
    b.loop(b.index(0), whole, size, [&](Value k) {
      Values square;
      for (Value row : rows) {
        square.push_back(b.load(vector(size), b.address(row, element, k)));
      }
      square = b.transpose(square);
      Value target = b.address(column, element, b.mul(k, tile));
      for (auto [u, line] : llvm::enumerate(square)) {
        b.store(line, b.address(target, element, u * tile));
      }
    });
  });
  copyEdge(b, element, source, stride, first, b.add(k0, whole), extent, depth,
           b.index(tile), b.sub(count, whole),
           b.address(out, element, b.mul(whole, tile)),
           [&](Value r, Value c) { return b.add(b.mul(c, tile), r); });
}

void buildPackKernel(ModuleOp module, StringRef name,
                     const TileParameters &parameters, FloatType element,
                     bool lhs, bool transposed) {
  KernelBuilder b(module.getLoc(), module.getContext());
  KernelArguments args;
  b.createKernel(module, name, args);
  int64_t tile =
      lhs ? parameters.mr : tileColumns(parameters.nr, element.getWidth());
  Packer packer{b,
                element,
                tile,
                b.bufferData(args, 0),
                b.bufferStride(args, 0),
                b.size(args, 0),
                b.size(args, 1)};
  Value packed = b.bufferData(args, 1);
  Value paddedExtent = b.roundUp(packer.extent, tile);
  Value paddedDepth = b.roundUp(packer.depth, packedDepthUnit);

  b.loop(args.begin, args.end, 1, [&](Value sliver) {
    Value first = b.mul(sliver, tile);
    b.loop(b.index(0), paddedDepth, parameters.kc, [&](Value k0) {
      Value count = b.min(b.index(parameters.kc), b.sub(paddedDepth, k0));
      Value offset = b.add(b.mul(k0, paddedExtent), b.mul(first, count));
      Value out = b.address(packed, element, offset);
      if (lhs) {
        transposed ? packer.lhsTransposed(first, k0, count, out)
                   : packer.lhsPlain(first, k0, count, out);
      } else {
        transposed ? packer.rhsTransposed(first, k0, count, out)
                   : packer.rhsPlain(first, k0, count, out);
      }
    });
  });
}

//===----------------------------------------------------------------------===//
// Transposition
//===----------------------------------------------------------------------===//

/// Transposes the rectangle [row, rowEnd) x [col, colEnd) of `source` into
/// `target`, whose element (j, i) takes the source's (i, j).
static void transposeRectangle(KernelBuilder &b, Type element, Value source,
                               Value sourceStride, Value target,
                               Value targetStride, Value row, Value rowEnd,
                               Value col, Value colEnd) {
  int64_t size = squareSize(element);
  auto vector = VectorType::get({size}, element);
  auto at = [&](Value base, Value stride, Value r, Value c) {
    return b.address(base, element, b.add(b.mul(r, stride), c));
  };
  auto copyElements = [&](Value r0, Value r1, Value c0, Value c1) {
    b.loop(r0, r1, 1, [&](Value r) {
      b.loop(c0, c1, 1, [&](Value c) {
        b.store(b.load(element, at(source, sourceStride, r, c)),
                at(target, targetStride, c, r));
      });
    });
  };
  Value rowWhole = b.add(row, b.roundDown(b.sub(rowEnd, row), size));
  Value colWhole = b.add(col, b.roundDown(b.sub(colEnd, col), size));
  b.loop(col, colWhole, size, [&](Value c) {
    b.loop(row, rowWhole, size, [&](Value r) {
      Values square;
      for (int64_t i = 0; i < size; ++i) {
        square.push_back(
            b.load(vector, at(source, sourceStride, b.add(r, i), c)));
      }
      square = b.transpose(square);
      for (int64_t i = 0; i < size; ++i) {
        b.store(square[i], at(target, targetStride, b.add(c, i), r));
      }
    });
  });
  copyElements(row, rowWhole, colWhole, colEnd);
  copyElements(rowWhole, rowEnd, col, colEnd);
}

void buildTransposeKernel(ModuleOp module, StringRef name, FloatType storage) {
  KernelBuilder b(module.getLoc(), module.getContext());
  // Bits are moved, not numbers: no host needs to know the narrow types.
  Type element = storage.getWidth() == 16 ? Type(b.getI16Type()) : storage;
  KernelArguments args;
  b.createKernel(module, name, args);
  Value source = b.bufferData(args, 0), sourceStride = b.bufferStride(args, 0);
  Value target = b.bufferData(args, 1), targetStride = b.bufferStride(args, 1);
  Value rows = b.size(args, 0), cols = b.size(args, 1);
  b.loop(args.begin, args.end, 1, [&](Value item) {
    Value row = b.mul(item, KAON_TRANSPOSE_BLOCK);
    Value rowEnd = b.min(b.add(row, KAON_TRANSPOSE_BLOCK), rows);
    transposeRectangle(b, element, source, sourceStride, target, targetStride,
                       row, rowEnd, b.index(0), cols);
  });
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

namespace {
/// One product kernel under construction.
struct Product {
  Product(KernelBuilder &b, const TileParameters &parameters, FloatType element,
          bool symmetric, bool add)
      : b(b), parameters(parameters), element(element), symmetric(symmetric),
        add(add), mr(parameters.mr),
        nr(tileColumns(parameters.nr, element.getWidth())) {}

  KernelBuilder &b;
  const TileParameters &parameters;
  FloatType element;
  bool symmetric, add;
  int64_t mr, nr;
  Value a, bPacked, c, cStride, d, dStride;
  Value alpha, beta;
  Value m, n, depth, paddedM, paddedN;
  /// Spill area of one register tile, for tiles that stick out of D.
  Value spill;

  VectorType row() { return VectorType::get({nr}, element); }

  /// The sums over `count` steps of one register tile: mr vectors of nr.
  Values accumulate(Value left, Value right, Value count);

  /// What a sum is added to: nothing, beta * C, or D from earlier blocks.
  enum class Base : uint8_t { Nothing, C, D };

  /// Stores alpha * sum + base to row i of D from column j on, where the mask
  /// is set.
  void storeRow(Base base, Value sum, Value i, Value j, Value mask);
  void storeTile(Base base, const Values &sums, Value i, Value j);

  /// The tile of D with the upper left corner (i0, j0).
  void computeTile(Value i0, Value j0);
  void mirrorTile(Value i0, Value j0);
};
} // namespace

Values Product::accumulate(Value left, Value right, Value count) {
  Values init(mr, zeroOf(b, row()));
  return b.loop(
      b.index(0), count, packedDepthUnit, init,
      [&](Value k, ValueRange carried) {
        Values sums(carried);
        Value leftStep = b.address(left, element, b.mul(k, mr));
        Value rightStep = b.address(right, element, b.mul(k, nr));
        for (int64_t u = 0; u < packedDepthUnit; ++u) {
          Value line = b.load(row(), b.address(rightStep, element, u * nr));
          for (int64_t i = 0; i < mr; ++i) {
            Value factor = b.load(
                element, b.address(leftStep, element, i * packedDepthUnit + u));
            sums[i] =
                math::FmaOp::create(b, b.splat(factor, nr), line, sums[i]);
          }
        }
        return sums;
      });
}

void Product::storeRow(Base base, Value sum, Value i, Value j, Value mask) {
  auto old = [&](Value data, Value stride) {
    Value pointer = b.address(data, element, b.add(b.mul(i, stride), j));
    return mask ? b.loadMasked(row(), pointer, mask) : b.load(row(), pointer);
  };
  Value factor = b.splat(alpha, nr), result;
  switch (base) {
  case Base::Nothing:
    result = arith::MulFOp::create(b, factor, sum);
    break;
  case Base::C: {
    Value term = arith::MulFOp::create(b, b.splat(beta, nr), old(c, cStride));
    result = math::FmaOp::create(b, factor, sum, term);
    break;
  }
  case Base::D:
    result = math::FmaOp::create(b, factor, sum, old(d, dStride));
    break;
  }
  Value pointer = b.address(d, element, b.add(b.mul(i, dStride), j));
  if (mask) {
    b.storeMasked(result, pointer, mask);
  } else {
    b.store(result, pointer);
  }
}

void Product::storeTile(Base base, const Values &sums, Value i, Value j) {
  Value rows = b.min(b.index(mr), b.sub(m, i)), cols = b.sub(n, j);
  Value whole =
      arith::AndIOp::create(b, b.compare(Predicate::eq, rows, b.index(mr)),
                            b.compare(Predicate::sge, cols, b.index(nr)));
  b.ifElse(
      whole,
      [&] {
        for (int64_t r = 0; r < mr; ++r) {
          storeRow(base, sums[r], b.add(i, r), j, Value());
        }
      },
      [&] {
        // Through memory, so that the number of rows can be a loop bound.
        for (int64_t r = 0; r < mr; ++r) {
          b.store(sums[r], b.address(spill, element, r * nr));
        }
        Value mask = b.laneMask(nr, cols);
        b.loop(b.index(0), rows, 1, [&](Value r) {
          Value sum = b.load(row(), b.address(spill, element, b.mul(r, nr)));
          storeRow(base, sum, b.add(i, r), j, mask);
        });
      });
}

void Product::computeTile(Value i0, Value j0) {
  int64_t block = parameters.block, kc = parameters.kc;
  Value iEnd = b.min(b.add(i0, block), m), jEnd = b.min(b.add(j0, block), n);
  Value zero = b.index(0);
  // One turn even for an empty sum, so that D is written.
  Value depthEnd = b.max(depth, b.index(1));
  b.loop(zero, depthEnd, kc, [&](Value k0) {
    Value count = b.min(b.index(kc), b.sub(depth, k0));
    Value left = b.address(a, element, b.mul(k0, paddedM));
    Value right = b.address(bPacked, element, b.mul(k0, paddedN));
    Value firstBlock = b.compare(Predicate::eq, k0, zero);
    // The left sliver, the smaller one, stays in the first-level cache while
    // right slivers stream past it. Of a symmetric result, register tiles
    // wholly above the diagonal are left out.
    b.loop(i0, iEnd, mr, [&](Value i) {
      Value end = symmetric ? b.min(jEnd, b.add(i, mr)) : jEnd;
      b.loop(j0, end, nr, [&](Value j) {
        Values sums =
            accumulate(b.address(left, element, b.mul(i, count)),
                       b.address(right, element, b.mul(j, count)), count);
        b.ifElse(
            firstBlock,
            [&] { storeTile(add ? Base::C : Base::Nothing, sums, i, j); },
            [&] { storeTile(Base::D, sums, i, j); });
      });
    });
  });
  if (symmetric) {
    mirrorTile(i0, j0);
  }
}

void Product::mirrorTile(Value i0, Value j0) {
  Value iEnd = b.min(b.add(i0, parameters.block), m),
        jEnd = b.min(b.add(j0, parameters.block), n);
  int64_t size = squareSize(element);
  Value onDiagonal = b.compare(Predicate::eq, i0, j0);
  b.ifElse(
      onDiagonal,
      [&] {
        // Strips of rows: what lies left of the square on the diagonal is
        // transposed, the triangle inside the square is copied.
        b.loop(i0, iEnd, size, [&](Value i) {
          Value end = b.min(b.add(i, size), iEnd);
          transposeRectangle(b, element, d, dStride, d, dStride, i, end, j0, i);
          b.loop(i, end, 1, [&](Value r) {
            b.loop(i, r, 1, [&](Value col) {
              Value lower =
                  b.load(element,
                         b.address(d, element, b.add(b.mul(r, dStride), col)));
              b.store(lower,
                      b.address(d, element, b.add(b.mul(col, dStride), r)));
            });
          });
        });
      },
      [&] {
        transposeRectangle(b, element, d, dStride, d, dStride, i0, iEnd, j0,
                           jEnd);
      });
}

void buildMatmulKernel(ModuleOp module, StringRef name,
                       const TileParameters &parameters, FloatType element,
                       bool symmetric, bool add) {
  KernelBuilder b(module.getLoc(), module.getContext());
  KernelArguments args;
  b.createKernel(module, name, args);
  int64_t result = add ? 3 : 2;
  auto toElement = [&](Value value) -> Value {
    return element.isF64() ? value : arith::TruncFOp::create(b, element, value);
  };
  Product product(b, parameters, element, symmetric, add);
  product.a = b.bufferData(args, 0);
  product.bPacked = b.bufferData(args, 1);
  if (add) {
    product.c = b.bufferData(args, 2);
    product.cStride = b.bufferStride(args, 2);
    product.beta = toElement(b.scalar(args, 1));
  }
  product.d = b.bufferData(args, result);
  product.dStride = b.bufferStride(args, result);
  product.alpha = toElement(b.scalar(args, 0));
  product.m = b.size(args, 0);
  product.n = b.size(args, 1);
  product.depth = b.roundUp(b.size(args, 2), packedDepthUnit);
  product.paddedM = b.roundUp(product.m, product.mr);
  product.paddedN = b.roundUp(product.n, product.nr);
  product.spill = b.stackArray(element, product.mr * product.nr);

  int64_t block = parameters.block;
  Value zero = b.index(0), one = b.index(1);
  if (!symmetric) {
    Value tilesPerRow = b.ceilDiv(product.n, block);
    b.loop(args.begin, args.end, 1, [&](Value item) {
      product.computeTile(b.mul(b.div(item, tilesPerRow), block),
                          b.mul(b.rem(item, tilesPerRow), block));
    });
    return;
  }
  // Row r of the lower triangle starts at item r (r + 1) / 2: find the first
  // item's row by counting, then walk on.
  Type i64 = b.getI64Type();
  auto search = scf::WhileOp::create(
      b, TypeRange{i64, i64}, ValueRange{zero, args.begin},
      [&](OpBuilder &, Location, ValueRange state) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToEnd(state[0].getParentBlock());
        scf::ConditionOp::create(
            b, b.compare(Predicate::sgt, state[1], state[0]), state);
      },
      [&](OpBuilder &, Location, ValueRange state) {
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToEnd(state[0].getParentBlock());
        Value next = b.add(state[0], 1);
        scf::YieldOp::create(b, ValueRange{next, b.sub(state[1], next)});
      });
  b.loop(args.begin, args.end, 1, search.getResults(),
         [&](Value, ValueRange position) {
           Value row = position[0], col = position[1];
           product.computeTile(b.mul(row, block), b.mul(col, block));
           Value rowDone = b.compare(Predicate::eq, row, col);
           return Values{b.select(rowDone, b.add(row, 1), row),
                         b.select(rowDone, zero, b.add(col, one))};
         });
}

//===----------------------------------------------------------------------===//
// By name
//===----------------------------------------------------------------------===//

LogicalResult buildLibraryKernel(ModuleOp module, StringRef name,
                                 func::FuncOp source,
                                 const TileParameters &tile) {
  StringRef library =
      source->getAttrOfType<StringAttr>(KaonDialect::getLibraryAttrName())
          .getValue();
  FloatType element;
  if (source.getNumArguments() > 0) {
    element = dyn_cast<FloatType>(
        getElementTypeOrSelf(source.getArgumentTypes().front()));
  }
  if (!element) {
    return source.emitOpError()
           << "expects a matrix as first argument of a library kernel";
  }
  if (library == StringRef(transposeKernelName)) {
    buildTransposeKernel(module, name, element);
    return success();
  }
  if (!element.isF32() && !element.isF64()) {
    return source.emitOpError()
           << "expects elements of type f32 or f64, but got " << element;
  }
  std::string names(transposeKernelName);
  for (bool first : {false, true}) {
    for (bool second : {false, true}) {
      names += ", " + packKernelName(first, second) + ", " +
               matmulKernelName(first, second);
      if (library == packKernelName(first, second)) {
        buildPackKernel(module, name, tile, element, first, second);
        return success();
      }
      if (library == matmulKernelName(first, second)) {
        buildMatmulKernel(module, name, tile, element, first, second);
        return success();
      }
    }
  }
  return source.emitOpError() << "expects the library kernel to be one of "
                              << names << ", but got '" << library << "'";
}

} // namespace kaon::cpu
