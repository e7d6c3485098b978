// A sum over blocks of something that costs much to know, bounded from above at a confidence.
//
// Every block has a share, which its addend never exceeds. The blocks of the largest shares are
// taken surely: those that one draw after another would pick anyway. Others are drawn, in
// proportion to their shares, one from each of equal parts of the sum of these. An addend over its
// share lies in [0, 1], so Hoeffding's inequality (1963, Theorem 1) bounds the sum of all from that
// of the drawn; it asks only that draws are independent.
#pragma once

#include <cstdint>
#include <vector>

namespace suffice {

// The largest expectation of the mean of `draws` independent variables in [0, 1] with which a mean
// of at most `mean` has a probability above `delta`, by Hoeffding's inequality; rounded up.
double highest_mean(double mean, int draws, double delta);

class BlockSample {
 public:
  // Chooses up to `most` of the blocks with a share above 0.
  void draw(const std::vector<float>& shares, int most, uint64_t seed);
  const std::vector<int32_t>& blocks() const { return blocks_; }  // ascending
  bool certain() const { return rest_ <= 0; }                     // nothing is left to chance
  // Bounds the sum of the addends of all blocks from those of `blocks`, `found`, in units of
  // `unit`. It is below the true sum with a probability of at most `delta`.
  double bound(const float* found, double unit, double delta) const;

 private:
  void take_largest();

  std::vector<int32_t> blocks_;
  std::vector<double> shares_;   // of `blocks_`
  std::vector<double> weights_;  // how often each was drawn, over its share; 0: it was taken surely
  std::vector<float> left_;      // [all blocks]: shares, 0 of blocks that are surely taken
  std::vector<int32_t> sure_;    // [all blocks]
  double rest_ = 0;              // the sum of the shares that are not taken surely
  int draws_ = 0;
};

}  // namespace suffice
