// What the machine can do: the roofs that results are compared with.
#pragma once

#include <cstddef>

namespace suffice {

// Bytes per second, the best of `repeats` passes over a buffer of `bytes` split over `threads`.
double read_bandwidth(size_t bytes, int threads, int repeats);
double copy_bandwidth(size_t bytes, int threads, int repeats);

}  // namespace suffice
