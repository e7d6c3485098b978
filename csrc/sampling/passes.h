// The passes over a whole row of logits, once per instruction set. They give the same bits on each:
// maxima are exact, weights come element by element without fused multiply-adds, and sums are of
// integers.
#pragma once

#include <cstdint>

namespace suffice {

constexpr int kLogitBlock = 64;  // logits with one maximum
inline int logit_blocks(int count) { return (count + kLogitBlock - 1) / kLogitBlock; }

// A token's weight is its probability relative to the most likely token's, times 2^kWeightBits and
// rounded: an integer, so that sums do not depend on their order.
constexpr int kWeightBits = 42;
constexpr int kMostTokens = 1 << 20;  // whose weights' sum fits an int64 with a bit to spare

struct Passes {
  // The maximum of each block of values, and whether any value is NaN (then maxima mean nothing).
  bool (*block_maxima)(const float* values, int count, float* maxima);
  // weights[i] = exp((values[i] - top) / temperature), `top` being the largest; returns their sum.
  int64_t (*weigh)(const float* values, int count, float top, float temperature, int64_t* weights);
};

const Passes& passes();  // for the instruction set in use

}  // namespace suffice
