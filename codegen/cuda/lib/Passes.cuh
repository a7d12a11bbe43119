//===-- Passes.cuh - kernels that walk over a row or column repeatedly ----===//
//
// What a row kernel (Rows.cuh) and a column kernel (Columns.cuh) have in
// common: a generated class, the step, makes several passes over a row or a
// column. A pass sees every element once and may leave contributions to
// reductions, whose results the step gets when the pass has ended.
//
//   class Step {
//   public:
//     using List0 = Operands<...>;            // what pass 0 does with operands
//     using Reductions0 = Reductions<Sum, Max<float>>;
//     using List1 = Operands<...>;
//     using Reductions1 = Reductions<>;
//     using Passes = PassList<Pass<List0, Reductions0>,
//                             Pass<List1, Reductions1>>;
//     ...
//     KAON_DEVICE void reduced(Index<0>, const Results<Reductions0> &results);
//   };
//
//===----------------------------------------------------------------------===//

#ifndef KAON_CODEGEN_CUDA_LIB_PASSES
#define KAON_CODEGEN_CUDA_LIB_PASSES

#include "Operands.cuh"
#include "Reduce.cuh"

namespace kaon::device {

/// The reductions of a pass: Sum, Max<T> or Min<T> each.
template <typename... Combiners> struct Reductions {
  static constexpr int count = sizeof...(Combiners);

  /// One value of each reduction.
  using Values = Slots<0, typename Combiners::Value...>;

  /// Calls `function(Index<i>, combiner)` for every reduction in order.
  template <typename Function>
  KAON_DEVICE static void forEach(Function function) {
    if constexpr (count > 0) {
      forEachType<0, Combiners...>(function);
    }
  }

  KAON_DEVICE static void clear(Values &values) {
    forEach([&](auto index, auto combiner) {
      get<decltype(index)::value>(values) = decltype(combiner)::identity();
    });
  }

  KAON_DEVICE static void combine(Values &values, const Values &others) {
    forEach([&](auto index, auto combiner) {
      constexpr int i = decltype(index)::value;
      get<i>(values) =
          decltype(combiner)::combine(get<i>(values), get<i>(others));
    });
  }
};

/// What one element adds to the reductions of a pass, and what they come to:
/// get<i>(...) of reduction number i.
template <typename Reductions>
using Contributions = typename Reductions::Values;
template <typename Reductions> using Results = typename Reductions::Values;

/// What a pass does with every operand, and its reductions.
template <typename OperandList, typename ReductionList> struct Pass {
  using List = OperandList;
  using Reductions = ReductionList;
};

template <typename FirstPass, typename... Rest> struct PassList {
  using First = FirstPass;
  static constexpr int size = 1 + sizeof...(Rest);

  /// Operands of the kernel.
  static constexpr int count = First::List::count;
  static_assert(((Rest::List::count == count) && ...),
                "every pass names every operand");

  /// Reductions of all passes.
  static constexpr int numReductions =
      (First::Reductions::count + ... + Rest::Reductions::count);

  /// Calls `function(Index<i>, pass)` for every pass in order.
  template <typename Function>
  KAON_DEVICE static void forEach(Function function) {
    forEachType<0, First, Rest...>(function);
  }
};

/// Hands the results of a pass to the step, unless there are none.
template <typename Reductions, typename Step, typename PassIndex>
KAON_DEVICE void handOver(Step &step, PassIndex index,
                          const typename Reductions::Values &results) {
  if constexpr (Reductions::count > 0) {
    step.reduced(index, results);
  }
}

template <typename Step> using MatrixOf = Matrix<Step::Passes::count>;

} // namespace kaon::device

#endif // KAON_CODEGEN_CUDA_LIB_PASSES
