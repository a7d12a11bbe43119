// RUN: kaon-opt %s --canonicalize | FileCheck %s

// Folds and canonicalization patterns, each with what it must leave alone.

// CHECK-LABEL: func.func @transpose_of_transpose
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: return %[[X]]
func.func @transpose_of_transpose(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %t = kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>
  %u = kaon.transpose %t : tensor<6x4xf32> -> tensor<4x6xf32>
  return %u : tensor<4x6xf32>
}

// CHECK-LABEL: func.func @transpose_of_single_value
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<1x1xf32>
// CHECK-NEXT: return %[[X]]
func.func @transpose_of_single_value(%x: tensor<1x1xf32>) -> tensor<1x1xf32> {
  %t = kaon.transpose %x : tensor<1x1xf32> -> tensor<1x1xf32>
  return %t : tensor<1x1xf32>
}

// CHECK-LABEL: func.func @transpose_of_square
// CHECK: kaon.transpose
func.func @transpose_of_square(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %t = kaon.transpose %x : tensor<4x4xf32> -> tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}

// CHECK-LABEL: func.func @transpose_of_splat
// CHECK-SAME: %[[S:[a-z0-9]+]]: f32
// CHECK-DAG: %[[C:.*]] = arith.constant dense<2.000000e+00> : tensor<6x4xf32>
// CHECK-DAG: %[[T:.*]] = tensor.splat %[[S]] : tensor<6x4xf32>
// CHECK: return %[[C]], %[[T]]
func.func @transpose_of_splat(%s: f32) -> (tensor<6x4xf32>, tensor<6x4xf32>) {
  %c = arith.constant dense<2.0> : tensor<4x6xf32>
  %t = kaon.transpose %c : tensor<4x6xf32> -> tensor<6x4xf32>
  %x = tensor.splat %s : tensor<4x6xf32>
  %u = kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>
  return %t, %u : tensor<6x4xf32>, tensor<6x4xf32>
}

// CHECK-LABEL: func.func @transpose_of_broadcast
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x1xf32>
// CHECK: %[[T:.*]] = kaon.transpose %[[X]] : tensor<4x1xf32> -> tensor<1x4xf32>
// CHECK: %[[B:.*]] = kaon.broadcast %[[T]] : tensor<1x4xf32> to tensor<6x4xf32>
// CHECK: return %[[B]]
func.func @transpose_of_broadcast(%x: tensor<4x1xf32>) -> tensor<6x4xf32> {
  %b = kaon.broadcast %x : tensor<4x1xf32> to tensor<4x6xf32>
  %t = kaon.transpose %b : tensor<4x6xf32> -> tensor<6x4xf32>
  return %t : tensor<6x4xf32>
}

// CHECK-LABEL: func.func @transposed_operands
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
// CHECK-NEXT: %[[B:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b symmetric
// CHECK-NEXT: %[[C:.*]] = kaon.matmul %[[X]], %[[X]] transpose_a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
// CHECK-NEXT: return %[[A]], %[[B]], %[[C]]
func.func @transposed_operands(%x: tensor<4x6xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<6x6xf32>) {
  %t = kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>
  %a = kaon.matmul %x, %t : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %b = kaon.matmul %t, %t transpose_a symmetric : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %c = kaon.matmul %t, %x : (tensor<6x4xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  return %a, %b, %c : tensor<4x4xf32>, tensor<4x4xf32>, tensor<6x6xf32>
}

// Packed operands say by kaon.pack how they lie; a transpose of slivers is not one of the matrix.
// CHECK-LABEL: func.func @packed_operand
// CHECK: kaon.transpose
// CHECK: kaon.matmul %{{.*}} packed sizes
func.func @packed_operand(%x: tensor<6x2xf32>, %y: tensor<2x6xf32>) -> tensor<2x2xf32> {
  %t = kaon.transpose %x : tensor<6x2xf32> -> tensor<2x6xf32>
  %d = kaon.matmul %t, %y packed sizes [2, 2, 6] : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x2xf32>
  return %d : tensor<2x2xf32>
}

// CHECK-LABEL: func.func @alpha
// CHECK-NEXT: kaon.matmul %{{.*}}, %{{.*}} : (
// CHECK-NOT: alpha
// CHECK: return
func.func @alpha(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %one = arith.constant 1.0 : f64
  %d = kaon.matmul %x, %x alpha %one : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d : tensor<4x4xf32>
}

// A zero beta stays: 0 * infinity is not 0.
// CHECK-LABEL: func.func @beta
// CHECK: kaon.matmul %{{.*}} beta
func.func @beta(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = arith.constant 0.0 : f64
  %d = kaon.matmul %x, %x beta %zero %x : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d : tensor<4x4xf32>
}

// CHECK-LABEL: func.func @broadcast
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>, %[[ONE:[a-z0-9]+]]: tensor<1x1xf32>, %[[S:[a-z0-9]+]]: f32
// CHECK-DAG: %[[C:.*]] = arith.constant dense<3.000000e+00> : tensor<4x6xf32>
// CHECK-DAG: %[[T:.*]] = tensor.splat %[[S]] : tensor<4x6xf32>
// CHECK-DAG: %[[B:.*]] = kaon.broadcast %[[ONE]] : tensor<1x1xf32> to tensor<4x6xf32>
// CHECK: return %[[X]], %[[C]], %[[T]], %[[B]]
func.func @broadcast(%x: tensor<4x6xf32>, %one: tensor<1x1xf32>, %s: f32)
    -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %a = kaon.broadcast %x : tensor<4x6xf32> to tensor<4x6xf32>
  %c = arith.constant dense<3.0> : tensor<4x1xf32>
  %b = kaon.broadcast %c : tensor<4x1xf32> to tensor<4x6xf32>
  %t = tensor.splat %s : tensor<1x1xf32>
  %d = kaon.broadcast %t : tensor<1x1xf32> to tensor<4x6xf32>
  %r = kaon.broadcast %one : tensor<1x1xf32> to tensor<4x1xf32>
  %e = kaon.broadcast %r : tensor<4x1xf32> to tensor<4x6xf32>
  return %a, %b, %d, %e : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// Unknown sizes are not known to be equal, and a constant needs sizes.
// CHECK-LABEL: func.func @broadcast_of_unknown_size
// CHECK: kaon.broadcast %{{.*}} : tensor<?x?xf32> to tensor<?x?xf32>
// CHECK: kaon.broadcast %{{.*}} : tensor<1x1xf32> to tensor<?x?xf32>
func.func @broadcast_of_unknown_size(%x: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %a = kaon.broadcast %x : tensor<?x?xf32> to tensor<?x?xf32>
  %c = arith.constant dense<3.0> : tensor<1x1xf32>
  %b = kaon.broadcast %c : tensor<1x1xf32> to tensor<?x?xf32>
  return %a, %b : tensor<?x?xf32>, tensor<?x?xf32>
}

// CHECK-LABEL: func.func @nothing_to_normalize
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: return %[[X]], %[[X]]
func.func @nothing_to_normalize(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %a = kaon.normalize %x along row none epsilon 0.0 scale 2.0 : tensor<4x6xf32>
  %b = kaon.newton_schulz %x coefficients [] normalize none epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return %a, %b : tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK-LABEL: func.func @something_to_normalize
// CHECK: kaon.normalize
// CHECK: kaon.newton_schulz
// CHECK: kaon.newton_schulz
func.func @something_to_normalize(%x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %a = kaon.normalize %x along row max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  %b = kaon.newton_schulz %x coefficients [] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  %c = kaon.newton_schulz %x coefficients [1.0, 0.0, 0.0] normalize none epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return %a, %b, %c : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK-LABEL: func.func @reduce_of_single_elements
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x1xf32>, %[[Y:[a-z0-9]+]]: tensor<1x?xf32>
// CHECK: %[[S:.*]] = kaon.reduce sum %[[X]] along column : tensor<4x1xf32> -> tensor<1x1xf32>
// CHECK: return %[[X]], %[[Y]], %[[S]]
func.func @reduce_of_single_elements(%x: tensor<4x1xf32>, %y: tensor<1x?xf32>)
    -> (tensor<4x1xf32>, tensor<1x?xf32>, tensor<1x1xf32>) {
  %a = kaon.reduce sum %x along row : tensor<4x1xf32> -> tensor<4x1xf32>
  %b = kaon.reduce max %y along column : tensor<1x?xf32> -> tensor<1x?xf32>
  %c = kaon.reduce sum %x along column : tensor<4x1xf32> -> tensor<1x1xf32>
  return %a, %b, %c : tensor<4x1xf32>, tensor<1x?xf32>, tensor<1x1xf32>
}

// CHECK-LABEL: func.func @every_step
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: %[[A:.*]] = arith.addf %[[X]], %[[X]]
// CHECK-NEXT: return %[[A]]
func.func @every_step(%step: i64, %x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %r = kaon.every %step period 1 phase 0 -> tensor<4x6xf32> {
    %a = arith.addf %x, %x : tensor<4x6xf32>
    kaon.yield %a : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}

// A result that both regions take from outside alike, and one that is not used.
// CHECK-LABEL: func.func @every_with_superfluous_results
// CHECK-SAME: %[[STEP:[a-z0-9]+]]: i64, %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: %[[R:.*]] = kaon.every %[[STEP]] period 3 phase 2 -> tensor<4x6xf32> attributes {test.note = "kept"} {
// CHECK-NEXT:   %[[A:.*]] = arith.addf
// CHECK-NEXT:   kaon.yield %[[A]] : tensor<4x6xf32>
// CHECK-NEXT: } else {
// CHECK-NEXT:   %[[B:.*]] = arith.mulf
// CHECK-NEXT:   kaon.yield %[[B]] : tensor<4x6xf32>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[R]], %[[X]]
func.func @every_with_superfluous_results(%step: i64, %x: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %r:3 = kaon.every %step period 3 phase 2 -> tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>
      attributes {test.note = "kept"} {
    %a = arith.addf %x, %x : tensor<4x6xf32>
    %n = kaon.norm %a along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %x, %a, %n : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>
  } else {
    %b = arith.mulf %x, %x : tensor<4x6xf32>
    %n = kaon.norm %b along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %x, %b, %n : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>
  }
  return %r#1, %r#0 : tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK-LABEL: func.func @every_without_choice
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NEXT: return %[[X]]
func.func @every_without_choice(%step: i64, %x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %r = kaon.every %step period 3 phase 0 -> tensor<4x6xf32> {
    kaon.yield %x : tensor<4x6xf32>
  } else {
    kaon.yield %x : tensor<4x6xf32>
  }
  return %r : tensor<4x6xf32>
}

// Ops that are pure go away when nothing uses them.
// CHECK-LABEL: func.func @dead
// CHECK-NEXT: return
func.func @dead(%w: tensor<4x6xf32>, %s: f64, %step: i64) {
  %u, %m = kaon.momentum lerp %w, %w, %s nesterov : tensor<4x6xf32>
  %o = kaon.newton_schulz %u coefficients [1.5, -0.5, 0.0] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  %n = kaon.norm %o along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %b = kaon.broadcast %n : tensor<1x1xf32> to tensor<4x6xf32>
  %d = kaon.matmul %b, %o transpose_b symmetric : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %a = kaon.apply decoupled %w, %b step_size %s decay %s : tensor<4x6xf32>
  %r = kaon.every %step period 3 phase 0 -> tensor<4x6xf32> {
    kaon.yield %a : tensor<4x6xf32>
  } else {
    kaon.yield %b : tensor<4x6xf32>
  }
  %k = kaon.kernel elementwise ins(%r : tensor<4x6xf32>) {
  ^bb0(%x: tensor<4x6xf32>):
    kaon.yield %x : tensor<4x6xf32>
  } -> tensor<4x6xf32>
  %l = kaon.launch @kernel ins(%k : tensor<4x6xf32>) -> tensor<4x6xf32>
  return
}

func.func private @kernel(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xf32>
}
