// RUN: kaon-opt %s --kaon-plan-memory --split-input-file | FileCheck %s
// RUN: kaon-opt %s --kaon-plan-memory --split-input-file -remarks-filter=kaon-plan-memory -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=moves

// Buffers of a GPU: multiples of 256 bytes, rows of half precision padded to
// 16 bytes. The product with an epilogue writes over the parameter.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @narrow(%g: tensor<?x?xf32>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.truncf %g : tensor<?x?xf32> to tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @step(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  %1 = arith.subf %w, %0 : tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// X has 5 rows of 16 elements, 160 bytes; its Gram matrix has 5 rows of 8.
// CHECK-LABEL: func.func @muon
// CHECK-SAME: kaon.workspace = 512 : i64
// CHECK: kaon.launch @narrow {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
// CHECK: kaon.matmul {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
// CHECK: kaon.matmul {{.*}} epilogue @step{{.*}}kaon.buffers = [#kaon.buffer<param, 0>]
func.func @muon(%w: tensor<5x10xf32> {kaon.role = #kaon.role<param>}, %g: tensor<5x10xf32> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<5x10xf32> attributes {kaon.update} {
  %x = kaon.launch @narrow ins(%g : tensor<5x10xf32>) -> tensor<5x10xbf16>
  %a = kaon.matmul %x, %x transpose_b symmetric : (tensor<5x10xbf16>, tensor<5x10xbf16>) -> tensor<5x5xbf16>
  %w1 = kaon.matmul %a, %x epilogue @step(%w : tensor<5x10xf32>) : (tensor<5x5xbf16>, tensor<5x10xbf16>) -> tensor<5x10xf32>
  return %w1 : tensor<5x10xf32>
}

}

// -----

// A product and a kernel whose result a product reads write to the workspace,
// even if the result is a parameter of the same type, which is then copied.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @negate(%g: tensor<?x?xbf16>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %g : tensor<?x?xbf16>
}

// REMARK: remark: {{.*}}Missed{{.*}}Function=stored_product {{.*}}new value of argument #0 is copied: products need aligned rows
// CHECK-LABEL: func.func @stored_product
// CHECK: kaon.launch @negate {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
// CHECK: kaon.matmul {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
// CHECK: kaon.launch @kernel_{{.*}}kaon.buffers = [#kaon.buffer<param, 0>]
func.func @stored_product(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                          %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xbf16> attributes {kaon.update} {
  %x = kaon.launch @negate ins(%g : tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %w1 : tensor<4x4xbf16>
}

// REMARK: remark: {{.*}}Missed{{.*}}Function=multiplied_result {{.*}}new value of argument #0 is copied: products need aligned rows
// CHECK-LABEL: func.func @multiplied_result
// CHECK: kaon.launch @negate {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
// CHECK: kaon.matmul {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
// CHECK: kaon.launch @widen {{.*}}kaon.buffers = [#kaon.buffer<state, 0>]
// CHECK: kaon.launch @kernel_{{.*}}kaon.buffers = [#kaon.buffer<param, 0>]
func.func private @widen(%g: tensor<?x?xbf16>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.extf %g : tensor<?x?xbf16> to tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @multiplied_result(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                             %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xbf16>, tensor<4x4xf32>) attributes {kaon.update} {
  %w1 = kaon.launch @negate ins(%g : tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %w1, %w1 : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %m1 = kaon.launch @widen ins(%p : tensor<4x4xbf16>) -> tensor<4x4xf32>
  return %w1, %m1 : tensor<4x4xbf16>, tensor<4x4xf32>
}

}

// -----

// A kernel over rows stores its first result before it has loaded its second
// operand: it may lie over the first one, but not over the second.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @rows(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) attributes {kaon.kernel = #kaon.schedule<rows>} {
  %early = math.absf %x : tensor<?x?xf32>
  %n = kaon.reduce max %early along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %b = kaon.broadcast %n : tensor<?x1xf32> to tensor<?x?xf32>
  %late = arith.divf %y, %b : tensor<?x?xf32>
  return %early, %late : tensor<?x?xf32>, tensor<?x?xf32>
}

// CHECK-LABEL: func.func @in_place
// CHECK: kaon.launch @rows {{.*}}kaon.buffers = [#kaon.buffer<param, 0>, #kaon.buffer<state, 0>]
// CHECK-NEXT: return
func.func @in_place(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                    %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %early, %late = kaon.launch @rows ins(%w, %m : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>, tensor<4x6xf32>
  return %early, %late : tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK-LABEL: func.func @not_in_place
// CHECK: kaon.launch @rows {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>, #kaon.buffer<param, 0>]
// CHECK-NEXT: kaon.launch @kernel_{{.*}}kaon.buffers = [#kaon.buffer<state, 0>]
func.func @not_in_place(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                        %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %early, %late = kaon.launch @rows ins(%w, %m : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>, tensor<4x6xf32>
  return %late, %early : tensor<4x6xf32>, tensor<4x6xf32>
}

}

// -----

// A kernel whose result is one of its operands while a number says so writes
// over that one, although another of the type is free, too; if it is read
// later, it has to be moved, which is reported.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @narrow(%g: tensor<?x?xf32>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.truncf %g : tensor<?x?xf32> to tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}
func.func private @keep(%a: tensor<?x?xbf16>, %b: tensor<?x?xbf16>, %n: tensor<1x1xf32>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1.0 : f32
  %rows = tensor.dim %a, %c0 : tensor<?x?xbf16>
  %columns = tensor.dim %a, %c1 : tensor<?x?xbf16>
  %ones = tensor.splat %one[%rows, %columns] : tensor<?x?xf32>
  %numbers = kaon.broadcast %n : tensor<1x1xf32> to tensor<?x?xf32>
  %isone = arith.cmpf oeq, %numbers, %ones : tensor<?x?xf32>
  %0 = arith.select %isone, %b, %a : tensor<?x?xi1>, tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}

// CHECK-LABEL: func.func @kept
// CHECK: kaon.launch @narrow {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
// CHECK: kaon.launch @narrow {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
// CHECK: kaon.launch @keep {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
func.func @kept(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                %n: tensor<1x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %a = kaon.launch @narrow ins(%g : tensor<4x4xf32>) -> tensor<4x4xbf16>
  %b = kaon.launch @narrow ins(%w : tensor<4x4xf32>) -> tensor<4x4xbf16>
  %x = kaon.launch @keep ins(%a, %b, %n : tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<1x1xf32>) -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.launch @widen ins(%p : tensor<4x4xbf16>) -> tensor<4x4xf32>
  return %w1, %n : tensor<4x4xf32>, tensor<1x1xf32>
}

// REMARK: remark: {{.*}}Missed{{.*}}kaon-plan-memory{{.*}}moved{{.*}}keep moves a 4x4 matrix even while it stays as it is: its result lies elsewhere
// CHECK-LABEL: func.func @moved
// CHECK: kaon.launch @narrow {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
// CHECK: kaon.launch @narrow {{.*}}kaon.buffers = [#kaon.buffer<workspace, 256>]
// CHECK: kaon.launch @keep {{.*}}kaon.buffers = [#kaon.buffer<workspace, 0>]
func.func @moved(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %n: tensor<1x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %a = kaon.launch @narrow ins(%g : tensor<4x4xf32>) -> tensor<4x4xbf16>
  %b = kaon.launch @narrow ins(%w : tensor<4x4xf32>) -> tensor<4x4xbf16>
  %x = kaon.launch @keep ins(%a, %b, %n : tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<1x1xf32>) -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %b : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.launch @widen ins(%p : tensor<4x4xbf16>) -> tensor<4x4xf32>
  return %w1, %n : tensor<4x4xf32>, tensor<1x1xf32>
}

func.func private @widen(%p: tensor<?x?xbf16>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

}
