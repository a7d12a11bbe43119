# Writes text files into a list of C++ initializers {name, text}, in the order in which they are given.
# usage: cmake -DOUTPUT=<file> -P EmbedText.cmake -- <text file>...

# Everything after `--`.
set(files "")
set(isFile FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(isFile)
    list(APPEND files "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(isFile TRUE)
  endif()
endforeach()

set(list "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  cmake_path(GET file FILENAME name)
  string(FIND "${text}" ")kaon\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${file}: expects a text without the end of a raw string, )kaon\"")
  endif()
  string(APPEND list "{\"${name}\", R\"kaon(${text})kaon\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "${list}")
