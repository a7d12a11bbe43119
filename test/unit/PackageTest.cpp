//===-- PackageTest.cpp - compiled packages through the C interface -------===//
//
// Writes a package's plan and runs it in kaon-package-host, a C program that
// knows nothing but libkaon_runtime.
//
//===----------------------------------------------------------------------===//

#include "TestPlans.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>

using namespace kaon::runtime;
using namespace kaon::runtime::test;

TEST(PackageTest, RunsFromC) {
  StepPlan plan;
  plan.parameters = {{"w", 300, 70, ElementType::F32, ElementType::F32, {}, 0}};
  plan.scalarSets = {{{"rate"}}};
  plan.kernels = {{"kaon_test_descend", Schedule::Elementwise}};
  Operand w = operand(BufferKind::Param, 300, 70),
          g = operand(BufferKind::Grad, 300, 70);
  Sequence sequence;
  sequence.name = "descend";
  sequence.launches = {{0,
                        {w, g, w},
                        2,
                        {sequence.program.argument(0)},
                        {300, 70},
                        300,
                        1,
                        0,
                        0}};
  plan.sequences = {sequence};
  plan.phases = {{plan.alone({0, {0}, 1})}};
  signKernels(plan);

  std::string path = ::testing::TempDir() + "kaon-package-plan.json";
  std::ofstream(path) << plan.toJson();
  std::string command =
      std::string(KAON_PACKAGE_HOST " ") + path + " " KAON_PACKAGE_KERNELS;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::remove(path.c_str());
}
