//===-- ThreadPool.h - the process's worker threads -------------*- C++ -*-===//
//
// One persistent pool per process. Starting threads per call costs
// milliseconds, so workers are started once, wait for the next job for some
// microseconds by spinning and then sleep; idle workers use no processor time.
//
// A job is a range of items that threads claim piece by piece. Which thread
// runs which piece is not fixed; results must not depend on it, and those of
// kernels do not (KernelAbi.h).
//
// Whoever runs jobs holds a Session, of which there is one at a time: two
// Python threads that step two optimizers take turns. A forked child starts
// with a pool of its own, because threads do not survive a fork.
//
// A process may lend threads that it computes on besides, such as those of
// OpenMP. These spin for milliseconds after their last work, and workers next
// to them would have to share the processors with them.
//
//===----------------------------------------------------------------------===//

#ifndef KAON_RUNTIME_THREADPOOL_H
#define KAON_RUNTIME_THREADPOOL_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <type_traits>
#include <vector>

namespace kaon::runtime {

class ThreadPool {
public:
  /// Runs the items [begin, end). `slot` differs between threads that run at
  /// the same time and lies below the number of threads of the session; the
  /// caller's is 0.
  using Body = void (*)(void *context, int64_t begin, int64_t end, int slot);

  /// Calls `function` with `data` on the calling thread and on up to `threads -
  /// 1` others, and returns when all have returned: OpenMP's `GOMP_parallel`.
  using Parallel = void (*)(void (*function)(void *data), void *data,
                            unsigned threads, unsigned flags);

  /// How threads divide a job.
  enum class Claim {
    /// All take the next piece: what runs at the same time lies side by side,
    /// and threads find in shared caches what others have read.
    InTurn,
    /// Each goes through a share of its own, piece after piece, and then helps
    /// with those of others. For work that reads memory once: a processor
    /// fetches ahead for a thread that goes through memory without jumps.
    InShares,
  };

  /// More threads than this are never used.
  static constexpr int maxThreads = 1024;

  /// Exclusive use of the pool. Waits for the session before.
  class Session {
  public:
    /// Uses up to `threads` threads, the calling one included. Where the system
    /// refuses to start as many, the pool says so once, on standard error, and
    /// sessions get by with those there are.
    explicit Session(int threads);

    Session(Session &&) = default;

    /// Threads that jobs of this session run on, at most.
    int numThreads() const { return threads; }

    /// Runs `body` over [0, total) in pieces of at most `grain` items that
    /// start at multiples of `grain`, and waits until all are done. A single
    /// piece runs on the calling thread.
    void run(int64_t total, int64_t grain, Body body, void *context,
             Claim claim);

    /// The same for a callable (begin, end, slot).
    template <typename Function>
    void run(int64_t total, int64_t grain, Function &&function,
             Claim claim = Claim::InTurn) {
      run(
          total, grain,
          [](void *context, int64_t begin, int64_t end, int slot) {
            (*static_cast<std::remove_reference_t<Function> *>(context))(
                begin, end, slot);
          },
          &function, claim);
    }

  private:
    /// Runs the job on the calling thread and up to `mostHelpers` workers.
    void runOnWorkers(uint64_t mostHelpers);

    ThreadPool *pool;
    Parallel parallel;
    std::unique_lock<std::mutex> lock;
    int threads;
  };

  /// Threads that sessions may use at most, the calling one included. Initially
  /// the number of processors that the process may run on.
  static int limit();

  /// Changes the limit; 0 restores the initial one. Workers above it end, and
  /// those that could not be started before may be tried again. Waits for a
  /// running session.
  static void setLimit(int threads);

  /// Lends threads to the sessions that begin from now on; null ends that.
  /// Ignored in a forked child, where they do not exist.
  static void lend(Parallel parallel);

  /// Processors that the process may run on, at most maxThreads.
  static int numProcessors();

  /// Starts the workers that a session of `threads` threads needs, so that its
  /// first job finds them.
  static void warmUp(int threads) { Session session(threads); }

private:
  ThreadPool();
  ~ThreadPool();

  static ThreadPool &instance();
  static void *workerMain(void *pool);
  /// What lent threads run.
  static void lentMain(void *pool);

  void work();
  void participate(int slot);
  void startWorkers(int count);
  void stopWorkers();

  /// The pool of this process; none before its first use and in a forked child.
  static std::atomic<ThreadPool *> current;
  /// Set when the process ends; work is then done by the calling thread.
  static std::atomic<bool> isShutDown;
  static std::atomic<int> threadLimit;
  static std::atomic<Parallel> lent;
  static std::atomic<bool> isForked;

  const int spinRounds;
  std::mutex sessionMutex;
  std::vector<pthread_t> workers; // guarded by sessionMutex
  /// Workers that the system has let this pool start: all that are asked for,
  /// until it refuses one. Guarded by sessionMutex.
  int mostWorkers = maxThreads;

  // The job. Written while it is closed and nobody takes part in it.
  Body body = nullptr;
  void *context = nullptr;
  int64_t grain = 1;
  int numShares = 0;
  uint32_t floatControl = 0;
  /// Where threads are lent: whose slot is 0, how many slots there are, and the
  /// last one taken.
  pthread_t caller{};
  int numSlots = 1;
  std::atomic<int> lastSlot{0};

  /// Items that slots claim from: one share for all, or one for each to begin
  /// with. On cache lines of their own, because whoever claims writes.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  Share shares[maxThreads];

  /// Generation, whether the job is open to joiners, how many may join and how
  /// many have: see the helpers in ThreadPool.cpp.
  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<uint64_t> left{0}; // joiners that are done

  std::mutex sleepMutex;
  std::condition_variable wakeUp;  // of workers
  std::condition_variable allLeft; // of the caller
  std::atomic<int> sleepers{0};    // workers that sleep or are about to
  std::atomic<bool> isCallerAsleep{false};
  std::atomic<bool> isStopping{false};
};

} // namespace kaon::runtime

#endif // KAON_RUNTIME_THREADPOOL_H
