//===-- Elementwise.cuh - one function over many matrices, one launch -----===//
//
// A launch covers a whole parameter list: the matrices are cut into chunks and
// block b works on entry b of the block table. Chunks of a matrix start a few
// elements late where that aligns accesses, and the first one also takes the
// elements before. A matrix is rows * columns neighbouring elements here; one
// whose rows are apart has an entry per row.
//
// The generated function is a class, made once per thread:
//
//   class Function {
//   public:
//     using List = Operands<Operand<float, Access::update>, ...>;
//     KAON_DEVICE Function(const double *scalars,
//                          const Matrix<List::count> &matrix);
//     KAON_DEVICE void operator()(Element<List> &element) const;
//   };
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
#define KAON_CODEGEN_CUDA_LIB_ELEMENTWISE

#include "Operands.cuh"

namespace kaon::device {

constexpr int elementwiseThreads = 256;

/// Elements of a chunk. A matrix of n elements has divideUp(n, chunkSize).
constexpr int chunkSize = elementwiseThreads * groupSize * 4;

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

/// Calls `visit(start, size)` for the thread's share of chunk `index` of `size`
/// elements, of which `head` lie before the first aligned one.
template <typename Visit>
KAON_DEVICE void forEachGroupOfChunk(u32 index, i64 size, int head,
                                     Visit visit) {
  if (index == 0 && threadIndex() == 0 && head > 0) {
    visit(i64(0), head < size ? head : static_cast<int>(size));
  }
  i64 begin = head + static_cast<i64>(index) * chunkSize;
  forEachGroup(begin, begin + chunkSize < size ? begin + chunkSize : size,
               visit);
}

/// Applies Function to chunk `first` of block `blocks[block]`; one block of
/// elementwiseThreads threads per chunk.
template <typename Function>
KAON_DEVICE void runElementwise(const Matrix<Function::List::count> *matrices,
                                const Block *blocks, const double *scalars) {
  using List = typename Function::List;
  Block block = blocks[blockIndex()];
  Matrix<List::count> matrix = matrices[block.matrix];
  Function function(scalars + matrix.firstScalar, matrix);
  forEachGroupOfChunk(block.first, matrix.rows * matrix.columns,
                      List::alignmentHead(matrix.bases),
                      [&](i64 start, int size) {
                        List::transform(matrix.bases, start, size,
                                        [&](int, Element<List> &element) {
                                          function(element);
                                        });
                      });
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
