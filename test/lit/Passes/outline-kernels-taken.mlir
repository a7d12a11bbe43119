// RUN: kaon-opt %s -kaon-outline-kernels > %t.first
// RUN: %python -c "import re, sys; text = open(sys.argv[1]).read(); name = re.search(r'@(kernel_[0-9a-f]{16})', text)[1]; print(open(sys.argv[2]).read().replace('@taken', '@' + name))" %t.first %s > %t.mlir
// RUN: kaon-opt %t.mlir -kaon-outline-kernels | FileCheck %s

// A function that happens to have the name of a kernel is not taken for it.
// CHECK-LABEL: func.func @copied
// CHECK: kaon.launch @[[$K:kernel_[0-9a-f]{16}_1]] ins
func.func @copied(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = kaon.kernel elementwise ins(%x : tensor<4x6xf32>) {
  ^bb0(%a: tensor<4x6xf32>):
    %b = math.absf %a : tensor<4x6xf32>
    kaon.yield %b : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}
func.func private @taken(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = arith.negf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
// CHECK: func.func private @[[$K]](
// CHECK-NEXT: math.absf
