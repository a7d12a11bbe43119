//===-- Math.h - integer arithmetic of sizes --------------------*- C++ -*-===//

#ifndef KAON_RUNTIME_MATH_H
#define KAON_RUNTIME_MATH_H

#include <cstdint>

namespace kaon::runtime {

/// How many pieces of `b` cover `a`; `a` is at least 0 and `b` at least 1.
constexpr int64_t ceilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// The smallest multiple of `b` that is at least `a`.
constexpr int64_t roundUp(int64_t a, int64_t b) { return ceilDiv(a, b) * b; }

} // namespace kaon::runtime

#endif // KAON_RUNTIME_MATH_H
