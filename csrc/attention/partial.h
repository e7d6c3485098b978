// Results of parts of a traversal, which run in any order; their merging, and their comparison with
// exact attention.
#pragma once

#include <vector>

#include "attention/attention_parts.h"

namespace suffice {

constexpr float kLog2e = 1.4426950408889634f;

struct Scratch;
struct Traversal;

// Floats of one part's result for `count` query rows.
constexpr size_t partial_floats(int count, int size) {
  return static_cast<size_t>(count) * (size + 4);
}

inline Partial partial_at(float* base, int count, int size) {
  float* const rest = base + static_cast<size_t>(count) * size;
  return {rest, rest + count, base, rest + 2 * count, rest + 3 * count};
}

// The sum of weights of all parts for one query row, and the peak it is relative to.
struct Total {
  float peak, sum;
};
Total total_of(const std::vector<Partial>& parts, int query);

// A logit that takes part in a query row's softmax without a value: row q has that of query head
// q % group.
struct Spare {
  const float* logits = nullptr;  // null: there is none
  int group = 1;

  Total add(Total total, int query) const;
};

// outputs[row] = the softmax's output over all parts, in the order given.
void merge(const std::vector<Partial>& parts, int count, int size, float* const* outputs,
           const Spare& spare = {});

// Compares the output of token `row` with exact attention to all rows that its layer holds.
// `parts`: what the technique read for the token's query rows, with the sums of weights of the
// softmax; empty where weights are coded, since then no share of the softmax is missing. `bound`:
// the missing share that the technique guarantees; NaN if it guarantees none.
void audit(const Traversal& traversal, int row, const std::vector<Partial>& parts, float bound,
           Scratch& scratch);

}  // namespace suffice
