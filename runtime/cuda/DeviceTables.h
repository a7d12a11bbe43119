//===-- DeviceTables.h - what kernels find in device memory -----*- C++ -*-===//
//
// The structs of the device library (codegen/cuda/lib: Matrices.cuh,
// TileScheduler.cuh) as the host writes them. The runtime is built without the
// library; a test of the shim compares the layouts.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_CUDA_DEVICETABLES_H
#define KAON_RUNTIME_CUDA_DEVICETABLES_H

#include "runtime/cuda/CudaApi.h"

#include <cstdint>

namespace kaon::runtime::cuda {

/// Matrix<count>: `count` addresses, `count` strides, then these.
struct MatrixShape {
  int64_t rows;
  int64_t columns;
  int64_t firstScalar;
};

constexpr int64_t matrixBytes(int64_t count) {
  return count * static_cast<int64_t>(sizeof(Address) + sizeof(int64_t)) +
         static_cast<int64_t>(sizeof(MatrixShape));
}

struct Block {
  uint32_t matrix;
  uint32_t first;
  uint32_t count;
};

/// Rows and columns of the boxes that kernels copy operands in, by maps.
constexpr uint32_t tensorBoxSize = 64;

/// `a` and `b` are addresses of tensor maps if the kernel takes those.
struct Product {
  Address a, b, c, d;
  Address factor;
  int32_t m, n, k;
  int32_t pitchA, pitchB, pitchC, pitchD;
  uint32_t firstTile;
  uint32_t firstScalar;
};

struct ProductList {
  Address products;
  uint32_t count;
  uint32_t tilesPerProduct;
};

} // namespace kaon::runtime::cuda

#endif // KAON_RUNTIME_CUDA_DEVICETABLES_H
