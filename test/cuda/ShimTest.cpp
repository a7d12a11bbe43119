//===-- ShimTest.cpp - the shim notices what it promises to notice --------===//
//
// Every kernel here breaks one rule of the machine.
//
//===----------------------------------------------------------------------===//

#include "Primitives.cuh"
#include "test/cuda/TestMemory.h"
#include "test/cuda/shim/TensorMap.h"

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
  EXPECT_NE(fault.find(part), std::string::npos)
      << part << ": the fault is: " << fault;
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
  char *bytes = reinterpret_cast<char *>(array.data());
  expectFault(faultOf({1, 32}, [&] { loadWord(bytes + 2); }),
              "a load expects an address aligned to 4 bytes");
  expectFault(faultOf({1, 32}, [&] { storeWord(bytes + 1, 0); }),
              "a store expects an address aligned to 4 bytes");
  expectFault(faultOf({1, 32}, [&] { loadWords2(bytes + 4); }),
              "a load expects an address aligned to 8 bytes");
  expectFault(faultOf({1, 32}, [&] { storeWords2(bytes + 2, {}); }),
              "a store expects an address aligned to 8 bytes");
  expectFault(faultOf({1, 32}, [&] { loadWords4(bytes + 4); }),
              "a load expects an address aligned to 16 bytes");
  expectFault(faultOf({1, 32}, [&] { storeWords4(bytes + 8, {}); }),
              "a store expects an address aligned to 16 bytes");
  expectFault(faultOf({1, 32, 64},
                      [&] { copyAsync(sharedMemory(), array.data() + 1, 16); }),
              "copyAsync expects an address aligned to 16 bytes");
}

TEST(ShimTest, CountsAccessesOfSeveralElements) {
  auto array = DeviceArray<float>(16).fill([] { return 1; });
  DeviceArray<float> copies(16);
  takeAccesses();
  launch({2, 32, 512}, {}, [&] {
    // Shared memory does not count.
    storeWords4(sharedMemory() + 16 * threadIndex(), loadWords4(array.data()));
    if (threadIndex() == 0) {
      float *copy = copies.data() + 8 * blockIndex();
      storeWords2(copy, loadWords2(array.data()));
      storeWord(copy + 2, loadWord(array.data() + 4));
    }
  });
  EXPECT_EQ(takeAccesses(), (AccessCounts{{4, 4}, {8, 4}, {16, 64}}));
  EXPECT_EQ(takeAccesses(), AccessCounts());
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

TEST(ShimTest, FaultsAtGroupBarriersThatNotAllCanReach) {
  expectFault(faultOf({1, 96}, [] { groupBarrier<64>(); }),
              "which is for the first 64 threads");
  expectFault(faultOf({1, 96},
                      [] {
                        if (threadIndex() < 32) {
                          groupBarrier<64>();
                        }
                      }),
              "exited while others of its group wait");
}

//===----------------------------------------------------------------------===//
// What only sm_90a has
//===----------------------------------------------------------------------===//

namespace {

SharedBarrier *sharedBarrier(int index = 0) {
  return reinterpret_cast<SharedBarrier *>(sharedMemory()) + index;
}

/// A map of a 2x8 matrix of 16-bit elements and boxes of the same size.
struct SmallMap {
  SmallMap() {
    TensorMapContent content;
    content.address = reinterpret_cast<uintptr_t>(matrix.data());
    content.columns = content.boxColumns = 8;
    content.rows = content.boxRows = 2;
    content.pitchBytes = 16;
    content.elementBytes = 2;
    EXPECT_EQ(checkTensorMap(&map[0], content), "");
    writeTensorMap(&map[0], content);
  }

  DeviceArray<u16> matrix{16};
  DeviceArray<TensorMap> map{1};
};

/// Copies the box of `map` to `offset`, and does not wait.
void startCopy(const TensorMap *map, int offset) {
  if (threadIndex() == 0) {
    barrierInit(sharedBarrier(), 1);
    barrierInitFence();
    tensorMapAcquire(map);
    barrierExpect(sharedBarrier(), 32);
    copyBox(sharedMemory() + offset, map, 0, 0, sharedBarrier());
  }
}

} // namespace

TEST(ShimTest, FaultsAtMisusedSharedBarriers) {
  const LaunchSize size = {1, 32, 64};
  expectFault(faultOf(size, [] { barrierArrive(sharedBarrier()); }),
              "barrierArrive expects a barrier that barrierInit has made");
  auto byOne = [](auto use) {
    return [=] {
      if (threadIndex() == 0) {
        barrierInit(sharedBarrier(), 1);
        use();
      }
    };
  };
  expectFault(faultOf(size, byOne([] {
                        barrierExpect(sharedBarrier(), 16);
                        barrierArrive(sharedBarrier());
                      })),
              "expects a phase that is short of threads");
  // By one thread: several would race as well, which is another report.
  expectFault(faultOf(size, byOne([] { barrierInit(sharedBarrier(), 1); })),
              "barrierInit expects memory without a barrier");
  expectFault(
      faultOf(size, byOne([] { barrierExpect(sharedBarrier(), 1 << 20); })),
      "expects at most 2^20 - 1 bytes in a phase, but got 1048576");
  expectFault(faultOf(size, byOne([] { barrierWait(sharedBarrier(), 0); })),
              "0 at a barrier in shared memory");
}

TEST(ShimTest, SharedBarriersCountPhasesFromTheOneBeforeTheFirst) {
  launch({1, 32, 64}, {}, [] {
    if (threadIndex() == 0) {
      barrierInit(sharedBarrier(), 1);
      barrierWait(sharedBarrier(), 1);
      barrierArrive(sharedBarrier());
      barrierWait(sharedBarrier(), 0);
      barrierArrive(sharedBarrier());
      barrierWait(sharedBarrier(), 1);
    }
  });
}

TEST(ShimTest, FaultsAtMisusedBoxes) {
  const LaunchSize size = {1, 32, 1024};
  SmallMap small;
  const TensorMap *map = small.map.data();
  DeviceArray<TensorMap> empty(1);
  expectFault(faultOf(size, [&] { startCopy(empty.data(), 128); }),
              "expects a map that the driver has encoded");
  expectFault(faultOf(size, [&] { startCopy(map, 144); }),
              "expects a destination aligned to 128 bytes");
  expectFault(faultOf(size, [&] { startCopy(map, 1024); }),
              "copyBox expects an address in shared memory");
  expectFault(faultOf(size, [&] { startCopy(map, 128); }),
              "the kernel ended with copies of boxes in flight");
}

TEST(ShimTest, BoxesAreZeroOutsideOfTheMatrix) {
  SmallMap small;
  std::fill_n(small.matrix.data(), small.matrix.size(), 7);
  DeviceArray<u16> copied(16);
  launch({1, 32, 256}, {}, [&] {
    const TensorMap *map = small.map.data();
    if (threadIndex() == 0) {
      barrierInit(sharedBarrier(), 1);
      barrierInitFence();
      tensorMapAcquire(map);
      barrierExpect(sharedBarrier(), 32);
      copyBox(sharedMemory() + 128, map, -3, 1, sharedBarrier());
      barrierWait(sharedBarrier(), 0);
      std::memcpy(copied.data(), sharedMemory() + 128, 32);
    }
  });
  EXPECT_EQ(copied.values(), (std::vector<u16>{0, 0, 0, 7, 7, 7, 7, 7, //
                                               0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(ShimTest, RefusesMapsThatTheDriverWouldRefuse) {
  TensorMap map;
  TensorMapContent good;
  good.address = 4096;
  good.columns = 100;
  good.rows = 30;
  good.pitchBytes = 208;
  good.boxColumns = good.boxRows = 64;
  good.elementBytes = 2;
  good.swizzle = 3;
  EXPECT_EQ(checkTensorMap(&map, good), "");
  auto refusal = [&](auto member, auto value) {
    TensorMapContent bad = good;
    bad.*member = value;
    return checkTensorMap(&map, bad);
  };
  using Content = TensorMapContent;
  expectFault(refusal(&Content::address, 4104), "an address aligned to 16");
  expectFault(refusal(&Content::rows, 0), "1 to 2^32 rows and columns");
  expectFault(refusal(&Content::pitchBytes, 200), "multiple of 16 bytes");
  expectFault(refusal(&Content::pitchBytes, 192), "a pitch of a whole row");
  expectFault(refusal(&Content::boxRows, 257), "a box of 1 to 256 rows");
  expectFault(refusal(&Content::boxColumns, 65), "a multiple of 16 bytes");
  expectFault(refusal(&Content::boxColumns, 72), "no longer than the swizzle");
  expectFault(checkTensorMap(map.words + 1, good), "a map aligned to 64 bytes");
}

TEST(ShimTest, FaultsAtMisusedProducts) {
  const LaunchSize size = {1, 128, 32 << 10};
  auto products = [&](auto use) {
    return faultOf(size, [=] {
      WarpgroupSums sums = {};
      productFence();
      use(sums, matrixDescriptor(sharedAddress(sharedMemory()), 16, 1024));
    });
  };
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                multiplyAsync<false, false>(bf16(), sums, matrix, matrix);
                sums[0][0] = 1;
                multiplyAsync<false, false>(bf16(), sums, matrix, matrix);
              }),
              "expects sums that the thread has not touched");
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                multiplyAsync<false, false>(bf16(), sums, matrix, matrix);
                productCommit();
                productWaitAll(sums);
                multiplyAsync<false, false>(bf16(), sums, matrix, matrix);
              }),
              "expects a productFence after other uses of its sums");
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                u64 own = advanceDescriptor(matrix, 1024 * (threadIndex() % 2));
                multiplyAsync<false, false>(bf16(), sums, own, matrix);
              }),
              "expects the same descriptors from all lanes");
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                multiplyAsync<false, false>(bf16(), sums, matrix, matrix);
                productCommit();
              }),
              "the kernel ended with products in flight");
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                u64 outside = advanceDescriptor(matrix, 32 << 10);
                multiplyAsync<false, false>(bf16(), sums, matrix, outside);
                productCommit();
                productWaitAll(sums);
              }),
              "expects descriptors of shared memory, but reads offset 3");
  expectFault(products([](WarpgroupSums &sums, u64 matrix) {
                u64 shifted = matrix | u64(1) << 49;
                multiplyAsync<false, false>(bf16(), sums, shifted, matrix);
                productCommit();
                productWaitAll(sums);
              }),
              "expects a base offset of 0");
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
