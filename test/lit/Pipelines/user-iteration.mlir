// RUN: kaon-opt %s -kaon-simplify-pipeline | FileCheck %s

// An iteration that a user wrote with products and transposes becomes what the
// built-in one does: on the short side, symmetric, with epilogues.
// CHECK-LABEL: func.func @users
// CHECK-SAME: %{{.*}}: tensor<96x48xf32> {{.*}}, %[[X:.*]]: tensor<96x48xf32>
// CHECK-NOT: 96x96
// CHECK: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a symmetric : {{.*}} -> tensor<48x48xf32>
// CHECK: %[[B:.*]] = kaon.matmul %[[A]], %[[A]] symmetric alpha %{{.*}} beta %{{.*}} %[[A]]
// CHECK: %[[Y:.*]] = kaon.matmul %[[X]], %[[B]] beta %{{.*}} %[[X]]
// CHECK-NOT: kaon.transpose
// CHECK: return %[[Y]]
func.func @users(%w: tensor<96x48xf32> {kaon.role = #kaon.role<param>}, %x: tensor<96x48xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<96x48xf32> attributes {kaon.update} {
  %xt = kaon.transpose %x : tensor<96x48xf32> -> tensor<48x96xf32>
  %a = kaon.matmul %x, %xt : (tensor<96x48xf32>, tensor<48x96xf32>) -> tensor<96x96xf32>
  %aa = kaon.matmul %a, %a : (tensor<96x96xf32>, tensor<96x96xf32>) -> tensor<96x96xf32>
  %b = arith.constant dense<-4.75> : tensor<96x96xf32>
  %c = arith.constant dense<2.0> : tensor<96x96xf32>
  %ba = arith.mulf %b, %a : tensor<96x96xf32>
  %caa = arith.mulf %c, %aa : tensor<96x96xf32>
  %p = arith.addf %ba, %caa : tensor<96x96xf32>
  %px = kaon.matmul %p, %x : (tensor<96x96xf32>, tensor<96x48xf32>) -> tensor<96x48xf32>
  %k = arith.constant dense<3.5> : tensor<96x48xf32>
  %kx = arith.mulf %k, %x : tensor<96x48xf32>
  %y = arith.addf %kx, %px : tensor<96x48xf32>
  return %y : tensor<96x48xf32>
}
