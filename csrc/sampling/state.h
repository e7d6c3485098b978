// What decides about the next token besides the logits.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace suffice {

// A request's sampling parameters; suffice.sampling_params says what they mean.
struct SamplingRules {
  bool greedy = false;
  float temperature = 1;
  int top_k = 0;  // 0: all
  double top_p = 1;
  float log_min_p = -std::numeric_limits<float>::infinity();
  float repetition = 1, frequency = 0, presence = 0;
  int min_tokens = 0;
  std::vector<int32_t> stop_ids;
  std::vector<std::vector<int32_t>> bad_words;
  std::vector<int32_t> allowed;  // empty: all
  std::vector<std::pair<int32_t, float>> bias;

  bool penalized() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

// The state of one sample. Token ids are not negative; the caller checks them.
class SampleState {
 public:
  SampleState(std::shared_ptr<const SamplingRules> rules, const std::vector<int32_t>& prompt);

  void append(int32_t token);

  const SamplingRules& rules() const { return *rules_; }
  bool adjusts() const;
  // Ids that index the logits lie below this.
  int32_t id_limit() const { return id_limit_; }
  // Writes the logits after masks, bias and penalties. `mask`: a bit for each token, 1 = allowed,
  // the first in the lowest bit; or null.
  void adjust(const float* logits, int count, const uint32_t* mask, float* to) const;

 private:
  struct Seen {
    int32_t token, generated;
  };

  void ban(float* to, int count) const;
  void penalize(float* to) const;

  std::shared_ptr<const SamplingRules> rules_;
  std::vector<int32_t> output_;
  std::vector<Seen> seen_;  // tokens of prompt and output, ascending; empty without penalties
  int32_t id_limit_ = 0;
};

}  // namespace suffice
