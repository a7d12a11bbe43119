// RUN: kaon-opt %s -kaon-lower-kernels -canonicalize -cse | FileCheck %s

// The kernel ABI, a loop over rows, whole vectors, then a masked tail. All loads
// of a place come before its stores, so that results may lie over operands.
// CHECK-LABEL: func.func @axpy
// CHECK-SAME: (%{{[a-z0-9]+}}: !llvm.ptr {llvm.noalias, llvm.readonly}, %{{[a-z0-9]+}}: !llvm.ptr {llvm.noalias, llvm.readonly}
// CHECK-SAME: %[[BEGIN:[a-z0-9]+]]: i64, %[[END:[a-z0-9]+]]: i64)
// CHECK-NOT: tensor
// CHECK: scf.for %{{.*}} = %[[BEGIN]] to %[[END]]
// CHECK:   arith.truncf %{{.*}} : f64 to f32
// CHECK:   scf.for
// CHECK:     llvm.load %{{.*}} {alignment = 4 : i64} : !llvm.ptr -> vector<32xf32>
// CHECK:     arith.mulf
// CHECK:     llvm.load
// CHECK:     arith.addf
// CHECK:     llvm.store %{{.*}} {alignment = 4 : i64} : vector<32xf32>, !llvm.ptr
// CHECK:   scf.for
// CHECK:     llvm.intr.masked.load
// CHECK:     llvm.intr.masked.load
// CHECK:     llvm.intr.masked.store
// CHECK-NOT: fastmath
func.func private @axpy(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %d0 = tensor.dim %x, %c0 : tensor<?x?xf32>
  %d1 = tensor.dim %x, %c1 : tensor<?x?xf32>
  %t = arith.truncf %s : f64 to f32
  %u = tensor.splat %t[%d0, %d1] : tensor<?x?xf32>
  %p = arith.mulf %u, %x : tensor<?x?xf32>
  %q = arith.addf %p, %y : tensor<?x?xf32>
  return %q : tensor<?x?xf32>
}

// A value that is the same everywhere is computed once, not per element.
// CHECK-LABEL: func.func @divide_by_one_value
// CHECK: scf.for
// CHECK: %[[V:.*]] = llvm.load %{{.*}} : !llvm.ptr -> f32
// CHECK: %[[R:.*]] = math.sqrt %[[V]] : f32
// CHECK: scf.for
// CHECK: vector.broadcast %[[R]] : f32 to vector<32xf32>
// CHECK: arith.divf %{{.*}} : vector<32xf32>
func.func private @divide_by_one_value(%x: tensor<?x?xf32>, %n: tensor<1x1xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %r = math.sqrt %n : tensor<1x1xf32>
  %b = kaon.broadcast %r : tensor<1x1xf32> to tensor<?x?xf32>
  %q = arith.divf %x, %b : tensor<?x?xf32>
  return %q : tensor<?x?xf32>
}

// The 16-bit types are integers in memory; rounding is integer arithmetic.
// CHECK-LABEL: func.func @half
// CHECK: %[[BITS:.*]] = llvm.load %{{.*}} {alignment = 2 : i64} : !llvm.ptr -> vector<32xi16>
// CHECK: %[[WIDE:.*]] = arith.extui %[[BITS]] : vector<32xi16> to vector<32xi32>
// CHECK: arith.shli %[[WIDE]]
// CHECK: arith.bitcast %{{.*}} : vector<32xi32> to vector<32xf32>
// CHECK: arith.negf
// CHECK: arith.cmpf uno
// CHECK: arith.trunci %{{.*}} : vector<32xi32> to vector<32xi16>
// CHECK-NOT: bf16
func.func private @half(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %a = arith.extf %x : tensor<?x?xbf16> to tensor<?x?xf32>
  %b = arith.negf %a : tensor<?x?xf32>
  %c = arith.truncf %b : tensor<?x?xf32> to tensor<?x?xbf16>
  return %c : tensor<?x?xbf16>
}
