//===-- codegen.cpp - code generation in kaon._C --------------------------===//

#include "python/src/Bindings.h"

void kaon::python::bindCodegen(pybind11::module_ &) {}
