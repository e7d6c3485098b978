#include "attention/sketch_order.h"

#include <algorithm>
#include <cmath>
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

SketchMasses::SketchMasses(const Visible& visible, int length, int count, float* memory,
                           bool bounded)
    : memory_(memory), bounded_(bounded) {
  set_chunks(visible, length, shape_);
  shape_.count = count;
}

size_t SketchMasses::floats() const {
  return shape_.count * (kinds() * shape_.blocks() + static_cast<size_t>(pieces()));
}

Estimates SketchMasses::estimates() const {
  Estimates full = shape_;
  const size_t floats = full.count * full.blocks();
  full.masses = memory_;
  full.peaks = full.masses + floats;
  if (bounded_) full.bounds = full.peaks + floats;
  return full;
}

float* SketchMasses::greatest_of(int piece) const {
  return memory_ + shape_.count * (kinds() * shape_.blocks() + static_cast<size_t>(piece));
}

void SketchMasses::estimate(const KVHead& head, const float* const* queries, int piece) const {
  const Estimates to = estimates();
  const int begin = piece * kEstimatedChunks, end = std::min(begin + kEstimatedChunks, to.chunks);
  kernels().search.estimate(head, queries, begin, end, to, greatest_of(piece));
  if (end < to.chunks) return;
  const size_t blocks = to.blocks(), used = static_cast<size_t>(to.chunks) * kSketchBlocks;
  for (int kind = 0; kind < kinds(); kind++)  // the padding beyond the chunks has no mass
    for (int q = 0; q < to.count; q++) {
      float* const of_head = memory_ + (static_cast<size_t>(kind) * to.count + q) * blocks;
      std::fill(of_head + used, of_head + blocks, 0.0f);
    }
}

void SketchOrder::sort(const SketchMasses& masses) {
  const Estimates estimates = masses.estimates();
  blocks.clear();
  if (estimates.chunks == 0) return;
  peaks.assign(estimates.count, -INFINITY);
  for (int piece = 0; piece < masses.pieces(); piece++)
    for (int q = 0; q < estimates.count; q++)
      peaks[q] = std::max(peaks[q], masses.greatest(piece)[q]);
  totals_.resize(estimates.count);
  shares_.resize(estimates.blocks());
  kernels().search.combine(estimates, peaks.data(), totals_.data(), shares_.data());
  sort_by_share(shares_.data(), estimates.chunks * kSketchBlocks, buckets_, blocks);
  for (int32_t& block : blocks) block += masses.first();
}

}  // namespace suffice
