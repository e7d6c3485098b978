// The order of blocks by the mass of their keys, estimated from sketches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Positions of `count` shares, largest first, in four buckets per factor of 2: blocks of nearly
// equal share keep the order of their keys. `buckets` is a buffer.
void sort_by_share(const float* shares, int count, std::vector<int>& buckets,
                   std::vector<int32_t>& sorted);

// The complete chunks among the keys that a token of `length` rows sees.
void set_chunks(const Visible& visible, int length, Estimates& estimates);

// Sketched chunks that one thread estimates at a time.
constexpr int kEstimatedChunks = 16;

// The masses of the blocks that a token of `length` rows sees, for its `count` query rows, and if
// `bounded` bounds on them. Any threads estimate their pieces, in memory [floats()] that belongs to
// the caller.
class SketchMasses {
 public:
  SketchMasses() = default;
  SketchMasses(const Visible& visible, int length, int count, float* memory, bool bounded = false);

  int chunks() const { return shape_.chunks; }
  int first() const { return shape_.first * kSketchBlocks; }  // block
  int pieces() const { return (chunks() + kEstimatedChunks - 1) / kEstimatedChunks; }
  size_t floats() const;
  void use(float* memory) { memory_ = memory; }
  void estimate(const KVHead& head, const float* const* queries, int piece) const;
  Estimates estimates() const;
  const float* greatest(int piece) const { return greatest_of(piece); }  // [count] scores

 private:
  int kinds() const { return bounded_ ? 3 : 2; }  // of numbers of each block
  float* greatest_of(int piece) const;

  Estimates shape_{};  // without pointers
  float* memory_ = nullptr;
  bool bounded_ = false;
};

class SketchOrder {
 public:
  // Sets `blocks` to those of the complete chunks, heaviest first, by the sum of shares over the
  // token's query rows. All pieces are estimated; then masses and bounds are relative to `peaks`.
  void sort(const SketchMasses& masses);

  std::vector<int32_t> blocks;
  std::vector<float> peaks;  // [count]: the largest estimated scores

 private:
  std::vector<float> totals_, shares_;
  std::vector<int> buckets_;
};

}  // namespace suffice
