//===-- runtime.cpp - the runtime in kaon._C ------------------------------===//

#include "python/src/Bindings.h"

void kaon::python::bindRuntime(pybind11::module_ &) {}
