# Copies of the device library with one planted fault each, for the tests of the tests. The library itself knows nothing
# of them: a fault is a change of its text, and a text that is no longer there is an error here.

set(KAON_MUTANTS "${CMAKE_CURRENT_BINARY_DIR}/mutants")
set(device_library "${PROJECT_SOURCE_DIR}/codegen/cuda/lib")

# Writes the mutant `name` of the headers FILES, in which FROM becomes TO. It lives in namespace kaon::device_<name> and
# takes the headers that it does not change from the library.
function(kaon_add_mutant name)
  cmake_parse_arguments(PARSE_ARGV 1 mutant "" "FROM;TO" "FILES")
  set(changes 0)
  foreach(file ${mutant_FILES})
    file(READ "${device_library}/${file}" text)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${device_library}/${file}")
    string(REPLACE "${mutant_FROM}" "${mutant_TO}" changed "${text}")
    if(NOT changed STREQUAL text)
      math(EXPR changes "${changes} + 1")
    endif()
    string(REPLACE "KAON_CODEGEN_CUDA_LIB_" "KAON_MUTANT_${name}_" changed "${changed}")
    string(REPLACE "namespace kaon::device {" "namespace kaon::device_${name} {\nusing namespace kaon::device;"
           changed "${changed}")
    file(CONFIGURE OUTPUT "${KAON_MUTANTS}/${name}/${file}" CONTENT "${changed}" @ONLY)
  endforeach()
  if(NOT changes EQUAL 1)
    message(FATAL_ERROR "mutant ${name}: expects its text in one header, but found it in ${changes}: ${mutant_FROM}")
  endif()
endfunction()

set(product_headers TileProduct.cuh Gemm.cuh)
kaon_add_mutant(original FILES ${product_headers}
  FROM "//===-- Gemm.cuh"
  TO "//===-- Gemm.cuh without a fault")
kaon_add_mutant(missing_loop_barrier FILES ${product_headers}
  FROM "blockBarrier();\n      fetch(step + numStages - 1);"
  TO "fetch(step + numStages - 1);")
kaon_add_mutant(wait_one_short FILES ${product_headers}
  FROM "copyAsyncWait<numStages - 2>();"
  TO "copyAsyncWait<numStages - 1>();")
kaon_add_mutant(missing_end_barrier FILES ${product_headers}
  FROM "copyAsyncWait<0>();\n    blockBarrier();"
  TO "copyAsyncWait<0>();")
kaon_add_mutant(missing_mirror_barrier FILES ${product_headers}
  FROM "      groupBarrier<productThreads>();\n      sums.forEachPair("
  TO "      sums.forEachPair(")
kaon_add_mutant(row_too_many FILES ${product_headers}
  FROM "globalRow < lastRow ?"
  TO "globalRow <= lastRow ?")
kaon_add_mutant(shifted_mirror FILES ${product_headers}
  FROM "storeStaged(staged, product, firstColumn, firstRow);"
  TO "storeStaged(staged, product, firstColumn, firstRow + copySize);")
kaon_add_mutant(mirror_not_transposed FILES ${product_headers}
  FROM "staged[column * stagedPitch + row] = narrow<T>(left);\n        staged[(column + 1) * stagedPitch + row] = narrow<T>(right);"
  TO "staged[row * stagedPitch + column] = narrow<T>(left);\n        staged[row * stagedPitch + column + 1] = narrow<T>(right);")
kaon_add_mutant(addend_without_factor FILES ${product_headers}
  FROM "      beta = mulRn(beta, factor);\n"
  TO "")
kaon_add_mutant(parameters_never_aligned FILES ${product_headers}
  FROM "bool isAligned = isPairAligned(w);"
  TO "bool isAligned = false;")
kaon_add_mutant(parameters_always_aligned FILES ${product_headers}
  FROM "bool isAligned = isPairAligned(w);"
  TO "bool isAligned = true;")
kaon_add_mutant(odd_staged_pitch FILES ${product_headers}
  FROM "stagedPitch = tileSize + copySize;"
  TO "stagedPitch = tileSize + copySize - 1;")
kaon_add_mutant(odd_addend FILES ${product_headers}
  FROM "loadAddends(row, column + j * 8)"
  TO "loadAddends(row, column + j * 8 + 1)")

# The main loop of sm_90a: waits, phases, fences, what is announced, and how shared memory is described.
kaon_add_mutant(original_ring FILES WarpgroupProduct.cuh
  FROM "//===-- WarpgroupProduct.cuh"
  TO "//===-- WarpgroupProduct.cuh without a fault")
kaon_add_mutant(missing_full_wait FILES WarpgroupProduct.cuh
  FROM "barrierWait(full(shared, at.stage), at.parity);\n      productFence();"
  TO "productFence();")
kaon_add_mutant(missing_empty_wait FILES WarpgroupProduct.cuh
  FROM "barrierWait(empty(shared, at.stage), at.parity ^ 1);"
  TO "")
kaon_add_mutant(wrong_parity FILES WarpgroupProduct.cuh
  FROM "at.parity ^ 1"
  TO "at.parity")
kaon_add_mutant(parity_never_turns FILES WarpgroupProduct.cuh
  FROM "      parity ^= 1;\n"
  TO "")
kaon_add_mutant(stage_left_too_early FILES WarpgroupProduct.cuh
  FROM "      productWait<1>();\n"
  TO "")
kaon_add_mutant(missing_last_wait FILES WarpgroupProduct.cuh
  FROM "productWaitAll(result.sums[0])"
  TO "productWait<1>()")
kaon_add_mutant(missing_product_fence FILES WarpgroupProduct.cuh
  FROM "      productFence();\n"
  TO "")
kaon_add_mutant(missing_barrier_fence FILES WarpgroupProduct.cuh
  FROM "    barrierInitFence();\n"
  TO "")
kaon_add_mutant(missing_start_barrier FILES WarpgroupProduct.cuh
  FROM "    blockBarrier();\n"
  TO "")
kaon_add_mutant(missing_ring_end_barrier FILES WarpgroupProduct.cuh
  FROM "    groupBarrier<productThreads>();\n"
  TO "")
kaon_add_mutant(missing_acquire FILES WarpgroupProduct.cuh
  FROM "    tensorMapAcquire(b);\n"
  TO "")
kaon_add_mutant(bytes_of_one_operand FILES WarpgroupProduct.cuh
  FROM "barrierExpect(arrival, stageBytes)"
  TO "barrierExpect(arrival, BoxesA::bytes)")
kaon_add_mutant(one_warp_releases FILES WarpgroupProduct.cuh
  FROM "productThreads / warpSize"
  TO "1")
kaon_add_mutant(no_swizzle FILES WarpgroupProduct.cuh
  FROM "8 * boxRowBytes);"
  TO "8 * boxRowBytes) & ~(swizzle128Bytes << 62);")
kaon_add_mutant(wrong_stride FILES WarpgroupProduct.cuh
  FROM "8 * boxRowBytes)"
  TO "4 * boxRowBytes)")
kaon_add_mutant(wrong_leading FILES WarpgroupProduct.cuh
  FROM "isTransposed ? boxBytes : 16"
  TO "boxRowBytes")
kaon_add_mutant(wrong_depth_step FILES WarpgroupProduct.cuh
  FROM "isTransposed ? boxRowBytes : 2"
  TO "2")
kaon_add_mutant(swapped_coordinates FILES WarpgroupProduct.cuh
  FROM "isTransposed ? along : depth,\n              isTransposed ? depth : along"
  TO "isTransposed ? depth : along,\n              isTransposed ? along : depth")
kaon_add_mutant(one_box_for_all FILES WarpgroupProduct.cuh
  FROM "stage + warpgroup * boxBytes"
  TO "stage + warpgroup / 2 * boxBytes")

kaon_add_mutant(elementwise_original FILES Elementwise.cuh
  FROM "//===-- Elementwise.cuh"
  TO "//===-- Elementwise.cuh without a fault")
kaon_add_mutant(element_too_many FILES Elementwise.cuh
  FROM "static_cast<int>(rest) : groupSize"
  TO "static_cast<int>(rest) + 1 : groupSize")
kaon_add_mutant(group_across_rows FILES Elementwise.cuh
  FROM "% groups.ofRow) * groupSize;\n      rest = groups.rowSize - start;"
  TO "% groups.ofRow) * groupSize;\n      rest = groupSize;")
kaon_add_mutant(never_kept FILES Elementwise.cuh
  FROM "if (function.keeps())"
  TO "if (false)")

# What decides whether groups of elements are accessed 16 bytes at a time.
set(group_headers Vector.cuh Operands.cuh Elementwise.cuh Passes.cuh Rows.cuh)
kaon_add_mutant(groups_original FILES ${group_headers}
  FROM "//===-- Vector.cuh"
  TO "//===-- Vector.cuh without a fault")
kaon_add_mutant(groups_always_aligned FILES ${group_headers}
  FROM "return reinterpret_cast<u64>(pointer) % sizeof(Words4) == 0;"
  TO "return true;")
kaon_add_mutant(groups_never_aligned FILES ${group_headers}
  FROM "return reinterpret_cast<u64>(pointer) % sizeof(Words4) == 0;"
  TO "return false;")
kaon_add_mutant(head_ignored FILES ${group_headers}
  FROM "head = head < size ? head : size;"
  TO "head = 0;")

kaon_add_mutant(rows_original FILES Rows.cuh
  FROM "//===-- Rows.cuh"
  TO "//===-- Rows.cuh without a fault")
kaon_add_mutant(missing_pass_barrier FILES Rows.cuh
  FROM "if constexpr (threads > warpSize) {\n    blockBarrier();\n  }"
  TO "")
kaon_add_mutant(missing_row_barrier FILES Rows.cuh
  FROM "    blockBarrier();\n    if (threadIndex() == 0)"
  TO "    if (threadIndex() == 0)")
kaon_add_mutant(shared_kept_slot FILES Rows.cuh
  FROM "(spilled / threads * kept + index) * 2"
  TO "index * 2")
kaon_add_mutant(row_off_by_one FILES Rows.cuh
  FROM "List::rowPointers(matrix, row, pointers);\n      typename"
  TO "List::rowPointers(matrix, row + 1, pointers);\n      typename")

kaon_add_mutant(columns_original FILES Columns.cuh
  FROM "//===-- Columns.cuh"
  TO "//===-- Columns.cuh without a fault")
kaon_add_mutant(column_off_by_one FILES Columns.cuh
  FROM "position < block.count"
  TO "position <= block.count")
kaon_add_mutant(row_of_column_too_many FILES Columns.cuh
  FROM "row < rows; row += rowLanes"
  TO "row <= rows; row += rowLanes")
kaon_add_mutant(lane_left_out FILES Columns.cuh
  FROM "lane < rowLanes; ++lane"
  TO "lane < rowLanes - 1; ++lane")
kaon_add_mutant(missing_lane_barrier FILES Columns.cuh
  FROM "  blockBarrier();\n  Reductions::forEach("
  TO "  Reductions::forEach(")
kaon_add_mutant(missing_column_barrier FILES Columns.cuh
  FROM "  blockBarrier();\n  if (isColumn"
  TO "  if (isColumn")

kaon_add_mutant(transpose_original FILES Transpose.cuh
  FROM "//===-- Transpose.cuh"
  TO "//===-- Transpose.cuh without a fault")
kaon_add_mutant(transpose_column_too_few FILES Transpose.cuh
  FROM "i64 end = firstColumn + transposeColumns;"
  TO "i64 end = firstColumn + transposeColumns - 1;")
kaon_add_mutant(missing_tile_barrier FILES Transpose.cuh
  FROM "    blockBarrier();\n"
  TO "")
kaon_add_mutant(one_tile FILES Transpose.cuh
  FROM "    tile = nextTile;\n"
  TO "")
