// All rows of a step at once, spread over the threads. A row's result depends on that row only.
#pragma once

#include <cstdint>

#include "sampling/passes.h"
#include "sampling/state.h"

namespace suffice {

struct LogitRows {
  const float* data;
  int64_t stride;  // from one row to the next; 0: all are the same
  int rows, vocabulary;
  const float* maxima = nullptr;  // [rows][blocks]: those of each block of each row; or null

  const float* row(int i) const { return data + i * stride; }
  const float* row_maxima(int i) const {
    return maxima ? maxima + static_cast<int64_t>(i) * logit_blocks(vocabulary) : nullptr;
  }
};

// A bit for each token of each row, 1 = allowed, or null.
struct MaskRows {
  const uint32_t* data = nullptr;
  int64_t words = 0;

  const uint32_t* row(int i) const { return data ? data + i * words : nullptr; }
};

// `largest` gets each row's largest logit after the adjustments; if it is not finite, the row has
// no token and no probabilities.
void sample_rows(const LogitRows& logits, const SampleState* const* states, const MaskRows& masks,
                 const double* numbers, int32_t* tokens, float* largest);
void probability_rows(const LogitRows& logits, const SampleState* const* states,
                      const MaskRows& masks, float* probs, float* largest);

// The log probability and rank of tokens[i] after logits[i], and those of the counts[i] most likely
// tokens there: the first entries of ids[i] and values[i], of `most` entries each. Logits with a
// NaN, or whose largest is infinite, give rank 0.
struct TopLogprobs {
  int rows, vocabulary, most;
  const float* const* logits;
  const int32_t *tokens, *counts;
  double* chosen;
  int32_t *ranks, *ids;
  double* values;
};
void top_logprobs(const TopLogprobs& wanted);

}  // namespace suffice
