#include "sampling/state.h"

#include <algorithm>

namespace suffice {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void apply(const uint32_t* mask, int count, float* to) {
  for (int first = 0; first < count; first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~uint32_t{0}) continue;
    const int size = std::min(32, count - first);
    for (int i = 0; i < size; i++)
      if (!(word >> i & 1)) to[first + i] = kNever;
  }
}

bool ends_with(const std::vector<int32_t>& output, const std::vector<int32_t>& word) {
  const size_t before = word.size() - 1;
  return output.size() >= before && std::equal(word.begin(), word.end() - 1, output.end() - before);
}

}  // namespace

SampleState::SampleState(std::shared_ptr<const SamplingRules> rules,
                         const std::vector<int32_t>& prompt)
    : rules_(std::move(rules)) {
  for (const int32_t token : rules_->allowed) id_limit_ = std::max(id_limit_, token + 1);
  for (const auto& [token, bias] : rules_->bias) id_limit_ = std::max(id_limit_, token + 1);
  if (!rules_->penalized()) return;
  std::vector<int32_t> tokens = prompt;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const int32_t token : tokens) seen_.push_back({token, 0});
  if (!tokens.empty()) id_limit_ = std::max(id_limit_, tokens.back() + 1);
}

void SampleState::append(int32_t token) {
  output_.push_back(token);
  if (!rules_->penalized()) return;
  const auto at = std::lower_bound(seen_.begin(), seen_.end(), token,
                                   [](const Seen& each, int32_t id) { return each.token < id; });
  if (at != seen_.end() && at->token == token)
    at->generated++;
  else
    seen_.insert(at, {token, 1});
  id_limit_ = std::max(id_limit_, token + 1);
}

bool SampleState::adjusts() const {
  return rules_->penalized() || !rules_->bias.empty() || !rules_->allowed.empty() ||
         !rules_->bad_words.empty() || output_.size() < static_cast<size_t>(rules_->min_tokens);
}

void SampleState::adjust(const float* logits, int count, const uint32_t* mask, float* to) const {
  if (rules_->allowed.empty()) {
    std::copy(logits, logits + count, to);
  } else {
    std::fill(to, to + count, kNever);
    for (const int32_t token : rules_->allowed) to[token] = logits[token];
  }
  ban(to, count);
  if (mask) apply(mask, count, to);
  for (const auto& [token, bias] : rules_->bias) to[token] += bias;
  penalize(to);
}

// A banned token beyond the vocabulary cannot come anyway.
void SampleState::ban(float* to, int count) const {
  for (const auto& word : rules_->bad_words)
    if (word.back() < count && ends_with(output_, word)) to[word.back()] = kNever;
  if (output_.size() < static_cast<size_t>(rules_->min_tokens))
    for (const int32_t token : rules_->stop_ids)
      if (token < count) to[token] = kNever;
}

void SampleState::penalize(float* to) const {
  const SamplingRules& rules = *rules_;
  for (const auto& [token, generated] : seen_) {
    const float logit = to[token] > 0 ? to[token] / rules.repetition : to[token] * rules.repetition;
    const float presence = generated > 0 ? rules.presence : 0.0f;
    to[token] = (logit - rules.frequency * static_cast<float>(generated)) - presence;
  }
}

}  // namespace suffice
