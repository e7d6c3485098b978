// Attention block after block, as `aet` and `art` do it, and by boxes: one token after the other,
// since what a token reads may depend on what those before it found. One thread does it all.
//
// The blocks of a token come in this order: sinks of the policy; of `aet` the sink, global and
// local blocks, which are always read; then the others, newest first, by sketches, by a policy's
// ranking or as boxes choose them, until a check says that it is enough.
#pragma once

#include "attention/partial.h"
#include "attention/traversal.h"

namespace suffice {

class SequentialTraversal {
 public:
  // Sets that there is one chunk; returns the floats that the results take.
  static size_t plan(Traversal& traversal);
  // `results`: where they lie.
  SequentialTraversal(const Traversal& traversal, float* results);

  void work(Scratch& scratch);

 private:
  void attend_row(int row, Scratch& scratch);
  int list_always(int row, int begin, int end, Scratch& scratch);
  size_t list_others(int row, int begin, int end, Scratch& scratch);
  void list_rest(int begin, int end, const std::vector<int32_t>& ranked, Scratch& scratch);
  bool ranks() const;
  const std::vector<int32_t>& ranked_blocks() const;
  void finish_row(int row, const Partial& state, int always, Scratch& scratch);

  const Traversal& traversal_;
  const AttentionRule& rule_;
  const Aet* const aet_;  // null: nothing is learned
  Partial results_;       // of all tokens
};

}  // namespace suffice
