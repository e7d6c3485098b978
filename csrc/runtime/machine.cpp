#include "runtime/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "cache/cache.h"
#include "kernels/kernels.h"
#include "runtime/parallel.h"

namespace suffice {
namespace {

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
  volatile int32_t sink = 0;
  double rate = 0;
  // One stream alone does not keep every core's outstanding loads busy: takes the best of several.
  for (const int streams : {1, 2, 4})
    rate = std::max(rate, best_rate(bytes, threads, repeats, [&](size_t at, size_t count) {
                      sink = sink ^ kernels().pointwise.read_memory(data + at, count, streams);
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

double product_rate(Products of, int threads, int repeats) {
  constexpr size_t cached = 16 << 10;  // bytes of inputs, for each thread
  constexpr int passes = 4000;
  Team team(threads);
  // As floats, numbers near 1: those below the normal ones would be slow on some processors.
  const std::vector<std::byte> input(cached, std::byte{0x3f});
  const std::vector<std::vector<std::byte>> inputs(threads, input);
  std::vector<size_t> products(threads);
  volatile int32_t sink = 0;
  double best = 0;
  for (int i = 0; i < repeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    team.run([&](int thread) {
      size_t count = 0;
      int32_t sum = 0;
      for (int pass = 0; pass < passes; pass++)
        count += kernels().pointwise.multiply_cached(inputs[thread].data(), cached, of, &sum);
      products[thread] = count;
      sink = sum;
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const size_t all = std::accumulate(products.begin(), products.end(), size_t{0});
    best = std::max(best, all / seconds.count());
  }
  return best;
}

std::vector<float> byte_sums(const SoftmaxTable* tables, int count) {
  std::vector<float> sums;
  for (int q = 0; q < count; q++)
    for (int byte = 0; byte < 256; byte++) {
      float sum = 0;
      for (int shift = 0; shift < 8; shift += 2) sum += tables[q].weights[byte >> shift & 3];
      sums.push_back(sum);
    }
  return sums;
}

double softmax_seconds(const float* scores, int tiles, int count, const SoftmaxTable* tables,
                       bool packed, int repeats) {
  const size_t floats = static_cast<size_t>(tiles) * count * kTileRows;
  std::vector<float> copy(floats), scratch(coded_scratch(count)), sums(count);
  const std::vector<float> of_bytes = packed ? byte_sums(tables, count) : std::vector<float>();
  volatile float sink = 0;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; i++) {
    std::memcpy(copy.data(), scores, floats * sizeof(float));
    const auto start = std::chrono::steady_clock::now();
    if (packed)
      kernels().search.soften_packed(copy.data(), tiles, count, tables, of_bytes.data(),
                                     sums.data());
    else
      sink =
          sink + kernels().search.soften_tiles(copy.data(), tiles, count, tables, scratch.data());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

}  // namespace suffice
