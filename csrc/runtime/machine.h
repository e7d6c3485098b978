// What the machine can do: the roofs that results are compared with, and parts of kernels alone.
#pragma once

#include <cstddef>

#include "attention/attention_rule.h"

namespace suffice {

// Bytes per second, the best of `repeats` passes over a buffer of `bytes` split over `threads`.
double read_bandwidth(size_t bytes, int threads, int repeats);
double copy_bandwidth(size_t bytes, int threads, int repeats);

// Multiply-adds per second, the best of `repeats`, of int8 if `narrow` or int16, of `threads`.
double product_rate(bool narrow, int threads, int repeats);

// Seconds, the least of `repeats` passes, of the softmax alone of scores [tiles][count][kTileRows],
// by codes if `tables` [count] is not null.
double softmax_seconds(const float* scores, int tiles, int count, const SoftmaxTable* tables,
                       int repeats);

}  // namespace suffice
