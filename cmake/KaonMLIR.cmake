# Finds Debian's LLVM/MLIR 22.1 and links everything against its shared libraries only: a static MLIR library beside libMLIR means two
# MLIRs in one process, and a crash on first use.

find_package(MLIR 22.1 REQUIRED CONFIG HINTS /usr/lib/llvm-22)
list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
# Set before AddMLIR: otherwise the generated documentation is written to /docs at the root of the file system.
set(MLIR_BINARY_DIR "${PROJECT_BINARY_DIR}")
set(MLIR_LINK_MLIR_DYLIB ON)
include(TableGen)
include(AddLLVM)
include(AddMLIR)

include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS} "${PROJECT_BINARY_DIR}")
add_definitions(${LLVM_DEFINITIONS})

# What programs of a build with AddressSanitizer link beside LLVM.
if(KAON_SANITIZE)
  add_library(KaonSanitizerOptions OBJECT "${PROJECT_SOURCE_DIR}/cmake/SanitizerOptions.cpp")
endif()

# A static library of the compiler half: hidden symbols, LLVM's dialect of C++ (no exceptions), one precompiled header of MLIR for all.
# usage: kaon_add_compiler_library(KaonPasses A.cpp B.cpp DEPENDS KaonPassesIncGen LINK KaonDialect)
function(kaon_add_compiler_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_compile_options(${name} PRIVATE -fno-exceptions)
  target_link_libraries(${name} PUBLIC MLIR LLVM ${ARG_LINK} PRIVATE kaon_flags)
  if(ARG_DEPENDS)
    add_dependencies(${name} ${ARG_DEPENDS})
  endif()
  if(name STREQUAL "KaonDialect")
    target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/MLIRHeaders.h")
  else()
    target_precompile_headers(${name} REUSE_FROM KaonDialect)
  endif()
endfunction()

# Documentation generated from TableGen and committed: `kaon-doc` rewrites docs/<name>.md, and a lit test compares.
# usage: kaon_add_doc(dialect KaonOps.td -gen-dialect-doc -dialect=kaon)
add_custom_target(kaon-doc)
function(kaon_add_doc name definitions)
  add_custom_target(kaon-doc-${name}
    COMMAND "${MLIR_TABLEGEN_EXE}" ${ARGN} -I "${PROJECT_SOURCE_DIR}" -I "${MLIR_INCLUDE_DIRS}"
            "${CMAKE_CURRENT_SOURCE_DIR}/${definitions}" -o "${PROJECT_SOURCE_DIR}/docs/${name}.md"
    COMMENT "Generating docs/${name}.md"
    VERBATIM
  )
  add_dependencies(kaon-doc kaon-doc-${name})
endfunction()
