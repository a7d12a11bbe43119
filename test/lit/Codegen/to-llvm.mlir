// RUN: kaon-opt %s -kaon-kernels-to-llvm | FileCheck %s

// Nothing but the llvm dialect is left, and no symbol but the kernel's.
// CHECK-LABEL: llvm.func @row_norms
// CHECK-NOT: unrealized_conversion_cast
// CHECK: llvm.intr.exp
// CHECK: llvm.intr.sqrt
// CHECK-NOT: {{(func|scf|cf|arith|math|vector)\.}}
// CHECK-NOT: llvm.func
func.func private @row_norms(%x: tensor<?x?xf64>) -> (tensor<?x1xf64>, tensor<?x?xf64>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %p = arith.mulf %x, %x : tensor<?x?xf64>
  %s = kaon.reduce sum %p along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %n = math.sqrt %s : tensor<?x1xf64>
  %e = math.exp %x : tensor<?x?xf64>
  return %n, %e : tensor<?x1xf64>, tensor<?x?xf64>
}
