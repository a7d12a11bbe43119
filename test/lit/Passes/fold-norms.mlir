// RUN: kaon-opt %s --split-input-file --kaon-fold-norms | FileCheck %s
// RUN: kaon-opt %s --split-input-file --kaon-fold-norms -remarks-filter=kaon-fold-norms -remark-format=emitRemark -o /dev/null 2>&1 \
// RUN:   | FileCheck %s --check-prefix=REMARK --implicit-check-not=remark:

// What a matrix is divided by becomes the factor of the products that read it,
// squared where they read it twice.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// REMARK: remark: {{.*}}Passed{{.*}}Function=step{{.*}}2 products scale a 4x6 matrix themselves
// CHECK-LABEL: func.func @step
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<4x6xf32>
// CHECK-SAME: %[[U:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK: %[[N:.*]] = arith.divf %{{.*}}, %{{.*}} : tensor<1x1xf64>
// CHECK: %[[MAGNITUDE:.*]] = math.absf %[[N]] : tensor<1x1xf64>
// CHECK: %[[ISZERO:.*]] = arith.cmpf oeq, %[[MAGNITUDE]], %{{.*}} : tensor<1x1xf64>
// CHECK: %[[R:.*]] = arith.select %[[ISZERO]], %{{.*}}, %{{.*}} : tensor<1x1xi1>, tensor<1x1xf64>
// CHECK-NEXT: %[[REST:.*]] = arith.divf %[[N]], %[[R]] : tensor<1x1xf64>
// CHECK-NEXT: %[[F:.*]] = arith.truncf %[[REST]] : tensor<1x1xf64> to tensor<1x1xf32>
// CHECK-NEXT: %[[SQUARE:.*]] = arith.mulf %[[REST]], %[[REST]] : tensor<1x1xf64>
// CHECK-NEXT: %[[F2:.*]] = arith.truncf %[[SQUARE]] : tensor<1x1xf64> to tensor<1x1xf32>
// CHECK-NEXT: %[[ROUNDED:.*]] = arith.truncf %[[U]] : tensor<4x6xf32> to tensor<4x6xbf16>
// CHECK-NEXT: %[[STORED:.*]] = kaon.materialize %[[ROUNDED]]
// CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[U]] : tensor<4x6xf32> to tensor<4x6xf64>
// CHECK-NEXT: %[[RS:.*]] = kaon.broadcast %[[R]]
// CHECK-NEXT: %[[P:.*]] = arith.mulf %[[WIDE]], %[[RS]]
// CHECK: %[[ISONE:.*]] = arith.cmpf oeq, %[[RS]], %{{.*}} : tensor<4x6xf64>
// CHECK: %[[P32:.*]] = arith.truncf %[[P]] : tensor<4x6xf64> to tensor<4x6xf32>
// CHECK-NEXT: %[[RESCUED:.*]] = arith.truncf %[[P32]] : tensor<4x6xf32> to tensor<4x6xbf16>
// CHECK-NEXT: %[[H:.*]] = arith.select %[[ISONE]], %[[STORED]], %[[RESCUED]] : tensor<4x6xi1>, tensor<4x6xbf16>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[H]], %[[H]] transpose_b symmetric factor %[[F2]] :
// CHECK-NEXT: %[[B:.*]] = kaon.matmul %[[A]], %[[A]] symmetric alpha %{{.*}} beta %{{.*}} %[[A]] :
// CHECK-NEXT: %[[Y:.*]] = kaon.matmul %[[B]], %[[H]] beta %{{.*}} %[[H]] factor %[[F]] :
func.func @step(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x6xf32> attributes {kaon.update} {
  %one = arith.constant dense<1.0> : tensor<1x1xf64>
  %wide = arith.extf %g : tensor<4x6xf32> to tensor<4x6xf64>
  %squares = arith.mulf %wide, %wide : tensor<4x6xf64>
  %sum = kaon.reduce sum %squares along all : tensor<4x6xf64> -> tensor<1x1xf64>
  %norm = math.sqrt %sum : tensor<1x1xf64>
  %inverse = arith.divf %one, %norm : tensor<1x1xf64>
  %factors = kaon.broadcast %inverse : tensor<1x1xf64> to tensor<4x6xf64>
  %unit = arith.mulf %wide, %factors : tensor<4x6xf64>
  %x = arith.truncf %unit : tensor<4x6xf64> to tensor<4x6xf32>
  %h = arith.truncf %x : tensor<4x6xf32> to tensor<4x6xbf16>
  %a = kaon.matmul %h, %h transpose_b symmetric : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x4xbf16>
  %b = kaon.matmul %a, %a symmetric alpha %s beta %s %a : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y = kaon.matmul %b, %h beta %s %h : (tensor<4x4xbf16>, tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<4x6xbf16>
  %y32 = arith.extf %y : tensor<4x6xbf16> to tensor<4x6xf32>
  return %y32 : tensor<4x6xf32>
}

// A user's own division, in f32.
// REMARK: remark: {{.*}}Passed{{.*}}Function=divided{{.*}}2 products scale a 4x6 matrix themselves
// CHECK-LABEL: func.func @divided
// CHECK: %[[N:.*]] = kaon.reduce max %{{.*}} along all
// CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[N]] : tensor<1x1xf32> to tensor<1x1xf64>
// CHECK: arith.divf %{{.*}}, %[[WIDE]] : tensor<1x1xf64>
// CHECK: kaon.matmul %{{.*}}, %{{.*}} transpose_a symmetric factor
func.func @divided(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %size = math.absf %g : tensor<4x6xf32>
  %norm = kaon.reduce max %size along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x6xf32>
  %x = arith.divf %g, %norms : tensor<4x6xf32>
  %h = arith.truncf %x : tensor<4x6xf32> to tensor<4x6xbf16>
  %a = kaon.matmul %h, %h transpose_a symmetric : (tensor<4x6xbf16>, tensor<4x6xbf16>) -> tensor<6x6xbf16>
  %y = kaon.matmul %h, %a : (tensor<4x6xbf16>, tensor<6x6xbf16>) -> tensor<4x6xbf16>
  %y32 = arith.extf %y : tensor<4x6xbf16> to tensor<4x6xf32>
  return %y32 : tensor<4x6xf32>
}

}

// -----

// What does not scale is left alone: a product with another addend, a number
// that was not measured on the matrix, a quotient that others read, a row.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// REMARK: remark: {{.*}}Missed{{.*}}Function=addend{{.*}}a product of it adds what does not scale with it
// CHECK-LABEL: func.func @addend
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
func.func @addend(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                  %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> tensor<4x4xf32> attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h transpose_b symmetric : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %b = kaon.matmul %h, %h beta %s %a : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y32 = arith.extf %b : tensor<4x4xbf16> to tensor<4x4xf32>
  return %y32 : tensor<4x4xf32>
}

// CHECK-LABEL: func.func @unmeasured
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
func.func @unmeasured(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                      %m: tensor<1x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<1x1xf32>) attributes {kaon.update} {
  %factors = kaon.broadcast %m : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.mulf %factors, %g : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  return %y32, %m : tensor<4x4xf32>, tensor<1x1xf32>
}

// REMARK: remark: {{.*}}Missed{{.*}}Function=read_by_others{{.*}}others than products read it
// CHECK-LABEL: func.func @read_by_others
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
func.func @read_by_others(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                          %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  %w1 = arith.addf %x, %y32 : tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// CHECK-LABEL: func.func @row
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
func.func @row(%w: tensor<1x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<1x4xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<1x4xf32> attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<1x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<1x4xf32>
  %x = arith.divf %g, %norms : tensor<1x4xf32>
  %h = arith.truncf %x : tensor<1x4xf32> to tensor<1x4xbf16>
  %a = kaon.matmul %h, %h transpose_b : (tensor<1x4xbf16>, tensor<1x4xbf16>) -> tensor<1x1xbf16>
  %y = kaon.matmul %a, %h : (tensor<1x1xbf16>, tensor<1x4xbf16>) -> tensor<1x4xbf16>
  %y32 = arith.extf %y : tensor<1x4xbf16> to tensor<1x4xf32>
  return %y32 : tensor<1x4xf32>
}

}

// -----

// f16 has no range for what is not normalized.

module attributes {kaon.cuda = #kaon.cuda_target<half = f16, shared_bytes = 166912>} {

// REMARK: remark: {{.*}}Missed{{.*}}Function=f16{{.*}}f16 has no range for a matrix that is not
// CHECK-LABEL: func.func @f16
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
func.func @f16(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
  %y32 = arith.extf %a : tensor<4x4xf16> to tensor<4x4xf32>
  return %y32 : tensor<4x4xf32>
}

}

// -----

// Beside a matrix of any size, a product would overflow or vanish earlier; not
// beside a polynomial of normalized ones, whatever their rows and columns were
// divided by. One number is enough for a product.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

// CHECK-LABEL: func.func @raw
// CHECK-NOT: kaon.materialize
// CHECK-NOT: factor
// CHECK: return
// REMARK: remark: {{.*}}Missed{{.*}}Function=raw{{.*}}a 4x4 matrix is normalized before its products: a product multiplies it with what may be of any size
func.func @raw(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
               %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %mh = arith.truncf %m : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %mh, %mh : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y = kaon.matmul %h, %a : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y32 = arith.extf %y : tensor<4x4xbf16> to tensor<4x4xf32>
  return %y32, %m : tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK-LABEL: func.func @rows
// CHECK: kaon.materialize
// CHECK: kaon.matmul %{{.*}}, %{{.*}} factor
// REMARK: remark: {{.*}}Passed{{.*}}Function=rows{{.*}}1 products scale a 4x4 matrix themselves
func.func @rows(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %s: f64 {kaon.role = #kaon.role<scalar>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %one = arith.constant dense<1.0> : tensor<4x1xf32>
  %size = math.absf %m : tensor<4x4xf32>
  %largest = kaon.reduce max %size along row : tensor<4x4xf32> -> tensor<4x1xf32>
  %inverse = arith.divf %one, %largest : tensor<4x1xf32>
  %first = kaon.broadcast %inverse : tensor<4x1xf32> to tensor<4x4xf32>
  %half = arith.mulf %m, %first : tensor<4x4xf32>
  %rest = arith.divf %inverse, %inverse : tensor<4x1xf32>
  %second = kaon.broadcast %rest : tensor<4x1xf32> to tensor<4x4xf32>
  %unit = arith.mulf %half, %second : tensor<4x4xf32>
  %uh = arith.truncf %unit : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %uh, %uh alpha %s : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y = kaon.matmul %h, %a : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %y32 = arith.extf %y : tensor<4x4xbf16> to tensor<4x4xf32>
  return %y32, %m : tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK-LABEL: func.func @crossed
// CHECK-COUNT-1: kaon.materialize
// CHECK-NOT: kaon.materialize
// CHECK: kaon.matmul %{{.*}}, %{{.*}} factor
// REMARK: remark: {{.*}}Missed{{.*}}Function=crossed{{.*}}a product of it has a factor already
// REMARK: remark: {{.*}}Passed{{.*}}Function=crossed{{.*}}1 products scale a 4x4 matrix themselves
func.func @crossed(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                   %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %gnorm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %gnorms = kaon.broadcast %gnorm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %g, %gnorms : tensor<4x4xf32>
  %xh = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %mnorm = kaon.reduce max %m along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %mnorms = kaon.broadcast %mnorm : tensor<1x1xf32> to tensor<4x4xf32>
  %y = arith.divf %m, %mnorms : tensor<4x4xf32>
  %yh = arith.truncf %y : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %xh, %yh : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %a32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  return %a32, %m : tensor<4x4xf32>, tensor<4x4xf32>
}

// A number that grows with the matrix does not give the product its size, nor
// does one that was measured on the matrix and something else.
// CHECK-LABEL: func.func @grows
// CHECK-NOT: kaon.materialize
// CHECK: return
func.func @grows(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                 %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {kaon.update} {
  %norm = kaon.reduce max %g along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.mulf %g, %norms : tensor<4x4xf32>
  %xh = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %xh, %xh : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %both = arith.mulf %g, %m : tensor<4x4xf32>
  %number = kaon.reduce max %both along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %numbers = kaon.broadcast %number : tensor<1x1xf32> to tensor<4x4xf32>
  %y = arith.divf %m, %numbers : tensor<4x4xf32>
  %yh = arith.truncf %y : tensor<4x4xf32> to tensor<4x4xbf16>
  %b = kaon.matmul %yh, %yh : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %a32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  %b32 = arith.extf %b : tensor<4x4xbf16> to tensor<4x4xf32>
  return %a32, %b32 : tensor<4x4xf32>, tensor<4x4xf32>
}

// What saves a matrix makes it again, which is not elementwise if its rows are
// scaled; it is if that matrix is a state, and in memory.
// CHECK-LABEL: func.func @scaled_rows
// CHECK-NOT: kaon.materialize
// CHECK: return
// REMARK: remark: {{.*}}Missed{{.*}}Function=scaled_rows{{.*}}its rows or columns are scaled in the same pass
func.func @scaled_rows(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                       %r: tensor<4x1xf32> {kaon.role = #kaon.role<state>}, %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %rows = kaon.broadcast %r : tensor<4x1xf32> to tensor<4x4xf32>
  %u = arith.mulf %g, %rows : tensor<4x4xf32>
  %norm = kaon.reduce max %u along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %u, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %a32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  return %a32, %r : tensor<4x4xf32>, tensor<4x1xf32>
}

// CHECK-LABEL: func.func @scaled_state
// CHECK: kaon.materialize
// CHECK: return
// REMARK: remark: {{.*}}Passed{{.*}}Function=scaled_state{{.*}}1 products scale a 4x4 matrix themselves
func.func @scaled_state(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                        %m: tensor<4x4xf32> {kaon.role = #kaon.role<state>}, %r: tensor<4x1xf32> {kaon.role = #kaon.role<state>},
                        %step: i64 {kaon.role = #kaon.role<step>})
    -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %rows = kaon.broadcast %r : tensor<4x1xf32> to tensor<4x4xf32>
  %m1 = arith.mulf %m, %rows : tensor<4x4xf32>
  %u = arith.addf %m1, %g : tensor<4x4xf32>
  %norm = kaon.reduce max %u along all : tensor<4x4xf32> -> tensor<1x1xf32>
  %norms = kaon.broadcast %norm : tensor<1x1xf32> to tensor<4x4xf32>
  %x = arith.divf %u, %norms : tensor<4x4xf32>
  %h = arith.truncf %x : tensor<4x4xf32> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %a32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  return %a32, %m1, %r : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x1xf32>
}

// The gradient in half precision is as many bytes as its rounding.
// CHECK-LABEL: func.func @narrow
// CHECK-NOT: kaon.materialize
// CHECK: return
// REMARK: remark: {{.*}}Missed{{.*}}Function=narrow{{.*}}it is not of f32
func.func @narrow(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %g64 = arith.extf %g : tensor<4x4xbf16> to tensor<4x4xf64>
  %norm = kaon.reduce max %g64 along all : tensor<4x4xf64> -> tensor<1x1xf64>
  %norms = kaon.broadcast %norm : tensor<1x1xf64> to tensor<4x4xf64>
  %x = arith.divf %g64, %norms : tensor<4x4xf64>
  %h = arith.truncf %x : tensor<4x4xf64> to tensor<4x4xbf16>
  %a = kaon.matmul %h, %h : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %a32 = arith.extf %a : tensor<4x4xbf16> to tensor<4x4xf32>
  return %a32 : tensor<4x4xf32>
}

}
