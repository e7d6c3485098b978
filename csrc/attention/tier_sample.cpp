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

// Chooses blocks by the largest share that any head of the group has of what it may lack, and looks
// at their exact scores: so much may be missing of each head, and too much.
void TierSearch::look(Scratch& scratch) {
  const size_t all = blocks_;
  measure_errors();
  sort_light_rows();
  totals_of_light_.resize(group_);
  possible_.resize(group_ * all);
  kernels().search.bound_light(base_, tiles_, group_, peaks_.data(), units_.data(), light_.data(),
                               known_.data(), masses_.data(),
                               {possible_.data(), blocks_, totals_of_light_.data()});
  shares_.assign(all, 0.0f);
  for (int q = 0; q < group_; q++) {
    const double most = totals_of_light_[q].more;
    const auto inverse = static_cast<float>(most > 0 ? 1 / most : 0.0);
    const float* const more = possible_.data() + q * all;
    for (size_t i = 0; i < all; i++) shares_[i] = std::max(shares_[i], more[i] * inverse);
  }
  sample_.draw(shares_, rule_->sample, seed_of(*traversal_, row_));
  const size_t blocks = sample_.blocks().size();
  compared_.resize(2 * group_ * blocks);
  float* const more = compared_.data();
  float* const less = more + group_ * blocks;
  sampled_keys_ = 0;
  if (blocks > 0) compare(sample_.blocks(), more, less, scratch);
  found_.assign(group_, {});
  for (int q = 0; q < group_; q++) {
    const double most = totals_of_light_[q].more;
    if (most <= 0) continue;
    found_[q] = {most * sample_.bound(more + q * blocks, most, rule_->delta),
                 most * sample_.bound(less + q * blocks, most, rule_->delta)};
  }
}

// Of all tiles, as `attend` sorts the rows of a piece.
void TierSearch::sort_light_rows() {
  for (auto* rows : {&light_, &known_}) rows->resize(marked_.size());
  kernels().search.keep_rows(tiles_, group_, floors_.data(), marked_.data(), light_.data());
  for (size_t tile = 0; tile < marked_.size(); tile++) {
    known_[tile] = light_[tile] & marked_[tile];
    light_[tile] &= ~marked_[tile];
  }
}

// What the sample says of a head's distance; `less`: by how much weights may certainly fall short.
double TierSearch::sampled_distance(int q, double less) const {
  const auto [above, below] = found_[q];
  const double fall = sample_.certain() ? below : less;
  const double total = used_[q] * (1 - 2 * kSumError);
  return std::max(above / (total + std::max(above - fall, 0.0)), below / total);
}

// Reads the keys of some blocks, and compares the true weights with those used.
void TierSearch::compare(const std::vector<int32_t>& chosen, float* more, float* less,
                         Scratch& scratch) {
  const int blocks = static_cast<int>(chosen.size());
  std::vector<int32_t>& list = scratch.order;
  list.clear();
  for (const int32_t i : chosen) {
    const int32_t block = block_at(i);
    list.push_back(block);
    if (known_[i / kTileBlocks] >> (i % kTileBlocks * kPanel) & 0xffff) continue;  // is read anyway
    sampled_keys_ += visible_.rows_of_block(block * kPanel);
  }
  scratch.scores.resize(static_cast<size_t>(round_up(blocks, kTileBlocks)) * kPanel * group_);
  std::vector<float> peaks(group_);
  kernels().search.score_tiles(traversal_->head,
                               scratch.queries.of(traversal_->head, queries_, group_),
                               traversal_->visible.data() + static_cast<size_t>(row_) * group_,
                               group_, list.data(), 0, blocks, scratch.scores.data(), peaks.data());
  kernels().search.compare_blocks(tiles_, chosen.data(), blocks, group_, peaks_.data(),
                                  light_.data(), known_.data(), scratch.scores.data(), more, less);
}

}  // namespace suffice
