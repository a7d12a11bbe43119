// RUN: kaon-opt %s | kaon-opt | FileCheck %s
// RUN: kaon-opt %s -mlir-print-op-generic | kaon-opt | FileCheck %s

// Every op of the kernel dialect, printed and read back.

// CHECK: kernel.include "Rows.cuh"
kernel.include "Rows.cuh"

// CHECK: kernel.class @Step {
kernel.class @Step {
  // CHECK: kernel.constant @kept = 1
  kernel.constant @kept = 1
  // CHECK: kernel.alias @List0 = #kernel.operands<[<f32, read>, <bf16, update>, <f64, uniform>, <f16, none>]>
  kernel.alias @List0 = #kernel.operands<[<f32, read>, <bf16, update>, <f64, uniform>, <f16, none>]>
  // CHECK: kernel.alias @Reductions0 = #kernel.reductions<[<sum, f64>, <max, f32>]>
  kernel.alias @Reductions0 = #kernel.reductions<[<sum, f64>, <max, f32>]>
  // CHECK: kernel.alias @List1 = #kernel.operands<[<f32, write>, <bf16, read_of_row>, <f64, uniform>, <f16, none>]>
  kernel.alias @List1 = #kernel.operands<[<f32, write>, <bf16, read_of_row>, <f64, uniform>, <f16, none>]>
  // CHECK: kernel.alias @Reductions1 = #kernel.reductions<[]>
  kernel.alias @Reductions1 = #kernel.reductions<[]>
  // CHECK: kernel.alias @Passes = #kernel.pass_list<[@List0, @List1], [@Reductions0, @Reductions1]>
  kernel.alias @Passes = #kernel.pass_list<[@List0, @List1], [@Reductions0, @Reductions1]>
  // CHECK: kernel.field @lr : f32
  kernel.field @lr : f32
  // CHECK: kernel.field @norm : f64
  kernel.field @norm : f64
  // CHECK: kernel.field @isLarge : i1
  kernel.field @isLarge : i1

  // CHECK: kernel.method constructor(%[[SCALARS:.*]]: !kernel.scalars, %[[MATRIX:.*]]: !kernel.matrix<4>, %[[ROW:.*]]: i64) attributes {names = ["scalars", "matrix", "row"]} {
  kernel.method constructor(%scalars: !kernel.scalars, %matrix: !kernel.matrix<4>, %row: i64)
      attributes {names = ["scalars", "matrix", "row"]} {
    // CHECK: %[[S:.*]] = kernel.scalar %[[SCALARS]][3]
    %s = kernel.scalar %scalars[3]
    // CHECK: %[[LR:.*]] = kernel.convert %[[S]] : f64 to f32
    %lr = kernel.convert %s : f64 to f32
    // CHECK: kernel.assign @lr, %[[LR]] : f32
    kernel.assign @lr, %lr : f32
    // CHECK: kernel.load single %[[MATRIX]][2] : <4>, f64 to f64
    %u = kernel.load single %matrix[2] : <4>, f64 to f64
    // CHECK: kernel.load of_row %[[MATRIX]][3] at %[[ROW]] : <4>, f16 to f32
    %v = kernel.load of_row %matrix[3] at %row : <4>, f16 to f32
    // CHECK: kernel.compare gt %{{.*}}, %{{.*}} : f32
    %c = kernel.compare gt %v, %lr : f32
    // CHECK: kernel.not
    %n = kernel.not %c
    // CHECK: kernel.and
    %a = kernel.and %c, %n
    // CHECK: kernel.or
    %o = kernel.or %a, %n
    kernel.assign @isLarge, %o : i1
  }
  // CHECK: kernel.method pass(%{{.*}}: !kernel.index<0>, %[[E:.*]]: !kernel.element<@List0>, %[[K:.*]]: !kernel.kept, %[[C:.*]]: !kernel.contributions<@Reductions0>) {
  kernel.method pass(%i: !kernel.index<0>, %e: !kernel.element<@List0>, %k: !kernel.kept,
                     %c: !kernel.contributions<@Reductions0>) {
    // CHECK: kernel.get %[[E]][0] : !kernel.element<@List0> -> f32
    %g = kernel.get %e[0] : !kernel.element<@List0> -> f32
    // CHECK: kernel.let "m" = %{{.*}} : f32
    %m = kernel.let "m" = %g : f32
    // CHECK: kernel.negate
    %n = kernel.negate %m : f32
    // CHECK: kernel.read @lr : f32
    %lr = kernel.read @lr : f32
    // CHECK: kernel.literal 1.000000e+00 : f32
    %one = kernel.literal 1.0 : f32
    // CHECK: kernel.call fma(%{{.*}}, %{{.*}}, %{{.*}}) : f32
    %f = kernel.call fma(%n, %lr, %one) : f32
    // CHECK: kernel.read @isLarge : i1
    %large = kernel.read @isLarge : i1
    // CHECK: kernel.select %{{.*}}, %{{.*}}, %{{.*}} : f32
    %r = kernel.select %large, %f, %one : f32
    // CHECK: kernel.set %[[E]][1], %{{.*}} : !kernel.element<@List0>, f32
    kernel.set %e[1], %r : !kernel.element<@List0>, f32
    // CHECK: kernel.set %[[K]][0], %{{.*}} : !kernel.kept, f32
    kernel.set %k[0], %r : !kernel.kept, f32
    %w = kernel.convert %r : f32 to f64
    // CHECK: kernel.set %[[C]][0], %{{.*}} : !kernel.contributions<@Reductions0>, f64
    kernel.set %c[0], %w : !kernel.contributions<@Reductions0>, f64
    kernel.set %c[1], %r : !kernel.contributions<@Reductions0>, f32
  }
  // CHECK: kernel.method reduced(%{{.*}}: !kernel.index<0>, %[[R:.*]]: !kernel.results<@Reductions0>) {
  kernel.method reduced(%i: !kernel.index<0>, %r: !kernel.results<@Reductions0>) {
    // CHECK: kernel.get %[[R]][0] : !kernel.results<@Reductions0> -> f64
    %s = kernel.get %r[0] : !kernel.results<@Reductions0> -> f64
    kernel.assign @norm, %s : f64
  }
  // CHECK: kernel.method finish
  kernel.method finish(%matrix: !kernel.matrix<4>, %row: i64) {
    %n = kernel.read @norm : f64
    // CHECK: kernel.store of_row %{{.*}}[2] at %{{.*}}, %{{.*}} : <4>, f64 to f64
    kernel.store of_row %matrix[2] at %row, %n : <4>, f64 to f64
  }
}

// CHECK: kernel.class @Update
kernel.class @Update {
  // CHECK: kernel.method call(%[[W:.*]]: f32, %{{.*}}: f32) -> f32 {
  kernel.method call(%w: f32, %product: f32) -> f32 {
    // CHECK: kernel.return %[[W]] : f32
    kernel.return %w : f32
  }
}

// CHECK: kernel.alias @Loop = #kernel.tile_product<bf16, depth, extent>
kernel.alias @Loop = #kernel.tile_product<bf16, depth, extent>
// CHECK: kernel.alias @Warpgroups = #kernel.tile_product<f16, extent, depth, warpgroups = true>
kernel.alias @Warpgroups = #kernel.tile_product<f16, extent, depth, warpgroups = true>
// CHECK: kernel.alias @Store = #kernel.store_tile<type = bf16, symmetric = true, addend = false>
kernel.alias @Store = #kernel.store_tile<type = bf16, symmetric = true, addend = false>
// CHECK: kernel.alias @Apply = #kernel.apply_tile<type = bf16, parameter = f32, addend = true, update = @Update>
kernel.alias @Apply = #kernel.apply_tile<type = bf16, parameter = f32, addend = true, update = @Update>

// CHECK: kernel.entry @rows threads 256 blocks 2 (%[[M:.*]]: !kernel.matrices<4>, %[[B:.*]]: !kernel.blocks, %[[X:.*]]: !kernel.scalars) {
kernel.entry @rows threads 256 blocks 2
    (%m: !kernel.matrices<4>, %b: !kernel.blocks, %s: !kernel.scalars) {
  // CHECK: kernel.run rows <@Step, 256, 4>(%[[M]], %[[B]], %[[X]]) : !kernel.matrices<4>, !kernel.blocks, !kernel.scalars
  kernel.run rows<@Step, 256, 4>(%m, %b, %s) : !kernel.matrices<4>, !kernel.blocks, !kernel.scalars
}
kernel.entry @transpose threads 256 blocks 4 (%m: !kernel.matrices<2>, %b: !kernel.blocks) {
  // CHECK: kernel.run transpose <bf16>(%{{.*}}, %{{.*}}) : !kernel.matrices<2>, !kernel.blocks
  kernel.run transpose<bf16>(%m, %b) : !kernel.matrices<2>, !kernel.blocks
}
kernel.entry @product threads 256 blocks 2 (%l: !kernel.products, %s: !kernel.scalars) {
  // CHECK: kernel.run product <@Loop, @Apply>(%{{.*}}, %{{.*}}) : !kernel.products, !kernel.scalars
  kernel.run product<@Loop, @Apply>(%l, %s) : !kernel.products, !kernel.scalars
}
