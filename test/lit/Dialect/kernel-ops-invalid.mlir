// RUN: kaon-opt %s --split-input-file --verify-diagnostics

// What the kernel dialect refuses, and in which words.

kernel.class @Step {
  // expected-error @below {{is no member of a class}}
  %x = kernel.literal 1.0 : f32
}

// -----

kernel.class @Step {
  // expected-error @below {{expects a field of i1, f32 or f64, but got 'bf16'}}
  kernel.field @x : bf16
}

// -----

// expected-error @below {{expects an operand of bf16, f16, f32 or f64, but got 'i32'}}
// expected-error @below {{failed to parse Kernel_OperandsAttr parameter 'list'}}
kernel.alias @List = #kernel.operands<[<i32, read>]>

// -----

// expected-error @below {{expects sum to be f64, but got 'f32'}}
// expected-error @below {{failed to parse Kernel_ReductionsAttr parameter 'list'}}
kernel.alias @Reductions = #kernel.reductions<[<sum, f32>]>

// -----

// expected-error @below {{expects max to be f32 or f64, but got 'bf16'}}
// expected-error @below {{failed to parse Kernel_ReductionsAttr parameter 'list'}}
kernel.alias @Reductions = #kernel.reductions<[<max, bf16>]>

// -----

kernel.class @Step {
  // expected-error @below {{expects operands and reductions of every pass, but got 1 and 2}}
  kernel.alias @Passes = #kernel.pass_list<[@List], [@Reductions, @Reductions]>
}

// -----

kernel.class @Step {
  // expected-error @below {{expects kernel.alias @List in its class}}
  kernel.alias @Passes = #kernel.pass_list<[@List], [@Reductions]>
}

// -----

// expected-error @below {{expects a class, but found none called @Update}}
kernel.alias @Apply = #kernel.apply_tile<type = bf16, parameter = f32, addend = true, update = @Update>

// -----

kernel.class @Step {
  // expected-error @below {{expects constructor, call, pass, reduced, finish or keeps, but got 'start'}}
  kernel.method start() {
  }
}

// -----

kernel.class @Function {
  // expected-error @below {{expects keeps to have a result of i1}}
  kernel.method keeps() {
  }
}

// -----

kernel.class @Update {
  // expected-error @below {{expects kernel.return at its end if and only if it has a result}}
  kernel.method call(%w: f32) -> f32 {
  }
}

// -----

kernel.class @Update {
  kernel.method call(%w: f32) -> f64 {
    // expected-error @below {{expects 'f64', but got 'f32'}}
    kernel.return %w : f32
  }
}

// -----

kernel.class @Update {
  kernel.method call(%w: f32) -> f32 {
    // expected-error @below {{expects to be the last op of its method}}
    kernel.return %w : f32
    kernel.return %w : f32
  }
}

// -----

kernel.class @Step {
  kernel.field @x : f32
  kernel.method call(%w: f32) {
    // expected-error @below {{cannot change a field in call}}
    kernel.assign @x, %w : f32
  }
}

// -----

kernel.class @Step {
  kernel.method call(%w: f32) {
    // expected-error @below {{expects ops of the kernel dialect only}}
    %x = arith.negf %w : f32
  }
}

// -----

kernel.class @Step {
  // expected-error @below {{expects a name for each of 1 parameters, but got 2}}
  kernel.method call(%w: f32) attributes {names = ["w", "x"]} {
  }
}

// -----

kernel.class @Step {
  // expected-error @below {{expects kernel.alias @List in its class}}
  kernel.method call(%e: !kernel.element<@List>) {
  }
}

// -----

kernel.class @Step {
  kernel.alias @List = #kernel.reductions<[]>
  // expected-error @below {{expects @List to be #kernel.operands, but got #kernel.reductions<[]>}}
  kernel.method call(%e: !kernel.element<@List>) {
  }
}

// -----

kernel.class @Step {
  kernel.alias @List = #kernel.operands<[<f32, read>]>
  kernel.method call(%e: !kernel.element<@List>) {
    // expected-error @below {{expects an index below 1, but got 1}}
    %x = kernel.get %e[1] : !kernel.element<@List> -> f32
  }
}

// -----

kernel.class @Step {
  kernel.alias @List = #kernel.operands<[<f32, write>]>
  kernel.method call(%e: !kernel.element<@List>) {
    // expected-error @below {{expects an operand that is read, but #0 is write}}
    %x = kernel.get %e[0] : !kernel.element<@List> -> f32
  }
}

// -----

kernel.class @Step {
  kernel.alias @List = #kernel.operands<[<f32, read>]>
  kernel.method call(%e: !kernel.element<@List>) {
    %x = kernel.get %e[0] : !kernel.element<@List> -> f32
    // expected-error @below {{expects an operand that is written, but #0 is read}}
    kernel.set %e[0], %x : !kernel.element<@List>, f32
  }
}

// -----

kernel.class @Step {
  kernel.alias @List = #kernel.operands<[<bf16, read>]>
  kernel.method call(%e: !kernel.element<@List>) {
    // expected-error @below {{expects 'f32', but got 'f64'}}
    %x = kernel.get %e[0] : !kernel.element<@List> -> f64
  }
}

// -----

kernel.class @Step {
  kernel.method call(%k: !kernel.kept) {
    // expected-error @below {{expects kernel.constant @kept in its class}}
    %x = kernel.get %k[0] : !kernel.kept -> f32
  }
}

// -----

kernel.class @Step {
  kernel.alias @R = #kernel.reductions<[<sum, f64>]>
  kernel.method call(%r: !kernel.contributions<@R>) {
    // expected-error @below {{cannot read contributions}}
    %x = kernel.get %r[0] : !kernel.contributions<@R> -> f64
  }
}

// -----

kernel.class @Step {
  kernel.alias @R = #kernel.reductions<[<sum, f64>]>
  kernel.method call(%r: !kernel.results<@R>, %x: f64) {
    // expected-error @below {{cannot change the results of reductions}}
    kernel.set %r[0], %x : !kernel.results<@R>, f64
  }
}

// -----

kernel.class @Step {
  kernel.method reduced(%x: f64) {
    // expected-error @below {{expects kernel.field @norm in its class}}
    kernel.assign @norm, %x : f64
  }
}

// -----

kernel.class @Step {
  kernel.field @norm : f32
  kernel.method reduced(%x: f64) {
    // expected-error @below {{expects 'f32', but got 'f64'}}
    kernel.assign @norm, %x : f64
  }
}

// -----

kernel.class @Step {
  kernel.method constructor(%m: !kernel.matrix<2>, %row: i64) {
    // expected-error @below {{expects an operand below 2, but got 2}}
    %x = kernel.load of_row %m[2] at %row : <2>, f32 to f32
  }
}

// -----

kernel.class @Step {
  kernel.method constructor(%m: !kernel.matrix<2>) {
    // expected-error @below {{expects a position if and only if it loads of a row or a column}}
    %x = kernel.load of_row %m[1] : <2>, f32 to f32
  }
}

// -----

kernel.class @Step {
  kernel.method finish(%m: !kernel.matrix<2>, %row: i64, %x: f32) {
    // expected-error @below {{expects the place of a row or of a column}}
    kernel.store single %m[1] at %row, %x : <2>, f32 to f32
  }
}

// -----

kernel.class @Step {
  kernel.method call(%x: f32) {
    // expected-error @below {{expects 3 arguments of fma, but got 1}}
    %y = kernel.call fma(%x) : f32
  }
}

// -----

kernel.class @Step {
  kernel.method call(%x: f64) {
    // expected-error @below {{expects f32 on exactly one side, but got 'f64' to 'bf16'}}
    %y = kernel.convert %x : f64 to bf16
  }
}

// -----

// expected-error @below {{expects 32 to 1024 threads in whole warps, but got 48}}
kernel.entry @k threads 48 blocks 2 () {
}

// -----

// expected-error @below {{expects 1 to 32 blocks, but got 0}}
kernel.entry @k threads 64 blocks 0 () {
}

// -----

kernel.entry @k threads 64 blocks 2 (%m: !kernel.matrices<2>) {
  // expected-error @below {{expects a class, threads and register groups as template arguments of rows, but got [@Step]}}
  kernel.run rows<@Step>(%m) : !kernel.matrices<2>
}

// -----

kernel.entry @k threads 64 blocks 2 (%m: !kernel.matrices<2>) {
  // expected-error @below {{expects bf16, f16, f32 or f64 as template arguments of transpose, but got [i32]}}
  kernel.run transpose<i32>(%m) : !kernel.matrices<2>
}

// -----

kernel.entry @k threads 64 blocks 2 (%m: !kernel.matrices<2>) {
  // expected-error @below {{expects a class or an alias, but found none called @Step}}
  kernel.run elementwise<@Step>(%m) : !kernel.matrices<2>
}
