// RUN: kaon-opt %s --verify-roundtrip | FileCheck %s
// RUN: kaon-opt %s | kaon-opt | FileCheck %s
// RUN: kaon-opt %s --mlir-print-op-generic | kaon-opt | FileCheck %s

// Every op of update math, in every form it can be written in.

// CHECK-LABEL: func.func @momentum
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<4x6xf32>, %[[M:[a-z0-9]+]]: tensor<4x6xf32>, %[[MU:[a-z0-9]+]]: f64
func.func @momentum(%g: tensor<4x6xf32>, %m: tensor<4x6xf32>, %mu: f64) {
  // CHECK: %update, %momentum = kaon.momentum lerp %[[G]], %[[M]], %[[MU]] nesterov : tensor<4x6xf32>
  %u0, %m0 = kaon.momentum lerp %g, %m, %mu nesterov : tensor<4x6xf32>
  // CHECK: kaon.momentum lerp %[[G]], %[[M]], %[[MU]] : tensor<4x6xf32>
  %u1, %m1 = kaon.momentum lerp %g, %m, %mu : tensor<4x6xf32>
  // CHECK: kaon.momentum heavy_ball %[[G]], %[[M]], %[[MU]] nesterov : tensor<4x6xf32>
  %u2, %m2 = kaon.momentum heavy_ball %g, %m, %mu nesterov : tensor<4x6xf32>
  // CHECK: kaon.momentum heavy_ball %[[G]], %[[M]], %[[MU]] {test.note = "kept"} : tensor<4x6xf32>
  %u3, %m3 = kaon.momentum heavy_ball %g, %m, %mu {test.note = "kept"} : tensor<4x6xf32>
  return
}

// CHECK-LABEL: func.func @newton_schulz
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf64>
func.func @newton_schulz(%x: tensor<4x6xf64>) {
  // CHECK: %orthogonal = kaon.newton_schulz %[[X]] coefficients [3.444500e+00, -4.775000e+00, 2.031500e+00]
  // CHECK-SAME: normalize max epsilon 0.000000e+00 scale 1.000000e+00 : tensor<4x6xf64>
  %a = kaon.newton_schulz %x coefficients [3.4445, -4.775, 2.0315] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf64>
  // CHECK: kaon.newton_schulz %[[X]] coefficients [1.500000e+00, -5.000000e-01, 0.000000e+00, 2.000000e+00, -1.500000e+00, 5.000000e-01]
  // CHECK-SAME: normalize add epsilon 9.9999999999999995E-8 scale 1.010000e+00
  %b = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0, 2.0, -1.5, 0.5] normalize add epsilon 1.0e-7 scale 1.01 : tensor<4x6xf64>
  // CHECK: kaon.newton_schulz %[[X]] coefficients {{.*}} scale 1.000000e+00 gram restarts [1] : tensor<4x6xf64>
  %d = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0, 2.0, -1.5, 0.5] normalize max epsilon 0.0 scale 1.0 gram restarts [1] : tensor<4x6xf64>
  // CHECK: kaon.newton_schulz %[[X]] coefficients {{.*}} scale 1.000000e+00 gram restarts [] {test.note = "kept"} : tensor<4x6xf64>
  %e = kaon.newton_schulz %x coefficients [1.5, -0.5, 0.0] normalize max epsilon 0.0 scale 1.0 gram restarts [] {test.note = "kept"} : tensor<4x6xf64>
  // CHECK: kaon.newton_schulz %[[X]] coefficients [] normalize none
  %c = kaon.newton_schulz %x coefficients [] normalize none epsilon 0.0 scale 1.0 : tensor<4x6xf64>
  return
}

// CHECK-LABEL: func.func @normalize
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
func.func @normalize(%x: tensor<4x6xf32>) {
  // CHECK: %normalized = kaon.normalize %[[X]] along row max epsilon 1.250000e-01 scale 1.000000e+00 : tensor<4x6xf32>
  %a = kaon.normalize %x along row max epsilon 0.125 scale 1.0 : tensor<4x6xf32>
  // CHECK: kaon.normalize %[[X]] along column add epsilon 0.000000e+00 scale 2.000000e+00 : tensor<4x6xf32>
  %b = kaon.normalize %x along column add epsilon 0.0 scale 2.0 : tensor<4x6xf32>
  // CHECK: kaon.normalize %[[X]] along all none epsilon 0.000000e+00 scale 1.000000e+00 : tensor<4x6xf32>
  %c = kaon.normalize %x along all none epsilon 0.0 scale 1.0 : tensor<4x6xf32>
  return
}

// CHECK-LABEL: func.func @norm
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>, %[[Y:[a-z0-9]+]]: tensor<?x?xf32>
func.func @norm(%x: tensor<4x6xf32>, %y: tensor<?x?xf32>) {
  // CHECK: %norm = kaon.norm %[[X]] along row : tensor<4x6xf32> -> tensor<4x1xf32>
  %a = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
  // CHECK: kaon.norm %[[X]] along column : tensor<4x6xf32> -> tensor<1x6xf32>
  %b = kaon.norm %x along column : tensor<4x6xf32> -> tensor<1x6xf32>
  // CHECK: kaon.norm %[[X]] along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %c = kaon.norm %x along all : tensor<4x6xf32> -> tensor<1x1xf32>
  // CHECK: kaon.norm %[[Y]] along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %d = kaon.norm %y along row : tensor<?x?xf32> -> tensor<?x1xf32>
  return
}

// CHECK-LABEL: func.func @reduce
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>, %[[Y:[a-z0-9]+]]: tensor<?x?xf64>
func.func @reduce(%x: tensor<4x6xf32>, %y: tensor<?x?xf64>) {
  // CHECK: %sum = kaon.reduce sum %[[X]] along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %a = kaon.reduce sum %x along all : tensor<4x6xf32> -> tensor<1x1xf32>
  // CHECK: %max = kaon.reduce max %[[X]] along row : tensor<4x6xf32> -> tensor<4x1xf32>
  %b = kaon.reduce max %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
  // CHECK: %min = kaon.reduce min %[[X]] along column : tensor<4x6xf32> -> tensor<1x6xf32>
  %c = kaon.reduce min %x along column : tensor<4x6xf32> -> tensor<1x6xf32>
  // CHECK: kaon.reduce sum %[[Y]] along column : tensor<?x?xf64> -> tensor<1x?xf64>
  %d = kaon.reduce sum %y along column : tensor<?x?xf64> -> tensor<1x?xf64>
  return
}

// CHECK-LABEL: func.func @shape
// CHECK-SAME: %[[R:[a-z0-9]+]]: tensor<4x1xf32>, %[[C:[a-z0-9]+]]: tensor<1x?xf16>, %[[X:[a-z0-9]+]]: tensor<4x6xbf16>
func.func @shape(%r: tensor<4x1xf32>, %c: tensor<1x?xf16>, %x: tensor<4x6xbf16>) {
  // CHECK: %broadcast = kaon.broadcast %[[R]] : tensor<4x1xf32> to tensor<4x6xf32>
  %a = kaon.broadcast %r : tensor<4x1xf32> to tensor<4x6xf32>
  // CHECK: kaon.broadcast %[[C]] : tensor<1x?xf16> to tensor<?x?xf16>
  %b = kaon.broadcast %c : tensor<1x?xf16> to tensor<?x?xf16>
  // CHECK: %transposed = kaon.transpose %[[X]] : tensor<4x6xbf16> -> tensor<6x4xbf16>
  %t = kaon.transpose %x : tensor<4x6xbf16> -> tensor<6x4xbf16>
  return
}

// CHECK-LABEL: func.func @matmul
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<4x6xf32>, %[[B:[a-z0-9]+]]: tensor<6x4xf32>, %[[C:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK-SAME: %[[S:[a-z0-9]+]]: f64, %[[T:[a-z0-9]+]]: f64
func.func @matmul(%a: tensor<4x6xf32>, %b: tensor<6x4xf32>, %c: tensor<4x4xf32>, %s: f64, %t: f64,
                  %p: tensor<1x96xf32>, %q: tensor<1x256xf32>) {
  // CHECK: %product = kaon.matmul %[[A]], %[[B]] : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %0 = kaon.matmul %a, %b : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[A]], %[[A]] transpose_b symmetric : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %1 = kaon.matmul %a, %a transpose_b symmetric : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[B]], %[[A]] transpose_a transpose_b : (tensor<6x4xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  %2 = kaon.matmul %b, %a transpose_a transpose_b : (tensor<6x4xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[A]], %[[B]] alpha %[[S]] : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %3 = kaon.matmul %a, %b alpha %s : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[A]], %[[B]] beta %[[T]] %[[C]] : (tensor<4x6xf32>, tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = kaon.matmul %a, %b beta %t %c : (tensor<4x6xf32>, tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[A]], %[[B]] alpha %[[S]] beta %[[T]] %[[C]]
  %5 = kaon.matmul %a, %b alpha %s beta %t %c : (tensor<4x6xf32>, tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %{{.*}}, %{{.*}} symmetric packed sizes [4, 4, 6] alpha %[[S]] : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x4xf32>
  %6 = kaon.matmul %p, %q symmetric packed sizes [4, 4, 6] alpha %s : (tensor<1x96xf32>, tensor<1x256xf32>) -> tensor<4x4xf32>
  return
}

func.func private @epilogue(%p: tensor<?x?xbf16>, %w: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %wide = arith.extf %p : tensor<?x?xbf16> to tensor<?x?xf32>
  %w1 = arith.subf %w, %wide : tensor<?x?xf32>
  return %w1 : tensor<?x?xf32>
}

// CHECK-LABEL: func.func @half_matmul
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<4x4xbf16>, %[[W:[a-z0-9]+]]: tensor<4x4xf32>, %[[S:[a-z0-9]+]]: f64
func.func @half_matmul(%a: tensor<4x4xbf16>, %w: tensor<4x4xf32>, %s: f64, %f16: tensor<4x4xf16>, %factor: tensor<1x1xf32>) {
  // CHECK: kaon.matmul %[[A]], %[[A]] symmetric : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %0 = kaon.matmul %a, %a symmetric : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  // CHECK: kaon.matmul %[[F:[a-z0-9]+]], %[[F]] beta %[[S]] %[[F]] : (tensor<4x4xf16>, tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
  %1 = kaon.matmul %f16, %f16 beta %s %f16 : (tensor<4x4xf16>, tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
  // CHECK: kaon.matmul %[[A]], %[[A]] alpha %[[S]] beta %[[S]] %[[A]] epilogue @epilogue(%[[W]] : tensor<4x4xf32>) scalars(%[[S]]) : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  %2 = kaon.matmul %a, %a alpha %s beta %s %a epilogue @epilogue(%w : tensor<4x4xf32>) scalars(%s)
      : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  // CHECK: kaon.matmul %[[A]], %[[A]] transpose_b symmetric factor %[[N:[a-z0-9]+]] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %3 = kaon.matmul %a, %a transpose_b symmetric factor %factor : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  // CHECK: kaon.matmul %[[A]], %[[A]] alpha %[[S]] beta %[[S]] %[[A]] factor %[[N]] epilogue @epilogue(%[[W]] : tensor<4x4xf32>) scalars(%[[S]]) :
  %4 = kaon.matmul %a, %a alpha %s beta %s %a factor %factor epilogue @epilogue(%w : tensor<4x4xf32>) scalars(%s)
      : (tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
  return
}

// CHECK-LABEL: func.func @materialize
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xbf16>
func.func @materialize(%x: tensor<4x6xbf16>) {
  // CHECK: %stored = kaon.materialize %[[X]] : tensor<4x6xbf16>
  %0 = kaon.materialize %x : tensor<4x6xbf16>
  return
}

// CHECK-LABEL: func.func @apply
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x6xf32>, %[[U:[a-z0-9]+]]: tensor<4x6xf32>, %[[S:[a-z0-9]+]]: f64, %[[D:[a-z0-9]+]]: f64
func.func @apply(%w: tensor<4x6xf32>, %u: tensor<4x6xf32>, %s: f64, %d: f64) {
  // CHECK: %param = kaon.apply decoupled %[[W]], %[[U]] step_size %[[S]] decay %[[D]] : tensor<4x6xf32>
  %a = kaon.apply decoupled %w, %u step_size %s decay %d : tensor<4x6xf32>
  // CHECK: kaon.apply after %[[W]], %[[U]] step_size %[[S]] decay %[[D]] : tensor<4x6xf32>
  %b = kaon.apply after %w, %u step_size %s decay %d : tensor<4x6xf32>
  // CHECK: kaon.apply cautious %[[W]], %[[U]] step_size %[[S]] decay %[[D]] : tensor<4x6xf32>
  %c = kaon.apply cautious %w, %u step_size %s decay %d : tensor<4x6xf32>
  return
}

// CHECK-LABEL: func.func @every
// CHECK-SAME: %[[STEP:[a-z0-9]+]]: i64, %[[X:[a-z0-9]+]]: tensor<4x6xf32>
func.func @every(%step: i64, %x: tensor<4x6xf32>) {
  // CHECK: %every:2 = kaon.every %[[STEP]] period 3 phase 1 -> tensor<4x6xf32>, tensor<4x1xf32> {
  // CHECK:   %[[A:.*]] = kaon.norm
  // CHECK:   kaon.yield %[[X]], %[[A]] : tensor<4x6xf32>, tensor<4x1xf32>
  // CHECK: } else {
  // CHECK:   kaon.yield
  // CHECK: }
  %r:2 = kaon.every %step period 3 phase 1 -> tensor<4x6xf32>, tensor<4x1xf32> {
    %a = kaon.norm %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %x, %a : tensor<4x6xf32>, tensor<4x1xf32>
  } else {
    %a = arith.addf %x, %x : tensor<4x6xf32>
    %b = kaon.reduce sum %x along row : tensor<4x6xf32> -> tensor<4x1xf32>
    kaon.yield %a, %b : tensor<4x6xf32>, tensor<4x1xf32>
  }
  // CHECK: kaon.every %[[STEP]] period 1 phase 0 -> f64 attributes {test.note = "kept"} {
  %s = kaon.every %step period 1 phase 0 -> f64 attributes {test.note = "kept"} {
    %c = arith.constant 1.0 : f64
    kaon.yield %c : f64
  } else {
    %c = arith.constant 2.0 : f64
    kaon.yield %c : f64
  }
  return
}
