// Attention with a softmax table (EXAQ): the weight of a key follows from a code of a few bits.
//
// How it works. All scores come first, because codes are relative to the largest one:
//
//   work(chunk)   scores of a chunk's keys for all query rows, and the chunk's peak  (any thread)
//   finish        for each token: takes the peak of all chunks and turns scores into codes; the sum
//                 of weights follows from counts of codes; reads values of keys above code 0
//
// Most keys have the lowest code. Where its weight is not zero, their values are not read one by
// one: the sum of all values that a token sees is kept from token to token, and replaces them:
//
//   output = (lowest * sum of v + sum over few keys of (weight - lowest) v) / sum of weights
//
// Where boxes select each token's blocks (quest), tokens share no work: there is one chunk, and
// `finish` scores each token's blocks itself.
#pragma once

#include "attention/partial.h"
#include "attention/traversal.h"

namespace suffice {

class CodedTraversal {
 public:
  // Sets the number of chunks; returns the number of floats that their scores take.
  static size_t plan(Traversal& traversal);
  // `results`: memory of that size.
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
