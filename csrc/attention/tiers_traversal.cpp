#include "attention/tiers_traversal.h"

#include <algorithm>
#include <cmath>

#include "attention/reads.h"
#include "attention/sketch_order.h"

namespace suffice {
namespace {

constexpr float kEveryRow = -1e30f;  // a floor that every visible row reaches

}  // namespace

size_t TiersTraversal::plan(Traversal& traversal) {
  traversal.chunks = traversal.whole_chunks();
  return traversal.chunks * traversal.queries.size() * (kChunkBlocks * kPanel + 1);
}

TiersTraversal::TiersTraversal(const Traversal& traversal, float* results)
    : traversal_(traversal),
      rule_(std::get<Tiers>(traversal.rule->technique)),
      base_(base_of(traversal.head)),
      count_(static_cast<int>(traversal.queries.size())),
      tiles_(results),
      peaks_(results + static_cast<size_t>(traversal.chunks) * count_ * kChunkBlocks * kPanel) {}

void TiersTraversal::work(int chunk, Scratch& scratch) {
  const int first = traversal_.begin / kChunkBlocks * kChunkBlocks;
  const Range blocks = traversal_.chunk(chunk);
  kernels().score_tiles(base_, traversal_.queries.data(), traversal_.visible.data(), count_,
                        traversal_.list, blocks.begin, blocks.end,
                        tiles_ + static_cast<size_t>(blocks.begin - first) * kPanel * count_,
                        peaks_ + static_cast<size_t>(chunk) * count_,
                        scratch.at_least(attend_scratch(count_, traversal_.head.size)));
}

void TiersTraversal::finish(Scratch& scratch) {
  for (int row = 0; row < traversal_.tokens(); row++) finish_row(row, scratch);
}

void TiersTraversal::finish_row(int row, Scratch& scratch) {
  const int group = traversal_.group, first = row * group;
  TierChoice& choice = scratch.tiers;
  choice.peaks.assign(peaks_ + first, peaks_ + first + group);
  for (int i = 1; i < traversal_.chunks; i++)
    for (int q = 0; q < group; q++)
      choice.peaks[q] = std::max(choice.peaks[q], peaks_[i * count_ + first + q]);
  const size_t skipped = traversal_.begin % kChunkBlocks * static_cast<size_t>(kPanel) * count_;
  const CodedTiles tiles{.scores = tiles_ + skipped + first * kTileRows,
                         .stride = count_ * kTileRows,
                         .list = traversal_.list,
                         .begin = traversal_.begin,
                         .end = traversal_.end};
  choose_blocks(tiles, choice);
  attend_row(row, tiles, scratch);
}

// Marks the heaviest blocks, and sets the scores from which on rows are kept: the share `lightest`
// of the sum of weights, and at most the largest score.
void TiersTraversal::choose_blocks(const CodedTiles& tiles, TierChoice& choice) const {
  const int group = traversal_.group, blocks = tiles.end - tiles.begin;
  const size_t all = blocks;
  choice.masses.resize(group * all);
  kernels().sum_blocks(tiles, group, choice.peaks.data(), choice.masses.data(), blocks);
  choice.rest.assign(group, 0.0);
  choice.shares.assign(all, 0.0f);
  choice.floors.assign(group, kEveryRow);
  for (int q = 0; q < group; q++) {
    const float* const masses = &choice.masses[q * all];
    for (size_t i = 0; i < all; i++) choice.rest[q] += masses[i];
    for (size_t i = 0; i < all; i++)
      choice.shares[i] += static_cast<float>(masses[i] / choice.rest[q]);
    const double least = rule_.lightest * choice.rest[q];
    if (least > 0)
      choice.floors[q] = choice.peaks[q] + static_cast<float>(std::min(std::log2(least), 0.0));
  }
  sort_by_share(choice.shares.data(), blocks, choice.buckets, choice.sorted);
  choice.heavy.assign((all + kTileBlocks - 1) / kTileBlocks, 0);
  std::vector<double>& rest = choice.rest;
  choice.allowed = rest;
  for (double& most : choice.allowed) most *= rule_.estimated;
  for (const int32_t block : choice.sorted) {
    bool enough = rule_.estimated > 0;
    for (int q = 0; q < group; q++) enough &= rest[q] <= choice.allowed[q];
    if (enough) break;
    for (int q = 0; q < group; q++) rest[q] -= choice.masses[q * all + block];
    choice.heavy[block / kTileBlocks] |= uint64_t{0xffff} << (block % kTileBlocks * kPanel);
  }
}

// Lists the chosen blocks that have rows to read, and removes these rows from `kept`. Returns the
// number of keys that the token sees in them.
int64_t TiersTraversal::list_heavy(const Visible& visible, const CodedTiles& tiles,
                                   TierChoice& choice) const {
  int64_t keys = 0;
  choice.list.clear();
  choice.rows.clear();
  for (int i = 0; i < tiles.end - tiles.begin; i++) {
    const int tile = i / kTileBlocks, shift = i % kTileBlocks * kPanel;
    const auto rows =
        static_cast<uint16_t>((choice.kept[tile] & choice.heavy[tile]) >> shift & 0xffff);
    if (!rows) continue;
    const int position = tiles.begin + i, block = tiles.list ? tiles.list[position] : position;
    for (int row = block * kPanel; row < (block + 1) * kPanel; row++) keys += visible.sees(row);
    choice.list.push_back(block);
    choice.rows.push_back(rows);
  }
  for (size_t tile = 0; tile < choice.kept.size(); tile++) choice.kept[tile] &= ~choice.heavy[tile];
  return keys;
}

void TiersTraversal::attend_row(int row, const CodedTiles& tiles, Scratch& scratch) {
  const KVHead& head = traversal_.head;
  const int group = traversal_.group, size = head.size, first = row * group;
  const Visible& visible = traversal_.visible[first];
  TierChoice& choice = scratch.tiers;
  choice.kept.resize(choice.heavy.size());
  Reads reads;
  reads.per_head_rows = kernels().keep_rows(tiles, group, choice.floors.data(), choice.heavy.data(),
                                            choice.kept.data());
  reads.key_rows = list_heavy(visible, tiles, choice);
  for (const uint16_t rows : choice.rows) reads.value_rows += __builtin_popcount(rows);

  const size_t before = std::max(attend_scratch(group, size), coded_scratch(group));
  float* const floats = scratch.at_least(before + 2 * partial_floats(group, size));
  const Partial exact = partial_at(floats + before, group, size);
  const Partial light = partial_at(floats + before + partial_floats(group, size), group, size);
  scratch.parts.clear();
  if (!choice.list.empty()) {
    kernels().attend_kept(head, traversal_.queries.data() + first, traversal_.length(row), group,
                          choice.list.data(), choice.rows.data(),
                          static_cast<int>(choice.list.size()), exact, floats);
    scratch.parts.push_back(exact);
  }
  std::copy(choice.peaks.begin(), choice.peaks.end(), light.peak);
  const int64_t light_rows =
      kernels().add_light(base_, tiles, choice.kept.data(), group, light, floats);
  if (light_rows > 0) scratch.parts.push_back(light);
  merge(scratch.parts, group, size, traversal_.outputs.data() + first);
  const int64_t base_rows = visible.rows() - reads.key_rows + light_rows;
  reads.sketch_bytes = base_rows * stored_bytes(Type::kmeans4, size);
  count_reads(traversal_, row, reads);
  audit(traversal_, row, {}, NAN, scratch);
}

}  // namespace suffice
