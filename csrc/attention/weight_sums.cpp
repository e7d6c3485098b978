#include "attention/weight_sums.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {
namespace {

// Tokens whose scores are in memory together; those of some thousand keys stay in a core's cache.
constexpr int kTogether = 8;

// The queries of some tokens in the heads that share keys, and what they give each key.
struct Part {
  KVHead head;
  const float* const* queries;
  std::vector<Visible> visible;
  std::vector<float> sums;  // of whole blocks
};

// Sets the sums of a part: all scores first, then each query's sum of weights, then its weights.
void weigh(Part& part, Scratch& scratch) {
  const int count = static_cast<int>(part.visible.size());
  const int blocks = static_cast<int>(part.sums.size()) / kPanel;
  const int tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
  std::vector<float> peaks(count);
  scratch.scores.resize(static_cast<size_t>(tiles) * kTileRows * count);
  scratch.masses.resize(static_cast<size_t>(blocks) * count);
  kernels().search.score_tiles(part.head, scratch.queries.of(part.head, part.queries, count),
                               part.visible.data(), count, nullptr, 0, blocks,
                               scratch.scores.data(), peaks.data());
  const CodedTiles scores{
      .scores = scratch.scores.data(), .stride = count * kTileRows, .begin = 0, .end = blocks};
  kernels().search.sum_blocks(scores, count, peaks.data(), scratch.masses.data(), blocks);
  for (int q = 0; q < count; q++) {
    const float* const masses = scratch.masses.data() + static_cast<size_t>(q) * blocks;
    const auto factor = static_cast<float>(1 / std::accumulate(masses, masses + blocks, 0.0));
    for (int block = 0; block < blocks; block++) {
      const size_t tile = block / kTileBlocks * static_cast<size_t>(count) + q;
      kernels().search.add_masses(
          scratch.scores.data() + tile * kTileRows + block % kTileBlocks * kPanel, peaks[q], factor,
          part.sums.data() + static_cast<size_t>(block) * kPanel);
    }
  }
}

}  // namespace

void sum_weights(const KVCache& cache, int layer, const LastQueries& queries, float* sums) {
  const int heads = cache.heads(layer), size = cache.size(layer);
  const int group = queries.heads / heads, before = queries.length - queries.count;
  std::vector<const float*> rows;  // [kv_heads][count][group]
  std::vector<Part> parts;
  rows.reserve(static_cast<size_t>(queries.heads) * queries.count);
  for (int g = 0; g < heads; g++)
    for (int first = 0; first < queries.count; first += kTogether) {
      const int last = std::min(first + kTogether, queries.count);
      parts.push_back({cache.head(layer, g), rows.data() + rows.size(), {}, {}});
      parts.back().sums.resize(round_up(before + last, kPanel));
      for (int token = first; token < last; token++)
        for (int head = g * group; head < (g + 1) * group; head++) {
          const size_t row = static_cast<size_t>(head) * queries.count + token;
          rows.push_back(queries.values + row * size);
          parts.back().visible.push_back({.committed = before + token + 1});
        }
    }
  const auto threads = team();
  WorkQueue items;
  items.begin(static_cast<int>(parts.size()), threads->size());
  threads->run([&](int thread) {
    Scratch scratch;
    items.take(thread, threads->size(), [&](int i) { weigh(parts[i], scratch); });
  });
  std::fill_n(sums, static_cast<size_t>(heads) * queries.length, 0.0f);
  const size_t of_head = parts.size() / heads;
  for (size_t i = 0; i < parts.size(); i++) {
    float* const to = sums + i / of_head * queries.length;
    const size_t held = std::min<size_t>(parts[i].sums.size(), queries.length);
    for (size_t row = 0; row < held; row++) to[row] += parts[i].sums[row];
  }
}

}  // namespace suffice
