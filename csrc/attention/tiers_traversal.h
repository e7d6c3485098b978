// Attention in three tiers (`tiers`), to keys and values in planes.
//
// How it works. All scores come first, estimated from the base planes of the keys:
//
//   work(chunk)   estimated scores of a chunk's keys for all query rows, and the chunk's peak
//   finish        for each token: chooses the heaviest blocks until at most the share `estimated`
//                 of every head's sum of weights is left, and the rows that are not skipped;
//                 attends to those in chosen blocks by both planes, to the others by their
//                 estimated scores and the base planes of their values
//
// With bounds, every row of a chosen block is read. Let W be the sum of the weights that count, M
// by how much the true ones may exceed them, and L by how much they may fall short. The softmax is
// then at a total variation distance of at most M / (W + M - L), which is what must not exceed
// `estimated`. Blocks are chosen by estimates of W; if the W that is found is too small, more are.
//
// Chunks run in any order and on any thread.
#pragma once

#include "attention/partial.h"
#include "attention/traversal.h"

namespace suffice {

class TiersTraversal {
 public:
  // Sets the number of chunks; returns the number of floats that their scores take.
  static size_t plan(Traversal& traversal);
  // `results`: memory of that size.
  TiersTraversal(const Traversal& traversal, float* results);

  void work(int chunk, Scratch& scratch);
  void finish(Scratch& scratch);

 private:
  void finish_row(int row, Scratch& scratch);
  void weigh_blocks(const CodedTiles& tiles, TierChoice& choice) const;
  void bound_errors(const float* const* queries, const CodedTiles& tiles, TierChoice& choice) const;
  BlockErrors errors_of(const CodedTiles& tiles, TierChoice& choice) const;
  void choose_blocks(const CodedTiles& tiles, double most, TierChoice& choice) const;
  int64_t keep_rows(const CodedTiles& tiles, TierChoice& choice) const;
  int64_t list_heavy(const Visible& visible, const CodedTiles& tiles, TierChoice& choice) const;
  Reads attend_row(int row, const CodedTiles& tiles, Scratch& scratch) const;
  float distance(const CodedTiles& tiles, Scratch& scratch) const;
  void audit_row(int row, const CodedTiles& tiles, Scratch& scratch) const;

  const Traversal& traversal_;
  const Tiers& rule_;
  const KVHead base_;  // the head by its base planes
  int count_;
  float* tiles_;  // scores of all chunks, tile by tile
  float* peaks_;  // [chunks][query rows]
};

}  // namespace suffice
