//===-- ShimTest.cpp - the shim notices what it promises to notice --------===//
//
// Every kernel here breaks one rule of the machine.
//
//===----------------------------------------------------------------------===//

#include "Primitives.cuh"
#include "test/cuda/TestMemory.h"

using namespace kaon;
using namespace kaon::device;
using namespace kaon::shim;
using kaon::test::DeviceArray;

namespace {

/// What the fault of a launch says; empty if there is none.
std::string faultOf(const LaunchSize &size,
                    const std::function<void()> &kernel) {
  try {
    launch(size, {}, kernel);
  } catch (const Fault &fault) {
    return fault.what();
  }
  return {};
}

void expectFault(const std::string &fault, const std::string &part) {
  EXPECT_NE(fault.find(part), std::string::npos) << "the fault is: " << fault;
}

} // namespace

TEST(ShimTest, RunsEveryThreadOfEveryBlock) {
  for (const Schedule &schedule : schedules) {
    DeviceArray<u32> counts(3 * 64);
    std::fill_n(counts.data(), counts.size(), 0);
    launch({3, 64}, schedule,
           [&] { ++counts[blockIndex() * 64 + threadIndex()]; });
    EXPECT_EQ(counts.values(), std::vector<u32>(3 * 64, 1)) << schedule.str();
  }
}

TEST(ShimTest, SchedulesDiffer) {
  std::vector<std::vector<u32>> orders;
  for (const Schedule &schedule : schedules) {
    std::vector<u32> order(1);
    countRaces([&] {
      launch({1, 96}, schedule, [&] {
        shuffleXor(0u, 1);
        // Threads append one after another on purpose.
        order.push_back(threadIndex());
      });
    });
    EXPECT_EQ(order.size(), 97u);
    for (const auto &other : orders) {
      EXPECT_NE(order, other) << schedule.str();
    }
    orders.push_back(order);
  }
}

TEST(ShimTest, SharedMemoryStartsAsNaN) {
  launch({2, 32, 128}, {}, [] {
    auto *values = reinterpret_cast<float *>(sharedMemory());
    EXPECT_TRUE(std::isnan(values[threadIndex()]));
    values[threadIndex()] = 1;
  });
}

TEST(ShimTest, BackgroundCopiesArriveAtTheirWait) {
  DeviceArray<float> source(8);
  std::fill_n(source.data(), 8, 1.0f);
  launch({1, 32, 512 + 16}, {}, [&] {
    char *mine = sharedMemory() + 16 * threadIndex();
    auto *values = reinterpret_cast<float *>(mine);
    copyAsync(mine, source.data(), 16);
    copyAsyncCommit();
    copyAsync(mine, source.data() + 4, 8);
    copyAsyncCommit();
    EXPECT_TRUE(std::isnan(values[0]));
    copyAsyncWait<1>();
    EXPECT_EQ(values[3], 1.0f);
    copyAsyncWait<0>();
    EXPECT_EQ(values[1], 1.0f);
    EXPECT_EQ(values[2], 0.0f) << "bytes that are not valid become zero";
  });
}

TEST(ShimTest, FaultsAtDivergentBarriers) {
  std::string fault = faultOf({2, 64}, [] {
    if (threadIndex() < 32) {
      blockBarrier();
    } else {
      blockBarrier();
    }
  });
  expectFault(fault, "block 0, thread 32: waits at the barrier in line");
  expectFault(fault, "but others of the block at the barrier in line");
}

TEST(ShimTest, FaultsWhenAThreadMissesABarrier) {
  expectFault(faultOf({1, 64},
                      [] {
                        if (threadIndex() != 5) {
                          blockBarrier();
                        }
                      }),
              "thread 5: the thread exited while others wait at the barrier");
  expectFault(faultOf({1, 64},
                      [] {
                        if (threadIndex() != 0) {
                          blockBarrier();
                        }
                      }),
              "but a thread of the block has exited");
}

TEST(ShimTest, FaultsWhenLanesDisagree) {
  expectFault(faultOf({1, 32},
                      [] {
                        if (threadIndex() < 16) {
                          shuffleXor(1u, 1);
                        } else {
                          float sum[4] = {};
                          u32 a[4] = {}, b[2] = {};
                          multiplyAdd<bf16>(sum, a, b);
                        }
                      }),
              "calls multiplyAdd, but other lanes of its warp call shuffle");
  expectFault(faultOf({1, 32},
                      [] {
                        if (threadIndex() != 31) {
                          shuffleXor(1u, 1);
                        }
                      }),
              "exited while lanes of its warp wait at shuffle");
}

TEST(ShimTest, FaultsAtDeadlocks) {
  std::string fault = faultOf({1, 64}, [] {
    if (threadIndex() < 16) {
      shuffleXor(1u, 1);
    } else {
      blockBarrier();
    }
  });
  expectFault(fault, "deadlock: every thread waits: 0 at shuffle;");
  expectFault(fault, " 63 at the barrier in line ");
}

TEST(ShimTest, FaultsAtMisalignedAccesses) {
  DeviceArray<float> array(16);
  expectFault(faultOf({1, 32}, [&] { loadWords(array.data() + 1); }),
              "a 16-byte load expects an address aligned to 16 bytes");
  expectFault(faultOf({1, 32}, [&] { storeWords(array.data() + 2, {}); }),
              "a 16-byte store expects an address aligned to 16 bytes");
  expectFault(faultOf({1, 32, 64},
                      [&] { copyAsync(sharedMemory(), array.data() + 1, 16); }),
              "copyAsync expects an address aligned to 16 bytes");
}

TEST(ShimTest, FaultsAtAddressesOutsideOfSharedMemory) {
  DeviceArray<float> array(16);
  u32 fragment[4];
  expectFault(
      faultOf({1, 32, 64},
              [&] { copyAsync(sharedMemory() + 64, array.data(), 16); }),
      "copyAsync expects an address in shared memory");
  expectFault(faultOf({1, 32, 64},
                      [&] { loadMatrices(fragment, sharedMemory() - 16); }),
              "loadMatrices expects an address in shared memory");
}

TEST(ShimTest, FaultsWhenCopiesAreInFlightAtTheEnd) {
  DeviceArray<float> array(4);
  expectFault(faultOf({1, 32, 512},
                      [&] {
                        copyAsync(sharedMemory() + 16 * threadIndex(),
                                  array.data(), 16);
                        copyAsyncCommit();
                      }),
              "the kernel ended with copies in flight");
}

TEST(ShimTest, RefusesBlocksOfBrokenWarps) {
  expectFault(faultOf({1, 33}, [] {}), "expects blocks of whole warps");
}

#ifdef KAON_SHIM_THREAD_SANITIZER

TEST(ShimTest, ReportsRaces) {
  DeviceArray<float> target(64);
  auto exchangeNeighbours = [&](bool ordered) {
    launch({1, 64, 256}, {}, [&] {
      auto *values = reinterpret_cast<float *>(sharedMemory());
      values[threadIndex()] = 1;
      if (ordered) {
        blockBarrier();
      }
      target[threadIndex()] = values[threadIndex() ^ 32];
    });
  };
  EXPECT_EQ(countRaces([&] { exchangeNeighbours(true); }), 0);
  EXPECT_GT(countRaces([&] { exchangeNeighbours(false); }), 0);
}

TEST(ShimTest, BarriersOrderOnlyWhatWaits) {
  // The first thread goes on to the second barrier while the others have not
  // left the first one: what it does in between is not ordered before them.
  DeviceArray<float> target(1);
  EXPECT_GT(countRaces([&] {
              launch({1, 64}, {}, [&] {
                blockBarrier();
                target[0] = static_cast<float>(threadIndex());
                blockBarrier();
              });
            }),
            0);
}

TEST(ShimTest, BlocksAreNotOrdered) {
  DeviceArray<float> target(32);
  EXPECT_GT(countRaces([&] {
              launch({2, 32}, {}, [&] { target[threadIndex()] = 0; });
            }),
            0);
  EXPECT_GT(countRaces([&] {
              launch({2, 32}, {}, [&] {
                blockBarrier();
                target[threadIndex()] = 1;
                blockBarrier();
              });
            }),
            0);
}

#endif // KAON_SHIM_THREAD_SANITIZER
