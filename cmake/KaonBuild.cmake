# Compiler flags and helpers shared by every Kaon library.

include_directories("${PROJECT_SOURCE_DIR}")

add_library(kaon_flags INTERFACE)
target_compile_options(kaon_flags INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(KAON_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# Reproducible output: no build path ends up in an object file, so that a compiler cache is shared by every checkout.
add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}=." "-ffile-prefix-map=${PROJECT_BINARY_DIR}=build")

find_program(KAON_CCACHE ccache)
if(KAON_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${KAON_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KAON_CCACHE}")
endif()

find_program(KAON_LLD NAMES ld.lld-22 ld.lld)
# A path is understood by clang only; the runtime may be built with another compiler.
if(KAON_LLD AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_link_options("-fuse-ld=${KAON_LLD}")
endif()
