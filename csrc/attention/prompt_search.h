// Attention of a tile of a prompt, up to 32 tokens, to its heaviest blocks of keys.
//
// How it works:
//
//   estimate   scores of every kLookEvery-th token of the tile with a chunk's keys, in every second
//              head; the sums of their weights, block by block, relative to the chunk's peak
//   choose     chooses the heaviest blocks until at most the share `unread` of these softmaxes is
//              left, on average. The first block of the text and those with tokens of the tile are
//              always chosen.
//   attend     attends with all tokens to some of the chosen blocks
//   finish     merges what these gave
//
// Chunks and pieces run in any order and on any thread; what is chosen depends on the tile alone.
#pragma once

#include <atomic>
#include <deque>
#include <vector>

#include "attention/partial.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

// A tile that sees at most this many blocks attends to all of them.
constexpr int kWholeBlocks = 64;

class PromptSearch {
 public:
  void plan(const Traversal& traversal);
  int chunks() const { return traversal_->whole_chunks(); }
  void estimate(int chunk, Scratch& scratch);
  void choose();
  void attend(int piece, Scratch& scratch);
  void finish();

  std::atomic<int> estimates_left{0}, pieces_left{0};

 private:
  int looks() const { return static_cast<int>(queries_.size()); }  // query rows
  void add_shares(int look);
  Partial part(int piece);

  const Traversal* traversal_ = nullptr;
  std::vector<const float*> queries_;  // that look at all keys
  std::vector<Visible> visible_;
  std::vector<float> peaks_, masses_;  // [chunks][looks], [chunks][looks][kChunkBlocks]
  std::vector<float> shares_;          // [blocks], of all looks
  std::vector<int> buckets_;           // for sorting
  std::vector<int32_t> sorted_, chosen_;
  std::vector<uint8_t> is_chosen_;
  std::vector<float> results_;
  std::vector<Partial> parts_;
};

// The searches of all tiles of a step in a layer. They keep their buffers.
class PromptSearches {
 public:
  void clear();
  void plan(const Traversal& traversal);
  void begin(int threads);
  // Called by every thread of the team; returns when no work is left.
  void work(Scratch& scratch, Team& team, int thread);

 private:
  struct Item {
    PromptSearch* search;
    int index;
  };

  std::deque<PromptSearch> searches_;
  size_t used_ = 0;          // searches of this step
  std::vector<Item> items_;  // chunks; and as many pieces, the last perhaps empty
  WorkQueue estimates_, pieces_;
};

}  // namespace suffice
