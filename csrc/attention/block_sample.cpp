#include "attention/block_sample.h"

#include <algorithm>
#include <cmath>

#include "runtime/random.h"

namespace suffice {
namespace {

constexpr int kHalvings = 24;
constexpr double kRounding = 1e-9;  // more than that of sums of shares

}  // namespace

double highest_mean(double mean, int draws, double delta) {
  if (draws == 0) return 1;
  const double most = -std::log(delta) / draws;
  const double own =
      (mean > 0 ? mean * std::log(mean) : 0) + (mean < 1 ? (1 - mean) * std::log1p(-mean) : 0);
  double low = mean, high = 1;
  for (int i = 0; i < kHalvings; i++) {
    const double middle = (low + high) / 2;
    const double divergence = own - mean * std::log(middle) - (1 - mean) * std::log1p(-middle);
    (divergence <= most ? low : high) = middle;
  }
  return high;
}

// Takes blocks as long as one has at least the share that a draw stands for.
void BlockSample::take_largest(const std::vector<double>& shares) {
  sure_.assign(shares.size(), 0);
  for (bool found = true; found;) {
    rest_ = 0;
    for (size_t i = 0; i < shares.size(); i++) rest_ += sure_[i] ? 0 : shares[i];
    found = false;
    const double unit = draws_ > 0 ? rest_ / draws_ * (1 - kRounding) : INFINITY;
    for (size_t i = 0; i < shares.size() && draws_ > 0; i++) {
      if (sure_[i] || shares[i] <= 0 || shares[i] < unit) continue;
      sure_[i] = found = true;
      draws_--;
    }
  }
}

void BlockSample::draw(const std::vector<double>& shares, int most, uint64_t seed) {
  draws_ = most;
  take_largest(shares);
  blocks_.clear();
  shares_.clear();
  times_.clear();
  int drawn = 0;
  const auto target = [&] {
    const double at = (drawn + uniform(seed + drawn)) / draws_;
    return rest_ * std::min(at, 1 - kRounding);
  };
  double reached = 0;
  for (size_t i = 0; i < shares.size(); i++) {
    int times = 0;
    if (!sure_[i]) {
      reached += shares[i];
      for (; drawn < draws_ && target() < reached; drawn++) times++;
      if (times == 0) continue;
    }
    blocks_.push_back(static_cast<int32_t>(i));
    shares_.push_back(shares[i]);
    times_.push_back(times);
  }
}

double BlockSample::bound(const float* found, double unit, double delta) const {
  double sure = 0, drawn = 0;
  for (size_t i = 0; i < blocks_.size(); i++) {
    const double addend = std::min(found[i] / unit, shares_[i]);
    if (times_[i] == 0)
      sure += addend;
    else
      drawn += times_[i] * (addend / shares_[i]);
  }
  if (certain()) return sure;
  const double mean = draws_ > 0 ? std::min(drawn / draws_, 1.0) : 1.0;
  return sure + rest_ * highest_mean(mean, draws_, delta);
}

}  // namespace suffice
