//===-- LayoutTest.cpp - tables as the two sides see them -----------------===//
//
// The runtime writes the device library's tables without including it.
//
//===----------------------------------------------------------------------===//

#include "Matrices.cuh"
#include "Primitives.cuh"
#include "TileScheduler.cuh"
#include "WarpgroupProduct.cuh"
#include "runtime/StepPlan.h"
#include "runtime/cuda/DeviceTables.h"

#include <cstddef>
#include <gtest/gtest.h>

namespace device = kaon::device;
namespace cuda = kaon::runtime::cuda;

#define EXPECT_SAME_FIELD(one, other, field, otherField)                       \
  EXPECT_EQ(offsetof(one, field), offsetof(other, otherField));                \
  EXPECT_EQ(sizeof(one::field), sizeof(other::otherField))

TEST(DeviceTablesTest, MatricesAreAlike) {
  using Matrix = device::Matrix<5>;
  EXPECT_EQ(sizeof(Matrix), static_cast<size_t>(cuda::matrixBytes(5)));
  EXPECT_EQ(offsetof(Matrix, bases), 0u);
  EXPECT_EQ(offsetof(Matrix, strides), 5 * sizeof(cuda::Address));
  EXPECT_EQ(offsetof(Matrix, rows), sizeof(Matrix) - sizeof(cuda::MatrixShape) +
                                        offsetof(cuda::MatrixShape, rows));
  EXPECT_EQ(offsetof(Matrix, columns),
            offsetof(Matrix, rows) + offsetof(cuda::MatrixShape, columns));
  EXPECT_EQ(offsetof(Matrix, firstScalar),
            offsetof(Matrix, rows) + offsetof(cuda::MatrixShape, firstScalar));
}

TEST(DeviceTablesTest, BlocksAreAlike) {
  EXPECT_EQ(sizeof(device::Block), sizeof(cuda::Block));
  EXPECT_SAME_FIELD(device::Block, cuda::Block, matrix, matrix);
  EXPECT_SAME_FIELD(device::Block, cuda::Block, first, first);
  EXPECT_SAME_FIELD(device::Block, cuda::Block, count, count);
}

TEST(DeviceTablesTest, ProductsAreAlike) {
  EXPECT_EQ(sizeof(device::Product), sizeof(cuda::Product));
  EXPECT_SAME_FIELD(device::Product, cuda::Product, a, a);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, b, b);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, c, c);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, d, d);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, factor, factor);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, m, m);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, n, n);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, k, k);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, pitchA, pitchA);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, pitchB, pitchB);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, pitchC, pitchC);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, pitchD, pitchD);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, firstTile, firstTile);
  EXPECT_SAME_FIELD(device::Product, cuda::Product, firstScalar, firstScalar);
  EXPECT_EQ(sizeof(device::ProductList), sizeof(cuda::ProductList));
  EXPECT_SAME_FIELD(device::ProductList, cuda::ProductList, products, products);
  EXPECT_SAME_FIELD(device::ProductList, cuda::ProductList, count, count);
  EXPECT_SAME_FIELD(device::ProductList, cuda::ProductList, tilesPerProduct,
                    tilesPerProduct);
  EXPECT_EQ(sizeof(device::TensorMap), sizeof(cuda::TensorMap));
  EXPECT_EQ(alignof(device::TensorMap), alignof(cuda::TensorMap));
  EXPECT_EQ(uint32_t(device::boxSize), cuda::tensorBoxSize);
  EXPECT_EQ(int64_t(device::tileSize), kaon::runtime::cudaTileSize);
}
