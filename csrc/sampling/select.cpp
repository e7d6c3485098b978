#include "sampling/select.h"

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace suffice {

void Maxima::scan(const float* values, int count) {
  values_ = values;
  count_ = count;
  maxima_.resize(logit_blocks(count));
  const bool unordered = passes().block_maxima(values, count, maxima_.data());
  largest_ = unordered ? std::numeric_limits<float>::quiet_NaN()
                       : *std::max_element(maxima_.begin(), maxima_.end());
}

int Maxima::first_largest() const {
  const auto block = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
  const float* from = values_ + block * kLogitBlock;
  return static_cast<int>(std::find(from, values_ + count_, largest_) - values_);
}

void Maxima::select(int most, std::vector<int32_t>& indices) {
  // As many blocks hold a value of at least the most-th largest maximum: few other values do.
  float bound = -std::numeric_limits<float>::infinity();
  if (most <= static_cast<int>(maxima_.size())) {
    candidates_ = maxima_;
    std::nth_element(candidates_.begin(), candidates_.begin() + most - 1, candidates_.end(),
                     std::greater<>());
    bound = candidates_[most - 1];
  }
  const auto reaches = [&](float value) { return value >= bound; };
  candidates_.clear();
  each(reaches, [&](int i) { candidates_.push_back(values_[i]); });
  const auto last = candidates_.begin() + most - 1;
  std::nth_element(candidates_.begin(), last, candidates_.end(), std::greater<>());
  bound = *last;
  auto ties = std::count(candidates_.begin(), last + 1, bound);
  indices.clear();
  each(reaches, [&](int i) {
    if (values_[i] > bound || ties-- > 0) indices.push_back(i);
  });
}

namespace {

// Bins of weights of about the same size, 32 an octave, in ascending order.
constexpr int kBinBits = 5;
constexpr int kBins = (kWeightBits + 2) << kBinBits;

inline int bin_of(int64_t weight) {
  const int octave = std::bit_width(static_cast<uint64_t>(weight));
  if (octave == 0) return 0;
  const uint64_t mantissa = static_cast<uint64_t>(weight) << (64 - octave) << 1;
  return octave << kBinBits | static_cast<int>(mantissa >> (64 - kBinBits));
}

}  // namespace

int64_t keep_nucleus(int64_t* weights, int count, int64_t total, double top_p) {
  const auto wanted = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(total)));
  std::array<int64_t, kBins> sums{};
  for (int i = 0; i < count; i++) sums[bin_of(weights[i])] += weights[i];
  int bin = kBins - 1;
  int64_t kept = 0;
  for (; bin > 0 && kept + sums[bin] < wanted; bin--) kept += sums[bin];

  std::vector<std::pair<int64_t, int>> last;  // of the bin that reaches what is wanted
  for (int i = 0; i < count; i++) {
    const int own = bin_of(weights[i]);
    if (own > bin) continue;
    if (own == bin) last.emplace_back(-weights[i], i);
    weights[i] = 0;
  }
  std::sort(last.begin(), last.end());
  for (const auto& [negative, i] : last) {
    if (kept >= wanted) break;
    weights[i] = -negative;
    kept -= negative;
  }
  return kept;
}

}  // namespace suffice
