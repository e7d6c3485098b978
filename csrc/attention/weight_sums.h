// How much attention each token of a prompt gets, for policies that keep what got most.
#pragma once

#include "cache/cache.h"

namespace suffice {

// Queries [heads][count][size] of the last `count` of `length` tokens, in the kernel's units.
struct LastQueries {
  const float* values;
  int heads, count, length;
};

// sums [kv_heads][length]: the softmax weights that the queries give each token, summed over
// queries and over the heads that share keys. The layer has all tokens. Results do not depend on
// the number of threads.
void sum_weights(const KVCache& cache, int layer, const LastQueries& queries, float* sums);

}  // namespace suffice
