//===-- Elementwise.cuh - one function over many tensors, one launch ------===//
//
// A launch covers a whole parameter list: the tensors are cut into chunks and
// block b works on entry b of the chunk table. Chunks of a tensor start a few
// elements late where that aligns accesses, and the first one also takes the
// elements before.
//
// The generated function is a class, made once per thread from the scalars:
//
//   struct Function {
//     using List = Operands<Operand<float, Access::update>, ...>;
//     KAON_DEVICE explicit Function(const float *scalars);
//     KAON_DEVICE void operator()(float (&values)[List::count]) const;
//   };
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
#define KAON_CODEGEN_CUDA_LIB_ELEMENTWISE

#include "Vector.cuh"

namespace kaon::device {

constexpr int elementwiseThreads = 256;

/// Elements of a chunk. A tensor of n elements has divideUp(n, chunkSize).
constexpr int chunkSize = elementwiseThreads * groupSize * 4;

/// A tensor of every operand, contiguous and all of one size.
template <int count> struct ElementwiseTensor {
  void *bases[count];
  i64 size;
  /// Position of the tensor's first scalar in the launch's scalars.
  i64 firstScalar;
};

/// Chunk `index` of tensor `tensor`.
struct Chunk {
  u32 tensor;
  u32 index;
};

/// Applies `function` to elements [start, start + size) of a tensor, at most a
/// group of them.
template <typename Function, int count>
KAON_DEVICE void applyGroup(const Function &function,
                            const ElementwiseTensor<count> &tensor, i64 start,
                            int size) {
  using List = typename Function::List;
  float values[count][groupSize];
  List::load(tensor.bases, start, size, values);
#pragma unroll
  for (int i = 0; i < groupSize; ++i) {
    float element[count];
#pragma unroll
    for (int operand = 0; operand < count; ++operand) {
      element[operand] = values[operand][i];
    }
    function(element);
#pragma unroll
    for (int operand = 0; operand < count; ++operand) {
      values[operand][i] = element[operand];
    }
  }
  List::store(tensor.bases, start, size, values);
}

/// Applies Function to chunk `chunks[block]`; one block of elementwiseThreads
/// threads per chunk.
template <typename Function>
KAON_DEVICE void
runElementwise(const ElementwiseTensor<Function::List::count> *tensors,
               const Chunk *chunks, const float *scalars) {
  Chunk chunk = chunks[blockIndex()];
  auto tensor = tensors[chunk.tensor];
  Function function(scalars + tensor.firstScalar);

  i64 head = Function::List::alignmentHead(tensor.bases);
  if (chunk.index == 0 && threadIndex() == 0 && head > 0) {
    applyGroup(function, tensor, 0,
               static_cast<int>(head < tensor.size ? head : tensor.size));
  }
  i64 begin = head + static_cast<i64>(chunk.index) * chunkSize;
  i64 end = begin + chunkSize < tensor.size ? begin + chunkSize : tensor.size;
  for (i64 start = begin + static_cast<i64>(threadIndex()) * groupSize;
       start < end; start += elementwiseThreads * groupSize) {
    i64 rest = end - start;
    applyGroup(function, tensor, start,
               rest < groupSize ? static_cast<int>(rest) : groupSize);
  }
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
