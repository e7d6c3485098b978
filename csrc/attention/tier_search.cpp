#include "attention/tier_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/reads.h"
#include "attention/sketch_order.h"

namespace suffice {
namespace {

constexpr float kEveryRow = -1e30f;  // a floor that every visible row reaches
constexpr double kLeast = 1e-4;      // of what is asked: below, all blocks are read
constexpr int kTierPieceTiles = 2 * kChunkBlocks / kTileBlocks;

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

size_t TierEstimates::plan(Traversal& traversal) {
  traversal.chunks = traversal.whole_chunks();
  const size_t of_row = kChunkBlocks * kPanel + 2 + kChunkBlocks;
  return traversal.chunks * traversal.queries.size() * of_row;
}

TierEstimates::TierEstimates(const Traversal& traversal, float* memory)
    : traversal_(traversal), count_(static_cast<int>(traversal.queries.size())), scores_(memory) {
  const size_t rows = static_cast<size_t>(traversal.chunks) * count_;
  peaks_ = scores_ + rows * kChunkBlocks * kPanel;
  sums_ = peaks_ + rows;
  masses_ = sums_ + rows;
}

void TierEstimates::work(int chunk, Scratch& scratch) const {
  const int first = traversal_.begin / kChunkBlocks * kChunkBlocks;
  const Range blocks = traversal_.chunk(chunk);
  float* const scores = scores_ + static_cast<size_t>(blocks.begin - first) * kPanel * count_;
  float* const peaks = peaks_ + static_cast<size_t>(chunk) * count_;
  const KVHead base = base_of(traversal_.head);
  kernels().search.score_tiles(base, scratch.queries.of(base, traversal_.queries.data(), count_),
                               traversal_.visible.data(), count_, traversal_.list, blocks.begin,
                               blocks.end, scores, peaks);
  const CodedTiles tiles{
      .scores = scores, .stride = count_ * kTileRows, .begin = blocks.begin, .end = blocks.end};
  float* masses = masses_ + static_cast<size_t>(chunk) * count_ * kChunkBlocks;
  kernels().search.sum_blocks(tiles, count_, peaks, masses, kChunkBlocks);
  float* const sums = sums_ + static_cast<size_t>(chunk) * count_;
  for (int q = 0; q < count_; q++, masses += kChunkBlocks)
    sums[q] = std::accumulate(masses, masses + (blocks.end - blocks.begin), 0.0f);
}

CodedTiles TierEstimates::tiles(int row) const {
  const size_t skipped = traversal_.begin % kChunkBlocks * static_cast<size_t>(kPanel) * count_;
  return {.scores = scores_ + skipped + row * traversal_.group * kTileRows,
          .stride = count_ * kTileRows,
          .list = traversal_.list,
          .begin = traversal_.begin,
          .end = traversal_.end};
}

float TierEstimates::peak(int row, int q) const {
  const float* const peaks = peaks_ + row * traversal_.group + q;
  float peak = peaks[0];
  for (int i = 1; i < traversal_.chunks; i++)
    peak = std::max(peak, peaks[static_cast<size_t>(i) * count_]);
  return peak;
}

double TierEstimates::masses(int row, int q, float peak, float* to) const {
  double total = 0;
  for (int chunk = 0; chunk < traversal_.chunks; chunk++) {
    const size_t at = static_cast<size_t>(chunk) * count_ + row * traversal_.group + q;
    const float* const from = masses_ + at * kChunkBlocks;
    const float factor = std::exp2(peaks_[at] - peak);
    const Range blocks = traversal_.chunk(chunk);
    for (int i = 0; i < blocks.end - blocks.begin; i++) *to++ = from[i] * factor;
    total += sums_[at] * factor;
  }
  return total;
}

void TierSearch::plan(const Traversal& traversal) {
  const int first = traversal.begin / kTileBlocks;  // begins at a tile
  const int last = (traversal.end + kTileBlocks - 1) / kTileBlocks;
  before_ = first % kTierPieceTiles;
  pieces_ = (before_ + last - first + kTierPieceTiles - 1) / kTierPieceTiles;
  looks_ = std::get<Tiers>(traversal.rule->technique).sample > 0;
  left.store(pieces_ + looks_);
}

void TierSearch::choose(const TierEstimates& estimates, int row) {
  traversal_ = &estimates.traversal();
  rule_ = &std::get<Tiers>(traversal_->rule->technique);
  base_ = base_of(traversal_->head);
  tiles_ = estimates.tiles(row);
  row_ = row;
  group_ = traversal_->group;
  blocks_ = tiles_.end - tiles_.begin;
  queries_ = traversal_->queries.data() + static_cast<size_t>(row) * group_;
  visible_ = traversal_->visible[static_cast<size_t>(row) * group_];
  weigh_blocks(estimates);
  if (rule_->bounded) bound_errors();
  choose_blocks(rule_->estimated);
  counted_.resize(kept_.size());
  piece_reads_.resize(pieces_);
  results_.resize(2 * pieces_ * partial_floats(group_, base_.size));
}

// Sorts the blocks by their share of the sums of weights, and sets the scores from which on rows
// are kept: the share `lightest` of the sum, and at most the largest score.
void TierSearch::weigh_blocks(const TierEstimates& estimates) {
  const size_t all = blocks_, tiles = (all + kTileBlocks - 1) / kTileBlocks;
  for (auto* of_head : {&peaks_, &floors_}) of_head->resize(group_);
  totals_.resize(group_);
  masses_.resize(group_ * all);
  shares_.assign(all, 0.0f);
  for (int q = 0; q < group_; q++) {
    peaks_[q] = estimates.peak(row_, q);
    float* const masses = masses_.data() + q * all;
    totals_[q] = estimates.masses(row_, q, peaks_[q], masses);
    const auto inverse = static_cast<float>(1 / totals_[q]);
    for (size_t i = 0; i < all; i++) shares_[i] += masses[i] * inverse;
    const double least = rule_->lightest * totals_[q];
    const auto below = static_cast<float>(std::min(std::log2(least), 0.0));
    floors_[q] = least > 0 ? peaks_[q] + below : kEveryRow;
  }
  sort_by_share(shares_.data(), blocks_, buckets_, sorted_);
  for (auto* marks : {&marked_, &kept_}) marks->resize(tiles);
}

void TierSearch::measure_errors() {
  units_.resize(group_);
  kernels().search.measure_queries(traversal_->head, queries_, group_, units_.data());
}

// Sums, block by block, what bounds the errors of the weights of its rows if it is light.
void TierSearch::bound_errors() {
  measure_errors();
  errors_.resize(4 * masses_.size());
  if_light_.resize(kept_.size());
  seen_.resize(kept_.size());
  std::fill(marked_.begin(), marked_.end(), 0);
  kernels().search.keep_rows(tiles_, group_, floors_.data(), marked_.data(), if_light_.data());
  const std::vector<float> every(group_, kEveryRow);
  kernels().search.keep_rows(tiles_, group_, every.data(), marked_.data(), seen_.data());
  kernels().search.bound_blocks(base_, tiles_, group_, peaks_.data(), units_.data(),
                                if_light_.data(), marked_.data(), errors());
}

BlockErrors TierSearch::errors() {
  const size_t all = masses_.size();
  float* const from = errors_.data();
  return {from, from + all, from + 2 * all, from + 3 * all, blocks_};
}

// Marks the heaviest blocks, until at most the share `most` of every head's sum of weights is
// estimated; with bounds, until the distance that they leave is at most that.
void TierSearch::choose_blocks(double most) {
  const size_t all = blocks_;
  std::fill(marked_.begin(), marked_.end(), 0);
  std::vector<double> rest = totals_, used(group_), more(group_), less(group_);
  const BlockErrors found = errors();
  for (int q = 0; rule_->bounded && q < group_; q++)
    for (size_t i = q * all; i < (q + 1) * all; i++) {
      used[q] += found.used[i];
      more[q] += found.more[i];
      less[q] += found.less[i];
    }
  for (const int32_t block : sorted_) {
    bool enough = most > 0;
    for (int q = 0; q < group_; q++)
      enough &= rule_->bounded ? bound_of(used[q], more[q], less[q]) <= most
                               : rest[q] <= most * totals_[q];
    if (enough) break;
    for (int q = 0; q < group_; q++) {
      const size_t at = q * all + block;
      rest[q] -= masses_[at];
      if (!rule_->bounded) continue;
      used[q] += masses_[at] - found.used[at];
      more[q] -= found.more[at];
      less[q] -= found.less[at];
    }
    marked_[block / kTileBlocks] |= uint64_t{0xffff} << (block % kTileBlocks * kPanel);
  }
}

// Sets the rows of some tiles that count. Returns the number of those in chosen blocks, summed over
// heads.
int64_t TierSearch::keep_rows(const CodedTiles& tiles, int first, int last) {
  if (!rule_->bounded)
    return kernels().search.keep_rows(tiles, group_, floors_.data(), marked_.data() + first,
                                      counted_.data() + first);
  int64_t rows = 0;
  for (int tile = first; tile < last; tile++) {
    const uint64_t exact = seen_[tile] & marked_[tile];
    counted_[tile] = (if_light_[tile] & ~marked_[tile]) | exact;
    rows += __builtin_popcountll(exact);
  }
  return rows * group_;
}

// The results of a piece are the parts 2 * piece, of rows in chosen blocks, and 2 * piece + 1.
Partial TierSearch::part(int index) {
  return partial_at(results_.data() + index * partial_floats(group_, base_.size), group_,
                    base_.size);
}

void TierSearch::attend(int piece, Scratch& scratch) {
  const int first = std::max(piece * kTierPieceTiles - before_, 0);
  const int last =
      std::min((piece + 1) * kTierPieceTiles - before_, static_cast<int>(kept_.size()));
  CodedTiles tiles = tiles_;
  tiles.begin += first * kTileBlocks;
  tiles.end = std::min(tiles.end, tiles_.begin + last * kTileBlocks);
  tiles.scores += static_cast<size_t>(first) * tiles.stride;
  PieceReads& reads = piece_reads_[piece];
  reads = {};
  reads.per_head = keep_rows(tiles, first, last);
  int32_t list[kTierPieceTiles * kTileBlocks];  // chosen blocks with rows that count
  uint16_t rows[kTierPieceTiles * kTileBlocks];
  int blocks = 0;
  for (int tile = first; tile < last; tile++) {
    const uint64_t heavy = counted_[tile] & marked_[tile];
    kept_[tile] = counted_[tile] & ~heavy;
    reads.values += __builtin_popcountll(heavy);
    reads.light += __builtin_popcountll(kept_[tile]);
    fetch_light(tile);
    for (int b = 0; b < kTileBlocks && heavy >> (b * kPanel); b++) {
      rows[blocks] = static_cast<uint16_t>(heavy >> (b * kPanel));
      if (!rows[blocks]) continue;
      const int block = block_at(tile * kTileBlocks + b);
      reads.keys += visible_.rows_of_block(block * kPanel);
      list[blocks++] = block;
    }
  }
  float* const floats =
      scratch.at_least(std::max(attend_scratch(group_, base_.size), coded_scratch(group_)));
  if (blocks > 0)
    kernels().search.attend_kept(
        traversal_->head, scratch.queries.of(traversal_->head, queries_, group_),
        traversal_->length(row_), group_, list, rows, blocks, part(2 * piece), floats);
  if (reads.light == 0) return;
  const Partial to = part(2 * piece + 1);
  std::copy(peaks_.begin(), peaks_.end(), to.peak);
  kernels().search.add_light(base_, tiles, kept_.data() + first, group_, to, floats);
}

// Fetches the values of a tile's light rows, which are read after all exact ones of the piece.
void TierSearch::fetch_light(int tile) const {
  const ptrdiff_t bytes = elements_bytes(base_.value_type, base_.size);
  for (int b = 0; b < kTileBlocks; b++) {
    uint64_t rows = kept_[tile] >> (b * kPanel) & 0xffff;
    if (!rows) continue;
    const int first = block_at(tile * kTileBlocks + b) * kPanel;
    __builtin_prefetch(base_.value_scales + first);
    for (; rows; rows &= rows - 1)
      for (ptrdiff_t line = 0; line < bytes; line += kLineBytes)
        __builtin_prefetch(base_.values + (first + __builtin_ctzll(rows)) * bytes + line);
  }
}

void TierSearch::gather() {
  parts_.clear();
  for (int i = 0; i < pieces_; i++) {
    if (piece_reads_[i].values > 0) parts_.push_back(part(2 * i));
    if (piece_reads_[i].light > 0) parts_.push_back(part(2 * i + 1));
  }
}

void TierSearch::finish(Scratch& scratch) {
  gather();
  missing_ = looks_ ? distance() : 0.0f;
  for (double most = rule_->estimated / 2; rule_->bounded; most /= 2) {
    missing_ = distance();
    if (missing_ <= rule_->estimated) break;
    choose_blocks(most > kLeast * rule_->estimated ? most : 0.0);
    for (int i = 0; i < pieces_; i++) attend(i, scratch);
    gather();
  }
  merge(parts_, group_, base_.size,
        traversal_->outputs.data() + static_cast<size_t>(row_) * group_);
  count();
  audit_token(scratch);
}

void TierSearch::count() {
  Reads reads;
  int64_t light = 0;
  for (const PieceReads& piece : piece_reads_) {
    reads.key_rows += piece.keys;
    reads.value_rows += piece.values;
    reads.per_head_rows += piece.per_head;
    light += piece.light;
  }
  if (looks_) reads.key_rows += sampled_keys_;
  const int64_t alone = is_four_bits(traversal_->head.key_type) ? reads.key_rows : 0;
  const int64_t by_base = visible_.rows() - alone + light;  // a plane is part of an exact key
  reads.sketch_bytes = by_base * stored_bytes(Type::kmeans4, base_.size);
  if (rule_->bounds()) {
    reads.sketch_bytes += 2 * visible_.rows();  // errors of keys and values, a byte for each
    reads.missing = missing_;
    reads.shift = *std::max_element(shifts_.begin(), shifts_.end());
  }
  count_reads(*traversal_, row_, reads);
}

// What bounds the errors of the rows of a head that are not exact, in all.
LightBounds::Totals TierSearch::totals_of_errors(int q) {
  if (looks_) return totals_of_light_[q];
  const BlockErrors found = errors();
  LightBounds::Totals totals{};
  for (int i = 0; i < blocks_; i++) {
    if (is_marked(marked_, i)) continue;
    const size_t at = static_cast<size_t>(q) * blocks_ + i;
    totals.more += found.more[at];
    totals.less += found.less[at];
    totals.lost += found.lost[at];
  }
  return totals;
}

// Bounds the total variation distance of each head's softmax to the exact one, and what it and the
// bases of light values move the output by; returns the largest distance.
float TierSearch::distance() {
  for (auto* of_head : {&bounds_, &shifts_}) of_head->resize(group_);
  used_.resize(group_);
  for (int q = 0; q < group_; q++) {
    const auto [more, less, lost] = totals_of_errors(q);
    const Total total = total_of(parts_, q);
    used_[q] = total.sum * std::exp2(double{total.peak} - peaks_[q]);
    double bound = bound_of(used_[q], more, less);
    if (looks_) bound = std::min(bound, sampled_distance(q, less));
    bounds_[q] = static_cast<float>(bound);
    shifts_[q] = static_cast<float>(2 * bound + lost / used_[q] * (1 + kSumError));
  }
  return *std::max_element(bounds_.begin(), bounds_.end());
}

void TierSearches::clear() {
  used_ = 0;
  items_.clear();
}

int TierSearches::plan(const Traversal& traversal) {
  const int first = used_;
  used_ += traversal.tokens();
  while (static_cast<int>(searches_.size()) < used_) searches_.emplace_back();
  for (int i = first; i < used_; i++) {
    searches_[i].plan(traversal);
    if (searches_[i].looks()) items_.push_back({&searches_[i], kLook});
    for (int piece = 0; piece < searches_[i].pieces(); piece++)
      items_.push_back({&searches_[i], piece});
  }
  return first;
}

void TierSearches::begin(int threads) { queue_.begin(static_cast<int>(items_.size()), threads); }

void TierSearches::choose(const TierEstimates& estimates, int first) {
  for (int row = 0; row < estimates.traversal().tokens(); row++)
    searches_[first + row].choose(estimates, row);
}

void TierSearches::work(Scratch& scratch, Team& team, int thread) {
  if (used_ == 0) return;
  team.barrier();  // now all tokens have chosen
  queue_.take(thread, team.size(), [&](int i) {
    TierSearch& search = *items_[i].search;
    if (items_[i].piece == kLook)
      search.look(scratch);
    else
      search.attend(items_[i].piece, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.finish(scratch);
  });
}

}  // namespace suffice
