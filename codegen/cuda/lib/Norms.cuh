//===-- Norms.cuh - norms as by-products of elementwise kernels -----------===//
//
// The pass over a gradient before the first product also sums what its norm is
// made of: every chunk leaves one partial sum in f64, and a small second launch
// combines those of a tensor. The result stays on the device, as a scalar of
// the next elementwise launch or as the factor of a product
// (TileScheduler.cuh).
//
// The order of a sum depends on the tensor's size alone: chunks start at
// multiples of chunkSize whatever the addresses, threads add their groups in
// order, and reduceBlock combines them. Values of f32 neither overflow nor
// vanish in the squares.
//
// The generated function is one of Elementwise.cuh with one more member, called
// with an element after it has been computed:
//
//   KAON_DEVICE double contribution(const float (&values)[List::count]) const;
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_NORMS
#define KAON_CODEGEN_CUDA_LIB_NORMS

#include "Elementwise.cuh"
#include "Reduce.cuh"

namespace kaon::device {

/// Shared memory of both kernels.
constexpr int normSharedBytes = reduceBlockBytes<double>;

/// Applies Function to chunk `chunks[block]` and stores the chunk's sum of
/// contributions as `partials[block]`.
template <typename Function>
KAON_DEVICE void
runElementwiseSum(const ElementwiseTensor<Function::List::count> *tensors,
                  const Chunk *chunks, const float *scalars, double *partials) {
  using List = typename Function::List;
  Chunk chunk = chunks[blockIndex()];
  auto tensor = tensors[chunk.tensor];
  Function function(scalars + tensor.firstScalar);
  double sum = 0;
  i64 begin = static_cast<i64>(chunk.index) * chunkSize;
  forEachGroup(begin, endOfChunk(begin, tensor.size), [&](i64 start, int size) {
    List::transform(tensor.bases, start, size,
                    [&](int i, float (&element)[List::count]) {
                      function(element);
                      if (i < size) {
                        sum = addRn(sum, function.contribution(element));
                      }
                    });
  });
  auto *shared = reinterpret_cast<double *>(sharedMemory());
  sum = reduceBlock<Sum, elementwiseThreads>(sum, shared);
  if (threadIndex() == 0) {
    partials[blockIndex()] = sum;
  }
}

/// The partial sums of a tensor: those of its chunks, which are neighbours.
struct PartialSums {
  u32 first;
  u32 count;
};

/// Combines the partial sums of squares `ranges[block]` and stores the
/// reciprocal of z = max(scale * norm, epsilon) as `reciprocals[block]`, with
/// one block of elementwiseThreads threads per tensor. It is zero for a zero
/// tensor and finite for every other one. Scalars of the launch: scale,
/// epsilon.
KAON_DEVICE void runNormReciprocals(const PartialSums *ranges,
                                    const double *partials,
                                    const float *scalars, float *reciprocals) {
  PartialSums range = ranges[blockIndex()];
  double sum = 0;
  for (u32 i = threadIndex(); i < range.count; i += elementwiseThreads) {
    sum = addRn(sum, partials[range.first + i]);
  }
  auto *shared = reinterpret_cast<double *>(sharedMemory());
  sum = reduceBlock<Sum, elementwiseThreads>(sum, shared);
  if (threadIndex() != 0) {
    return;
  }
  double scaled = mulRn(static_cast<double>(scalars[0]), sqrtRn(sum));
  double epsilon = scalars[1];
  double reciprocal =
      sum > 0 ? divRn(1.0, scaled > epsilon ? scaled : epsilon) : 0.0;
  // Norms below 2^-128 are those of subnormal numbers only.
  double largest = floatOf(0x7f7fffff);
  reciprocals[blockIndex()] =
      toFloatRn(reciprocal < largest ? reciprocal : largest);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_NORMS
