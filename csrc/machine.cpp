#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cache.h"
#include "parallel.h"

namespace suffice {
namespace {

typedef int64_t Lanes __attribute__((vector_size(32)));

// Reads `streams` equal parts of the buffer side by side, a line of each in turn: one sequence
// alone does not keep all of a core's outstanding loads busy on every machine.
int64_t sum_lines(const std::byte* from, size_t bytes, int streams) {
  constexpr int kLanes = kLineBytes / sizeof(Lanes);
  const size_t part = bytes / streams / kLineBytes * kLineBytes;
  Lanes total[kLanes] = {};
  for (size_t at = 0; at < part; at += kLineBytes)
    for (int stream = 0; stream < streams; stream++)
      for (int i = 0; i < kLanes; i++) {
        Lanes lanes;
        std::memcpy(&lanes, from + stream * part + at + i * sizeof lanes, sizeof lanes);
        total[i] ^= lanes;
      }
  int64_t sum = 0;
  for (const Lanes& lanes : total)
    for (size_t i = 0; i < sizeof lanes / sizeof(int64_t); i++) sum ^= lanes[i];
  return sum;
}

template <class Work>
double best_rate(size_t bytes, int threads, int repeats, Work work) {
  Team team(threads);
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    team.run([&](int thread) {
      const size_t lines = bytes / kLineBytes;
      const size_t first = lines * thread / threads * kLineBytes;
      const size_t last = lines * (thread + 1) / threads * kLineBytes;
      work(first, last - first);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, bytes / seconds.count());
  }
  return best;
}

}  // namespace

double read_bandwidth(size_t bytes, int threads, int repeats) {
  Arena arena;
  std::byte* data = arena.map(bytes);
  std::memset(data, 1, bytes);
  volatile int64_t sink = 0;
  double rate = 0;
  for (const int streams : {1, 2, 4, 8})
    rate = std::max(rate, best_rate(bytes, threads, repeats, [&](size_t at, size_t count) {
                      sink = sink ^ sum_lines(data + at, count, streams);
                    }));
  arena.unmap(data, bytes);
  return rate;
}

double copy_bandwidth(size_t bytes, int threads, int repeats) {
  Arena arena;
  std::byte* from = arena.map(bytes);
  std::byte* to = arena.map(bytes);
  std::memset(from, 1, bytes);
  std::memset(to, 1, bytes);
  const double rate = best_rate(bytes, threads, repeats, [&](size_t at, size_t count) {
    std::memcpy(to + at, from + at, count);
  });
  arena.unmap(from, bytes);
  arena.unmap(to, bytes);
  return rate;
}

}  // namespace suffice
