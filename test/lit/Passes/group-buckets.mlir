// RUN: kaon-opt %s -split-input-file -kaon-plan-memory -kaon-group-buckets | FileCheck %s
// RUN: kaon-opt %s -split-input-file -kaon-plan-memory -kaon-group-buckets=max-workspace-bytes=1535 | FileCheck %s --check-prefix=LIMIT
// RUN: kaon-opt %s -split-input-file -kaon-plan-memory -kaon-group-buckets=max-workspace-bytes=0 | FileCheck %s --check-prefix=NONE
// RUN: kaon-opt %s -split-input-file -kaon-plan-memory -kaon-group-buckets=max-workspace-bytes=1 | FileCheck %s --check-prefix=ONE
// RUN: kaon-opt %s -split-input-file -kaon-plan-memory -kaon-group-buckets=max-workspace-bytes=1535 -remarks-filter=kaon-group-buckets \
// RUN:     -remark-format=emitRemark -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// Two updates with the same kernels, one without the second of them, and two of
// a kernel of their own that need no workspace.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @first(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = math.absf %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @second(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.negf %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @third(%w: tensor<?x?xf32>, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.subf %w, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @alone(%w: tensor<?x?xf32>, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.addf %w, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

func.func @short(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<4x6xf32>) -> tensor<4x6xf32>
  %1 = kaon.launch @third ins(%w, %0 : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %1 : tensor<4x6xf32>
}
func.func @small(%w: tensor<8x8xf32> {kaon.role = #kaon.role<param>}, %g: tensor<8x8xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<8x8xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = kaon.launch @second ins(%0 : tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = kaon.launch @third ins(%w, %1 : tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
func.func @large(%w: tensor<16x16xf32> {kaon.role = #kaon.role<param>}, %g: tensor<16x16xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<16x16xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<16x16xf32>) -> tensor<16x16xf32>
  %1 = kaon.launch @second ins(%0 : tensor<16x16xf32>) -> tensor<16x16xf32>
  %2 = kaon.launch @third ins(%w, %1 : tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  return %2 : tensor<16x16xf32>
}
func.func @in_place(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                    %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  %0 = kaon.launch @alone ins(%w, %g : tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
func.func @in_place_too(%w: tensor<1x9xf32> {kaon.role = #kaon.role<param>}, %g: tensor<1x9xf32> {kaon.role = #kaon.role<grad>},
                        %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<1x9xf32> attributes {kaon.update} {
  %0 = kaon.launch @alone ins(%w, %g : tensor<1x9xf32>, tensor<1x9xf32>) -> tensor<1x9xf32>
  return %0 : tensor<1x9xf32>
}

// Large matrices come first. The bucket of @in_place needs no rounds.
// CHECK-LABEL: kaon.phase 0
// CHECK-NEXT:    kaon.group launches {{\[}}[0, 1, 2], [0, 1], [0, 1, 2]] {
// CHECK-NEXT:      kaon.bucket @large parameters [1] concurrent 1
// CHECK-NEXT:      kaon.bucket @small parameters [2] concurrent 1
// CHECK-NEXT:      kaon.bucket @short parameters [0, 3] concurrent 2
// CHECK-NEXT:    }
// CHECK-NEXT:    kaon.group launches {{\[}}[0, 1]] {
// CHECK-NEXT:      kaon.bucket @in_place parameters [4, 5] concurrent 2
// CHECK-NEXT:      kaon.bucket @in_place_too parameters [6] concurrent 1
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// Workspaces are 1024 bytes for the large matrix and 256 for each of the others.
// LIMIT-LABEL: kaon.phase 0
// LIMIT-NEXT:    kaon.group launches {{\[}}[0, 1], [0, 1], [0, 1]] {
// LIMIT-NEXT:      kaon.bucket @large
// LIMIT-NEXT:      kaon.bucket @small
// LIMIT-NEXT:    }
// LIMIT-NEXT:    kaon.bucket @short
// LIMIT-NEXT:    kaon.group launches {{\[}}[0, 1]] {

// NONE-LABEL: kaon.phase 0
// NONE-NEXT:    kaon.bucket @large
// NONE-NEXT:    kaon.bucket @small
// NONE-NEXT:    kaon.bucket @short
// NONE-NEXT:    kaon.group launches {{\[}}[0, 1]] {

// REMARK: remark: {{.*}}Missed{{.*}}kaon-group-buckets{{.*}}short{{.*}}phase 0: shares launches with others, but 512 more bytes of workspace would exceed the limit of 1535
// REMARK: remark: {{.*}}kaon-group-buckets{{.*}}large{{.*}}phase 0: 2 buckets in 3 launches instead of 6, 1280 bytes of workspace
// REMARK: remark: {{.*}}kaon-group-buckets{{.*}}in_place{{.*}}phase 0: 2 buckets in 1 launches instead of 2, 0 bytes of workspace
kaon.program @step {
  kaon.parameter @short "a" scalars 0 phase 0
  kaon.parameter @large "b" scalars 0 phase 0
  kaon.parameter @small "c" scalars 0 phase 0
  kaon.parameter @short "d" scalars 0 phase 0
  kaon.parameter @in_place "e" scalars 0 phase 0
  kaon.parameter @in_place "f" scalars 0 phase 0
  kaon.parameter @in_place_too "g" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @short parameters [0, 3] concurrent 2
    kaon.bucket @large parameters [1] concurrent 1
    kaon.bucket @small parameters [2] concurrent 1
    kaon.bucket @in_place parameters [4, 5] concurrent 1
    kaon.bucket @in_place_too parameters [6] concurrent 1
  }
}

}

// -----

// A bucket that takes several rounds stays alone, though others have its
// kernels. So does every bucket of a module for the CPU.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @first(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = math.absf %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @last(%w: tensor<?x?xf32>, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.subf %w, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<4x6xf32>) -> tensor<4x6xf32>
  %1 = kaon.launch @last ins(%w, %0 : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %1 : tensor<4x6xf32>
}
func.func @h(%w: tensor<8x8xf32> {kaon.role = #kaon.role<param>}, %g: tensor<8x8xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<8x8xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = kaon.launch @last ins(%w, %0 : tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// CHECK-LABEL: kaon.phase 0
// CHECK-NEXT:    kaon.bucket @h parameters [0, 1] concurrent 1
// CHECK-NEXT:    kaon.bucket @f parameters [2] concurrent 1
// CHECK-NEXT:  }
kaon.program @step {
  kaon.parameter @h "a" scalars 0 phase 0
  kaon.parameter @h "b" scalars 0 phase 0
  kaon.parameter @f "c" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @h parameters [0, 1] concurrent 1
    kaon.bucket @f parameters [2] concurrent 1
  }
}

}

// -----

func.func private @last(%w: tensor<?x?xf32>, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.subf %w, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %0 = kaon.launch @last ins(%w, %g : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}
func.func @h(%w: tensor<8x8xf32> {kaon.role = #kaon.role<param>}, %g: tensor<8x8xf32> {kaon.role = #kaon.role<grad>},
             %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<8x8xf32> attributes {kaon.update} {
  %0 = kaon.launch @last ins(%w, %g : tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CHECK-LABEL: kaon.phase 0
// CHECK-NEXT:    kaon.bucket @f parameters [0] concurrent 1
// CHECK-NEXT:    kaon.bucket @h parameters [1] concurrent 1
// CHECK-NEXT:  }
kaon.program @step {
  kaon.parameter @f "a" scalars 0 phase 0
  kaon.parameter @h "b" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @f parameters [0] concurrent 1
    kaon.bucket @h parameters [1] concurrent 1
  }
}

// -----

// What needs no workspace joins a group that is above the limit by itself.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {

func.func private @first(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = math.absf %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func private @last(%w: tensor<?x?xf32>, %x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %0 = arith.subf %w, %x : tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
func.func @with(%w: tensor<8x8xf32> {kaon.role = #kaon.role<param>}, %g: tensor<8x8xf32> {kaon.role = #kaon.role<grad>},
                %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<8x8xf32> attributes {kaon.update} {
  %0 = kaon.launch @first ins(%g : tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = kaon.launch @last ins(%w, %0 : tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
func.func @without(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  %0 = kaon.launch @last ins(%w, %g : tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// ONE-LABEL: kaon.program @without_workspace
// ONE:         kaon.group launches {{\[}}[0], [0, 1]] {
// ONE-NEXT:      kaon.bucket @with parameters [0] concurrent 1
// ONE-NEXT:      kaon.bucket @without parameters [1] concurrent 1
kaon.program @without_workspace {
  kaon.parameter @with "a" scalars 0 phase 0
  kaon.parameter @without "b" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @with parameters [0] concurrent 1
    kaon.bucket @without parameters [1] concurrent 1
  }
}

}

// -----

// Rows that are kept on the chip take no shared memory, 32 KiB and 160 KiB: a
// multiprocessor has room for four blocks, four and one.

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 232448>} {

func.func private @rows(%w: tensor<?x?xf32>, %g: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  %x = arith.mulf %g, %g : tensor<?x?xf32>
  %sum = kaon.reduce sum %x along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %sums = kaon.broadcast %sum : tensor<?x1xf32> to tensor<?x?xf32>
  %u = arith.divf %x, %sums : tensor<?x?xf32>
  %r = arith.subf %w, %u : tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @narrow(%w: tensor<4x16384xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x16384xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x16384xf32> attributes {kaon.update} {
  %0 = kaon.launch @rows ins(%w, %g : tensor<4x16384xf32>, tensor<4x16384xf32>) -> tensor<4x16384xf32>
  return %0 : tensor<4x16384xf32>
}
func.func @wider(%w: tensor<4x24576xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x24576xf32> {kaon.role = #kaon.role<grad>},
                 %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x24576xf32> attributes {kaon.update} {
  %0 = kaon.launch @rows ins(%w, %g : tensor<4x24576xf32>, tensor<4x24576xf32>) -> tensor<4x24576xf32>
  return %0 : tensor<4x24576xf32>
}
func.func @widest(%w: tensor<4x57344xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x57344xf32> {kaon.role = #kaon.role<grad>},
                  %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x57344xf32> attributes {kaon.update} {
  %0 = kaon.launch @rows ins(%w, %g : tensor<4x57344xf32>, tensor<4x57344xf32>) -> tensor<4x57344xf32>
  return %0 : tensor<4x57344xf32>
}

// CHECK-LABEL: kaon.program @shared_memory
// CHECK:       kaon.phase 0
// CHECK-NEXT:    kaon.bucket @widest parameters [0] concurrent 1
// CHECK-NEXT:    kaon.group launches {{\[}}[0, 1]] {
// CHECK-NEXT:      kaon.bucket @wider parameters [1] concurrent 1
// CHECK-NEXT:      kaon.bucket @narrow parameters [2] concurrent 1
// CHECK-NEXT:    }
// CHECK-NEXT:  }

// REMARK: remark: {{.*}}Missed{{.*}}kaon-group-buckets{{.*}}wider{{.*}}phase 0: launches kernels of others, but with so different shared memory that one launch would more than halve the blocks of some
kaon.program @shared_memory {
  kaon.parameter @widest "a" scalars 0 phase 0
  kaon.parameter @wider "b" scalars 0 phase 0
  kaon.parameter @narrow "c" scalars 0 phase 0
  kaon.phase 0 {
    kaon.bucket @widest parameters [0] concurrent 1
    kaon.bucket @wider parameters [1] concurrent 1
    kaon.bucket @narrow parameters [2] concurrent 1
  }
}

}
