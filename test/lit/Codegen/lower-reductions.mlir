// RUN: kaon-opt %s -kaon-lower-kernels -canonicalize -cse | FileCheck %s

// One pass per reduction, then one that stores. The sum is kept in 16 lanes of
// f64 and added as a tree; the division by the norm happens once per row.
// CHECK-LABEL: func.func @normalize_rows
// CHECK-DAG: %[[ZERO:.*]] = arith.constant dense<0.000000e+00> : vector<16xf64>
// CHECK: scf.for
// CHECK:   %[[WHOLE:.*]] = scf.for {{.*}} iter_args(%[[ACC:.*]] = %[[ZERO]]) -> (vector<16xf64>)
// CHECK:     %[[X:.*]] = arith.extf %{{.*}} : vector<16xf32> to vector<16xf64>
// CHECK:     arith.addf %[[ACC]], %[[X]] : vector<16xf64>
// CHECK-NOT: llvm.store
// CHECK:   %[[SUM:.*]] = scf.for {{.*}} iter_args(%[[LAST:.*]] = %[[WHOLE]]) -> (vector<16xf64>)
// CHECK:     llvm.intr.masked.load
// CHECK:     arith.select %{{.*}}, %{{.*}}, %[[LAST]]
// CHECK:   vector.shuffle %[[SUM]], %[[SUM]] [0, 1, 2, 3, 4, 5, 6, 7]
// CHECK:   vector.shuffle %[[SUM]], %[[SUM]] [8, 9, 10, 11, 12, 13, 14, 15]
// CHECK:   arith.addf %{{.*}} : vector<8xf64>
// CHECK:   arith.addf %{{.*}} : vector<4xf64>
// CHECK:   arith.addf %{{.*}} : vector<2xf64>
// CHECK:   arith.addf %{{.*}} : vector<1xf64>
// CHECK:   arith.truncf %{{.*}} : f64 to f32
// CHECK:   %[[N:.*]] = math.sqrt %{{.*}} : f32
// CHECK:   scf.for
// CHECK:     vector.broadcast %[[N]] : f32 to vector<16xf32>
// CHECK:     arith.divf
// CHECK:     llvm.store
// CHECK:   scf.for
// CHECK:     llvm.intr.masked.store
func.func private @normalize_rows(%x: tensor<?x?xf32>) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %s = kaon.reduce sum %x along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %n = math.sqrt %s : tensor<?x1xf32>
  %b = kaon.broadcast %n : tensor<?x1xf32> to tensor<?x?xf32>
  %q = arith.divf %x, %b : tensor<?x?xf32>
  return %q : tensor<?x?xf32>
}

// What a later pass needs of an earlier one it reads from a result, if that
// spares it an operand. Nothing that it reads besides can lie there.
// CHECK-LABEL: func.func @store_early
// CHECK-NOT: scf.if
// CHECK: scf.for
// CHECK:   scf.for {{.*}} iter_args
// CHECK:     %[[Y:.*]] = arith.mulf
// CHECK:     llvm.store %[[Y]], %{{.*}} : vector<16xf32>
// CHECK:   arith.maximumf %{{.*}} : vector<8xf32>
// CHECK:   scf.for
// CHECK-NOT: arith.mulf
// CHECK:     %[[Z:.*]] = arith.subf
// CHECK-NEXT: %{{.*}} = arith.muli
// CHECK:     llvm.store %[[Z]], %{{.*}} : vector<16xf32>
// CHECK-NOT: llvm.store {{.*}} : vector<16xf32>
func.func private @store_early(%x: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %y = arith.mulf %x, %x : tensor<?x?xf32>
  %s = kaon.reduce max %y along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %b = kaon.broadcast %s : tensor<?x1xf32> to tensor<?x?xf32>
  %z = arith.subf %y, %b : tensor<?x?xf32>
  return %y, %z : tensor<?x?xf32>, tensor<?x?xf32>
}

// A result may lie over any operand. Over one that a later pass reads, it is
// stored by the last pass, which computes it anew.
// CHECK-LABEL: func.func @store_early_if_apart
// CHECK: %[[RESULT:.*]] = llvm.ptrtoint
// CHECK: %[[OPERAND:.*]] = llvm.ptrtoint
// CHECK: %[[APART:.*]] = arith.cmpi ne, %[[RESULT]], %[[OPERAND]]
// CHECK: scf.if %[[APART]] {
// CHECK:   arith.mulf
// CHECK:   llvm.store {{.*}} : vector<16xf32>
// CHECK:   vector.shuffle
// CHECK-NOT: arith.mulf
// CHECK: } else {
// CHECK:   arith.mulf
// CHECK-NOT: llvm.store {{.*}} : vector<16xf32>
// CHECK:   vector.shuffle
// CHECK:   arith.mulf
// CHECK:   llvm.store {{.*}} : vector<16xf32>
// CHECK:   llvm.store {{.*}} : vector<16xf32>
func.func private @store_early_if_apart(%x: tensor<?x?xf32>, %w: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %y = arith.mulf %x, %x : tensor<?x?xf32>
  %s = kaon.reduce max %y along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %b = kaon.broadcast %s : tensor<?x1xf32> to tensor<?x?xf32>
  %u = arith.subf %y, %b : tensor<?x?xf32>
  %z = arith.subf %w, %u : tensor<?x?xf32>
  return %y, %z : tensor<?x?xf32>, tensor<?x?xf32>
}

// A rounded result is not what the last pass needs: that reads the operand
// again, so storing early would spare nothing.
// CHECK-LABEL: func.func @store_rounded_late
// CHECK-NOT: scf.if
// CHECK-NOT: llvm.store {{.*}} : vector<16xi16>
// CHECK: vector.shuffle
// CHECK: llvm.store {{.*}} : vector<16xi16>
func.func private @store_rounded_late(%x: tensor<?x?xbf16>) -> (tensor<?x?xbf16>, tensor<?x?xf32>)
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %wide = arith.extf %x : tensor<?x?xbf16> to tensor<?x?xf32>
  %y = arith.mulf %wide, %wide : tensor<?x?xf32>
  %s = kaon.reduce max %y along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %b = kaon.broadcast %s : tensor<?x1xf32> to tensor<?x?xf32>
  %z = arith.subf %y, %b : tensor<?x?xf32>
  %r = arith.truncf %y : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r, %z : tensor<?x?xbf16>, tensor<?x?xf32>
}

// Products of numbers that were f32 are exact in f64: rounding once, after the
// addition, gives the same bits.
// CHECK-LABEL: func.func @sum_of_squares
// CHECK: %[[SQUARE:.*]] = arith.mulf %[[X:.*]], %[[X]] fastmath<contract> : vector<16xf64>
// CHECK: arith.addf %{{.*}}, %[[SQUARE]] fastmath<contract> : vector<16xf64>
func.func private @sum_of_squares(%x: tensor<?x?xf32>) -> tensor<?x1xf64>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %wide = arith.extf %x : tensor<?x?xf32> to tensor<?x?xf64>
  %squares = arith.mulf %wide, %wide : tensor<?x?xf64>
  %s = kaon.reduce sum %squares along row : tensor<?x?xf64> -> tensor<?x1xf64>
  return %s : tensor<?x1xf64>
}

// CHECK-LABEL: func.func @sum_of_inexact_squares
// CHECK-NOT: fastmath
// CHECK-LABEL: func.func @sum_columns
func.func private @sum_of_inexact_squares(%x: tensor<?x?xf64>) -> tensor<?x1xf64>
    attributes {kaon.kernel = #kaon.schedule<rows>} {
  %squares = arith.mulf %x, %x : tensor<?x?xf64>
  %s = kaon.reduce sum %squares along row : tensor<?x?xf64> -> tensor<?x1xf64>
  return %s : tensor<?x1xf64>
}

// Columns: a loop over blocks of columns around loops over rows, one sum per
// lane.
// CHECK: scf.for
// CHECK:   %[[SUM:.*]] = scf.for {{.*}} iter_args({{.*}}) -> (vector<32xf64>)
// CHECK:   %[[RESULT:.*]] = arith.truncf %[[SUM]] : vector<32xf64> to vector<32xf32>
// CHECK:   llvm.store %[[RESULT]]
// CHECK: scf.for
// CHECK:   llvm.intr.masked.store
// CHECK-NOT: vector.shuffle
func.func private @sum_columns(%x: tensor<?x?xf32>) -> tensor<1x?xf32>
    attributes {kaon.kernel = #kaon.schedule<columns>} {
  %s = kaon.reduce sum %x along column : tensor<?x?xf32> -> tensor<1x?xf32>
  return %s : tensor<1x?xf32>
}
