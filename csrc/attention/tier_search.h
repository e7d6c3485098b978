// Attention in three tiers (`tiers`), to keys and values in planes.
//
// How it works. All scores come first, estimated from the base planes of the keys:
//
//   TierEstimates::work  estimated scores of a chunk's keys for all query rows, and block by block
//                        the sums of their weights, relative to the chunk's peak
//   choose               for each token: chooses the heaviest blocks until at most the share
//                        `estimated` of every head's sum of weights is left, and the rows that are
//                        not skipped; lists both in pieces
//   attend               attends to a piece: rows of chosen blocks by both planes, or other rows by
//                        their estimated scores and the base planes of their values
//   finish               merges the pieces in their order
//
// With bounds, every row of a chosen block is read. Let W be the sum of the weights that count, M
// by how much the true ones may exceed them, and L by how much they may fall short. The softmax is
// then at a total variation distance of at most M / (W + M - L), which is what must not exceed
// `estimated`. Blocks are chosen by estimates of W; if the W that is found is too small, more are.
//
// Chunks and pieces run in any order and on any thread. What they are depends on the token alone.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "attention/partial.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

// The estimated scores of a traversal, for all its query rows.
class TierEstimates {
 public:
  // Sets the number of chunks; returns the number of floats that their scores take.
  static size_t plan(Traversal& traversal);
  // `memory`: of that size.
  TierEstimates(const Traversal& traversal, float* memory);

  void work(int chunk, Scratch& scratch) const;
  const Traversal& traversal() const { return traversal_; }
  CodedTiles tiles(int row) const;  // of a token
  float peak(int row, int q) const;
  // The sums of weights of each block, relative to `peak`; returns their sum.
  double masses(int row, int q, float peak, float* to) const;

 private:
  const Traversal& traversal_;
  int count_;      // query rows
  float* scores_;  // of all chunks, tile by tile
  float* peaks_;   // [chunks][query rows]
  float* sums_;    // [chunks][query rows]: of weights
  float* masses_;  // [chunks][query rows][kChunkBlocks]: of weights, by block
};

// The search of one token.
class TierSearch {
 public:
  void choose(const TierEstimates& estimates, int row);
  int pieces() const { return heavy_pieces_ + static_cast<int>(light_.size()); }
  void attend(int piece, Scratch& scratch);
  void finish(Scratch& scratch);

  std::atomic<int> left{0};  // unfinished pieces

 private:
  // Tiles [first, last) with light rows.
  struct Light {
    int first, last;
  };

  void weigh_blocks(const TierEstimates& estimates);
  void bound_errors();
  BlockErrors errors();
  void choose_blocks(double most);
  void list_pieces();
  int64_t keep_rows();
  int64_t list_heavy();
  Partial part(int piece);
  float distance();
  void audit_token(Scratch& scratch);

  const Traversal* traversal_ = nullptr;
  const Tiers* rule_ = nullptr;
  KVHead base_;  // the head by its base planes
  CodedTiles tiles_;
  int row_ = 0, group_ = 0, blocks_ = 0;
  const float* const* queries_ = nullptr;
  Visible visible_;
  std::vector<float> peaks_, floors_;   // [group]: largest scores, lowest scores to keep
  std::vector<double> totals_;          // [group]: sums of weights
  std::vector<float> masses_, shares_;  // [group][blocks], [blocks]
  std::vector<float> errors_;           // of BlockErrors
  std::vector<ErrorUnits> units_;       // [group]
  std::vector<float> bounds_;           // [group]: on the distance of their softmax
  std::vector<int> buckets_;            // for sorting
  std::vector<int32_t> sorted_, list_;  // all blocks by share, and those to read exactly
  std::vector<uint16_t> rows_;          // of each listed block, those that are read
  // [tiles]: rows of heavy blocks, rows that count, those of them that are light, rows that count
  // where a block is light, and all that the token sees
  std::vector<uint64_t> marked_, counted_, kept_, if_light_, seen_;
  int heavy_pieces_ = 0;
  std::vector<Light> light_;
  std::vector<float> results_;
  std::vector<Partial> parts_;
  Reads reads_;
};

// The searches of all tokens of a step in a layer. They keep their buffers.
class TierSearches {
 public:
  void clear();
  int plan(const Traversal& traversal);  // returns the first of its tokens' searches
  // Chooses for the tokens of a traversal; `first`: what `plan` returned.
  void choose(const TierEstimates& estimates, int first, Scratch& scratch);
  // Called by every thread of the team after its last chunk; returns when no piece is left.
  void work(Scratch& scratch, Team& team);

 private:
  struct Item {
    TierSearch* search;
    int piece;
  };

  std::deque<TierSearch> searches_;
  int used_ = 0;  // searches of this step
  std::vector<Item> items_;
  std::mutex listing_;
  std::atomic<int> next_{0};
};

}  // namespace suffice
