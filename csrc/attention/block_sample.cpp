#include "attention/block_sample.h"

#include <algorithm>
#include <cmath>

#include "runtime/random.h"

namespace suffice {
namespace {

constexpr double kRounding = 1e-9;  // more than that of sums of shares
constexpr double kNearlyOne = 1 - 1e-12;

double sum_of(const std::vector<float>& values) {
  double sums[4] = {};  // chains
  size_t i = 0;
  for (; i + 4 <= values.size(); i += 4)
    for (int chain = 0; chain < 4; chain++) sums[chain] += values[i + chain];
  for (; i < values.size(); i++) sums[0] += values[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

// The divergence of two coins, kl(mean, q), is convex, grows with q above the mean and is at least
// (q - mean)^2 / 2q. So Newton's steps from where that is as large as it may be stay above.
double highest_mean(double mean, int draws, double delta) {
  if (draws == 0 || mean >= 1) return 1;
  const double most = -std::log(delta) / draws;
  const double own = (mean > 0 ? mean * std::log(mean) : 0) + (1 - mean) * std::log1p(-mean);
  double q = std::min(mean + most + std::sqrt(most * (most + 2 * mean)), kNearlyOne);
  while (true) {
    const double beyond = own - mean * std::log(q) - (1 - mean) * std::log1p(-q) - most;
    const double step = beyond * q * (1 - q) / (q - mean);
    if (step <= kRounding * std::min(q, 1 - q)) break;
    q -= step;
  }
  return q < kNearlyOne ? std::min(q * (1 + kRounding), 1.0) : 1;
}

// Takes blocks as long as one has at least the share that a draw stands for.
void BlockSample::take_largest() {
  const size_t all = left_.size();
  sure_.assign(all, 0);
  float* const left = left_.data();
  int32_t* const sure = sure_.data();
  for (int taken = 1; taken > 0; draws_ -= taken) {
    rest_ = sum_of(left_);
    if (draws_ == 0 || rest_ <= 0) return;
    const auto unit = static_cast<float>(rest_ / draws_ * (1 - kRounding));
    taken = 0;
    for (size_t i = 0; i < all; i++) {
      const int32_t takes = left[i] >= unit ? 1 : 0;
      sure[i] |= takes;
      taken += takes;
      left[i] = takes ? 0.0f : left[i];
    }
  }
}

void BlockSample::draw(const std::vector<float>& shares, int most, uint64_t seed) {
  draws_ = most;
  left_ = shares;
  take_largest();
  blocks_.clear();
  shares_.clear();
  weights_.clear();
  int drawn = 0;
  const auto target = [&] {
    const double at = (drawn + uniform(seed + drawn)) / draws_;
    return drawn < draws_ ? rest_ * std::min(at, 1 - kRounding) : INFINITY;
  };
  double reached = 0, next = target();
  for (size_t i = 0; i < shares.size(); i++) {
    int times = 0;
    reached += left_[i];
    for (; next < reached; next = target()) {
      times++;
      drawn++;
    }
    if (times == 0 && !sure_[i]) continue;
    blocks_.push_back(static_cast<int32_t>(i));
    shares_.push_back(shares[i]);
    weights_.push_back(times / static_cast<double>(shares[i]));
  }
}

double BlockSample::bound(const float* found, double unit, double delta) const {
  double sure = 0, drawn = 0;
  for (size_t i = 0; i < blocks_.size(); i++) {
    const double addend = std::min(found[i] / unit, shares_[i]);
    sure += weights_[i] == 0 ? addend : 0;
    drawn += weights_[i] * addend;
  }
  if (certain()) return sure;
  const double mean = draws_ > 0 ? std::min(drawn / draws_, 1.0) : 1.0;
  return sure + rest_ * highest_mean(mean, draws_, delta);
}

}  // namespace suffice
