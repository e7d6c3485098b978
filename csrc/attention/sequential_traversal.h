// Attention block after block: for boxes and techniques that may stop. One thread takes all tokens
// in order, because what a token reads may depend on what earlier ones found. Before, any threads
// estimate blocks from sketches, if these order them.
//
// Order of a token's blocks: sinks of the policy; with `aet` the sink, global and local blocks,
// which are always read; then the others until a check stops the traversal: newest first, by
// sketches, by a policy's ranking, or as boxes select them. `aet` may go by rows instead of blocks;
// `skip_softmax` takes all blocks oldest first.
#pragma once

#include "attention/partial.h"
#include "attention/scores_ahead.h"
#include "attention/traversal.h"

namespace suffice {

class SequentialTraversal {
 public:
  // Sets the chunks; returns the number of floats that the results take.
  static size_t plan(Traversal& traversal);
  // `results`: memory of that size. Through `ahead`, other threads help.
  SequentialTraversal(const Traversal& traversal, float* results, ScoresAhead& ahead);

  void work(int chunk, Scratch&) const;  // estimates some blocks of a token
  void finish(Scratch& scratch);         // attends

 private:
  float* estimates() const;
  SketchMasses masses_of(int row) const;
  void attend_row(int row, Scratch& scratch);
  int list(int row, size_t& metadata, Scratch& scratch);
  int list_always(int row, int begin, int end, std::vector<int32_t>& to);
  void list_rows(const Visible& visible, int length, Scratch& scratch);
  size_t list_others(int row, int begin, int end, Scratch& scratch);
  void list_rest(int begin, int end, const std::vector<int32_t>& ranked, Scratch& scratch);
  bool ranks() const;
  const std::vector<int32_t>& ranked_blocks() const;
  void finish_row(int row, const Partial& state, int always, Scratch& scratch);

  const Traversal& traversal_;
  ScoresAhead& ahead_;
  const AttentionRule& rule_;
  const Aet* const aet_;  // null: no state to update
  const bool by_rows_;    // the order lists rows
  Partial results_;       // of all tokens
};

}  // namespace suffice
