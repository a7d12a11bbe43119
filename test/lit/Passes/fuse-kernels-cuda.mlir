// RUN: kaon-opt %s --kaon-fuse-kernels --split-input-file | FileCheck %s
// RUN: kaon-opt %s --kaon-fuse-kernels --split-input-file -remarks-filter=kaon-fuse-kernels -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=Missed

// Momentum, scaling and the rounding to half precision are one kernel, which
// feeds the product directly; what follows a product widens it where it is read.

// CHECK-LABEL: func.func @direct
// CHECK: %[[K:.*]]:2 = kaon.kernel elementwise
// CHECK: arith.truncf %{{.*}} : tensor<4x6xf32> to tensor<4x6xbf16>
// CHECK: -> tensor<4x6xf32>, tensor<4x6xbf16>
// CHECK-NEXT: %[[P:.*]] = kaon.matmul %[[K]]#1, %[[K]]#1 transpose_b
// CHECK-NEXT: %[[Q:.*]] = kaon.matmul %[[P]], %[[K]]#1
// CHECK-NEXT: %{{.*}} = kaon.kernel elementwise ins(%[[Q]], %{{.*}} : tensor<4x6xbf16>, tensor<4x6xf32>)
// CHECK: arith.extf
// CHECK: arith.subf
func.func @direct(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %m1 = arith.addf %m, %g : tensor<4x6xf32>
  %x = arith.truncf %m1 : tensor<4x6xf32> to tensor<4x6xbf16>
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %y = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
  %w1 = arith.subf %w, %y : tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A product copies whole pieces of rows, which need not be aligned in the
// caller's matrices: those are copied once.

// REMARK: remark: {{.*}}Missed{{.*}}Function=argument {{.*}}argument #1 is copied: products read rows that are aligned
// CHECK-LABEL: func.func @argument
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x4xbf16>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x4xbf16>
// CHECK-NEXT: %[[COPY:.*]] = kaon.kernel elementwise ins(%[[G]] : tensor<4x4xbf16>)
// CHECK-NOT: kaon.kernel
// CHECK: %[[P:.*]] = kaon.matmul %[[COPY]], %[[COPY]] :
// CHECK-NEXT: kaon.matmul %[[P]], %[[COPY]] beta %{{.*}} %[[COPY]]
func.func @argument(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                    %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xbf16> attributes {kaon.update} {
  %p = kaon.matmul %g, %g : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %q = kaon.matmul %p, %g beta %s %g : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %q : tensor<4x4xbf16>
}

// -----

// What equals a materialized matrix, unless a single number says otherwise, has
// a kernel of its own, which can leave that matrix where it is. It comes before
// what may overwrite its operands.

// CHECK-LABEL: func.func @keeps
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x6xf32>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: %[[KEPT:.*]]:3 = kaon.kernel rows
// CHECK: %[[NUMBER:.*]] = kaon.kernel rows ins(%{{.*}} : tensor<1x4xf32>)
// CHECK: %[[X:.*]] = kaon.kernel elementwise ins(%[[NUMBER]], %[[G]], %[[KEPT]]#1 : tensor<1x1xf32>, tensor<4x6xf32>, tensor<4x6xbf16>)
// CHECK: } -> tensor<4x6xbf16>
// CHECK-NEXT: %[[Y:.*]] = kaon.kernel elementwise ins(%[[NUMBER]], %[[M]], %[[KEPT]]#2 : tensor<1x1xf32>, tensor<4x6xf32>, tensor<4x6xbf16>)
// CHECK: } -> tensor<4x6xbf16>
// CHECK-NEXT: %[[M1:.*]] = kaon.kernel elementwise ins(%[[NUMBER]], %[[M]] : tensor<1x1xf32>, tensor<4x6xf32>)
// CHECK: } -> tensor<4x6xf32>
// CHECK-NEXT: kaon.matmul %[[X]], %[[Y]] transpose_b
func.func @keeps(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %ones = arith.constant dense<1.0> : tensor<4x6xf32>
  %size = math.absf %g : tensor<4x6xf32>
  %number = kaon.reduce max %size along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %numbers = kaon.broadcast %number : tensor<1x1xf32> to tensor<4x6xf32>
  %m1 = arith.mulf %m, %numbers : tensor<4x6xf32>
  %isone = arith.cmpf oeq, %numbers, %ones : tensor<4x6xf32>
  %gh = arith.truncf %g : tensor<4x6xf32> to tensor<4x6xbf16>
  %gkept = kaon.materialize %gh : tensor<4x6xbf16>
  %gs = arith.mulf %g, %numbers : tensor<4x6xf32>
  %gmoved = arith.truncf %gs : tensor<4x6xf32> to tensor<4x6xbf16>
  %x = arith.select %isone, %gkept, %gmoved : tensor<4x6xi1>, tensor<4x6xbf16>
  %mh = arith.truncf %m : tensor<4x6xf32> to tensor<4x6xbf16>
  %mkept = kaon.materialize %mh : tensor<4x6xbf16>
  %mmoved = arith.truncf %m1 : tensor<4x6xf32> to tensor<4x6xbf16>
  %y = arith.select %isone, %mkept, %mmoved : tensor<4x6xi1>, tensor<4x6xbf16>
  %a = kaon.matmul %x, %y transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %w1 = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A condition of each element has something to do everywhere: its kernel is the
// one of its stage.

// CHECK-LABEL: func.func @differs
// CHECK: kaon.kernel rows
// CHECK: kaon.kernel rows
// CHECK: kaon.kernel elementwise
// CHECK: } -> tensor<4x6xf32>, tensor<4x6xbf16>
// CHECK-NEXT: kaon.matmul
// REMARK: remark: {{.*}}Missed{{.*}}differs{{.*}}a kernel over 4x6 always runs: it chooses a materialized matrix or another, but is not elementwise, or the choice is not one for all elements that is known before
func.func @differs(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %number = kaon.reduce max %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %numbers = kaon.broadcast %number : tensor<1x1xf32> to tensor<4x6xf32>
  %m1 = arith.mulf %m, %numbers : tensor<4x6xf32>
  %isone = arith.cmpf oeq, %m1, %g : tensor<4x6xf32>
  %gh = arith.truncf %g : tensor<4x6xf32> to tensor<4x6xbf16>
  %gkept = kaon.materialize %gh : tensor<4x6xbf16>
  %gmoved = arith.truncf %m1 : tensor<4x6xf32> to tensor<4x6xbf16>
  %x = arith.select %isone, %gkept, %gmoved : tensor<4x6xi1>, tensor<4x6xbf16>
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %w1 = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// So has one that reads a value for each row.

// CHECK-LABEL: func.func @by_rows
// CHECK: kaon.kernel rows
// CHECK: kaon.kernel rows
// CHECK: kaon.kernel rows
// CHECK: arith.select
// CHECK: kaon.matmul
// REMARK: remark: {{.*}}Missed{{.*}}by_rows{{.*}}a kernel over 4x6 always runs: it chooses a materialized matrix or another, but is not elementwise
func.func @by_rows(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %r: tensor<4x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %ones = arith.constant dense<1.0> : tensor<4x6xf32>
  %number = kaon.reduce max %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %numbers = kaon.broadcast %number : tensor<1x1xf32> to tensor<4x6xf32>
  %isone = arith.cmpf oeq, %numbers, %ones : tensor<4x6xf32>
  %gh = arith.truncf %g : tensor<4x6xf32> to tensor<4x6xbf16>
  %gkept = kaon.materialize %gh : tensor<4x6xbf16>
  %rows = kaon.broadcast %r : tensor<4x1xf32> to tensor<4x6xf32>
  %scaled = arith.mulf %g, %rows : tensor<4x6xf32>
  %gmoved = arith.truncf %scaled : tensor<4x6xf32> to tensor<4x6xbf16>
  %x = arith.select %isone, %gkept, %gmoved : tensor<4x6xi1>, tensor<4x6xbf16>
  %a = kaon.matmul %x, %x transpose_b : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %p = kaon.matmul %a, %x : (tensor<4x4xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %w1 = arith.extf %p : tensor<4x6xbf16> to tensor<4x6xf32>
  return %w1, %r : tensor<4x6xf32>, tensor<4x1xf32>
}
