#pragma once

#include <cstdint>
#include <vector>

#include "sampling/select.h"

namespace suffice {

// Log probabilities in the distribution of a row of logits, which hold no NaN.
class Logprobs {
 public:
  // Whether they can be had: no logit is NaN, and the largest is finite.
  bool read(const float* logits, int count);

  double of(int32_t token) const { return logits_[token] - log_sum_; }
  int rank(int32_t token) const;  // 1 = most likely
  // The `most` most likely tokens, in this order; of equal ones the lowest first.
  const std::vector<int32_t>& top(int most);

 private:
  const float* logits_ = nullptr;
  int count_ = 0;
  double log_sum_ = 0;  // of the exponentials of all logits
  Maxima maxima_;
  std::vector<int64_t> weights_;
  std::vector<int32_t> ids_;
};

}  // namespace suffice
