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

/// Calls `visit(start, size)` for the thread's groups of elements [begin, end),
/// of which all but the last one of the range are whole.
template <typename Visit>
KAON_DEVICE void forEachGroup(i64 begin, i64 end, Visit visit) {
  for (i64 start = begin + static_cast<i64>(threadIndex()) * groupSize;
       start < end; start += elementwiseThreads * groupSize) {
    i64 rest = end - start;
    visit(start, rest < groupSize ? static_cast<int>(rest) : groupSize);
  }
}

KAON_DEVICE i64 endOfChunk(i64 begin, i64 size) {
  return begin + chunkSize < size ? begin + chunkSize : size;
}

/// Applies Function to chunk `chunks[block]`; one block of elementwiseThreads
/// threads per chunk.
template <typename Function>
KAON_DEVICE void
runElementwise(const ElementwiseTensor<Function::List::count> *tensors,
               const Chunk *chunks, const float *scalars) {
  using List = typename Function::List;
  Chunk chunk = chunks[blockIndex()];
  auto tensor = tensors[chunk.tensor];
  Function function(scalars + tensor.firstScalar);
  auto apply = [&](i64 start, int size) {
    List::transform(
        tensor.bases, start, size,
        [&](int, float (&element)[List::count]) { function(element); });
  };

  int head = List::alignmentHead(tensor.bases);
  if (chunk.index == 0 && threadIndex() == 0 && head > 0) {
    apply(0, head < tensor.size ? head : static_cast<int>(tensor.size));
  }
  i64 begin = head + static_cast<i64>(chunk.index) * chunkSize;
  forEachGroup(begin, endOfChunk(begin, tensor.size), apply);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
