//===-- Passes.td - passes of CUDA code generation -----------*- tablegen -*-===//

#ifndef KAON_CODEGEN_CUDA_PASSES_TD
#define KAON_CODEGEN_CUDA_PASSES_TD

include "mlir/Pass/PassBase.td"

def LowerToKernel : Pass<"kaon-lower-to-kernel", "::mlir::ModuleOp"> {
  let summary = "Turn one kernel into constructs of CUDA C++ (reassociating)";
  let description = [{
    Replaces the kernel of a module by ops of the `kernel` dialect. A module holds
    one of these, as `collectKernelSources` makes them:

    * an outlined kernel (`kaon.kernel`). If its schedule is `rows`, it carries
      `kernel.threads`, `kernel.register_groups` and, if rows do not fit on the
      chip, `kernel.streaming`. An elementwise one whose result is a select between
      one of its arguments, which the result lies over, and something else, carries
      `kernel.in_place`: its blocks end at once while the argument is kept;
    * a function that holds one `kaon.matmul` of half precision, with the function
      of its epilogue beside it if it has one;
    * a function that holds one `kaon.transpose`.

    ```mlir
    func.func private @scale(%x: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
        attributes {kaon.kernel = #kaon.schedule<elementwise>} { ... }
    // becomes
    kernel.include "Elementwise.cuh"
    kernel.class @Function { ... }
    kernel.entry @scale threads 256 blocks 2 (...) { ... }
    ```

    What is the same for all elements of a row is computed once per row, what is
    the same for all rows once per thread.

    Numeric class: reassociating. Sums run in the order of the device library;
    `exp`, `log` and `pow` are those of the library; everything else is bitwise.
  }];
  let dependentDialects = ["::kaon::kernel::KernelDialect"];
}

def PrepareKernel : Pass<"kaon-prepare-kernel", "::mlir::ModuleOp"> {
  let summary = "Decide what a printed kernel looks like (bitwise)";
  let description = [{
    Decides which values become variables (`kernel.let`), and gives classes,
    fields, variables and parameters names that C++ and the device library leave
    free, after the user's own where locations tell them. A value becomes a
    variable if it is used more than once, if it has a name in the user's text and
    is only a part of what has another, or if its expression would not fit into a
    line. Afterwards printing cannot fail, and decides nothing.

    Numeric class: bitwise.
  }];
  let dependentDialects = ["::kaon::kernel::KernelDialect"];
}

#endif // KAON_CODEGEN_CUDA_PASSES_TD
