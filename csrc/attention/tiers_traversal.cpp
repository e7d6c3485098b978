#include "attention/tiers_traversal.h"

#include <algorithm>
#include <cmath>

#include "attention/reads.h"
#include "attention/sketch_order.h"

namespace suffice {
namespace {

constexpr float kEveryRow = -1e30f;  // a floor that every visible row reaches
constexpr double kSumError = 1e-5;   // relative, of float32 sums of thousands of weights
constexpr double kLeast = 1e-4;      // of what is asked: below, all blocks are read

bool is_marked(const std::vector<uint64_t>& marks, int block) {
  return marks[block / kTileBlocks] >> (block % kTileBlocks * kPanel) & 1;
}

// The largest total variation distance of a softmax whose weights sum to `used`; the true ones may
// exceed them by `more` and fall short by `less`, in all.
double bound_of(double used, double more, double less) {
  more *= 1 + kSumError;
  const double sum = (used + more - less) * (1 - kSumError);
  return more > 0 ? std::min(more / sum, 1.0) : 0.0;
}

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
  weigh_blocks(tiles, choice);
  if (rule_.bounded) bound_errors(traversal_.queries.data() + first, tiles, choice);
  Reads reads;
  for (double most = rule_.estimated;; most /= 2) {
    choose_blocks(tiles, most > kLeast * rule_.estimated ? most : 0.0, choice);
    reads = attend_row(row, tiles, scratch);
    if (!rule_.bounded) break;
    reads.missing = distance(tiles, scratch);
    if (reads.missing <= rule_.estimated) break;
  }
  merge(scratch.parts, group, traversal_.head.size, traversal_.outputs.data() + first);
  count_reads(traversal_, row, reads);
  audit_row(row, tiles, scratch);
}

// Sorts the blocks by their share of the sums of weights, and sets the scores from which on rows
// are kept: the share `lightest` of the sum, and at most the largest score.
void TiersTraversal::weigh_blocks(const CodedTiles& tiles, TierChoice& choice) const {
  const int group = traversal_.group, blocks = tiles.end - tiles.begin;
  const size_t all = blocks, whole_tiles = (all + kTileBlocks - 1) / kTileBlocks;
  choice.masses.resize(group * all);
  kernels().sum_blocks(tiles, group, choice.peaks.data(), choice.masses.data(), blocks);
  choice.totals.assign(group, 0.0);
  choice.shares.assign(all, 0.0f);
  choice.floors.assign(group, kEveryRow);
  for (int q = 0; q < group; q++) {
    const float* const masses = &choice.masses[q * all];
    double& total = choice.totals[q];
    for (size_t i = 0; i < all; i++) total += masses[i];
    for (size_t i = 0; i < all; i++) choice.shares[i] += static_cast<float>(masses[i] / total);
    const double least = rule_.lightest * total;
    if (least > 0)
      choice.floors[q] = choice.peaks[q] + static_cast<float>(std::min(std::log2(least), 0.0));
  }
  sort_by_share(choice.shares.data(), blocks, choice.buckets, choice.sorted);
  choice.heavy.resize(whole_tiles);
  choice.kept.resize(whole_tiles);
}

// Sums, block by block, what bounds the errors of the weights of its rows if it is light.
void TiersTraversal::bound_errors(const float* const* queries, const CodedTiles& tiles,
                                  TierChoice& choice) const {
  const int group = traversal_.group;
  choice.light.resize(choice.kept.size());
  choice.seen.resize(choice.kept.size());
  std::fill(choice.heavy.begin(), choice.heavy.end(), 0);
  kernels().keep_rows(tiles, group, choice.floors.data(), choice.heavy.data(), choice.light.data());
  const std::vector<float> every(group, kEveryRow);
  kernels().keep_rows(tiles, group, every.data(), choice.heavy.data(), choice.seen.data());
  choice.units.resize(group);
  kernels().measure_queries(base_, queries, group, choice.units.data());
  choice.errors.resize(3 * choice.masses.size());
  kernels().bound_blocks(base_, tiles, group, choice.peaks.data(), choice.units.data(),
                         choice.light.data(), errors_of(tiles, choice));
}

BlockErrors TiersTraversal::errors_of(const CodedTiles& tiles, TierChoice& choice) const {
  const size_t all = choice.masses.size();
  float* const from = choice.errors.data();
  return {from, from + all, from + 2 * all, tiles.end - tiles.begin};
}

// Marks the heaviest blocks, until at most the share `most` of every head's sum of weights is
// estimated; with bounds, until the distance that they leave is at most that.
void TiersTraversal::choose_blocks(const CodedTiles& tiles, double most, TierChoice& choice) const {
  const int group = traversal_.group;
  const size_t all = tiles.end - tiles.begin;
  std::fill(choice.heavy.begin(), choice.heavy.end(), 0);
  choice.rest = choice.totals;
  const BlockErrors errors = errors_of(tiles, choice);
  std::vector<double> used(group), more(group), less(group);
  for (int q = 0; rule_.bounded && q < group; q++)
    for (size_t i = q * all; i < (q + 1) * all; i++) {
      used[q] += errors.used[i];
      more[q] += errors.more[i];
      less[q] += errors.less[i];
    }
  for (const int32_t block : choice.sorted) {
    bool enough = most > 0;
    for (int q = 0; q < group; q++)
      enough &= rule_.bounded ? bound_of(used[q], more[q], less[q]) <= most
                              : choice.rest[q] <= most * choice.totals[q];
    if (enough) break;
    for (int q = 0; q < group; q++) {
      const size_t at = q * all + block;
      choice.rest[q] -= choice.masses[at];
      if (!rule_.bounded) continue;
      used[q] += choice.masses[at] - errors.used[at];
      more[q] -= errors.more[at];
      less[q] -= errors.less[at];
    }
    choice.heavy[block / kTileBlocks] |= uint64_t{0xffff} << (block % kTileBlocks * kPanel);
  }
}

// Sets the rows that count. Returns the number of those in heavy blocks, summed over heads.
int64_t TiersTraversal::keep_rows(const CodedTiles& tiles, TierChoice& choice) const {
  const int group = traversal_.group;
  if (!rule_.bounded)
    return kernels().keep_rows(tiles, group, choice.floors.data(), choice.heavy.data(),
                               choice.kept.data());
  int64_t rows = 0;
  for (size_t tile = 0; tile < choice.kept.size(); tile++) {
    const uint64_t exact = choice.seen[tile] & choice.heavy[tile];
    choice.kept[tile] = (choice.light[tile] & ~choice.heavy[tile]) | exact;
    rows += __builtin_popcountll(exact);
  }
  return rows * group;
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
  choice.counted = choice.kept;
  for (size_t tile = 0; tile < choice.kept.size(); tile++) choice.kept[tile] &= ~choice.heavy[tile];
  return keys;
}

// Attends to the rows that count, in two parts: exactly, and by base planes.
Reads TiersTraversal::attend_row(int row, const CodedTiles& tiles, Scratch& scratch) const {
  const KVHead& head = traversal_.head;
  const int group = traversal_.group, size = head.size, first = row * group;
  const Visible& visible = traversal_.visible[first];
  TierChoice& choice = scratch.tiers;
  Reads reads;
  reads.per_head_rows = keep_rows(tiles, choice);
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
  const int64_t base_rows = visible.rows() - reads.key_rows + light_rows;
  reads.sketch_bytes = base_rows * stored_bytes(Type::kmeans4, size);
  if (rule_.bounded) reads.sketch_bytes += visible.rows();  // a byte of errors for each
  return reads;
}

// Bounds the total variation distance of each head's softmax to the exact one; returns the largest.
float TiersTraversal::distance(const CodedTiles& tiles, Scratch& scratch) const {
  TierChoice& choice = scratch.tiers;
  const BlockErrors errors = errors_of(tiles, choice);
  const int blocks = tiles.end - tiles.begin;
  choice.bounds.resize(traversal_.group);
  for (int q = 0; q < traversal_.group; q++) {
    double more = 0, less = 0;
    for (int i = 0; i < blocks; i++) {
      if (is_marked(choice.heavy, i)) continue;
      more += errors.more[static_cast<size_t>(q) * blocks + i];
      less += errors.less[static_cast<size_t>(q) * blocks + i];
    }
    const Total total = total_of(scratch.parts, q);
    const double used = total.sum * std::exp2(double{total.peak} - choice.peaks[q]);
    choice.bounds[q] = static_cast<float>(bound_of(used, more, less));
  }
  return *std::max_element(choice.bounds.begin(), choice.bounds.end());
}

// Audits a token; what is missing of its softmax is the total variation distance to the exact one.
void TiersTraversal::audit_row(int row, const CodedTiles& tiles, Scratch& scratch) const {
  const Audit& to = traversal_.audit;
  if (!to.missing) return;
  TierChoice& choice = scratch.tiers;
  const int group = traversal_.group, first = row * group;
  const int blocks = tiles.end - tiles.begin;
  const size_t whole_tiles = choice.kept.size();
  std::vector<float> scores(whole_tiles * group * kTileRows), peaks(group);
  kernels().score_tiles(traversal_.head, traversal_.queries.data() + first,
                        traversal_.visible.data() + first, group, tiles.list, tiles.begin,
                        tiles.end, scores.data(), peaks.data(),
                        scratch.at_least(attend_scratch(group, traversal_.head.size)));
  audit(traversal_, row, {}, NAN, scratch);
  std::vector<double> truth, used;
  for (int q = 0; q < group; q++) {
    truth.clear();
    used.clear();
    double sums[2] = {0, 0};
    for (int i = 0; i < blocks * kPanel; i++) {
      const int tile = i / kTileRows, within = i % kTileRows;
      const float exact = scores[(static_cast<size_t>(tile) * group + q) * kTileRows + within];
      const float estimate =
          tiles.scores[static_cast<size_t>(tile) * tiles.stride + q * kTileRows + within];
      const bool heavy = choice.heavy[tile] >> within & 1;
      const bool counts = choice.counted[tile] >> within & 1;
      truth.push_back(std::exp2(double{exact} - choice.peaks[q]));
      used.push_back(counts ? std::exp2(double{heavy ? exact : estimate} - choice.peaks[q]) : 0);
      sums[0] += truth.back();
      sums[1] += used.back();
    }
    double distance = 0;
    for (size_t i = 0; i < truth.size(); i++)
      distance += std::abs(truth[i] / sums[0] - used[i] / sums[1]) / 2;
    const size_t place = static_cast<size_t>(row) * to.stride + q;
    to.missing[place] = static_cast<float>(distance);
    if (rule_.bounded) to.bound[place] = choice.bounds[q];
  }
}

}  // namespace suffice
