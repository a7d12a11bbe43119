//===-- MutantMain.cpp - runs the scenarios once --------------------------===//
//
// Linked with a launcher that has a planted fault. Exits with 0 if the
// scenarios find nothing wrong, which they must with the original only.
//
//===----------------------------------------------------------------------===//

#include "test/cuda/fake/Scenarios.h"

#include <cstdio>
#include <cstdlib>

int main() {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    for (bool graphs : {false, true}) {
      std::string wrong = kaon::test::runScenarios(seed, graphs);
      if (!wrong.empty()) {
        std::fputs(wrong.c_str(), stdout);
        std::fflush(stdout);
        // Streams may be in the middle of what the fault has led to.
        std::_Exit(1);
      }
    }
  }
  return 0;
}
