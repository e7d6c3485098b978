#include "sampling/logprobs.h"

#include <cmath>

namespace suffice {
namespace {

// The natural logarithm of a normal number, within 2 units in the last place. The C library's
// differ in the last bits.
double log_of(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);  // [0.5, 1)
  if (m < 0.70710678118654752) {
    m *= 2;
    exponent--;
  }
  const double s = (m - 1) / (m + 1), square = s * s;  // log m = 2 artanh s, |s| < 0.172
  double sum = 0;
  for (int odd = 21; odd >= 3; odd -= 2) sum = (sum + 1.0 / odd) * square;
  constexpr double kLog2 = 0x1.62e42fefa39efp-1;
  return exponent * kLog2 + 2 * (s + s * sum);
}

}  // namespace

bool Logprobs::read(const float* logits, int count) {
  logits_ = logits;
  count_ = count;
  maxima_.scan(logits, count);
  if (!std::isfinite(maxima_.largest())) return false;
  weights_.resize(count);
  const int64_t sum = passes().weigh(logits, count, maxima_.largest(), 1.0f, weights_.data());
  log_sum_ = maxima_.largest() + log_of(std::ldexp(static_cast<double>(sum), -kWeightBits));
  return true;
}

int Logprobs::rank(int32_t token) const {
  int rank = 1;
  maxima_.each([&](float value) { return value > logits_[token]; }, [&](int) { rank++; });
  return rank;
}

const std::vector<int32_t>& Logprobs::top(int most) {
  ids_.clear();
  if (most > 0) maxima_.select(most, ids_);
  std::stable_sort(ids_.begin(), ids_.end(),
                   [&](int32_t a, int32_t b) { return logits_[a] > logits_[b]; });
  return ids_;
}

}  // namespace suffice
