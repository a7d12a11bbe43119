//===-- ThreadPoolTest.cpp - the process's worker threads -----------------===//
//
// Coverage of ranges, sessions from several threads, idleness, forks, limits,
// lent threads and the floating point environment.
//
//===----------------------------------------------------------------------===//

#include "runtime/ThreadPool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <gtest/gtest.h>
#include <numeric>
#include <pthread.h>
#include <sched.h>
#include <set>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#if defined(__SSE__)
#include <immintrin.h>
#endif

using namespace kaon::runtime;

namespace {

/// Undoes changes of the limit. Tests set one of at least 4, so that they mean
/// the same on a machine with one processor.
class ThreadPoolTest : public ::testing::Test {
protected:
  void SetUp() override { ThreadPool::setLimit(4); }
  void TearDown() override {
    ThreadPool::lend(nullptr);
    ThreadPool::setLimit(0);
  }
};

/// Sum of the squares below `count`, computed on `threads` threads.
int64_t sumSquares(int threads, int64_t count, int64_t grain) {
  std::atomic<int64_t> sum{0};
  ThreadPool::Session session(threads);
  session.run(count, grain, [&](int64_t begin, int64_t end, int) {
    int64_t part = 0;
    for (int64_t i = begin; i < end; ++i) {
      part += i * i;
    }
    sum += part;
  });
  return sum;
}

int64_t expectedSquares(int64_t count) {
  return (count - 1) * count * (2 * count - 1) / 6;
}

/// Places that an affinity set must have for the system to fill it in; 0 stands
/// for what the system itself wants.
std::atomic<size_t> neededPlaces{0};

/// Threads that a process might lend, started anew for each job.
std::atomic<int> timesLent{0};
std::atomic<unsigned> threadsLent{0};

void lendThreads(void (*function)(void *), void *data, unsigned threads,
                 unsigned) {
  ++timesLent;
  threadsLent = threads;
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) {
    others.emplace_back(function, data);
  }
  function(data);
  for (std::thread &other : others) {
    other.join();
  }
}

double processorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

} // namespace

/// In the place of the C library's: a machine with many processors, if wanted,
/// the first 1500 of which the process may run on.
extern "C" int sched_getaffinity(pid_t process, size_t bytes,
                                 cpu_set_t *set) noexcept {
  size_t needed = neededPlaces.load();
  if (needed == 0) {
    long filled = syscall(SYS_sched_getaffinity, process, bytes, set);
    if (filled < 0) {
      return -1;
    }
    std::memset(reinterpret_cast<char *>(set) + filled, 0, bytes - filled);
    return 0;
  }
  if (8 * bytes < needed) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (int i = 0; i < 900; ++i) {
    CPU_SET_S(i + 600, bytes, set);
  }
  return 0;
}

TEST_F(ThreadPoolTest, CountsTheProcessorsOfLargeMachines) {
  EXPECT_GE(ThreadPool::numProcessors(), 1);
  for (size_t places : {1024, 1025, 4096, 16384}) {
    neededPlaces = std::max<size_t>(places, 1500);
    EXPECT_EQ(ThreadPool::numProcessors(), 900) << places;
  }
  neededPlaces = 0;
}

TEST_F(ThreadPoolTest, SaysOnceThatThreadsCannotBeStarted) {
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    dup2(output[1], STDERR_FILENO);
    // No address space has room for stacks of this size.
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size_t(1) << 52);
    pthread_setattr_default_np(&attributes);
    bool isRight = true;
    for (int i = 0; i < 3; ++i) {
      isRight &= ThreadPool::Session(4).numThreads() == 1;
      isRight &= sumSquares(4, 1000, 1) == expectedSquares(1000);
    }
    // Another limit is a reason to try again.
    pthread_attr_setstacksize(&attributes, size_t(1) << 20);
    pthread_setattr_default_np(&attributes);
    isRight &= ThreadPool::Session(4).numThreads() == 1;
    ThreadPool::setLimit(3);
    isRight &= ThreadPool::Session(4).numThreads() == 3;
    _exit(isRight ? 0 : 1);
  }
  close(output[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status;
  char text[4096];
  ssize_t length = read(output[0], text, sizeof(text));
  close(output[0]);
  ASSERT_GE(length, 0);
  std::string said(text, length);
  EXPECT_EQ(said, "kaon: expects 4 threads to run steps on, but the system "
                  "starts no more than 1 (Resource temporarily unavailable); "
                  "steps will be slower\n");
}

TEST_F(ThreadPoolTest, CoversEveryItemOnce) {
  for (auto claim : {ThreadPool::Claim::InTurn, ThreadPool::Claim::InShares}) {
    for (int64_t count : {1, 2, 7, 64, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(count);
        ThreadPool::Session session(4);
        session.run(
            count, grain,
            [&](int64_t begin, int64_t end, int) {
              EXPECT_EQ(begin % grain, 0);
              EXPECT_LE(end - begin, grain);
              for (int64_t i = begin; i < end; ++i) {
                ++visits[i];
              }
            },
            claim);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(visits[i], 1)
              << "item " << i << " of " << count << " by " << grain;
        }
      }
    }
  }
}

TEST_F(ThreadPoolTest, RunsNothingForNoItems) {
  ThreadPool::Session session(4);
  session.run(
      0, 1, [](int64_t, int64_t, int) { FAIL() << "there is nothing to run"; });
}

TEST_F(ThreadPoolTest, UsesDistinctSlotsBelowTheNumberOfThreads) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool::Session session(3);
    ASSERT_EQ(session.numThreads(), 3);
    std::atomic<int> busy[3] = {};
    session.run(30, 1, [&](int64_t, int64_t, int slot) {
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, 3);
      EXPECT_EQ(busy[slot].exchange(1), 0) << "two threads have slot " << slot;
      std::this_thread::yield();
      busy[slot] = 0;
    });
  }
}

TEST_F(ThreadPoolTest, WorkersTakePart) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ThreadPool::Session session(2);
  // Two items that wait for each other need two threads.
  std::atomic<int> arrived{0};
  session.run(2, 1, [&](int64_t, int64_t, int) {
    ++arrived;
    while (arrived < 2) {
      std::this_thread::yield();
    }
    std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 2u);
  EXPECT_TRUE(threads.count(std::this_thread::get_id()));
}

/// Where each of two threads begins in a job of 11 pieces of 10 items.
static std::pair<int64_t, int64_t> firstItems(ThreadPool::Claim claim) {
  std::atomic<int> arrived{0};
  std::atomic<int64_t> first[2] = {-1, -1};
  ThreadPool::Session session(2);
  session.run(
      101, 10,
      [&](int64_t begin, int64_t, int slot) {
        if (first[slot] == -1) {
          first[slot] = begin;
          ++arrived;
          while (arrived < 2) {
            std::this_thread::yield();
          }
        }
      },
      claim);
  return std::minmax({first[0].load(), first[1].load()});
}

TEST_F(ThreadPoolTest, ThreadsClaimInTurnOrInShares) {
  using Places = std::pair<int64_t, int64_t>;
  EXPECT_EQ(firstItems(ThreadPool::Claim::InTurn), Places(0, 10));
  EXPECT_EQ(firstItems(ThreadPool::Claim::InShares), Places(0, 60));
}

TEST_F(ThreadPoolTest, ThreadsFinishTheSharesOfOthers) {
  // The first thread to arrive waits until all other items are done.
  std::atomic<int64_t> done{0};
  std::atomic<bool> isTaken{false};
  ThreadPool::Session session(2);
  session.run(
      100, 1,
      [&](int64_t, int64_t, int) {
        if (!isTaken.exchange(true)) {
          while (done < 99) {
            std::this_thread::yield();
          }
        }
        ++done;
      },
      ThreadPool::Claim::InShares);
  EXPECT_EQ(done, 100);
}

TEST_F(ThreadPoolTest, RunsOnLentThreads) {
  ThreadPool::lend(lendThreads);
  timesLent = 0;
  for (int round = 0; round < 50; ++round) {
    ThreadPool::Session session(3);
    ASSERT_EQ(session.numThreads(), 3);
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> busy[3] = {};
    std::atomic<int> visits{0};
    session.run(
        30, 1,
        [&](int64_t, int64_t, int slot) {
          ASSERT_LT(slot, 3);
          EXPECT_EQ(slot == 0, std::this_thread::get_id() == caller);
          EXPECT_EQ(busy[slot].exchange(1), 0);
          std::this_thread::yield();
          busy[slot] = 0;
          ++visits;
        },
        ThreadPool::Claim::InShares);
    EXPECT_EQ(visits, 30);
    EXPECT_EQ(threadsLent, 3u);
    // No more threads than pieces take part, but as many are asked for.
    visits = 0;
    session.run(2, 1, [&](int64_t, int64_t, int slot) {
      EXPECT_LT(slot, 2);
      ++visits;
    });
    EXPECT_EQ(visits, 2);
    EXPECT_EQ(threadsLent, 3u);
  }
  EXPECT_EQ(timesLent, 100);
  ThreadPool::lend(nullptr);
  EXPECT_EQ(sumSquares(3, 1000, 1), expectedSquares(1000));
  EXPECT_EQ(timesLent, 100);
}

TEST_F(ThreadPoolTest, LentThreadsDoNotOutliveAFork) {
  ThreadPool::lend(lendThreads);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    timesLent = 0;
    bool isRight = sumSquares(4, 1000, 1) == expectedSquares(1000);
    ThreadPool::lend(lendThreads);
    isRight &= sumSquares(4, 1000, 1) == expectedSquares(1000);
    _exit(isRight && timesLent == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status;
  timesLent = 0;
  EXPECT_EQ(sumSquares(4, 1000, 1), expectedSquares(1000));
  EXPECT_EQ(timesLent, 1);
}

TEST_F(ThreadPoolTest, StaysCorrectOverManyShortJobs) {
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(sumSquares(4, 100 + i % 7, 5), expectedSquares(100 + i % 7));
  }
}

TEST_F(ThreadPoolTest, WakesSleepingWorkers) {
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_EQ(sumSquares(4, 1000, 10), expectedSquares(1000));
  }
}

TEST_F(ThreadPoolTest, IdleWorkersUseNoProcessorTime) {
  sumSquares(4, 1000, 1);
  // On a loaded machine workers may be late to sleep: it is enough that one of
  // several waits is free. A worker that spins uses a processor in each.
  double least = 1;
  for (int i = 0; i < 20 && least > 0.01; ++i) {
    double before = processorSeconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    least = std::min(least, processorSeconds() - before);
  }
  EXPECT_LE(least, 0.01);
}

TEST_F(ThreadPoolTest, SessionsTakeTurns) {
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        ThreadPool::Session session(4);
        EXPECT_EQ(++inside, 1);
        session.run(16, 1, [](int64_t, int64_t, int) {});
        --inside;
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
}

TEST_F(ThreadPoolTest, ObeysTheLimit) {
  ThreadPool::setLimit(2);
  EXPECT_EQ(ThreadPool::limit(), 2);
  EXPECT_EQ(ThreadPool::Session(8).numThreads(), 2);
  EXPECT_EQ(sumSquares(8, 1000, 1), expectedSquares(1000));
  ThreadPool::setLimit(5);
  EXPECT_EQ(ThreadPool::Session(8).numThreads(), 5);
  EXPECT_EQ(sumSquares(8, 1000, 1), expectedSquares(1000));
  ThreadPool::setLimit(0);
  EXPECT_EQ(ThreadPool::limit(), ThreadPool::numProcessors());
}

TEST_F(ThreadPoolTest, WorksInAForkedChild) {
  ASSERT_EQ(sumSquares(4, 1000, 1), expectedSquares(1000));
  // A child that is forked while another thread is in a session must not wait
  // for it.
  std::atomic<bool> isInside{false}, mayLeave{false};
  std::thread other([&] {
    ThreadPool::Session session(4);
    isInside = true;
    while (!mayLeave) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  while (!isInside) {
    std::this_thread::yield();
  }
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool isRight = ThreadPool::Session(4).numThreads() == 4;
    for (int i = 0; i < 100; ++i) {
      isRight &= sumSquares(4, 1000, 1) == expectedSquares(1000);
    }
    _exit(isRight ? 0 : 1);
  }
  mayLeave = true;
  other.join();
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status;
  // The parent's pool is as before.
  EXPECT_EQ(sumSquares(4, 1000, 1), expectedSquares(1000));
}

TEST_F(ThreadPoolTest, EndsWithTheProcess) {
  // A child that ends by exit() runs the handlers, with workers asleep.
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    sumSquares(4, 1000, 1);
    exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7)
      << "status " << status;
}

#if defined(__SSE__)
TEST_F(ThreadPoolTest, LentThreadsRoundLikeTheCallerForTheJobOnly) {
  static std::atomic<int> restored;
  restored = 0;
  ThreadPool::lend(
      +[](void (*function)(void *), void *data, unsigned, unsigned) {
        std::thread other([&] {
          unsigned before = _mm_getcsr();
          function(data);
          restored = _mm_getcsr() == before ? 1 : -1;
        });
        function(data);
        other.join();
      });
  unsigned original = _mm_getcsr();
  _mm_setcsr(original | 0x8040u);
  std::atomic<int> arrived{0};
  std::atomic<unsigned> seen[2] = {};
  ThreadPool::Session session(2);
  session.run(2, 1, [&](int64_t, int64_t, int slot) {
    seen[slot] = _mm_getcsr() & 0x8040u;
    ++arrived;
    while (arrived < 2) {
      std::this_thread::yield();
    }
  });
  _mm_setcsr(original);
  EXPECT_EQ(seen[0], 0x8040u);
  EXPECT_EQ(seen[1], 0x8040u);
  EXPECT_EQ(restored, 1);
}

TEST_F(ThreadPoolTest, WorkersRoundLikeTheCaller) {
  ThreadPool::warmUp(2);
  unsigned original = _mm_getcsr();
  for (unsigned flushToZero : {0x8040u, 0u}) {
    _mm_setcsr((original & ~0x8040u) | flushToZero);
    std::atomic<int> arrived{0};
    std::atomic<unsigned> seen[2] = {};
    ThreadPool::Session session(2);
    session.run(2, 1, [&](int64_t, int64_t, int slot) {
      seen[slot] = _mm_getcsr() & 0x8040u;
      ++arrived;
      while (arrived < 2) {
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(seen[0], flushToZero);
    EXPECT_EQ(seen[1], flushToZero);
  }
  _mm_setcsr(original);
}
#endif
