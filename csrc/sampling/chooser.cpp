#include "sampling/chooser.h"

#include <cmath>

namespace suffice {

float Chooser::read(const float* logits, int count, const SampleState& state, const uint32_t* mask,
                    const float* maxima) {
  count_ = count;
  if (mask || state.adjusts()) {
    adjusted_.resize(count);
    state.adjust(logits, count, mask, adjusted_.data());
    logits = adjusted_.data();
    maxima = nullptr;
  }
  maxima_.scan(logits, count, maxima);
  if (std::isfinite(maxima_.largest())) select(logits, count, state.rules());
  return maxima_.largest();
}

void Chooser::select(const float* logits, int count, const SamplingRules& rules) {
  if (rules.greedy) {
    all_ = false;
    ids_.assign(1, maxima_.first_largest());
    weights_.assign(1, 1);
    total_ = 1;
    return;
  }
  const float top = maxima_.largest();
  // Temperature keeps the order of the logits, so top-k may come before it.
  const auto likely = [&](float value) {
    return (value - top) / rules.temperature >= rules.log_min_p;
  };
  const bool most = rules.top_k > 0 && rules.top_k < count;
  const bool least = rules.log_min_p > -std::numeric_limits<float>::infinity();
  all_ = !most && !least;
  if (most) {
    maxima_.select(rules.top_k, ids_);
    std::erase_if(ids_, [&](int32_t id) { return !likely(logits[id]); });
  } else if (least) {
    ids_.clear();
    maxima_.each(likely, [&](int i) { ids_.push_back(i); });
  }
  const int kept = all_ ? count : static_cast<int>(ids_.size());
  if (!all_) {
    values_.resize(kept);
    for (int i = 0; i < kept; i++) values_[i] = logits[ids_[i]];
    logits = values_.data();
  }
  weights_.resize(kept);
  total_ = passes().weigh(logits, kept, top, rules.temperature, weights_.data());
  if (rules.top_p < 1) keep_nucleus(rules.top_p);
}

void Chooser::keep_nucleus(double top_p) {
  nucleus(weights_, total_, top_p, places_);
  total_ = 0;
  ids_.resize(std::max(ids_.size(), places_.size()));
  for (size_t i = 0; i < places_.size(); i++) {  // places ascend: what is read is not yet written
    weights_[i] = weights_[places_[i]];
    ids_[i] = id(places_[i]);
    total_ += weights_[i];
  }
  weights_.resize(places_.size());
  all_ = false;
}

int32_t Chooser::draw(double number) const {
  // `number` has 53 bits, so that its part of the sum can be had without rounding.
  const auto bits = static_cast<uint64_t>(number * 0x1p53);
  const auto part = static_cast<int64_t>(
      static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(total_) >> 53);
  int place = 0;
  for (int64_t sum = weights_[0]; sum <= part; sum += weights_[place]) place++;
  return id(place);
}

void Chooser::probabilities(float* probs) const {
  if (!all_) std::fill(probs, probs + count_, 0.0f);
  const auto total = static_cast<double>(total_);
  for (size_t i = 0; i < weights_.size(); i++)
    probs[id(static_cast<int>(i))] = static_cast<float>(static_cast<double>(weights_[i]) / total);
}

}  // namespace suffice
