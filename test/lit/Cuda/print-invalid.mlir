// RUN: kaon-translate %s --split-input-file --verify-diagnostics --kaon-to-cuda

// What has to be prepared before it can be printed.

// expected-error @below {{cannot be printed: expects one kernel.entry, but got 2}}
module {
  kernel.entry @a threads 32 blocks 1 () {
  }
  kernel.entry @b threads 32 blocks 1 () {
  }
}

// -----

module {
  // expected-error @below {{cannot be printed: expects kernel.include, kernel.alias, kernel.class and kernel.entry in the module}}
  func.func private @f()
  kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
  }
}

// -----

// expected-error @below {{expects a name that C++ and the kernel leave free, but got 'a-b'}}
kernel.entry @"a-b" threads 32 blocks 1 () attributes {names = []} {
}

// -----

// expected-error @below {{expects names of its parameters: run kaon-prepare-kernel first}}
kernel.entry @k threads 32 blocks 1 () {
}

// -----

kernel.class @Update {
  // expected-error @below {{expects a name that C++ and the kernel leave free, but got 'float'}}
  kernel.field @float : f32
}
kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
}

// -----

kernel.class @Update {
  kernel.field @x : f32
  // expected-error @below {{expects a name that C++ and the kernel leave free, but got 'x'}}
  kernel.method call(%x: f32) attributes {names = ["x"]} {
  }
}
kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
}

// -----

kernel.class @Update {
  kernel.method call(%x: f32) -> f32 attributes {names = ["x"]} {
    // expected-error @below {{expects one use or a variable, but got 2 uses: run kaon-prepare-kernel first}}
    %0 = kernel.negate %x : f32
    %1 = kernel.call add(%0, %0) : f32
    kernel.return %1 : f32
  }
}
kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
}

// -----

kernel.class @Function {
  kernel.alias @List = #kernel.operands<[<f32, update>]>
  kernel.method call(%e: !kernel.element<@List>) attributes {names = ["e"]} {
    // expected-error @below {{expects a variable for what is changed later: run kaon-prepare-kernel first}}
    %0 = kernel.get %e[0] : !kernel.element<@List> -> f32
    %1 = kernel.negate %0 : f32
    kernel.set %e[0], %1 : !kernel.element<@List>, f32
  }
}
kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
}

// -----

kernel.class @Update {
  kernel.method call(%x: f32) -> f32 attributes {names = ["x"]} {
    // expected-error @below {{expects a name that C++ and the kernel leave free, but got 'x'}}
    %0 = kernel.let "x" = %x : f32
    kernel.return %0 : f32
  }
}
kernel.entry @k threads 32 blocks 1 () attributes {names = []} {
}
