// Attention whose softmax is a table (EXAQ): a code of a few bits says what a key weighs.
//
// How it works. All scores come first, because codes are relative to the largest one:
//
//   work(chunk)   scores of a chunk's keys for all query rows, and the chunk's peak  (any thread)
//   finish        for each token: the peak of all chunks, then every score becomes a code; the sum
//                 of weights is a count of codes, and values are read of keys above the lowest code
//
// Most keys have the lowest code. If they weigh something, the sum of all values that a token sees,
// which is kept from token to token, stands for them, times that weight:
//
//   output = (lowest * sum of v + sum over few keys of (weight - lowest) v) / sum of weights
//
// Where boxes choose the blocks of each token (quest), there is nothing to share between tokens:
// one chunk, and `finish` scores each token's blocks itself.
#pragma once

#include "attention/partial.h"
#include "attention/traversal.h"

namespace suffice {

class CodedTraversal {
 public:
  // Sets how many chunks there are; returns the floats that their scores take.
  static size_t plan(Traversal& traversal);
  // `results`: where they lie.
  CodedTraversal(const Traversal& traversal, float* results);

  void work(int chunk, Scratch& scratch);
  void finish(Scratch& scratch);

 private:
  void finish_row(int row, Scratch& scratch);
  void finish_chosen(int row, Scratch& scratch);
  ValueReads sum_values(int row);
  Partial token_state(Scratch& scratch) const;
  ValueReads weigh_tiles(int row, const CodedTiles& tiles, const Partial& state, Scratch& scratch);

  const Traversal& traversal_;
  const std::vector<SoftmaxTable>& tables_;
  int count_;
  float* tiles_;  // scores of all chunks, tile by tile
  float* peaks_;  // [chunks][query rows]
};

}  // namespace suffice
