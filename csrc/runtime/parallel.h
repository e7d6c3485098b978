// One team of threads. Waiting spins briefly and then yields the core, so that a waiting thread
// does not stall a busy or small machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace suffice {

// Waiting for another thread: spins briefly, then yields the core.
class Waiting {
 public:
  void pause();

 private:
  int spins_ = 0;
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs `task(thread)` on every thread of the team, the caller being thread 0; one task at a time.
  // If a thread throws, the others stop at their next barrier, and the caller gets the first
  // exception once all have ended.
  void run(const std::function<void(int)>& task);

  // Inside a task: returns when every thread has arrived; throws if a thread has failed.
  void barrier();
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  struct Stopped {};  // thrown in threads whose team has failed

  void work(int thread);
  void run_guarded(int thread) noexcept;

  int size_;
  std::mutex running_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* task_ = nullptr;
  alignas(64) std::atomic<uint32_t> started_{0};
  alignas(64) std::atomic<int> finished_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> failed_{false};
  std::mutex failing_;
  std::exception_ptr error_;  // the first one
  std::atomic<bool> stopping_{false};
};

// The share [first, last) of `count` items that belongs to a thread.
struct Share {
  int first, last;
};
inline Share share(int count, int thread, int threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / threads),
          static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
}

// Hands out items. Each thread gets its own share in order, so that its reads are sequential, and
// then items left by others.
class WorkQueue {
 public:
  // Called by one thread, before the others start.
  void begin(int count, int threads) {
    if (threads > static_cast<int>(taken_.size())) taken_ = std::vector<Counter>(threads);
    for (Counter& counter : taken_) counter.count.store(0);
    count_ = count;
  }

  // Calls f(item) until all are taken.
  template <class F>
  void take(int thread, int threads, F f) {
    for (int i = 0; i < threads; i++) {
      const int owner = (thread + i) % threads;
      const Share items = share(count_, owner, threads);
      auto& taken = taken_[owner].count;
      for (int item = items.first + taken++; item < items.last; item = items.first + taken++)
        f(item);
    }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int> count{0};
  };
  std::vector<Counter> taken_;
  int count_ = 0;
};

int usable_cores();            // affinity and cgroup quota, at least 1
std::shared_ptr<Team> team();  // the process's team
void set_threads(int threads);

}  // namespace suffice
