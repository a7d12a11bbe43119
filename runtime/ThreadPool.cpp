//===-- ThreadPool.cpp - the process's worker threads ---------------------===//
//
// The caller publishes a job by storing a new generation into `state`. Workers
// join it by counting themselves in while it is open, so that the caller waits
// only for those that came, never for a worker that is still asleep.
//
//===----------------------------------------------------------------------===//

#include "runtime/ThreadPool.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

using namespace kaon::runtime;

// Layout of ThreadPool::state, from the lowest bit: joined, most that may join,
// open, generation.
static constexpr int countBits = 12;
static constexpr uint64_t countMask = (uint64_t(1) << countBits) - 1;
static constexpr uint64_t openBit = uint64_t(1) << (2 * countBits);
static constexpr int generationShift = 2 * countBits + 1;
static_assert(ThreadPool::maxThreads <= static_cast<int>(countMask));

static constexpr uint64_t numJoined(uint64_t state) {
  return state & countMask;
}
static constexpr uint64_t mostJoined(uint64_t state) {
  return (state >> countBits) & countMask;
}
static constexpr uint64_t generation(uint64_t state) {
  return state >> generationShift;
}
static constexpr bool isOpen(uint64_t state) { return state & openBit; }
static constexpr uint64_t openState(uint64_t generation, uint64_t most) {
  return generation << generationShift | openBit | most << countBits;
}

// About 30 microseconds: longer than the time between two launches, shorter
// than a person or a power meter notices.
static constexpr int mostSpinRounds = 1000;

static void relax() {
#if defined(__SSE__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits by spinning until `isDone`, for `rounds` only; whether it is done.
template <typename Predicate>
static bool spinUntil(int rounds, Predicate isDone) {
  for (int i = 0; i < rounds; ++i) {
    if (isDone()) {
      return true;
    }
    relax();
  }
  return isDone();
}

/// The part of the floating point environment that results depend on: rounding
/// and the treatment of denormal numbers. Workers take it over from the caller,
/// or the bits of a result would depend on the thread that computed it.
static uint32_t readFloatControl() {
#if defined(__SSE__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return static_cast<uint32_t>(control);
#else
  return 0;
#endif
}

static void writeFloatControl(uint32_t control) {
#if defined(__SSE__)
  _mm_setcsr(control);
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(static_cast<uint64_t>(control)));
#else
  (void)control;
#endif
}

std::atomic<ThreadPool *> ThreadPool::current{nullptr};
std::atomic<bool> ThreadPool::isShutDown{false};
std::atomic<int> ThreadPool::threadLimit{0};
std::atomic<ThreadPool::Parallel> ThreadPool::lent{nullptr};
std::atomic<bool> ThreadPool::isForked{false};

int ThreadPool::numProcessors() {
  // The system refuses a set with fewer places than it has processors, which
  // may be more than those of cpu_set_t.
  for (int places = CPU_SETSIZE; places <= 64 * CPU_SETSIZE; places *= 2) {
    cpu_set_t *set = CPU_ALLOC(places);
    if (!set) {
      break;
    }
    size_t bytes = CPU_ALLOC_SIZE(places);
    int count =
        sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) {
      return std::min(count, maxThreads);
    }
  }
  return 1;
}

int ThreadPool::limit() {
  int threads = threadLimit.load(std::memory_order_relaxed);
  return threads > 0 ? threads : numProcessors();
}

void ThreadPool::setLimit(int threads) {
  ThreadPool &pool = instance();
  std::lock_guard<std::mutex> lock(pool.sessionMutex);
  threadLimit.store(std::clamp(threads, 0, maxThreads),
                    std::memory_order_relaxed);
  pool.mostWorkers = maxThreads;
  if (static_cast<int>(pool.workers.size()) > limit() - 1) {
    pool.stopWorkers();
  }
}

void ThreadPool::lend(Parallel parallel) {
  instance(); // sets the handler of forks
  if (!isForked.load(std::memory_order_relaxed)) {
    lent.store(parallel, std::memory_order_relaxed);
  }
}

ThreadPool &ThreadPool::instance() {
  if (ThreadPool *pool = current.load(std::memory_order_acquire)) {
    return *pool;
  }
  // Lock-free, because a lock could have been held by another thread of the
  // parent when this process was forked.
  auto *pool = new ThreadPool;
  ThreadPool *expected = nullptr;
  if (!current.compare_exchange_strong(expected, pool)) {
    delete pool;
    return *expected;
  }
  static std::atomic<bool> areHandlersSet{false};
  if (!areHandlersSet.exchange(true)) {
    // The child forgets the parent's pool without touching it: its mutexes may
    // be locked by threads that do not exist any more.
    pthread_atfork(nullptr, nullptr, [] {
      current.store(nullptr, std::memory_order_relaxed);
      isForked.store(true, std::memory_order_relaxed);
      lent.store(nullptr, std::memory_order_relaxed);
    });
    std::atexit([] {
      isShutDown.store(true);
      if (ThreadPool *last = current.load()) {
        std::lock_guard<std::mutex> lock(last->sessionMutex);
        last->stopWorkers();
      }
    });
  }
  return *pool;
}

// Spinning is useless where the awaited thread has no processor of its own.
ThreadPool::ThreadPool()
    : spinRounds(numProcessors() > 1 ? mostSpinRounds : 0) {}

ThreadPool::~ThreadPool() { stopWorkers(); }

void ThreadPool::startWorkers(int count) {
  count = std::min(count, mostWorkers);
  if (static_cast<int>(workers.size()) >= count || isShutDown.load()) {
    return;
  }
  workers.reserve(count);
  // Signals belong to the threads of the program.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  while (static_cast<int>(workers.size()) < count) {
    pthread_t thread;
    // Without the resources for another thread the work is done by those there
    // are. Asking again at every step would cost each of them time.
    if (int error = pthread_create(&thread, nullptr, workerMain, this)) {
      mostWorkers = static_cast<int>(workers.size());
      std::fprintf(stderr,
                   "kaon: expects %d threads to run steps on, but the system "
                   "starts no more than %d (%s); steps will be slower\n",
                   count + 1, mostWorkers + 1, std::strerror(error));
      break;
    }
    pthread_setname_np(thread, "kaon-worker");
    workers.push_back(thread);
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

void ThreadPool::stopWorkers() {
  if (workers.empty()) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(sleepMutex);
    isStopping.store(true);
  }
  wakeUp.notify_all();
  for (pthread_t thread : workers) {
    pthread_join(thread, nullptr);
  }
  workers.clear();
  isStopping.store(false);
}

void *ThreadPool::workerMain(void *pool) {
  static_cast<ThreadPool *>(pool)->work();
  return nullptr;
}

void ThreadPool::work() {
  uint64_t seen = 0; // generation of the last job that was joined or missed
  while (true) {
    uint64_t now = 0;
    auto isNews = [&] {
      now = state.load(std::memory_order_seq_cst);
      return generation(now) != seen ||
             isStopping.load(std::memory_order_relaxed);
    };
    if (!spinUntil(spinRounds, isNews)) {
      std::unique_lock<std::mutex> lock(sleepMutex);
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      wakeUp.wait(lock, isNews);
      sleepers.fetch_sub(1, std::memory_order_relaxed);
    }
    if (isStopping.load(std::memory_order_relaxed)) {
      return;
    }
    seen = generation(now);
    while (isOpen(now) && generation(now) == seen &&
           numJoined(now) < mostJoined(now)) {
      if (!state.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        continue;
      }
      writeFloatControl(floatControl);
      participate(static_cast<int>(numJoined(now)) + 1);
      left.fetch_add(1, std::memory_order_seq_cst);
      if (isCallerAsleep.load(std::memory_order_seq_cst)) {
        std::lock_guard<std::mutex> lock(sleepMutex);
        allLeft.notify_one();
      }
      break;
    }
  }
}

void ThreadPool::lentMain(void *data) {
  auto *pool = static_cast<ThreadPool *>(data);
  if (pthread_equal(pthread_self(), pool->caller)) {
    return pool->participate(0);
  }
  int slot = pool->lastSlot.fetch_add(1, std::memory_order_relaxed) + 1;
  if (slot < pool->numSlots) {
    uint32_t own = readFloatControl();
    writeFloatControl(pool->floatControl);
    pool->participate(slot);
    writeFloatControl(own);
  }
}

void ThreadPool::participate(int slot) {
  for (int i = 0; i < numShares; ++i) {
    Share &share = shares[(slot + i) % numShares];
    while (true) {
      int64_t begin = share.next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= share.end) {
        break;
      }
      body(context, begin, std::min(begin + grain, share.end), slot);
    }
  }
}

ThreadPool::Session::Session(int wanted)
    : pool(&instance()), parallel(lent.load(std::memory_order_relaxed)),
      lock(pool->sessionMutex) {
  threads = std::clamp(wanted, 1, limit());
  if (parallel) {
    return;
  }
  pool->startWorkers(threads - 1);
  threads = std::min(threads, static_cast<int>(pool->workers.size()) + 1);
}

void ThreadPool::Session::run(int64_t total, int64_t grain, Body body,
                              void *context, Claim claim) {
  if (total <= 0) {
    return;
  }
  if (total <= grain || threads == 1) {
    for (int64_t begin = 0; begin < total; begin += grain) {
      body(context, begin, std::min(begin + grain, total), 0);
    }
    return;
  }
  pool->body = body;
  pool->context = context;
  pool->grain = grain;
  pool->floatControl = readFloatControl();

  int64_t numPieces = (total - 1) / grain + 1;
  int64_t mostThreads = std::min<int64_t>(threads, numPieces);
  int64_t numShares = claim == Claim::InShares ? mostThreads : 1;
  // The first shares get a piece more where they cannot be equal.
  int64_t least = numPieces / numShares, longer = numPieces % numShares;
  int64_t position = 0;
  for (int64_t i = 0; i < numShares; ++i) {
    Share &share = pool->shares[i];
    share.next.store(position, std::memory_order_relaxed);
    position += (least + (i < longer ? 1 : 0)) * grain;
    share.end = std::min(position, total);
  }
  pool->numShares = static_cast<int>(numShares);
  if (!parallel) {
    return runOnWorkers(static_cast<uint64_t>(mostThreads) - 1);
  }
  pool->caller = pthread_self();
  pool->numSlots = static_cast<int>(mostThreads);
  pool->lastSlot.store(0, std::memory_order_relaxed);
  // Always as many threads: OpenMP ends and starts some if the number changes.
  parallel(lentMain, pool, static_cast<unsigned>(threads), /*flags=*/0);
}

void ThreadPool::Session::runOnWorkers(uint64_t mostHelpers) {
  pool->left.store(0, std::memory_order_relaxed);
  uint64_t previous = generation(pool->state.load(std::memory_order_relaxed));
  pool->state.store(openState(previous + 1, mostHelpers),
                    std::memory_order_seq_cst);
  if (pool->sleepers.load(std::memory_order_seq_cst) > 0) {
    // A worker that has announced its sleep holds the mutex until it sleeps.
    {
      std::lock_guard<std::mutex> sleepLock(pool->sleepMutex);
    }
    pool->wakeUp.notify_all();
  }

  pool->participate(0);

  uint64_t joined =
      numJoined(pool->state.fetch_and(~openBit, std::memory_order_acq_rel));
  auto isDone = [&] {
    return pool->left.load(std::memory_order_seq_cst) == joined;
  };
  if (spinUntil(pool->spinRounds, isDone)) {
    return;
  }
  pool->isCallerAsleep.store(true, std::memory_order_seq_cst);
  {
    std::unique_lock<std::mutex> sleepLock(pool->sleepMutex);
    pool->allLeft.wait(sleepLock, isDone);
  }
  pool->isCallerAsleep.store(false, std::memory_order_relaxed);
}
