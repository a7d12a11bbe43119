//===-- KernelLibrary.cpp - one kernel as a shared object -----------------===//
//
// Compiled with KAON_KERNEL_TEXT, the quoted path of a kernel's text, and
// KAON_KERNEL_NAME, the kernel's name. What it exports is described in
// KernelLibrary.h.
//
//===----------------------------------------------------------------------===//

#include KAON_KERNEL_TEXT
#include "test/cuda/shim/KernelLibrary.h"

KAON_SHIM_EXPORT_KERNEL(KAON_KERNEL_NAME)
