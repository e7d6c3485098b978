// Uses the team of threads in every way at once; `make sanitize` runs it under the thread
// sanitizer. Exits with 1 if a result is wrong.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/parallel.h"

namespace {

using suffice::Team;
using suffice::WorkQueue;

constexpr int kRounds = 200, kItems = 1000, kBarriers = 20;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

// Every item is taken once, by whichever thread.
void take_items(Team& team) {
  WorkQueue queue;
  std::vector<int> taken(kItems);
  queue.begin(kItems, team.size());
  team.run([&](int thread) { queue.take(thread, team.size(), [&](int item) { taken[item]++; }); });
  for (int count : taken) require(count == 1, "an item was taken twice, or not at all");
}

// What a thread wrote before a barrier, all others read after it, without atomics.
void cross_barriers(Team& team) {
  std::vector<int> written(team.size());
  std::atomic<bool> same{true};
  team.run([&](int thread) {
    for (int round = 1; round <= kBarriers; round++) {
      written[thread] = round;
      team.barrier();
      for (int value : written)
        if (value != round) same = false;
      team.barrier();
    }
  });
  require(same, "a thread passed a barrier before another arrived");
}

// The caller gets a thread's exception, and the team works on.
void fail(Team& team, int failing) {
  bool caught = false;
  try {
    team.run([&](int thread) {
      if (thread == failing) throw std::runtime_error("expected");
      team.barrier();
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  require(caught, "the exception of a thread was lost");
}

void use(int threads) {
  Team own(threads);
  for (int round = 0; round < kRounds; round++) {
    take_items(own);
    cross_barriers(own);
    if (round % 10 == 0) fail(own, round / 10 % threads);
  }
}

}  // namespace

int main() {
  for (int threads : {1, 2, 4}) use(threads);
  // The process's team, used by several callers while another replaces it.
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; caller++)
    callers.emplace_back([] {
      for (int round = 0; round < kRounds; round++) {
        const auto shared = suffice::team();
        take_items(*shared);
      }
    });
  for (int round = 0; round < 20; round++) suffice::set_threads(1 + round % 3);
  for (std::thread& caller : callers) caller.join();
  return 0;
}
