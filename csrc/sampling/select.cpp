#include "sampling/select.h"

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace suffice {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

}  // namespace

void Maxima::scan(const float* values, int count, const float* known) {
  values_ = values;
  count_ = count;
  maxima_.resize(logit_blocks(count));
  bool unordered = false;
  if (known) {
    std::copy(known, known + maxima_.size(), maxima_.begin());
    for (const float each : maxima_) unordered |= each != each;
  } else {
    unordered = passes().block_maxima(values, count, maxima_.data());
  }
  largest_ = unordered ? std::numeric_limits<float>::quiet_NaN()
                       : *std::max_element(maxima_.begin(), maxima_.end());
}

int Maxima::first_largest() const {
  const auto block = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
  const float* from = values_ + block * kLogitBlock;
  return static_cast<int>(std::find(from, values_ + count_, largest_) - values_);
}

namespace {

// Bins of values in ascending order, 8 an octave. Bits of floats ascend as their sizes do.
constexpr int kValueBins = 4096, kValueShift = 20;

inline uint32_t flipped(uint32_t bits) { return bits >> 31 ? ~bits : bits | 0x80000000u; }

inline int bin_of(float value) {
  return static_cast<int>(flipped(std::bit_cast<uint32_t>(value)) >> kValueShift);
}

inline float lower_end(int bin) {
  const uint32_t bits = static_cast<uint32_t>(bin) << kValueShift;
  const float value = std::bit_cast<float>(bits >> 31 ? bits ^ 0x80000000u : ~bits);
  return value > kLeast ? value : kLeast;  // the bin of -infinity begins among the NaN
}

// The lower end of the bin that holds the `most`-th largest value.
float bound_by_bins(const float* values, int count, int most) {
  std::array<int32_t, kValueBins> sizes{};
  for (int i = 0; i < count; i++) sizes[bin_of(values[i])]++;
  int bin = kValueBins - 1;
  for (int above = sizes[bin]; above < most; above += sizes[bin]) bin--;
  return lower_end(bin);
}

}  // namespace

void Maxima::select(int most, std::vector<int32_t>& indices) {
  // First a bound that not many more values reach. The most-th largest maximum is one: as many
  // blocks hold such a value.
  float bound;
  if (most <= static_cast<int>(maxima_.size())) {
    candidates_ = maxima_;
    std::nth_element(candidates_.begin(), candidates_.begin() + most - 1, candidates_.end(),
                     std::greater<>());
    bound = candidates_[most - 1];
  } else {
    bound = bound_by_bins(values_, count_, most);
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

// Bins of weights in ascending order, 32 an octave.
constexpr int kBinBits = 5;
constexpr int kWeightBins = (kWeightBits + 2) << kBinBits;

inline int bin_of(int64_t weight) {  // above 0
  const int octave = std::bit_width(static_cast<uint64_t>(weight));
  const uint64_t mantissa = static_cast<uint64_t>(weight) << (64 - octave) << 1;
  return octave << kBinBits | static_cast<int>(mantissa >> (64 - kBinBits));
}

// The last place of the nucleus in the order of falling weights, and of places for equal ones.
struct Cut {
  int64_t weight = 0;
  int32_t place = -1;
};

Cut nucleus_cut(const std::vector<int64_t>& weights, const std::vector<int32_t>& places,
                int64_t wanted) {
  std::array<int64_t, kWeightBins> sums{};
  for (const int32_t place : places) sums[bin_of(weights[place])] += weights[place];
  int bin = kWeightBins - 1;
  int64_t kept = 0;
  for (; bin > 0 && kept + sums[bin] < wanted; bin--) kept += sums[bin];

  std::vector<std::pair<int64_t, int32_t>> last;  // of the bin that reaches what is wanted
  for (const int32_t place : places)
    if (bin_of(weights[place]) == bin) last.emplace_back(-weights[place], place);
  std::sort(last.begin(), last.end());
  for (const auto& [negative, place] : last)
    if ((kept -= negative) >= wanted) return {-negative, place};
  return {};  // rounding: all are wanted
}

}  // namespace

void nucleus(const std::vector<int64_t>& weights, int64_t total, double top_p,
             std::vector<int32_t>& places) {
  const auto share = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(total)));
  const int64_t wanted = std::max<int64_t>(share, 1);
  // Weights up to this one do not add up to what may be left out, so the others are enough.
  const auto count = static_cast<int64_t>(weights.size());
  const int64_t small = std::max<int64_t>(total - wanted, 0) / count;
  places.resize(count);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i++) {
    places[kept] = static_cast<int32_t>(i);
    kept += weights[i] > small;
  }
  places.resize(kept);
  const Cut cut = nucleus_cut(weights, places, wanted);
  std::erase_if(places, [&](int32_t place) {
    return weights[place] < cut.weight || (weights[place] == cut.weight && place > cut.place);
  });
}

}  // namespace suffice
