#include "attention/sketch_order.h"

#include <algorithm>
#include <cstring>

#include "cache/sketch.h"

namespace suffice {
namespace {

// Bits dropped from a share before sorting: the exponent and four steps per power of two remain.
// Shares below 2^-28 fall into one bucket, the last.
constexpr int kShareShift = 21;
constexpr int kMinShare = (127 - 28) << 2, kBuckets = (128 + 8) * 4 - kMinShare;

int bucket_of(float share) {
  uint32_t bits;
  std::memcpy(&bits, &share, sizeof bits);
  return kBuckets - 1 -
         std::clamp(static_cast<int>(bits >> kShareShift) - kMinShare, 0, kBuckets - 1);
}

}  // namespace

void sort_by_share(const float* shares, int count, std::vector<int>& buckets,
                   std::vector<int32_t>& sorted) {
  buckets.assign(kBuckets + 1, 0);
  for (int i = 0; i < count; i++) buckets[bucket_of(shares[i]) + 1]++;
  for (int i = 0; i < kBuckets; i++) buckets[i + 1] += buckets[i];
  sorted.resize(count);
  for (int i = 0; i < count; i++) sorted[buckets[bucket_of(shares[i])]++] = i;
}

void set_chunks(const Visible& visible, int length, Estimates& estimates) {
  estimates.first = (visible.first + kSketchRows - 1) / kSketchRows;
  estimates.chunks = std::max(sketched_chunks(length) - estimates.first, 0);
}

int SketchOrder::sort(const KVHead& head, const float* const* queries, int count,
                      const Visible& visible, int length) {
  Estimates estimates;
  set_chunks(visible, length, estimates);
  blocks.clear();
  if (estimates.chunks == 0) return 0;
  estimates.count = count;
  estimates.bounds = nullptr;
  masses_.assign(count * estimates.blocks(), 0.0f);  // the padding beyond the chunks has no mass
  peaks_.assign(masses_.size(), 0.0f);
  estimates.masses = masses_.data();
  estimates.peaks = peaks_.data();
  greatest_.resize(count);
  totals_.resize(count);
  shares_.resize(estimates.blocks());
  kernels().estimate(head, queries, 0, estimates.chunks, estimates, greatest_.data());
  kernels().combine(estimates, greatest_.data(), totals_.data(), shares_.data());
  sort_by_share(shares_.data(), estimates.chunks * kSketchBlocks, buckets_, blocks);
  for (int32_t& block : blocks) block += estimates.first * kSketchBlocks;
  return estimates.chunks;
}

}  // namespace suffice
