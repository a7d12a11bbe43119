// RUN: kaon-opt %s -split-input-file -kaon-fuse-kernels | FileCheck %s
// RUN: kaon-opt %s -split-input-file -kaon-fuse-kernels -remarks-filter=kaon-fuse-kernels -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=Missed

// Everything over one shape is one kernel; a value that a kernel stores and uses
// is computed once. Numbers other than 0, 1 and -1 are scalars.
// CHECK-LABEL: func.func @elementwise
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32> {{.*}}, %[[M:.*]]: tensor<4x6xf32> {{.*}}, %[[S:.*]]: f64
// CHECK: %[[HALF:.*]] = arith.constant 5.0{{.*}}e-01 : f64
// CHECK: %[[R:.*]]:2 = kaon.kernel elementwise ins(%[[G]], %[[M]], %[[W]] : {{.*}}) scalars(%[[HALF]], %[[S]] : f64, f64) {
// CHECK-NEXT: ^bb0(%[[BG:.*]]: tensor<4x6xf32>, %[[BM:.*]]: tensor<4x6xf32>, %[[BW:.*]]: tensor<4x6xf32>, %[[BH:.*]]: f64, %[[BS:.*]]: f64):
// CHECK: %[[ONE:.*]] = arith.constant dense<1.0{{.*}}>
// CHECK: %[[M1:.*]] = arith.addf
// CHECK-NOT: kaon.kernel
// CHECK: kaon.yield %[[M1]], %{{.*}}
// CHECK: return %[[R]]#1, %[[R]]#0
func.func @elementwise(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                       %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %s: f64 {kaon.role = #kaon.role<scalar>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %half = arith.constant dense<0.5> : tensor<4x6xf32>
  %one = arith.constant dense<1.0> : tensor<4x6xf32>
  %s32 = arith.truncf %s : f64 to f32
  %lr = tensor.splat %s32 : tensor<4x6xf32>
  %gh = arith.mulf %half, %g : tensor<4x6xf32>
  %m1 = arith.addf %m, %gh : tensor<4x6xf32>
  %d = arith.addf %m1, %one : tensor<4x6xf32>
  %u = arith.mulf %lr, %d : tensor<4x6xf32>
  %w1 = arith.subf %w, %u : tensor<4x6xf32>
  return %w1, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A row stays where it is between its norm and its use.
// CHECK-LABEL: func.func @rows
// CHECK: kaon.kernel rows
// CHECK: kaon.reduce sum %{{.*}} along row
// CHECK: kaon.broadcast
// CHECK-NOT: kaon.kernel
// CHECK: return
func.func @rows(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                %v: tensor<4x1xf32> {kaon.role = #kaon.role<state>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %q = arith.mulf %g, %g : tensor<4x6xf32>
  %n = kaon.reduce sum %q along row : tensor<4x6xf32> -> tensor<4x1xf32>
  %v1 = arith.addf %v, %n : tensor<4x1xf32>
  %b = kaon.broadcast %v1 : tensor<4x1xf32> to tensor<4x6xf32>
  %y = arith.divf %w, %b : tensor<4x6xf32>
  return %y, %v1 : tensor<4x6xf32>, tensor<4x1xf32>
}

// -----

// A sum of the whole matrix: row sums in f64, a small kernel over them as a
// vector, and what needs the sum. The gradient's square is recomputed rather
// than stored.
// CHECK-LABEL: func.func @whole
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32>
// CHECK: %[[ROWS:.*]] = kaon.kernel rows ins(%[[G]] : tensor<4x6xf32>)
// CHECK: arith.extf %{{.*}} : tensor<4x6xf32> to tensor<4x6xf64>
// CHECK: kaon.reduce sum %{{.*}} along row : tensor<4x6xf64> -> tensor<4x1xf64>
// CHECK: } -> tensor<4x1xf64>
// CHECK: %[[VECTOR:.*]] = kaon.transpose %[[ROWS]] : tensor<4x1xf64> -> tensor<1x4xf64>
// CHECK: %[[SUM:.*]] = kaon.kernel rows ins(%[[VECTOR]] : tensor<1x4xf64>)
// CHECK: kaon.reduce sum %{{.*}} along row : tensor<1x4xf64> -> tensor<1x1xf64>
// CHECK: arith.truncf
// CHECK: math.sqrt
// CHECK: } -> tensor<1x1xf32>
// CHECK: kaon.kernel elementwise ins(%[[G]], %[[SUM]] : tensor<4x6xf32>, tensor<1x1xf32>)
// CHECK: arith.mulf
// CHECK: arith.divf
func.func @whole(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %q = arith.mulf %g, %g : tensor<4x6xf32>
  %s = kaon.reduce sum %q along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %r = math.sqrt %s : tensor<1x1xf32>
  %b = kaon.broadcast %r : tensor<1x1xf32> to tensor<4x6xf32>
  %y = arith.divf %q, %b : tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// Rows, then columns: the row norms are stored, not the normalised matrix.
// CHECK-LABEL: func.func @rows_then_columns
// CHECK: %[[N:.*]] = kaon.kernel rows
// CHECK: } -> tensor<4x1xf32>
// CHECK: kaon.kernel columns ins(%[[N]], %{{.*}} : tensor<4x1xf32>, tensor<4x6xf32>)
// CHECK: arith.divf
// CHECK: kaon.reduce sum %{{.*}} along column
// CHECK: } -> tensor<4x6xf32>
// CHECK-NEXT: return
func.func @rows_then_columns(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %n = kaon.reduce sum %g along row : tensor<4x6xf32> -> tensor<4x1xf32>
  %nb = kaon.broadcast %n : tensor<4x1xf32> to tensor<4x6xf32>
  %x = arith.divf %g, %nb : tensor<4x6xf32>
  %c = kaon.reduce sum %x along column : tensor<4x6xf32> -> tensor<1x6xf32>
  %cb = kaon.broadcast %c : tensor<1x6xf32> to tensor<4x6xf32>
  %y = arith.divf %x, %cb : tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// A square matrix: its row sums as a vector have the length of its columns, but
// are not one value per column of it.
// CHECK-LABEL: func.func @square
// CHECK: kaon.kernel rows
// CHECK: kaon.kernel rows ins(%{{.*}} : tensor<1x4xf32>)
// CHECK: } -> tensor<1x1xf32>
// CHECK: kaon.kernel elementwise ins(%{{.*}}, %{{.*}} : tensor<1x1xf32>, tensor<4x4xf32>)
func.func @square(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %s = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %b = kaon.broadcast %s : tensor<1x1xf32> to tensor<4x4xf32>
  %y = arith.divf %g, %b : tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// -----

// A product cuts the update: its operands are stored, its result is read. What
// reads four matrices to be computed again is stored instead.
// CHECK-LABEL: func.func @dear
// CHECK: %[[FIRST:.*]]:2 = kaon.kernel elementwise
// CHECK: } -> tensor<4x4xf32>, tensor<4x4xf32>
// CHECK: %[[P:.*]] = kaon.matmul %[[FIRST]]#1, %[[FIRST]]#1
// CHECK: kaon.kernel elementwise ins(%[[FIRST]]#0, %[[P]] :
func.func @dear(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                %a: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %b: tensor<4x4xf32> {kaon.role = #kaon.role<state>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %s = arith.addf %w, %g : tensor<4x4xf32>
  %t = arith.mulf %s, %a : tensor<4x4xf32>
  %u = arith.subf %t, %b : tensor<4x4xf32>
  %v = math.absf %u : tensor<4x4xf32>
  %p = kaon.matmul %v, %v : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = arith.addf %u, %p : tensor<4x4xf32>
  return %r, %a, %b : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// The old state is read before it is overwritten, rather than copied.
// CHECK-LABEL: func.func @old_state
// CHECK-SAME: %{{.*}}: tensor<4x4xf32> {{.*}}, %[[G:.*]]: tensor<4x4xf32> {{.*}}, %[[M:.*]]: tensor<4x4xf32>
// CHECK: %[[P:.*]] = kaon.matmul
// CHECK: kaon.kernel elementwise ins(%{{.*}}, %[[P]] :
// CHECK-NOT: %[[M]]
// CHECK: return
func.func @old_state(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                     %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>},
                     %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %m1 = arith.addf %m, %g : tensor<4x4xf32>
  %old = math.absf %m : tensor<4x4xf32>
  %p = kaon.matmul %m1, %m1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = arith.addf %old, %p : tensor<4x4xf32>
  return %r, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A host condition reaches the kernel as a number.
// CHECK-LABEL: func.func @condition
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf32> {{.*}}, %[[G:.*]]: tensor<4x6xf32> {{.*}}, %[[M:.*]]: tensor<4x6xf32> {{.*}}, %[[S:.*]]: f64
// CHECK: %[[C:.*]] = arith.cmpf ogt, %[[S]]
// CHECK: %[[N:.*]] = arith.select %[[C]], %{{.*}}, %{{.*}} : f64
// CHECK: kaon.kernel elementwise ins({{.*}}) scalars(%[[N]] : f64)
// CHECK: %[[Z:.*]] = arith.constant 0.0{{.*}} : f64
// CHECK: %[[IN:.*]] = arith.cmpf une, %{{.*}}, %[[Z]] : f64
// CHECK: arith.select %[[IN]]
func.func @condition(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                     %m: tensor<4x6xf32> {kaon.role = #kaon.role<state>}, %s: f64 {kaon.role = #kaon.role<scalar>},
                     %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x6xf32>) attributes {kaon.update} {
  %two = arith.constant 2.0 : f64
  %c = arith.cmpf ogt, %s, %two : f64
  %x = arith.select %c, %g, %m : tensor<4x6xf32>
  return %x, %m : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A transpose stands alone, between a kernel that stores its operand and one that
// loads its result.
// CHECK-LABEL: func.func @transposed
// CHECK: %[[U:.*]] = kaon.kernel elementwise
// CHECK: %[[T:.*]] = kaon.transpose %[[U]] : tensor<4x4xf32> -> tensor<4x4xf32>
// CHECK: kaon.kernel elementwise ins(%[[T]], %{{.*}} :
func.func @transposed(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                      %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %u = math.absf %g : tensor<4x4xf32>
  %t = kaon.transpose %u : tensor<4x4xf32> -> tensor<4x4xf32>
  %w1 = arith.subf %t, %w : tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// All that is read and written of a kernel over 4x6 would be 4x1: a launch could
// not tell how many columns the sum runs over, so the repeated values are stored.
// CHECK-LABEL: func.func @hidden_columns
// CHECK: %[[R:.*]] = kaon.kernel rows ins(%{{.*}} : tensor<4x1xf32>)
// CHECK: kaon.reduce sum %{{.*}} along row : tensor<4x6xf32> -> tensor<4x1xf32>
// CHECK: kaon.yield %{{.*}}, %{{.*}} : tensor<4x6xf32>, tensor<4x1xf32>
func.func @hidden_columns(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                          %v: tensor<4x1xf32> {kaon.role = #kaon.role<state>},
                          %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %b = kaon.broadcast %v : tensor<4x1xf32> to tensor<4x6xf32>
  %s = kaon.reduce sum %b along row : tensor<4x6xf32> -> tensor<4x1xf32>
  return %w, %s : tensor<4x6xf32>, tensor<4x1xf32>
}

// -----

// The caller's gradient may have gaps: a view needs a copy of it. One column is
// summed as a row.
// REMARK: remark: {{.*}}Missed{{.*}}Function=view_of_gradient {{.*}}argument #1 is copied: its transpose is a view of memory without gaps
// CHECK-LABEL: func.func @view_of_gradient
// CHECK-SAME: %{{.*}}: tensor<4x1xf32> {{.*}}, %[[G:.*]]: tensor<4x1xf32>
// CHECK: %[[C:.*]] = kaon.kernel elementwise ins(%[[G]] : tensor<4x1xf32>)
// CHECK: %[[V:.*]] = kaon.transpose %[[C]] : tensor<4x1xf32> -> tensor<1x4xf32>
// CHECK: kaon.kernel rows ins(%[[V]] : tensor<1x4xf32>)
// CHECK: kaon.reduce sum %{{.*}} along row : tensor<1x4xf32> -> tensor<1x1xf32>
func.func @view_of_gradient(%w: tensor<4x1xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x1xf32> {kaon.role = #kaon.role<grad>},
                            %v: tensor<1x1xf32> {kaon.role = #kaon.role<state>},
                            %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x1xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %s = kaon.reduce sum %g along column : tensor<4x1xf32> -> tensor<1x1xf32>
  return %w, %s : tensor<4x1xf32>, tensor<1x1xf32>
}

// -----

// Other functions are left alone.
// CHECK-LABEL: func.func @not_an_update
// CHECK-NOT: kaon.kernel
func.func @not_an_update(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = arith.negf %x : tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// What is materialized is stored with the row sums and loaded by the kernel that
// needs them, which would otherwise compute it again.
// CHECK-LABEL: func.func @materialize
// CHECK: %[[K:.*]]:2 = kaon.kernel rows
// CHECK: %[[H:.*]] = arith.negf
// CHECK: kaon.yield %[[H]], %{{.*}} : tensor<4x6xf32>, tensor<4x1xf64>
// CHECK-NOT: kaon.materialize
// CHECK: kaon.kernel elementwise ins(%{{.*}}, %[[K]]#0 : tensor<1x1xf32>, tensor<4x6xf32>)
func.func @materialize(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %h = arith.negf %g : tensor<4x6xf32>
  %stored = kaon.materialize %h : tensor<4x6xf32>
  %sum = kaon.reduce sum %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %sums = kaon.broadcast %sum : tensor<1x1xf32> to tensor<4x6xf32>
  %w1 = arith.mulf %sums, %stored : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

// -----

// A single value that a later kernel needs is stored, and used by those beside it
// in the kernel that computes it: the sums are read once.
// CHECK-LABEL: func.func @single
// CHECK: kaon.kernel rows
// CHECK: kaon.transpose
// CHECK: %[[S:.*]]:2 = kaon.kernel rows ins(%{{.*}} : tensor<1x4xf64>)
// CHECK: } -> tensor<1x1xf32>, tensor<1x1xf32>
// CHECK-NEXT: kaon.kernel elementwise ins(%[[S]]#0,
// CHECK-NOT: kaon.kernel
// CHECK: return %{{.*}}, %[[S]]#1
func.func @single(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                  %s: tensor<1x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x6xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %sum = kaon.reduce sum %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %size = math.absf %sum : tensor<1x1xf32>
  %sizes = kaon.broadcast %size : tensor<1x1xf32> to tensor<4x6xf32>
  %w1 = arith.mulf %sizes, %g : tensor<4x6xf32>
  %ratio = arith.divf %sum, %size : tensor<1x1xf32>
  return %w1, %ratio : tensor<4x6xf32>, tensor<1x1xf32>
}

// -----

// A comparison with a state that is replaced is made again after a product,
// and so is a matrix that is larger than a copy of what it is made of: memory
// holds no truth values, and twice as wide numbers only where they are cheaper.

// CHECK-LABEL: func.func @compared
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x4xf32>
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-NEXT: %[[M1:.*]] = kaon.kernel elementwise ins(%[[M]], %[[G]] : tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK: } -> tensor<4x4xf32>
// CHECK-NEXT: %[[P:.*]] = kaon.matmul %[[M1]], %[[M1]]
// CHECK-NEXT: kaon.kernel elementwise ins(%[[M]], %[[G]], %[[P]] : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK: arith.extf
// CHECK: arith.cmpf ogt
// CHECK: } -> tensor<4x4xf32>
// CHECK-NEXT: return
func.func @compared(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                    %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %m1 = arith.addf %m, %g : tensor<4x4xf32>
  %wide = arith.extf %m : tensor<4x4xf32> to tensor<4x4xf64>
  %above = arith.cmpf ogt, %m, %g : tensor<4x4xf32>
  %p = kaon.matmul %m1, %m1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %p64 = arith.extf %p : tensor<4x4xf32> to tensor<4x4xf64>
  %sum = arith.addf %wide, %p64 : tensor<4x4xf64>
  %rounded = arith.truncf %sum : tensor<4x4xf64> to tensor<4x4xf32>
  %w1 = arith.select %above, %rounded, %p : tensor<4x4xi1>, tensor<4x4xf32>
  return %w1, %m1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A truth value of a reduction over another shape is found again from what is
// stored, its numbers; so is one that takes four matrices.

// CHECK-LABEL: func.func @truth
// CHECK: kaon.kernel rows ins(%{{.*}} : tensor<1x4xf64>)
// CHECK: } -> tensor<1x1xf32>
// CHECK: kaon.kernel rows ins(%{{.*}} : tensor<1x6xf32>)
// CHECK: } -> tensor<1x1xf32>
// CHECK: kaon.kernel elementwise
// CHECK: arith.cmpf ogt
// CHECK: return
func.func @truth(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %zero = arith.constant dense<0.0> : tensor<1x1xf32>
  %a = kaon.matmul %g, %g transpose_a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  %largest = kaon.reduce max %a along all : tensor<6x6xf32> -> tensor<1x1xf32>
  %sum = kaon.reduce sum %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %above = arith.cmpf ogt, %largest, %zero : tensor<1x1xf32>
  %chosen = arith.select %above, %sum, %zero : tensor<1x1xi1>, tensor<1x1xf32>
  %factors = kaon.broadcast %chosen : tensor<1x1xf32> to tensor<4x6xf32>
  %w1 = arith.mulf %factors, %g : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

// CHECK-LABEL: func.func @dear
// CHECK: kaon.kernel elementwise
// CHECK: arith.cmpf ogt
// CHECK: kaon.matmul
// CHECK: kaon.kernel elementwise
// CHECK: arith.cmpf ogt
// CHECK: return
func.func @dear(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %v: tensor<4x4xf32> {kaon.role = #kaon.role<state>},
                %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %a = arith.mulf %w, %g : tensor<4x4xf32>
  %b = arith.mulf %m, %v : tensor<4x4xf32>
  %above = arith.cmpf ogt, %a, %b : tensor<4x4xf32>
  %x = arith.select %above, %m, %g : tensor<4x4xi1>, tensor<4x4xf32>
  %p = kaon.matmul %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %w1 = arith.select %above, %p, %w : tensor<4x4xi1>, tensor<4x4xf32>
  return %w1, %m, %v : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
