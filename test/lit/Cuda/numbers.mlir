// RUN: kaon-opt --kaon-prepare-kernel %s | kaon-translate --kaon-to-cuda --line-directives=false | FileCheck %s

// How numbers and operators are written. What a number's text is read as is
// tested over many bit patterns in test/unit and test/python.

kernel.include "Gemm.cuh"
kernel.class @Update {
  kernel.field @f : f32
  kernel.field @d : f64
  kernel.field @b : i1
  // CHECK: Update(float x, double y, bool c) {
  kernel.method constructor(%x: f32, %y: f64, %c: i1) attributes {names = ["x", "y", "c"]} {
    // CHECK-NEXT: f = 1.0f;
    %0 = kernel.literal 1.0 : f32
    kernel.assign @f, %0 : f32
    // CHECK-NEXT: f = -0.0f;
    %1 = kernel.literal -0.0 : f32
    kernel.assign @f, %1 : f32
    // CHECK-NEXT: f = 0.1f;
    %2 = kernel.literal 0.1 : f32
    kernel.assign @f, %2 : f32
    // CHECK-NEXT: f = 1e-45f;
    %3 = kernel.literal 0x00000001 : f32
    kernel.assign @f, %3 : f32
    // CHECK-NEXT: f = 3.4028235e+38f;
    %4 = kernel.literal 0x7F7FFFFF : f32
    kernel.assign @f, %4 : f32
    // CHECK-NEXT: f = floatOf(0x7f800000u);
    %5 = kernel.literal 0x7F800000 : f32
    kernel.assign @f, %5 : f32
    // CHECK-NEXT: f = floatOf(0xffc00001u);
    %6 = kernel.literal 0xFFC00001 : f32
    kernel.assign @f, %6 : f32
    // CHECK-NEXT: d = 0.1;
    %7 = kernel.literal 0.1 : f64
    kernel.assign @d, %7 : f64
    // CHECK-NEXT: d = 5e-324;
    %8 = kernel.literal 0x0000000000000001 : f64
    kernel.assign @d, %8 : f64
    // CHECK-NEXT: d = doubleOf(0xfff0000000000000ull);
    %9 = kernel.literal 0xFFF0000000000000 : f64
    kernel.assign @d, %9 : f64

    // CHECK-NEXT: f = -x;
    %10 = kernel.negate %x : f32
    kernel.assign @f, %10 : f32
    // CHECK-NEXT: f = -(-x);
    %11 = kernel.negate %x : f32
    %12 = kernel.negate %11 : f32
    kernel.assign @f, %12 : f32
    // CHECK-NEXT: f = -(-1.0f);
    %13 = kernel.literal -1.0 : f32
    %14 = kernel.negate %13 : f32
    kernel.assign @f, %14 : f32
    // CHECK-NEXT: f = c ? (c ? x : 1.0f) : -1.0f;
    %15 = kernel.select %c, %x, %0 : f32
    %16 = kernel.select %c, %15, %13 : f32
    kernel.assign @f, %16 : f32
    // CHECK-NEXT: b = (x < 1.0f) != c;
    %17 = kernel.compare lt %x, %0 : f32
    %18 = kernel.compare ne %17, %c : i1
    kernel.assign @b, %18 : i1
    // CHECK-NEXT: b = !(x >= 1.0f);
    %19 = kernel.compare ge %x, %0 : f32
    %20 = kernel.not %19
    kernel.assign @b, %20 : i1
    // CHECK-NEXT: b = (x == 1.0f || c) && (c || !c);
    %21 = kernel.compare eq %x, %0 : f32
    %22 = kernel.or %21, %c
    %23 = kernel.not %c
    %24 = kernel.or %c, %23
    %25 = kernel.and %22, %24
    kernel.assign @b, %25 : i1
    // CHECK-NEXT: b = (c && c) || c;
    %26 = kernel.and %c, %c
    %27 = kernel.or %26, %c
    kernel.assign @b, %27 : i1
    // CHECK-NEXT: d = double(toFloatRn(y));
    %28 = kernel.convert %y : f64 to f32
    %29 = kernel.convert %28 : f32 to f64
    kernel.assign @d, %29 : f64
    // CHECK-NEXT: f = toFloat(narrow<f16>(x));
    %30 = kernel.convert %x : f32 to f16
    %31 = kernel.convert %30 : f16 to f32
    kernel.assign @f, %31 : f32
    // CHECK-NEXT: f = fmaRn(absolute(x), roundDown(x), copySign(1.0f, x));
    %32 = kernel.call abs(%x) : f32
    %33 = kernel.call floor(%x) : f32
    %34 = kernel.call copysign(%0, %x) : f32
    %35 = kernel.call fma(%32, %33, %34) : f32
    kernel.assign @f, %35 : f32
    // CHECK-NEXT: f = power(exponential(x), logarithm(minimum(x, 1.0f)));
    %36 = kernel.call exp(%x) : f32
    %37 = kernel.call minimum(%x, %0) : f32
    %38 = kernel.call log(%37) : f32
    %39 = kernel.call pow(%36, %38) : f32
    kernel.assign @f, %39 : f32
  }
}
kernel.entry @numbers threads 256 blocks 2 (%list: !kernel.products, %scalars: !kernel.scalars) {
}
