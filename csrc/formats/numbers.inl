// Numbers of files. Included once per instruction set inside its namespace, like all files that
// all.inl names: plain loops, which the compiler turns into vector code. Numbers of 16 bits are
// little-endian.

inline uint16_t bits16(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return bits;
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// Exact. Subnormal numbers, which scales often are, become integers first: arithmetic on subnormal
// floats is slow.
inline float half(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  const uint32_t subnormal = to_bits(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24f);
  const uint32_t wide = magnitude << 13;
  const uint32_t normal = magnitude < 0x7c00u ? wide + (112u << 23) : wide | 0x7f800000u;
  return from_bits(sign | (magnitude < 0x0400u ? subnormal : normal));
}

// 2^(e - 128), subnormal below e = 2.
inline float power(uint32_t e) { return from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Half of an unsigned float of 4 and 3 bits.
inline float small_float(uint32_t bits) {
  return bits < 8 ? static_cast<float>(bits) * 0x1p-10f : from_bits((bits << 20) + (119u << 23));
}

// The bits of numbers that are infinite or NaN, from here on, their sign left out.
constexpr int kInfiniteF16 = 0x7c00, kInfiniteBF16 = 0x7f80, kInfiniteF32 = 0x7f800000;
// Powers of two from here on may give infinite values: 2^125 times the greatest level, 12.
constexpr int kGreatPower = 253;
