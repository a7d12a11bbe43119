//===-- KernelHeaders.h - what texts of kernels include ---------*- C++ -*-===//
//
// All of it, to be read once for many kernels.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_TEST_CUDA_SHIM_KERNELHEADERS_H
#define KAON_TEST_CUDA_SHIM_KERNELHEADERS_H

#include "Columns.cuh"
#include "Elementwise.cuh"
#include "FiniteCheck.cuh"
#include "Gemm.cuh"
#include "Rows.cuh"
#include "Transpose.cuh"
#include "WarpgroupProduct.cuh"
#include "test/cuda/shim/KernelLibrary.h"

#endif // KAON_TEST_CUDA_SHIM_KERNELHEADERS_H
