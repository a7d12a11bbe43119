//===-- Elementwise.cuh - one function over many matrices, one launch -----===//
//
// A launch covers a whole parameter list: the matrices are cut into chunks and
// block b works on entry b of the block table. A matrix whose rows follow each
// other is a sequence of elements: its chunks start a few elements late where
// that aligns accesses, and the first one also takes the elements before. In
// other matrices groups end with their rows, and a chunk is an equal share of
// the groups.
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

/// A matrix of n elements has divideUp(n, chunkSize) chunks.
constexpr int chunkSize = elementwiseThreads * groupSize * 4;

/// How a matrix is cut into groups: a sequence is one long row.
struct Groups {
  /// Of the rows. Of matrices that are no sequence there are fewer than 2^32.
  u32 ofRow;
  i64 ofChunk;
  i64 count;
  bool isSequence;
  /// Elements of a row, and those before the first aligned one.
  i64 rowSize;
  int head;

  template <typename List>
  KAON_DEVICE static Groups of(const Matrix<List::count> &matrix) {
    i64 size = matrix.rows * matrix.columns;
    if (List::isSequence(matrix)) {
      i64 head = List::alignmentHead(matrix.bases);
      head = head < size ? head : size;
      return {0,    chunkSize / groupSize, numGroups(size - head), true,
              size, static_cast<int>(head)};
    }
    u32 ofRow = static_cast<u32>(numGroups(matrix.columns));
    i64 count = matrix.rows * ofRow;
    i64 chunks = (size + chunkSize - 1) / chunkSize;
    return {ofRow, (count + chunks - 1) / chunks, count, false, matrix.columns,
            0};
  }

  KAON_DEVICE static i64 numGroups(i64 elements) {
    return (elements + groupSize - 1) / groupSize;
  }
};

/// Calls `visit(pointers, start, size)` for the thread's groups of chunk
/// `index` of a matrix: a group is elements [start, start + size) after the
/// pointers.
template <typename List, typename Visit>
KAON_DEVICE void forEachGroupOfChunk(const Matrix<List::count> &matrix,
                                     u32 index, Visit visit) {
  Groups groups = Groups::of<List>(matrix);
  i64 group = index * groups.ofChunk + threadIndex();
  i64 end = (index + 1) * groups.ofChunk;
  end = end < groups.count ? end : groups.count;
  if (index == 0 && threadIndex() == 0 && groups.head > 0) {
    // The head comes before the thread's first group.
    group -= elementwiseThreads;
  }
  for (; group < end; group += elementwiseThreads) {
    i64 row = 0, start = groups.head + group * groupSize;
    i64 rest = groups.rowSize - start;
    if (!groups.isSequence) {
      row = static_cast<u32>(group) / groups.ofRow;
      start = i64(static_cast<u32>(group) % groups.ofRow) * groupSize;
      rest = groups.rowSize - start;
    } else if (group < 0) {
      start = 0;
      rest = groups.head;
    }
    void *pointers[List::count];
    List::rowPointers(matrix, row, pointers);
    visit(pointers, start,
          rest < groupSize ? static_cast<int>(rest) : groupSize);
  }
}

/// Applies a function to chunk `index` of a matrix.
template <typename Function>
KAON_DEVICE void applyToChunk(const Function &function,
                              const Matrix<Function::List::count> &matrix,
                              u32 index) {
  using List = typename Function::List;
  forEachGroupOfChunk<List>(
      matrix, index,
      [&](void *const(&pointers)[List::count], i64 start, int size) {
        List::transform(
            pointers, start, size,
            [&](int, Element<List> &element) { function(element); });
      });
}

/// Applies Function to chunk `first` of block `blocks[block]`; one block of
/// elementwiseThreads threads per chunk.
template <typename Function>
KAON_DEVICE void runElementwise(const Matrix<Function::List::count> *matrices,
                                const Block *blocks, const double *scalars) {
  Block block = blocks[blockIndex()];
  Matrix<Function::List::count> matrix = matrices[block.matrix];
  Function function(scalars + matrix.firstScalar, matrix);
  applyToChunk(function, matrix, block.first);
}

/// The same for a function whose only result lies over an operand, and which
/// has a method that says whether the result is that operand, for all elements
/// of the matrix alike:
///
///     KAON_DEVICE bool keeps() const;
///
/// Nothing of such a matrix is read or written but what the constructor reads.
template <typename Function>
KAON_DEVICE void
runElementwiseInPlace(const Matrix<Function::List::count> *matrices,
                      const Block *blocks, const double *scalars) {
  Block block = blocks[blockIndex()];
  Matrix<Function::List::count> matrix = matrices[block.matrix];
  Function function(scalars + matrix.firstScalar, matrix);
  if (function.keeps()) {
    return;
  }
  applyToChunk(function, matrix, block.first);
}

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_ELEMENTWISE
