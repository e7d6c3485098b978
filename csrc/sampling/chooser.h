// From one row of logits to a token or its distribution.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/select.h"
#include "sampling/state.h"

namespace suffice {

// The buffers of one thread.
class Chooser {
 public:
  // Takes a row of logits, adjusts them and selects the tokens that may be chosen; returns the
  // largest adjusted logit. If it is not finite, there is nothing to choose from. `maxima`: those
  // of the row's blocks before adjustments, or null.
  float read(const float* logits, int count, const SampleState& state, const uint32_t* mask,
             const float* maxima = nullptr);

  // The token that `number` in [0, 1) selects: the first at which the running sum of the weights,
  // in the order of ids, exceeds this part of their sum. Greedy: the most likely, the first of
  // equal ones.
  int32_t draw(double number) const;
  void probabilities(float* probs) const;  // of all tokens

 private:
  void select(const float* logits, int count, const SamplingRules& rules);
  void keep_nucleus(double top_p);
  int32_t id(int place) const { return all_ ? place : ids_[place]; }

  Maxima maxima_;
  std::vector<float> adjusted_, values_;
  std::vector<int32_t> ids_;  // of the weights, ascending; unless they are of all tokens
  std::vector<int32_t> places_;
  std::vector<int64_t> weights_;
  int64_t total_ = 0;
  int count_ = 0;
  bool all_ = false;
};

}  // namespace suffice
