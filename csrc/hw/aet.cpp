#include <algorithm>
#include <cmath>

#include "scrooge.h"

namespace suffice::hw {

// New tokens are local. A token that leaves the locals replaces the global token of least mass
// (lines 18 to 20).
void Aet::admit(int length) {
  for (; next_ < length; next_++)
    if (next_ >= rule_.sinks) locals_.push_back({next_, 0.0});
  while (!locals_.empty() && locals_.front().row + 1 <= length - rule_.locals) {
    const Token oldest = locals_.front();
    locals_.erase(locals_.begin());
    if (rule_.globals == 0) continue;
    if (static_cast<int>(globals_.size()) == rule_.globals) {
      const auto lighter = [](const Token& a, const Token& b) {
        return a.mass < b.mass || (a.mass == b.mass && a.row < b.row);
      };
      globals_.erase(std::min_element(globals_.begin(), globals_.end(), lighter));
    }
    globals_.push_back(oldest);
  }
}

// Lines 1 to 5. Weights are relative to the largest logit of the important tokens.
void Aet::start(const float* logits, int length, const Decision& out) {
  state_.assign(heads_, {});
  for (int h = 0; h < heads_; h++) {
    const float* own = logits + static_cast<int64_t>(h) * length;
    Head& head = state_[h];
    head.offset = own[out.keys[0]];
    for (const int32_t row : out.keys) head.offset = std::max<double>(head.offset, own[row]);
    for (const int32_t row : out.keys) head.known += std::exp(own[row] - head.offset);
    head.greatest = 1.0;
    head.stopped = false;
  }
}

// Lines 7 to 10 for the next `wave` tokens.
void Aet::read_wave(const float* logits, int length, Decision* out) {
  const size_t first = out->keys.size() - rule_.wave;
  for (size_t i = first; i < out->keys.size(); i++) {
    const int32_t row = out->keys[i];
    bool wanted = false;
    for (int h = 0; h < heads_; h++) {
      Head& head = state_[h];
      if (head.stopped) continue;
      const double weight = std::exp(logits[static_cast<int64_t>(h) * length + row] - head.offset);
      head.known += weight;
      if (rule_.running_max) head.greatest = std::max(head.greatest, weight);
      wanted |= weight >= head.greatest * rule_.value_share;
    }
    if (wanted) out->values.push_back(row);
  }
}

// Lines 11 to 14, multiplied out to avoid a division.
bool Aet::enough(int length, int known) {
  int stopped = 0;
  for (Head& head : state_) {
    const double unknown = (head.known - head.greatest) * (length - known);
    const double seen = head.known * (known - 1);
    const bool now = rule_.key_share * (seen + unknown) <= seen;
    if (rule_.group_stop == kMasked) head.stopped |= now;
    stopped += rule_.group_stop == kMasked ? head.stopped : now;
  }
  return rule_.group_stop == kAny ? stopped > 0 : stopped == heads_;
}

void Aet::learn(const float* logits, int length) {
  for (std::vector<Token>* tokens : {&globals_, &locals_})
    for (Token& token : *tokens)
      for (int h = 0; h < heads_; h++) {
        const double logit = logits[static_cast<int64_t>(h) * length + token.row];
        const Head& head = state_[h];
        token.mass +=
            rule_.raw_masses ? std::exp(logit) : std::exp(logit - head.offset) / head.known;
      }
}

void Aet::decide(const float* logits, int length, Decision* out) {
  admit(length);
  out->keys.clear();
  out->waves = 0;
  std::vector<bool> known(length, false);
  for (int row = 0; row < std::min(rule_.sinks, length); row++) out->keys.push_back(row);
  for (const Token& token : globals_) out->keys.push_back(token.row);
  for (const Token& token : locals_) out->keys.push_back(token.row);
  for (const int32_t row : out->keys) known[row] = true;
  out->important = static_cast<int>(out->keys.size());
  start(logits, length, *out);
  out->values.clear();
  for (const int32_t row : out->keys) {
    bool wanted = !rule_.filter_important;
    for (int h = 0; h < heads_ && !wanted; h++) {
      const double logit = logits[static_cast<int64_t>(h) * length + row];
      wanted = std::exp(logit - state_[h].offset) >= rule_.value_share;
    }
    if (wanted) out->values.push_back(row);
  }
  AetRule whole = rule_;
  for (int row = length - 1; row >= 0;) {
    int taken = 0;
    for (; row >= 0 && taken < whole.wave; row--)
      if (!known[row]) out->keys.push_back(row), taken++;
    if (taken == 0) break;
    rule_.wave = taken;  // the last wave may be short
    read_wave(logits, length, out);
    out->waves++;
    if (enough(length, static_cast<int>(out->keys.size()))) break;
  }
  rule_.wave = whole.wave;
  learn(logits, length);
}

namespace {

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Nearly normal: a sum of four uniform 16-bit numbers (variance 1/3), at most 3.5 deviations.
double normal(uint64_t key) {
  const uint64_t bits = mixed(key);
  double sum = 0;
  for (int i = 0; i < 4; i++) sum += static_cast<double>((bits >> (16 * i)) & 0xFFFF);
  return (sum / 65535.0 - 2.0) * 1.7320508075688772;
}

}  // namespace

void make_logits(const Synthetic& source, int head, int length, float* logits) {
  const uint64_t own = mixed(source.seed * 0x10001 + head);
  const uint64_t step = mixed(own + length);
  for (int row = 0; row < length; row++) {
    const double lasting = source.spread * normal(own ^ (0x5851F42Dull << 32 | row));
    const double passing = source.noise * normal(step ^ (0x14057B7Eull << 32 | row));
    const double recent = source.recency * std::exp((row + 1 - length) / source.reach);
    logits[row] = static_cast<float>(lasting + passing + recent);
  }
  logits[0] = static_cast<float>(source.sink);
}

}  // namespace suffice::hw
