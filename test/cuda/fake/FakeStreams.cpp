//===-- FakeStreams.cpp - streams as threads, and events ------------------===//

#include "test/cuda/fake/Fake.h"

#include <chrono>

using namespace kaon::fake;

FakeStream::FakeStream(int device) : device(device) {
  State &fake = state();
  // Streams of one run get different delays, the same ones in every run.
  random.seed(fake.seed * 2654435761u + static_cast<uint32_t>(fake.numStreams));
  ++fake.numStreams;
  thread = std::thread([this] { run(); });
}

FakeStream::~FakeStream() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    ends = true;
    isBlocked = false;
  }
  changed.notify_all();
  thread.join();
}

void FakeStream::enqueue(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(work));
    ++enqueued;
  }
  changed.notify_all();
}

void FakeStream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex);
  uint64_t target = enqueued;
  changed.wait(lock, [&] { return finished >= target; });
}

void FakeStream::block(bool on) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    isBlocked = on;
  }
  changed.notify_all();
}

void FakeStream::run() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock,
                   [&] { return (!queue.empty() && !isBlocked) || ends; });
      if (queue.empty()) {
        return;
      }
      work = std::move(queue.front());
      queue.pop_front();
    }
    if (uint32_t longest = state().delay) {
      std::uniform_int_distribution<uint32_t> delay(0, longest);
      std::this_thread::sleep_for(std::chrono::microseconds(delay(random)));
    }
    work();
    {
      std::lock_guard<std::mutex> lock(mutex);
      ++finished;
    }
    changed.notify_all();
  }
}

uint64_t FakeEvent::record() {
  std::lock_guard<std::mutex> lock(mutex);
  return ++recorded;
}

void FakeEvent::complete(uint64_t point) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    completed = std::max(completed, point);
  }
  changed.notify_all();
}

uint64_t FakeEvent::last() {
  std::lock_guard<std::mutex> lock(mutex);
  return recorded;
}

void FakeEvent::wait(uint64_t point) {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return completed >= point; });
}
