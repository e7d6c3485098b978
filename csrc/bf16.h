// bfloat16 to float32 and back, rounded to nearest, ties to even. Always inlined, so each caller
// compiles it for its own instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace suffice {

[[gnu::always_inline]] inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

[[gnu::always_inline]] inline float from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace suffice
