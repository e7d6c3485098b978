// Speed limits of the machine (its roofs), and times of single parts of kernels.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace suffice {

// Bytes per second: best of `repeats` passes over a buffer of `bytes` split over `threads`.
double read_bandwidth(size_t bytes, int threads, int repeats);
double copy_bandwidth(size_t bytes, int threads, int repeats);

// Multiply-adds per second on values in the L1 cache: best of `repeats`, with `threads` threads.
double product_rate(Products of, int threads, int repeats);

// Seconds of the softmax alone for scores [tiles][count][kTileRows], least of `repeats` passes; by
// codes if `tables` [count] is not null, and by packed codes if `packed`.
double softmax_seconds(const float* scores, int tiles, int count, const SoftmaxTable* tables,
                       bool packed, int repeats);

// The sums of the weights of the four codes of 2 bits in each byte, [count][256].
std::vector<float> byte_sums(const SoftmaxTable* tables, int count);

}  // namespace suffice
