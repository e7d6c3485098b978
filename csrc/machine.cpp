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

// Eight independent sums: the loads, not the additions, set the pace.
int64_t sum_lines(const std::byte* from, size_t bytes) {
  Lanes total[8] = {};
  for (size_t at = 0; at + sizeof total <= bytes; at += sizeof total)
    for (int i = 0; i < 8; i++) {
      Lanes line;
      std::memcpy(&line, from + at + i * sizeof line, sizeof line);
      total[i] ^= line;
    }
  int64_t sum = 0;
  for (const Lanes& lanes : total)
    for (int i = 0; i < 4; i++) sum ^= lanes[i];
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
  const double rate = best_rate(bytes, threads, repeats, [&](size_t at, size_t count) {
    sink = sink ^ sum_lines(data + at, count);
  });
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
