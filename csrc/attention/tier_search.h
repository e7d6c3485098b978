// Attention in three tiers (`tiers`), to keys and values with bases.
//
// How it works. All scores come first, estimated from the bases of the keys:
//
//   TierEstimates::work  estimated scores of a chunk's keys for all query rows, and block by block
//                        the sums of their weights, relative to the chunk's peak
//   choose               for each token: chooses the heaviest blocks until at most the share
//                        `estimated` of every head's sum of weights is left, and the lowest scores
//                        that are not skipped
//   attend               attends to the rows of a piece: those of chosen blocks exactly, others
//                        by their estimated scores and the bases of their values
//   finish               merges the pieces in their order
//
// With bounds, every row of a chosen block is read. Let W be the sum of the weights that count, M
// by how much the true ones may exceed them, and L by how much they may fall short. The softmax is
// then at a total variation distance of at most M / (W + M - L), which is what must not exceed
// `estimated`. Blocks are chosen by estimates of W; if the W that is found is too small, more are.
// How far an output is moved follows from it: docs/techniques/tiers_bound.md. With a sample,
// `look`, on any thread while others do the pieces, bounds at a confidence what is missing, from
// the exact scores of some blocks (tier_sample.cpp).
//
// Chunks and pieces run in any order and on any thread. A piece is some chunks, wherever the
// traversal starts, and most often runs on the thread that has their scores in its cache.
#pragma once

#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "attention/block_sample.h"
#include "attention/partial.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

constexpr int kLook = -1;
constexpr double kSumError = 1e-5;  // relative, of float32 sums of thousands of weights

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
  void plan(const Traversal& traversal);
  int pieces() const { return pieces_; }
  void choose(const TierEstimates& estimates, int row);
  bool looks() const { return looks_; }  // whether `look` is to be called, before `finish`
  void attend(int piece, Scratch& scratch);
  void look(Scratch& scratch);  // in tier_sample.cpp
  void finish(Scratch& scratch);

  std::atomic<int> left{0};  // unfinished pieces, and the look

 private:
  // What a piece read; rows of values by their bases are `light`.
  struct PieceReads {
    int64_t keys = 0, values = 0, light = 0, per_head = 0;
  };

  void weigh_blocks(const TierEstimates& estimates);
  void measure_errors();
  void bound_errors();
  BlockErrors errors();
  void choose_blocks(double most);
  int64_t keep_rows(const CodedTiles& tiles, int first, int last);
  Partial part(int index);
  void fetch_light(int tile) const;
  // A block of the cache by its place among those of the traversal.
  int block_at(int i) const {
    return tiles_.list ? tiles_.list[tiles_.begin + i] : tiles_.begin + i;
  }
  void gather();
  float distance();
  LightBounds::Totals totals_of_errors(int q);
  void sort_light_rows();  // in tier_sample.cpp, as the next two
  double sampled_distance(int q, double less) const;
  void compare(const std::vector<int32_t>& chosen, float* more, float* less, Scratch& scratch);
  void count();
  void audit_token(Scratch& scratch);  // in tier_audit.cpp, as the next
  void weigh_exactly(const float* scores, int q, std::vector<double>& truth,
                     std::vector<double>& used) const;
  std::vector<double> shifts_of(const std::vector<double>* truth,
                                const std::vector<double>* used) const;

  const Traversal* traversal_ = nullptr;
  const Tiers* rule_ = nullptr;
  KVHead base_;  // the head by its bases
  CodedTiles tiles_;
  int row_ = 0, group_ = 0, blocks_ = 0;
  const float* const* queries_ = nullptr;
  Visible visible_;
  std::vector<float> peaks_, floors_;   // [group]: largest scores, lowest scores to keep
  std::vector<double> totals_, used_;   // [group]: sums of weights, estimated and used
  std::vector<float> masses_, shares_;  // [group][blocks], [blocks]
  std::vector<float> errors_;           // of BlockErrors
  std::vector<ErrorUnits> units_;       // [group]
  std::vector<float> bounds_, shifts_;  // [group]: on the distance of their softmax, on outputs
  std::vector<int> buckets_;            // for sorting
  std::vector<int32_t> sorted_;         // all blocks by share
  // [tiles]: rows of heavy blocks, rows that count, those of them that are light, rows that count
  // where a block is light, and all that the token sees
  std::vector<uint64_t> marked_, counted_, kept_, if_light_, seen_;
  int pieces_ = 0, before_ = 0;  // tiles of the first piece before the traversal's first
  std::vector<PieceReads> piece_reads_;
  std::vector<float> results_;  // of each piece: of its rows in chosen blocks, and of the others
  std::vector<Partial> parts_;  // those that have rows
  float missing_ = 0;
  // Of the look at a sample: its blocks, and the keys that are read for it alone; rows that count,
  // light and exact ones; by how much true weights may exceed those used [group][blocks], and what
  // bounds them in all; what is found in each block, and with it what is missing and too much of
  // each head.
  bool looks_ = false;
  BlockSample sample_;
  int64_t sampled_keys_ = 0;
  std::vector<uint64_t> light_, known_;
  std::vector<float> possible_, compared_;
  std::vector<LightBounds::Totals> totals_of_light_;
  std::vector<std::pair<double, double>> found_;
};

// The searches of all tokens of a step in a layer. They keep their buffers.
class TierSearches {
 public:
  void clear();
  int plan(const Traversal& traversal);  // returns the first of its tokens' searches
  void begin(int threads);
  // Chooses for the tokens of a traversal; `first`: what `plan` returned.
  void choose(const TierEstimates& estimates, int first);
  // Called by every thread of the team after its last chunk; returns when no piece is left.
  void work(Scratch& scratch, Team& team, int thread);

 private:
  struct Item {
    TierSearch* search;
    int piece;  // kLook: the look at a sample
  };

  std::deque<TierSearch> searches_;
  int used_ = 0;  // searches of this step
  std::vector<Item> items_;
  WorkQueue queue_;
};

}  // namespace suffice
