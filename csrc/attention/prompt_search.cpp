#include "attention/prompt_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/reads.h"
#include "attention/sketch_order.h"

namespace suffice {
namespace {

constexpr int kLookEvery = 4;  // tokens

// Of heads that share keys, every second one looks for a token, in turn, and all for the last one.
bool looks_for(int token, int head, const Traversal& traversal) {
  if (token == traversal.tokens() - 1) return true;
  if (token % kLookEvery != kLookEvery - 1) return false;
  return traversal.group == 1 || (token / kLookEvery + head) % 2 == 1;
}

}  // namespace

void PromptSearch::plan(const Traversal& traversal) {
  traversal_ = &traversal;
  queries_.clear();
  visible_.clear();
  const int tokens = traversal.tokens(), group = traversal.group;
  for (int token = 0; token < tokens; token++)
    for (int head = 0; head < group; head++) {
      if (!looks_for(token, head, traversal)) continue;
      queries_.push_back(traversal.queries[token * group + head]);
      visible_.push_back(traversal.visible[token * group + head]);
    }
  peaks_.resize(static_cast<size_t>(chunks()) * looks());
  masses_.resize(peaks_.size() * kChunkBlocks);
  estimates_left.store(chunks());
  pieces_left.store(chunks());
}

void PromptSearch::estimate(int chunk, Scratch& scratch) {
  const Range blocks = traversal_->chunk(chunk);
  const int count = looks();
  scratch.scores.resize(static_cast<size_t>(kChunkBlocks) * kPanel * count);
  float* const peaks = peaks_.data() + static_cast<size_t>(chunk) * count;
  const Queries& queries = scratch.queries.of(traversal_->head, queries_.data(), count);
  kernels().search.score_tiles(traversal_->head, queries, visible_.data(), count, traversal_->list,
                               blocks.begin, blocks.end, scratch.scores.data(), peaks);
  const CodedTiles tiles{.scores = scratch.scores.data(),
                         .stride = count * kTileRows,
                         .begin = blocks.begin,
                         .end = blocks.end};
  kernels().search.sum_blocks(tiles, count, peaks,
                              masses_.data() + static_cast<size_t>(chunk) * count * kChunkBlocks,
                              kChunkBlocks);
}

// Adds the share that each block has of one look's softmax.
void PromptSearch::add_shares(int look) {
  const int count = looks();
  const auto place = [&](int chunk) { return static_cast<size_t>(chunk) * count + look; };
  float peak = -INFINITY;
  for (int chunk = 0; chunk < chunks(); chunk++) peak = std::max(peak, peaks_[place(chunk)]);
  double total = 0;
  for (int chunk = 0; chunk < chunks(); chunk++) {
    const Range blocks = traversal_->chunk(chunk);
    const float* const masses = masses_.data() + place(chunk) * kChunkBlocks;
    total += std::exp2(double{peaks_[place(chunk)]} - peak) *
             std::accumulate(masses, masses + (blocks.end - blocks.begin), 0.0);
  }
  for (int chunk = 0; chunk < chunks(); chunk++) {
    const Range blocks = traversal_->chunk(chunk);
    const float* const masses = masses_.data() + place(chunk) * kChunkBlocks;
    const auto unit = static_cast<float>(std::exp2(double{peaks_[place(chunk)]} - peak) / total);
    for (int i = blocks.begin; i < blocks.end; i++)
      shares_[i - traversal_->begin] += masses[i - blocks.begin] * unit;
  }
}

void PromptSearch::choose() {
  const int all = traversal_->end - traversal_->begin;
  shares_.assign(all, 0.0f);
  for (int look = 0; look < looks(); look++) add_shares(look);
  sort_by_share(shares_.data(), all, buckets_, sorted_);
  is_chosen_.assign(all, 0);
  const int committed = traversal_->visible.front().committed;
  const auto block_at = [&](int i) {
    const int position = traversal_->begin + i;
    return traversal_->list ? traversal_->list[position] : position;
  };
  double left = looks();
  const auto take = [&](int i) {
    if (is_chosen_[i]) return;
    is_chosen_[i] = 1;
    left -= shares_[i];
  };
  for (int i = all - 1; i >= 0 && (block_at(i) + 1) * kPanel > committed; i--) take(i);
  if (block_at(0) == 0) take(0);
  for (const int32_t i : sorted_) {
    if (left <= traversal_->unread * looks()) break;
    take(i);
  }
  chosen_.clear();
  for (int i = 0; i < all; i++)
    if (is_chosen_[i]) chosen_.push_back(block_at(i));
  const int count = static_cast<int>(traversal_->queries.size());
  results_.resize(chunks() * partial_floats(count, traversal_->head.size));
}

Partial PromptSearch::part(int piece) {
  const int count = static_cast<int>(traversal_->queries.size()), size = traversal_->head.size;
  return partial_at(results_.data() + piece * partial_floats(count, size), count, size);
}

void PromptSearch::attend(int piece, Scratch& scratch) {
  const int begin = piece * kChunkBlocks;
  const int end = std::min(begin + kChunkBlocks, static_cast<int>(chosen_.size()));
  if (begin >= end) return;
  const int count = static_cast<int>(traversal_->queries.size());
  const Queries& queries = scratch.queries.of(traversal_->head, traversal_->queries.data(), count);
  kernels().attention.attend(traversal_->head, queries, traversal_->visible.data(), count,
                             chosen_.data(), begin, end, part(piece),
                             scratch.at_least(attend_scratch(count, traversal_->head.size)), {});
}

void PromptSearch::finish() {
  parts_.clear();
  for (int piece = 0; piece * kChunkBlocks < static_cast<int>(chosen_.size()); piece++)
    parts_.push_back(part(piece));
  merge(parts_, static_cast<int>(traversal_->queries.size()), traversal_->head.size,
        traversal_->outputs.data(), {traversal_->spare, traversal_->group});
  for (int row = 0; row < traversal_->tokens(); row++) {
    int64_t rows = 0;
    for (const int32_t block : chosen_)
      rows += std::clamp(traversal_->length(row) - block * kPanel, 0, kPanel);
    count_reads(*traversal_, row, {rows, rows, rows * traversal_->group});
  }
}

void PromptSearches::clear() {
  used_ = 0;
  items_.clear();
}

void PromptSearches::plan(const Traversal& traversal) {
  if (used_ == searches_.size()) searches_.emplace_back();
  PromptSearch& search = searches_[used_++];
  search.plan(traversal);
  for (int i = 0; i < search.chunks(); i++) items_.push_back({&search, i});
}

void PromptSearches::begin(int threads) {
  for (WorkQueue* queue : {&estimates_, &pieces_})
    queue->begin(static_cast<int>(items_.size()), threads);
}

void PromptSearches::work(Scratch& scratch, Team& team, int thread) {
  if (used_ == 0) return;
  estimates_.take(thread, team.size(), [&](int i) {
    PromptSearch& search = *items_[i].search;
    search.estimate(items_[i].index, scratch);
    if (search.estimates_left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.choose();
  });
  team.barrier();  // now all tiles have chosen
  pieces_.take(thread, team.size(), [&](int i) {
    PromptSearch& search = *items_[i].search;
    search.attend(items_[i].index, scratch);
    if (search.pieces_left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.finish();
  });
}

}  // namespace suffice
