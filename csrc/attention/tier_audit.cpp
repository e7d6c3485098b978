// Audits of attention in tiers: how far softmaxes and outputs truly are from exact ones.
#include <algorithm>
#include <cmath>

#include "attention/tier_search.h"

namespace suffice {

// The weights of all rows for one query, normalised: `truth` by exact `scores` [tile][group]
// [kTileRows], and `used` as the search has them.
void TierSearch::weigh_exactly(const float* scores, int q, std::vector<double>& truth,
                               std::vector<double>& used) const {
  double sums[2] = {0, 0};
  for (int i = 0; i < blocks_ * kPanel; i++) {
    const int tile = i / kTileRows, within = i % kTileRows;
    const float exact = scores[(static_cast<size_t>(tile) * group_ + q) * kTileRows + within];
    const float estimate =
        tiles_.scores[static_cast<size_t>(tile) * tiles_.stride + q * kTileRows + within];
    const bool heavy = marked_[tile] >> within & 1;
    const bool counts = counted_[tile] >> within & 1;
    truth.push_back(std::exp2(double{exact} - peaks_[q]));
    used.push_back(counts ? std::exp2(double{heavy ? exact : estimate} - peaks_[q]) : 0);
    sums[0] += truth.back();
    sums[1] += used.back();
  }
  for (double& weight : truth) weight /= sums[0];
  for (double& weight : used) weight /= sums[1];
}

// How far the outputs of these weights [group] lie apart, those used with light values by their
// bases, over the length of the longest value.
std::vector<double> TierSearch::shifts_of(const std::vector<double>* truth,
                                          const std::vector<double>* used) const {
  const int size = base_.size;
  std::vector<float> exact(static_cast<size_t>(kPanel) * size), light(exact.size());
  std::vector<double> apart(static_cast<size_t>(group_) * size);
  double longest = 0;
  for (int i = 0; i < blocks_; i++) {
    const int block = block_at(i);
    const bool heavy = marked_[i / kTileBlocks] >> (i % kTileBlocks * kPanel) & 1;
    kernels().rows.load_rows(traversal_->head, block * kPanel, kPanel, nullptr, exact.data());
    kernels().rows.load_rows(heavy ? traversal_->head : base_, block * kPanel, kPanel, nullptr,
                             light.data());
    for (int row = 0; row < kPanel; row++) {
      if (!visible_.sees(block * kPanel + row)) continue;
      const float* const value = exact.data() + row * size;
      const float* const other = light.data() + row * size;
      double square = 0;
      for (int d = 0; d < size; d++) square += double{value[d]} * value[d];
      longest = std::max(longest, square);
      for (int q = 0; q < group_; q++) {
        const double by_truth = truth[q][i * kPanel + row], by_used = used[q][i * kPanel + row];
        for (int d = 0; d < size; d++)
          apart[q * size + d] += by_used * other[d] - by_truth * value[d];
      }
    }
  }
  std::vector<double> shifts;
  for (int q = 0; q < group_; q++) {
    double square = 0;
    for (int d = 0; d < size; d++) square += apart[q * size + d] * apart[q * size + d];
    shifts.push_back(longest > 0 ? std::sqrt(square / longest) : 0);
  }
  return shifts;
}

// What is missing of a softmax is its total variation distance to the exact one. With bounds, how
// far the output is moved is computed without the rounding of native sums.
void TierSearch::audit_token(Scratch& scratch) {
  const Audit& to = traversal_->audit;
  if (!to.missing) return;
  std::vector<float> scores(kept_.size() * group_ * kTileRows), peaks(group_);
  kernels().search.score_tiles(
      traversal_->head, scratch.queries.of(traversal_->head, queries_, group_),
      traversal_->visible.data() + static_cast<size_t>(row_) * group_, group_, tiles_.list,
      tiles_.begin, tiles_.end, scores.data(), peaks.data());
  audit(*traversal_, row_, {}, NAN, scratch);
  std::vector<std::vector<double>> truth(group_), used(group_);
  const size_t place = static_cast<size_t>(traversal_->row_of(row_)) * to.stride;
  for (int q = 0; q < group_; q++) {
    weigh_exactly(scores.data(), q, truth[q], used[q]);
    double distance = 0;
    for (size_t i = 0; i < truth[q].size(); i++) distance += std::abs(truth[q][i] - used[q][i]) / 2;
    to.missing[place + q] = static_cast<float>(distance);
  }
  if (!rule_->bounds()) return;
  const std::vector<double> shifts = shifts_of(truth.data(), used.data());
  for (int q = 0; q < group_; q++) {
    to.bound[place + q] = bounds_[q];
    to.shift[place + q] = static_cast<float>(shifts[q]);
    to.shift_bound[place + q] = shifts_[q];
  }
}

}  // namespace suffice
