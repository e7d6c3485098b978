#include "runtime/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>

namespace suffice {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kSpins = 2000;   // some tens of microseconds
constexpr int kYields = 2000;  // then yields, and finally sleeps

// Waits until `done()`; if there is an atomic to sleep on, finally sleeps.
template <class Done>
bool spin_and_yield(Done done, int yields) {
  for (int i = 0; i < kSpins; i++) {
    if (done()) return true;
    pause_briefly();
  }
  for (int i = 0; i < yields; i++) {
    if (done()) return true;
    sched_yield();
  }
  return false;
}

double cgroup_quota() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double allowed = 0;
  if (v1_quota >> allowed && v1_period >> period && allowed > 0 && period > 0)
    return allowed / period;
  return 0;
}

std::mutex& team_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::shared_ptr<Team>& current_team() {
  static std::shared_ptr<Team> instance;
  return instance;
}

pid_t& team_owner() {
  static pid_t owner = 0;
  return owner;
}

// A forked child has no worker threads: it drops the parent's team without joining it.
void forget_after_fork() {
  if (current_team() && team_owner() != getpid()) new std::shared_ptr<Team>(current_team());
  if (team_owner() != getpid()) current_team().reset();
}

}  // namespace

void Waiting::pause() {
  if (++spins_ < kSpins) return pause_briefly();
  sched_yield();
}

Team::Team(int threads) : size_(std::max(threads, 1)) {
  for (int thread = 1; thread < size_; thread++)
    workers_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  stopping_.store(true);
  started_.fetch_add(1);
  started_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Team::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    const auto changed = [&] { return started_.load(std::memory_order_acquire) != seen; };
    while (!spin_and_yield(changed, kYields)) started_.wait(seen);
    seen = started_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    run_guarded(thread);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

// Stores the first exception for the caller, and releases threads that wait at a barrier.
void Team::run_guarded(int thread) noexcept {
  try {
    (*task_)(thread);
  } catch (const Stopped&) {
  } catch (...) {
    const std::lock_guard lock(failing_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

void Team::run(const std::function<void(int)>& task) {
  const std::lock_guard lock(running_);
  if (size_ == 1) return task(0);
  task_ = &task;
  failed_.store(false, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  run_guarded(0);
  const auto all = [&] { return finished_.load(std::memory_order_acquire) == size_ - 1; };
  while (!spin_and_yield(all, kYields)) {
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  const auto passed = [&] {
    return phase_.load(std::memory_order_acquire) != phase ||
           failed_.load(std::memory_order_relaxed);
  };
  while (!spin_and_yield(passed, kYields)) {
  }
  if (phase_.load(std::memory_order_acquire) == phase) throw Stopped{};
}

int usable_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  const double quota = cgroup_quota();
  if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  return std::max(cores, 1);
}

std::shared_ptr<Team> team() {
  const std::lock_guard lock(team_mutex());
  forget_after_fork();
  if (!current_team()) {
    current_team() = std::make_shared<Team>(usable_cores());
    team_owner() = getpid();
  }
  return current_team();
}

void set_threads(int threads) {
  const std::lock_guard lock(team_mutex());
  forget_after_fork();
  current_team() = std::make_shared<Team>(threads);
  team_owner() = getpid();
}

}  // namespace suffice
