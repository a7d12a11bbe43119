//===-- TestMain.cpp - runs the tests of the device library ---------------===//
//
// Under ThreadSanitizer a test fails if a race was reported while it ran and it
// did not take the reports itself.
//
//===----------------------------------------------------------------------===//

#include "test/cuda/shim/Shim.h"

#include <gtest/gtest.h>

namespace {

class NoRaces : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo &) override {
    EXPECT_EQ(kaon::shim::takeRaceReports(), 0) << "races were reported";
  }
};

} // namespace

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners &listeners =
      testing::UnitTest::GetInstance()->listeners();
  // Before the printer of results, so that it sees the failure.
  auto *printer = listeners.Release(listeners.default_result_printer());
  listeners.Append(new NoRaces);
  listeners.Append(printer);
  return RUN_ALL_TESTS();
}
