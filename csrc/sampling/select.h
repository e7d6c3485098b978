// Selection of the largest of many values, without a sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sampling/passes.h"

namespace suffice {

// Values and the maximum of each of their blocks, by which most of them are passed over.
class Maxima {
 public:
  // `known`: the maximum of each block, NaN if a value near is; null: they are found.
  void scan(const float* values, int count, const float* known = nullptr);

  float largest() const { return largest_; }  // NaN if any value is
  int first_largest() const;                  // its index, the lowest of equal ones

  // The indices of the `most` largest values, 1 <= most <= count, ascending; of equal ones the
  // lowest.
  void select(int most, std::vector<int32_t>& indices);
  // Visits the indices of the values that `keep(value)` holds for, ascending. It must hold for
  // every value above one that it holds for.
  template <class Keep, class Visit>
  void each(Keep keep, Visit visit) const {
    for (int first = 0; first < count_; first += kLogitBlock) {
      if (!keep(maxima_[first / kLogitBlock])) continue;
      const int end = std::min(first + kLogitBlock, count_);
      for (int i = first; i < end; i++)
        if (keep(values_[i])) visit(i);
    }
  }

 private:
  const float* values_ = nullptr;
  int count_ = 0;
  float largest_ = 0;
  std::vector<float> maxima_;
  std::vector<float> candidates_;
};

// The places of the fewest of the largest weights that together reach `top_p` of their sum `total`,
// ascending. Of equal ones the first are kept.
void nucleus(const std::vector<int64_t>& weights, int64_t total, double top_p,
             std::vector<int32_t>& places);

}  // namespace suffice
