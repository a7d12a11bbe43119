// RUN: kaon-opt %s -split-input-file -kaon-expand-updates -cse | FileCheck %s

// Nothing but primitives is left, whatever the form.
// CHECK-LABEL: func.func @momentum_lerp
// CHECK-SAME: %[[G:.*]]: tensor<4x6xf32>, %[[M:.*]]: tensor<4x6xf32>, %[[MU:.*]]: f64
// CHECK-DAG: %[[MU32:.*]] = arith.truncf %[[MU]] : f64 to f32
// CHECK-DAG: %[[DECAY:.*]] = tensor.splat %[[MU32]] : tensor<4x6xf32>
// CHECK-DAG: %[[ONE:.*]] = arith.constant 1.0{{.*}} : f64
// CHECK-DAG: %[[REST:.*]] = arith.subf %[[ONE]], %[[MU]] : f64
// CHECK-DAG: %[[REST32:.*]] = arith.truncf %[[REST]] : f64 to f32
// CHECK-DAG: %[[GAIN:.*]] = tensor.splat %[[REST32]] : tensor<4x6xf32>
// CHECK-DAG: %[[GAINED:.*]] = arith.mulf %[[GAIN]], %[[G]] : tensor<4x6xf32>
// CHECK-DAG: %[[KEPT:.*]] = arith.mulf %[[DECAY]], %[[M]] : tensor<4x6xf32>
// CHECK: %[[M1:.*]] = arith.addf %[[KEPT]], %[[GAINED]] : tensor<4x6xf32>
// CHECK: %[[AHEAD:.*]] = arith.mulf %[[DECAY]], %[[M1]] : tensor<4x6xf32>
// CHECK: %[[U:.*]] = arith.addf %[[GAINED]], %[[AHEAD]] : tensor<4x6xf32>
// CHECK: return %[[U]], %[[M1]]
func.func @momentum_lerp(%g: tensor<4x6xf32>, %m: tensor<4x6xf32>, %mu: f64) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<4x6xf32>
  return %u, %m1 : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// CHECK-LABEL: func.func @momentum_heavy_ball
// CHECK-SAME: %[[G:.*]]: tensor<4x6xf64>, %[[M:.*]]: tensor<4x6xf64>, %[[MU:.*]]: f64
// CHECK: %[[DECAY:.*]] = tensor.splat %[[MU]] : tensor<4x6xf64>
// CHECK: %[[KEPT:.*]] = arith.mulf %[[DECAY]], %[[M]]
// CHECK: %[[M1:.*]] = arith.addf %[[KEPT]], %[[G]]
// CHECK: return %[[M1]], %[[M1]]
func.func @momentum_heavy_ball(%g: tensor<4x6xf64>, %m: tensor<4x6xf64>, %mu: f64) -> (tensor<4x6xf64>, tensor<4x6xf64>) {
  %u, %m1 = kaon.momentum heavy_ball %g, %m, %mu : tensor<4x6xf64>
  return %u, %m1 : tensor<4x6xf64>, tensor<4x6xf64>
}

// -----

// CHECK-LABEL: func.func @apply_decoupled
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf64>, %[[U:.*]]: tensor<4x6xf64>, %[[S:.*]]: f64, %[[D:.*]]: f64
// CHECK-DAG: %[[STEP:.*]] = tensor.splat %[[S]]
// CHECK-DAG: %[[MOVE:.*]] = arith.mulf %[[STEP]], %[[U]]
// CHECK-DAG: %[[KEEP:.*]] = arith.subf %{{.*}}, %[[D]] : f64
// CHECK-DAG: %[[KEEPS:.*]] = tensor.splat %[[KEEP]]
// CHECK-DAG: %[[KEPT:.*]] = arith.mulf %[[KEEPS]], %[[W]]
// CHECK: %[[W1:.*]] = arith.subf %[[KEPT]], %[[MOVE]]
// CHECK: return %[[W1]]
func.func @apply_decoupled(%w: tensor<4x6xf64>, %u: tensor<4x6xf64>, %s: f64, %d: f64) -> tensor<4x6xf64> {
  %w1 = kaon.apply decoupled %w, %u step_size %s decay %d : tensor<4x6xf64>
  return %w1 : tensor<4x6xf64>
}

// -----

// CHECK-LABEL: func.func @apply_after
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf64>, %[[U:.*]]: tensor<4x6xf64>, %[[S:.*]]: f64, %[[D:.*]]: f64
// CHECK: %[[MOVE:.*]] = arith.mulf %{{.*}}, %[[U]]
// CHECK: %[[MOVED:.*]] = arith.subf %[[W]], %[[MOVE]]
// CHECK: %[[DECAY:.*]] = arith.mulf %{{.*}}, %[[MOVED]]
// CHECK: arith.subf %[[MOVED]], %[[DECAY]]
func.func @apply_after(%w: tensor<4x6xf64>, %u: tensor<4x6xf64>, %s: f64, %d: f64) -> tensor<4x6xf64> {
  %w1 = kaon.apply after %w, %u step_size %s decay %d : tensor<4x6xf64>
  return %w1 : tensor<4x6xf64>
}

// -----

// CHECK-LABEL: func.func @apply_cautious
// CHECK-SAME: %[[W:.*]]: tensor<4x6xf64>, %[[U:.*]]: tensor<4x6xf64>, %[[S:.*]]: f64, %[[D:.*]]: f64
// CHECK: %[[MOVED:.*]] = arith.subf %[[W]], %{{.*}}
// CHECK: %[[AGREES:.*]] = arith.cmpf oge
// CHECK: %[[DECAYED:.*]] = arith.subf %[[MOVED]], %{{.*}}
// CHECK: arith.select %[[AGREES]], %[[DECAYED]], %[[MOVED]]
func.func @apply_cautious(%w: tensor<4x6xf64>, %u: tensor<4x6xf64>, %s: f64, %d: f64) -> tensor<4x6xf64> {
  %w1 = kaon.apply cautious %w, %u step_size %s decay %d : tensor<4x6xf64>
  return %w1 : tensor<4x6xf64>
}

// -----

// Squares of f32 numbers are taken in f64.
// CHECK-LABEL: func.func @norm_f32
// CHECK: %[[WIDE:.*]] = arith.extf %{{.*}} : tensor<4x6xf32> to tensor<4x6xf64>
// CHECK: %[[SQUARES:.*]] = arith.mulf %[[WIDE]], %[[WIDE]]
// CHECK: %[[SUM:.*]] = kaon.reduce sum %[[SQUARES]] along row : tensor<4x6xf64> -> tensor<4x1xf64>
// CHECK: %[[NORM:.*]] = math.sqrt %[[SUM]]
// CHECK: arith.truncf %[[NORM]] : tensor<4x1xf64> to tensor<4x1xf32>
func.func @norm_f32(%x: tensor<4x6xf32>) -> tensor<4x1xf32> {
  %n = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
  return %n : tensor<4x1xf32>
}

// -----

// Squares of f64 numbers are taken after dividing by the largest one, or by one
// where that is zero.
// CHECK-LABEL: func.func @norm_f64
// CHECK-DAG: %[[ABS:.*]] = math.absf
// CHECK-DAG: %[[LARGEST:.*]] = kaon.reduce max %[[ABS]] along column : tensor<4x6xf64> -> tensor<1x6xf64>
// CHECK-DAG: %[[IS_ZERO:.*]] = arith.cmpf oeq, %[[LARGEST]]
// CHECK: %[[DIVISOR:.*]] = arith.select %[[IS_ZERO]], %{{.*}}, %[[LARGEST]]
// CHECK: %[[REPEATED:.*]] = kaon.broadcast %[[DIVISOR]]
// CHECK: %[[QUOTIENTS:.*]] = arith.divf %{{.*}}, %[[REPEATED]]
// CHECK: %[[SQUARES:.*]] = arith.mulf %[[QUOTIENTS]], %[[QUOTIENTS]]
// CHECK: %[[SUM:.*]] = kaon.reduce sum %[[SQUARES]] along column
// CHECK: %[[ROOT:.*]] = math.sqrt %[[SUM]]
// CHECK: arith.mulf %[[DIVISOR]], %[[ROOT]]
func.func @norm_f64(%x: tensor<4x6xf64>) -> tensor<1x6xf64> {
  %n = kaon.norm %x along column : tensor<4x6xf64> -> tensor<1x6xf64>
  return %n : tensor<1x6xf64>
}

// -----

// A zero row divides by nothing: its factor is zero.
// The inverse of a norm in f32 has two factors: it may be larger than f32 holds.
// CHECK-LABEL: func.func @normalize_f32
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>
// CHECK: %[[NORM:.*]] = math.sqrt
// CHECK: %[[GUARDED:.*]] = arith.maximumf %[[NORM]], %{{.*}} : tensor<4x1xf64>
// CHECK: %[[IS_ZERO:.*]] = arith.cmpf oeq, %[[NORM]], %[[ZERO:[^ ]*]]
// CHECK: %[[INVERSE:.*]] = arith.divf %{{.*}}, %[[GUARDED]]
// CHECK: %[[FACTOR:.*]] = arith.select %[[IS_ZERO]], %[[ZERO]], %[[INVERSE]]
// CHECK: %[[AT_LEAST:.*]] = arith.maximumf %[[FACTOR]], %{{.*}} : tensor<4x1xf64>
// CHECK: %[[FIRST:.*]] = arith.minimumf %[[AT_LEAST]], %{{.*}} : tensor<4x1xf64>
// CHECK: %[[SECOND:.*]] = arith.divf %[[FACTOR]], %[[FIRST]]
// CHECK: %[[NARROW_FIRST:.*]] = arith.truncf %[[FIRST]] : tensor<4x1xf64> to tensor<4x1xf32>
// CHECK: %[[ONCE:.*]] = kaon.broadcast %[[NARROW_FIRST]]
// CHECK: %[[SCALED:.*]] = arith.mulf %[[X]], %[[ONCE]] : tensor<4x6xf32>
// CHECK: %[[NARROW_SECOND:.*]] = arith.truncf %[[SECOND]] : tensor<4x1xf64> to tensor<4x1xf32>
// CHECK: %[[TWICE:.*]] = kaon.broadcast %[[NARROW_SECOND]]
// CHECK: %[[RESULT:.*]] = arith.mulf %[[SCALED]], %[[TWICE]] : tensor<4x6xf32>
// CHECK: return %[[RESULT]]
func.func @normalize_f32(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = kaon.normalize %x along row max epsilon 1.0e-12 scale 1.0 : tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// CHECK-LABEL: func.func @normalize_none
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>
// CHECK-NEXT: return %[[X]]
func.func @normalize_none(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = kaon.normalize %x along row none epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// The square of the Gram matrix is computed only where its coefficient is not
// zero.
// CHECK-LABEL: func.func @newton_schulz
// CHECK-SAME: %[[X:.*]]: tensor<4x6xf32>
// CHECK: %[[A:.*]] = kaon.matmul %[[X]], %[[X]] transpose_b
// CHECK: %[[BA:.*]] = arith.mulf %{{.*}}, %[[A]]
// CHECK: %[[AA:.*]] = kaon.matmul %[[A]], %[[A]]
// CHECK: %[[CAA:.*]] = arith.mulf %{{.*}}, %[[AA]]
// CHECK: %[[B:.*]] = arith.addf %[[BA]], %[[CAA]]
// CHECK: %[[AX:.*]] = arith.mulf %{{.*}}, %[[X]]
// CHECK: %[[BX:.*]] = kaon.matmul %[[B]], %[[X]]
// CHECK: %[[X1:.*]] = arith.addf %[[AX]], %[[BX]]
// CHECK: %[[A1:.*]] = kaon.matmul %[[X1]], %[[X1]] transpose_b
// CHECK: %[[BA1:.*]] = arith.mulf %{{.*}}, %[[A1]]
// CHECK-NOT: kaon.matmul %[[A1]], %[[A1]]
// CHECK: kaon.matmul %[[BA1]], %[[X1]]
func.func @newton_schulz(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %o = kaon.newton_schulz %x coefficients [3.5, -4.75, 2.0, 1.5, -0.5, 0.0] normalize none epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return %o : tensor<4x6xf32>
}
