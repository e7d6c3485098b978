// Attention to everything that the tokens see. Keys are cut into chunks that any thread may take.
// The thread that finishes the last chunk merges the results in the order of the chunks.
#pragma once

#include <vector>

#include "attention/partial.h"
#include "attention/traversal.h"

namespace suffice {

class ExactTraversal {
 public:
  // Sets the number of chunks; returns the number of floats that their results take.
  static size_t plan(Traversal& traversal);
  // `results`: memory of that size.
  ExactTraversal(const Traversal& traversal, float* results)
      : traversal_(traversal),
        results_(results),
        count_(static_cast<int>(traversal.queries.size())) {}

  void work(int chunk, Scratch& scratch);
  void finish(Scratch& scratch);

 private:
  void attend(int chunk, int first, int count, Scratch& scratch) const;
  void attend_along_paths(Scratch& scratch) const;
  Partial part(int chunk) const;
  Scores scores() const;
  Spare spare() const { return {traversal_.spare, traversal_.group}; }
  void add_weights(const std::vector<Partial>& parts, int query);

  const Traversal& traversal_;
  float* results_;
  int count_;
};

}  // namespace suffice
