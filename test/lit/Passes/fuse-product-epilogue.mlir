// RUN: kaon-opt %s --kaon-fuse-product-epilogue --split-input-file | FileCheck %s
// RUN: kaon-opt %s --kaon-fuse-product-epilogue --split-input-file -remarks-filter=kaon-fuse-product-epilogue -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=Missed

// A product that only the new parameter needs gets the kernel as its epilogue.
// The product comes first in the kernel's function, whatever it was.

// CHECK-LABEL: func.func @fused
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[LR:[a-z0-9]+]]: f64
// CHECK: %[[X:.*]] = kaon.kernel elementwise
// CHECK: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
// CHECK-NEXT: %[[W1:.*]] = kaon.matmul %[[A]], %[[X]] transpose_b alpha %[[LR]] beta %[[LR]] %[[X]]
// CHECK-SAME: epilogue @[[KERNEL:kernel_[0-9a-f]+]](%[[W]] : tensor<4x4xf32>) scalars(%[[LR]])
// CHECK-SAME: : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT: return %[[W1]]
// CHECK: func.func private @[[KERNEL]](%[[P:[a-z0-9]+]]: tensor<?x?xbf16>, %[[OLD:[a-z0-9]+]]: tensor<?x?xf32>, %{{.*}}: f64) -> tensor<?x?xf32>
// CHECK: arith.extf %[[P]]
// CHECK: arith.subf %[[OLD]]
func.func @fused(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %lr: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xf32> attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %a = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x transpose_b alpha %lr beta %lr %x
      : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%w, %p : tensor<4x4xf32>, tensor<4x4xbf16>) scalars(%lr : f64) {
  ^bb0(%0: tensor<4x4xf32>, %1: tensor<4x4xbf16>, %s: f64):
    %2 = arith.extf %1 : tensor<4x4xbf16> to tensor<4x4xf32>
    %3 = arith.truncf %s : f64 to f32
    %4 = tensor.splat %3 : tensor<4x4xf32>
    %5 = arith.mulf %4, %2 : tensor<4x4xf32>
    %6 = arith.subf %0, %5 : tensor<4x4xf32>
    kaon.yield %6 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// The same with the product as first operand.

// CHECK-LABEL: func.func @first
// CHECK: kaon.matmul %{{.*}} epilogue @[[KERNEL:kernel_[0-9a-f]+]](%{{.*}} : tensor<4x4xf32>) :
// CHECK: func.func private @[[KERNEL]](%{{[a-z0-9]+}}: tensor<?x?xbf16>, %{{[a-z0-9]+}}: tensor<?x?xf32>) -> tensor<?x?xf32>
func.func @first(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    %2 = arith.extf %0 : tensor<4x4xbf16> to tensor<4x4xf32>
    %3 = arith.subf %1, %2 : tensor<4x4xf32>
    kaon.yield %3 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// One row is as good as many: the function has no sizes at all.

// CHECK-LABEL: func.func @row
// CHECK: kaon.matmul %{{.*}} epilogue @[[KERNEL:kernel_[0-9a-f]+]](%{{.*}} : tensor<1x4xf32>) :
// CHECK: func.func private @[[KERNEL]](%{{[a-z0-9]+}}: tensor<?x?xbf16>, %{{[a-z0-9]+}}: tensor<?x?xf32>) -> tensor<?x?xf32>
// CHECK: arith.subf %{{.*}} : tensor<?x?xf32>
func.func @row(%w: tensor<1x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<1x4xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<1x4xf32> attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<1x4xf32>) {
  ^bb0(%0: tensor<1x4xf32>):
    %1 = arith.truncf %0 : tensor<1x4xf32> to tensor<1x4xbf16>
    kaon.yield %1 : tensor<1x4xbf16>
  } -> tensor<1x4xbf16>
  %a = kaon.matmul %x, %x transpose_b : (tensor<1x4xbf16>, tensor<1x4xbf16>) -> tensor<1x1xbf16>
  %p = kaon.matmul %a, %x : (tensor<1x1xbf16>, tensor<1x4xbf16>) -> tensor<1x4xbf16>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<1x4xbf16>, tensor<1x4xf32>) {
  ^bb0(%0: tensor<1x4xbf16>, %1: tensor<1x4xf32>):
    %2 = arith.extf %0 : tensor<1x4xbf16> to tensor<1x4xf32>
    %3 = arith.subf %1, %2 : tensor<1x4xf32>
    kaon.yield %3 : tensor<1x4xf32>
  } -> tensor<1x4xf32>
  return %w1 : tensor<1x4xf32>
}

// -----

// Half of a symmetric product is mirrored, which a parameter is not.

// REMARK: remark: {{.*}}Missed{{.*}}Function=symmetric {{.*}}a product is stored before it changes the parameter: it is symmetric, which a parameter is not
// CHECK-LABEL: func.func @symmetric
// CHECK-NOT: epilogue
// CHECK: return
func.func @symmetric(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                     %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x transpose_b symmetric : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    kaon.yield %1 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// The product is needed as such, too.

// REMARK: remark: {{.*}}Missed{{.*}}Function=used_twice {{.*}}others read it or the new parameter
// CHECK-LABEL: func.func @used_twice
// CHECK-NOT: epilogue
// CHECK: return
func.func @used_twice(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                      %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %m1 = kaon.kernel elementwise ins(%p : tensor<4x4xbf16>) {
  ^bb0(%0: tensor<4x4xbf16>):
    %2 = arith.extf %0 : tensor<4x4xbf16> to tensor<4x4xf32>
    kaon.yield %2 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    kaon.yield %1 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// The kernel reads more than the product and the parameter, or computes more
// than the new parameter.

// REMARK: remark: {{.*}}Missed{{.*}}Function=other_operand {{.*}}its kernel reads or computes something else, too
// CHECK-LABEL: func.func @other_operand
// CHECK-NOT: epilogue
// CHECK: return
func.func @other_operand(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                         %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%p, %w, %g : tensor<4x4xbf16>, tensor<4x4xf32>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>, %2: tensor<4x4xf32>):
    kaon.yield %2 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// REMARK: remark: {{.*}}Missed{{.*}}Function=other_result {{.*}}its kernel reads or computes something else, too
// CHECK-LABEL: func.func @other_result
// CHECK-NOT: epilogue
// CHECK: return
func.func @other_result(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                        %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1, %m1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    kaon.yield %1, %1 : tensor<4x4xf32>, tensor<4x4xf32>
  } -> tensor<4x4xf32>, tensor<4x4xf32>
  return %w1, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// The old parameter is read afterwards: the new one cannot lie over it.

// REMARK: remark: {{.*}}Missed{{.*}}Function=read_later {{.*}}others read the old parameter later
// CHECK-LABEL: func.func @read_later
// CHECK-NOT: epilogue
// CHECK: return
func.func @read_later(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                      %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    kaon.yield %1 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  %m1 = kaon.kernel elementwise ins(%w : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.negf %0 : tensor<4x4xf32>
    kaon.yield %1 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// The result is a state, not the parameter.

// CHECK-LABEL: func.func @state
// CHECK-NOT: epilogue
// CHECK: return
func.func @state(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %m1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xbf16>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xbf16>, %1: tensor<4x4xf32>):
    kaon.yield %1 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A product of the CPU, in the compute type.

// CHECK-LABEL: func.func @wide
// CHECK-NOT: epilogue
// CHECK: return
func.func @wide(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %p = kaon.matmul %g, %g : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %w1 = kaon.kernel elementwise ins(%p, %w : tensor<4x4xf32>, tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>, %1: tensor<4x4xf32>):
    %2 = arith.subf %1, %0 : tensor<4x4xf32>
    kaon.yield %2 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// The epilogue gets what the factor has scaled.

// CHECK-LABEL: func.func @factor
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[F:[a-z0-9]+]]: tensor<1x1xf32>
// CHECK: kaon.matmul %{{.*}}, %{{.*}} factor %[[F]] epilogue @{{.*}}(%[[W]] : tensor<4x4xf32>) :
func.func @factor(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                  %f: tensor<1x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %x = kaon.kernel elementwise ins(%g : tensor<4x4xf32>) {
  ^bb0(%0: tensor<4x4xf32>):
    %1 = arith.truncf %0 : tensor<4x4xf32> to tensor<4x4xbf16>
    kaon.yield %1 : tensor<4x4xbf16>
  } -> tensor<4x4xbf16>
  %p = kaon.matmul %x, %x factor %f : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %w1 = kaon.kernel elementwise ins(%w, %p : tensor<4x4xf32>, tensor<4x4xbf16>) {
  ^bb0(%0: tensor<4x4xf32>, %1: tensor<4x4xbf16>):
    %2 = arith.extf %1 : tensor<4x4xbf16> to tensor<4x4xf32>
    %3 = arith.subf %0, %2 : tensor<4x4xf32>
    kaon.yield %3 : tensor<4x4xf32>
  } -> tensor<4x4xf32>
  return %w1, %f : tensor<4x4xf32>, tensor<1x1xf32>
}
