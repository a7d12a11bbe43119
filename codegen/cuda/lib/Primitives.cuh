//===-- Primitives.cuh - what the hardware does, by name ------------------===//
//
// Everything that is an instruction rather than C++ has one name and two
// definitions: PTX or an intrinsic for the GPU, C++ for the host. Nothing else
// in the library contains assembly or differs between the two. What only sm_90a
// has is in the files called Warpgroup; other architectures must not use it.
//
// Rounding. NVRTC contracts `a * b + c` into a fused operation unless told not
// to, and a host compiler may too. Arithmetic whose bits matter is therefore
// written with addRn, mulRn, fmaRn and so on, which no compiler rearranges.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_PRIMITIVES
#define KAON_CODEGEN_CUDA_LIB_PRIMITIVES

#ifdef __CUDACC__
#include "PrimitivesPtx.cuh"
#include "WarpgroupPtx.cuh"
#else
#include "PrimitivesHost.cuh"
#include "WarpgroupHost.cuh"
#endif

#endif // KAON_CODEGEN_CUDA_LIB_PRIMITIVES
