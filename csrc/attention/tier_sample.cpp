// The bound of attention in tiers at a confidence; docs/techniques/tiers_bound.md derives it.
#include <algorithm>

#include "attention/tier_search.h"
#include "runtime/random.h"

namespace suffice {
namespace {

// Of a token in a layer and key/value head: not of what else is run with it.
uint64_t seed_of(const Traversal& traversal, int row) {
  return mixed(mixed(traversal.place) + traversal.positions[row]);
}

}  // namespace

// Sums, block by block, what bounds the errors of the rows of some tiles that are not exact.
void TierSearch::bound_tiles(const CodedTiles& tiles, int first) {
  BlockErrors to = errors();
  for (float** part : {&to.used, &to.more, &to.less, &to.lost}) *part += first * kTileBlocks;
  kernels().bound_blocks(base_, tiles, group_, peaks_.data(), units_.data(), kept_.data() + first,
                         exact_.data() + first, to);
}

// Lowers the bounds on distances to what the exact scores of some blocks show. The blocks are
// chosen by the largest share that any head of the group has of what it may lack.
void TierSearch::lower_bounds(Scratch& scratch) {
  const BlockErrors found = errors();
  const size_t all = blocks_;
  std::vector<double> shares(all, 0.0), most(group_, 0.0);
  for (int q = 0; q < group_; q++) {
    const float* const more = found.more + q * all;
    for (size_t i = 0; i < all; i++) most[q] += more[i];
    for (size_t i = 0; i < all && most[q] > 0; i++)
      shares[i] = std::max(shares[i], more[i] / most[q]);
  }
  sample_.draw(shares, rule_->sample, seed_of(*traversal_, row_));
  const std::vector<int32_t>& chosen = sample_.blocks();
  const int blocks = static_cast<int>(chosen.size());
  if (blocks == 0) return;
  compared_.resize(2 * static_cast<size_t>(group_) * blocks);
  float* const more = compared_.data();
  float* const less = more + static_cast<size_t>(group_) * blocks;
  compare(chosen, more, less, scratch);
  for (int q = 0; q < group_; q++) {
    if (most[q] <= 0) continue;
    const size_t at = static_cast<size_t>(q) * blocks;
    const double above = most[q] * sample_.bound(more + at, most[q], rule_->delta);
    const double below = most[q] * sample_.bound(less + at, most[q], rule_->delta);
    const double fall = sample_.certain() ? below : fall_[q];
    const double total = used_[q] * (1 - 2 * kSumError);
    const double distance = std::max(above / (total + std::max(above - fall, 0.0)), below / total);
    bounds_[q] = std::min(bounds_[q], static_cast<float>(distance));
  }
}

// Reads the keys of some blocks, and compares the true weights with those used.
void TierSearch::compare(const std::vector<int32_t>& chosen, float* more, float* less,
                         Scratch& scratch) {
  const int blocks = static_cast<int>(chosen.size());
  std::vector<int32_t>& list = scratch.order;
  list.clear();
  for (const int32_t i : chosen) {
    const int32_t block = tiles_.list ? tiles_.list[tiles_.begin + i] : tiles_.begin + i;
    list.push_back(block);
    if (exact_[i / kTileBlocks] >> (i % kTileBlocks * kPanel) & 0xffff) continue;  // is read anyway
    for (int row = block * kPanel; row < (block + 1) * kPanel; row++)
      sampled_keys_ += visible_.sees(row);
  }
  scratch.scores.resize(static_cast<size_t>(round_up(blocks, kTileBlocks)) * kPanel * group_);
  std::vector<float> peaks(group_);
  kernels().score_tiles(traversal_->head, queries_,
                        traversal_->visible.data() + static_cast<size_t>(row_) * group_, group_,
                        list.data(), 0, blocks, scratch.scores.data(), peaks.data(),
                        scratch.at_least(attend_scratch(group_, base_.size)));
  kernels().compare_blocks(tiles_, chosen.data(), blocks, group_, peaks_.data(), kept_.data(),
                           exact_.data(), scratch.scores.data(), more, less);
}

}  // namespace suffice
