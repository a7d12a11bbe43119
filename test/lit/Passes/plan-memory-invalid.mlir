// RUN: kaon-opt %s -split-input-file -verify-diagnostics -kaon-plan-memory

func.func @not_fused(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                     %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update} {
  // expected-error @below {{'arith.subf' op has no memory of its own; kaon-fuse-kernels and kaon-outline-kernels come first}}
  %w1 = arith.subf %w, %g : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

// -----

func.func @not_packed(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                      %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update} {
  // expected-error @below {{'kaon.matmul' op reads operands that are not packed; kaon-pack-operands comes first}}
  %w1 = kaon.matmul %w, %g : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %w1 : tensor<4x4xf32>
}

// -----

// A plan in an edited dump is checked: both kernels write the same memory while
// the first result is still needed.
func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func private @binary(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %z = arith.addf %x, %y : tensor<?x?xf32>
  return %z : tensor<?x?xf32>
}
func.func @overwritten(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 192 : i64} {
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  %b = kaon.launch @unary ins(%w : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 64>]} -> tensor<4x6xf32>
  // expected-error @below {{'kaon.launch' op reads operand #0 after its memory was overwritten}}
  %w1 = kaon.launch @binary ins(%a, %b : tensor<4x6xf32>, tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<param, 0>]} -> tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}

// -----

func.func private @rows(%x: tensor<?x?xf32>) -> (tensor<?x1xf32>, tensor<?x1xf32>) attributes {kaon.kernel = #kaon.schedule<rows>} {
  %y = kaon.reduce sum %x along row : tensor<?x?xf32> -> tensor<?x1xf32>
  return %y, %y : tensor<?x1xf32>, tensor<?x1xf32>
}
func.func @overlapping_results(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                               %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 64 : i64} {
  // expected-error @below {{'kaon.launch' op writes two results to the same memory}}
  %a:2 = kaon.launch @rows ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>, #kaon.buffer<workspace, 0>]} -> tensor<4x1xf32>, tensor<4x1xf32>
  return %w : tensor<4x6xf32>
}

// -----

func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func @outside(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                   %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 64 : i64} {
  // expected-error @below {{'kaon.launch' op writes result #0 to bytes [0, 96), which are not aligned to 64 or not within the workspace of 64 bytes}}
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  return %w : tensor<4x6xf32>
}

// -----

func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func @not_in_place(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                        %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 128 : i64} {
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  // expected-error @below {{'func.return' op returns value #0, which is not where argument #0 lives}}
  return %a : tensor<4x6xf32>
}

// -----

func.func private @scaled(%x: tensor<?x?xf32>, %y: tensor<?x1xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  %b = kaon.broadcast %y : tensor<?x1xf32> to tensor<?x?xf32>
  %z = arith.mulf %x, %b : tensor<?x?xf32>
  return %z : tensor<?x?xf32>
}
func.func private @rows(%x: tensor<?x?xf32>) -> tensor<?x1xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {
  %y = kaon.reduce sum %x along row : tensor<?x?xf32> -> tensor<?x1xf32>
  return %y : tensor<?x1xf32>
}
func.func @clobbers(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                    %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 128 : i64} {
  %r = kaon.launch @rows ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x1xf32>
  // expected-error @below {{'kaon.launch' op overwrites its operand #1 while it still reads it}}
  %a = kaon.launch @scaled ins(%g, %r : tensor<4x6xf32>, tensor<4x1xf32>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x6xf32>
  return %w : tensor<4x6xf32>
}

// -----

func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func @no_such_state(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                          %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 128 : i64} {
  // expected-error @below {{'kaon.launch' op refers to state 1 of an update with 0 states}}
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<state, 1>]} -> tensor<4x6xf32>
  return %w : tensor<4x6xf32>
}

// -----

func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func @other_shape(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                       %m: tensor<4x1xf32> {kaon.role = #kaon.role<state>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> (tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update, kaon.workspace = 128 : i64} {
  // expected-error @below {{'kaon.launch' op writes result #0 of type 'tensor<4x6xf32>' over argument #2 of type 'tensor<4x1xf32>'}}
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<state, 0>]} -> tensor<4x6xf32>
  return %w, %m : tensor<4x6xf32>, tensor<4x1xf32>
}

// -----

func.func private @unary(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %y = math.absf %x : tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
func.func @far_away(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>},
                     %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x6xf32> attributes {kaon.update, kaon.workspace = 128 : i64} {
  // expected-error @below {{'kaon.launch' op writes result #0 to bytes [9223372036854775744, 9223372036854775807), which are not aligned}}
  %a = kaon.launch @unary ins(%g : tensor<4x6xf32>) {kaon.buffers = [#kaon.buffer<workspace, 9223372036854775744>]} -> tensor<4x6xf32>
  return %w : tensor<4x6xf32>
}

// -----

// What a product in half precision reads and stores is in the workspace.
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func @read_argument(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                         %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xbf16> attributes {kaon.update} {
  // expected-error @below {{'kaon.matmul' op expects operand #0 in the workspace, where rows are aligned}}
  %p = kaon.matmul %g, %g : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %w : tensor<4x4xbf16>
}
}

// -----

module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func private @copy(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xbf16>
}
func.func @stored_in_place(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                           %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xbf16> attributes {kaon.update, kaon.workspace = 256 : i64} {
  %x = kaon.launch @copy ins(%g : tensor<4x4xbf16>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x4xbf16>
  // expected-error @below {{'kaon.matmul' op expects its result in the workspace, where rows are aligned}}
  %w1 = kaon.matmul %x, %x {kaon.buffers = [#kaon.buffer<param, 0>]} : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
  return %w1 : tensor<4x4xbf16>
}
}

// -----

// Buffers of a GPU start at multiples of 256 bytes.
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func private @copy(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xf32>
}
func.func @not_aligned(%w: tensor<4x4xf32> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xf32> {kaon.role = #kaon.role<grad>},
                       %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xf32> attributes {kaon.update, kaon.workspace = 512 : i64} {
  // expected-error @below {{'kaon.launch' op writes result #0 to bytes [64, 128), which are not aligned to 256 or not within the workspace of 512 bytes}}
  %x = kaon.launch @copy ins(%g : tensor<4x4xf32>) {kaon.buffers = [#kaon.buffer<workspace, 64>]} -> tensor<4x4xf32>
  return %w : tensor<4x4xf32>
}
}

// -----

// Rows have gaps: 4 rows of 8 elements do not fit into 32 bytes.
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func private @copy(%x: tensor<?x?xbf16>) -> tensor<?x?xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x?xbf16>
}
func.func @no_room_for_gaps(%w: tensor<4x4xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x4xbf16> {kaon.role = #kaon.role<grad>},
                            %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x4xbf16> attributes {kaon.update, kaon.workspace = 32 : i64} {
  // expected-error @below {{'kaon.launch' op writes result #0 to bytes [0, 64), which are not aligned to 256 or not within the workspace of 32 bytes}}
  %x = kaon.launch @copy ins(%g : tensor<4x4xbf16>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x4xbf16>
  return %w : tensor<4x4xbf16>
}
}

// -----

// A vector of half precision with gaps is no row of elements.
module attributes {kaon.cuda = #kaon.cuda_target<half = bf16, shared_bytes = 166912>} {
func.func private @copy(%x: tensor<?x1xbf16>) -> tensor<?x1xbf16> attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  return %x : tensor<?x1xbf16>
}
func.func @view_of_gaps(%w: tensor<4x1xbf16> {kaon.role = #kaon.role<param>}, %g: tensor<4x1xbf16> {kaon.role = #kaon.role<grad>},
                        %step: i64 {kaon.role = #kaon.role<step>}) -> tensor<4x1xbf16> attributes {kaon.update, kaon.workspace = 256 : i64} {
  %x = kaon.launch @copy ins(%g : tensor<4x1xbf16>) {kaon.buffers = [#kaon.buffer<workspace, 0>]} -> tensor<4x1xbf16>
  // expected-error @below {{'kaon.transpose' op is a view, but not of its operand's memory}}
  %t = kaon.transpose %x {kaon.buffers = [#kaon.buffer<workspace, 0>]} : tensor<4x1xbf16> -> tensor<1x4xbf16>
  return %w : tensor<4x1xbf16>
}
}
