// RUN: kaon-opt %s --split-input-file --verify-diagnostics --allow-unregistered-dialect

// What the verifiers of programs refuse, and in which words.

// program.
// expected-error @below {{expects a period of at least 1, but got 0}}
kaon.program @p period 0 {
}

// -----

kaon.program @p {
  // expected-error @below {{'arith.constant' op cannot be part of a program}}
  %c = arith.constant 1.0 : f64
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.phase 0 {
  }
  // expected-error @below {{expects to come before every kaon.phase}}
  kaon.parameter @u "a" scalars 0 phase 0
}

// -----

func.func @f() {
  // expected-error @below {{expects parent op 'builtin.module'}}
  kaon.program @p {
  }
  return
}

// -----

// parameter.
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p period 3 {
  // expected-error @below {{expects 1 update or one for each of the 3 residues, but got 2}}
  kaon.parameter [@u, @u] "a" scalars 0 phase 0
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  // expected-error @below {{expects at least 1 update, but got 0}}
  kaon.parameter [] "a" scalars 0 phase 0
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  // expected-error @below {{expects a scalar set in [0, 1048576), but got -1}}
  kaon.parameter @u "a" scalars -1 phase 0
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  // expected-error @below {{expects a scalar set in [0, 1048576), but got 4611686018427387904}}
  kaon.parameter @u "a" scalars 4611686018427387904 phase 0
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  // expected-error @below {{expects a non-negative phase, but got -2}}
  kaon.parameter @u "a" scalars 0 phase -2
}

// -----

kaon.program @p {
  // expected-error @below {{refers to @nothing, which is not a function}}
  kaon.parameter @nothing "a" scalars 0 phase 0
}

// -----

// expected-note @below {{the function has no kaon.update}}
func.func private @f()

kaon.program @p {
  // expected-error @below {{refers to @f, which is not an update}}
  kaon.parameter @f "a" scalars 0 phase 0
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

// expected-error @below {{expects parent op 'kaon.program'}}
kaon.parameter @u "a" scalars 0 phase 0

// -----

// phase.
kaon.program @p {
  // expected-error @below {{expects a non-negative residue, but got -1}}
  kaon.phase -1 {
  }
}

// -----

kaon.program @p period 2 {
  kaon.phase 0 {
  }
  // expected-error @below {{expects residue 1 here, but got 0}}
  kaon.phase 0 {
  }
}

// -----

// expected-error @below {{expects a kaon.phase for each of the 2 residues, but got 1}}
kaon.program @p period 2 {
  kaon.phase 0 {
  }
}

// -----

kaon.program @p {
  kaon.phase 0 {
    // expected-error @below {{'arith.constant' op cannot be part of a phase}}
    %c = arith.constant 1.0 : f64
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  // expected-error @below {{expects a bucket for every parameter, but parameter 0 has none}}
  kaon.phase 0 {
  }
}

// -----

// bucket.
func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects at least 1 parameter, but got 0}}
    kaon.bucket @u parameters [] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects ascending parameters, but 0 follows 1}}
    kaon.bucket @u parameters [1, 0] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects ascending parameters, but 1 follows 1}}
    kaon.bucket @u parameters [1, 1] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects between 1 and 1 parameters in flight, but got 2}}
    kaon.bucket @u parameters [0] concurrent 2
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects between 1 and 1 parameters in flight, but got 0}}
    kaon.bucket @u parameters [0] concurrent 0
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects parameters in [0, 1), but got 1}}
    kaon.bucket @u parameters [1] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-note @below {{the other bucket}}
    kaon.bucket @u parameters [0] concurrent 1
    // expected-error @below {{handles parameter 0, which another bucket of phase 0 handles}}
    kaon.bucket @u parameters [0] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

func.func @v(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>},
             %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}

kaon.program @p {
  // expected-note @below {{the parameter}}
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{runs @v on parameter 0, whose update at residue 0 is @u}}
    kaon.bucket @v parameters [0] concurrent 1
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects at least 2 buckets, but got 1}}
    kaon.group launches [[0]] {
      kaon.bucket @u parameters [0, 1] concurrent 2
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects launches of at least 1 bucket, but #1 has none}}
    kaon.group launches [[0, 1], []] {
      kaon.bucket @u parameters [0] concurrent 1
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects buckets in [0, 2), but launch #0 has 2}}
    kaon.group launches [[0, 2]] {
      kaon.bucket @u parameters [0] concurrent 1
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects buckets in [0, 2), but launch #1 has -1}}
    kaon.group launches [[0], [-1]] {
      kaon.bucket @u parameters [0] concurrent 1
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects ascending buckets, but in launch #0 0 follows 1}}
    kaon.group launches [[1, 0]] {
      kaon.bucket @u parameters [0] concurrent 1
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    // expected-error @below {{expects ascending buckets, but in launch #1 1 follows 1}}
    kaon.group launches [[0], [1, 1]] {
      kaon.bucket @u parameters [0] concurrent 1
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.parameter @u "c" scalars 0 phase 0
  kaon.phase 0 {
    kaon.group launches [[0, 1]] {
      kaon.bucket @u parameters [0] concurrent 1
      // expected-error @below {{expects all 2 parameters of a bucket of a group in flight, but got 1}}
      kaon.bucket @u parameters [1, 2] concurrent 1
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    kaon.group launches [[0, 1]] {
      kaon.bucket @u parameters [0, 1] concurrent 2
      // expected-error @below {{'arith.constant' op cannot be part of a group; expects kaon.bucket}}
      %c = arith.constant 1 : i64
    }
  }
}

// -----

func.func @u(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  return %w : tensor<4x6xf32>
}
kaon.program @p {
  kaon.parameter @u "a" scalars 0 phase 0
  kaon.parameter @u "b" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @u parameters [0] concurrent 1
    kaon.group launches [[0, 1]] {
      // expected-note @below {{the other bucket}}
      kaon.bucket @u parameters [1] concurrent 1
      // expected-error @below {{handles parameter 1, which another bucket of phase 0 handles}}
      kaon.bucket @u parameters [1] concurrent 1
    }
  }
}
