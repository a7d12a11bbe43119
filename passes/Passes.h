//===-- Passes.h - passes over the kaon dialect -----------------*- C++ -*-===//
//
// Registration of every pass and pipeline.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_PASSES_PASSES_H
#define KAON_PASSES_PASSES_H

namespace kaon {

/// Registers Kaon's passes and pipelines, and the upstream ones they are used
/// with (canonicalize, cse, ...). Call it once per process.
void registerAllPasses();

} // namespace kaon

#endif // KAON_PASSES_PASSES_H
