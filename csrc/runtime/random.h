// Pseudorandom numbers by counters: each follows from its key alone.
#pragma once

#include <cstdint>

namespace suffice {

inline uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// A number in [0, 1).
inline double uniform(uint64_t key) { return static_cast<double>(mixed(key) >> 11) * 0x1p-53; }

}  // namespace suffice
