// Block types of 256 values in groups, whose scales are small integers times a float16.

constexpr CodeLayout with_nested(int bits, int group, MinimumForm minima = MinimumForm::none) {
  return {bits, group, ScaleForm::nested, minima};
}

struct Q2_K {  // scales, codes, two factors of scales
  static constexpr BlockType type{"Q2_K", 10, 256, 84, with_nested(2, 16, MinimumForm::nested)};
  static constexpr Even levels{0};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 16 + 32 * (part / 4);
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; i++) to[32 * part + i] = from[i] >> shift & 3;
    }
  }
  static void numbers(const uint8_t* __restrict block, Numbers& __restrict to) {
    to.scale = bits16(block + 80);
    to.minimum = bits16(block + 82);
#pragma GCC unroll 1
    for (int i = 0; i < 16; i++) to.scales[i] = block[i] & 15;
#pragma GCC unroll 1
    for (int i = 0; i < 16; i++) to.minima[i] = block[i] >> 4;
  }
};

struct Q3_K {  // high bits, codes, scales, factor
  static constexpr BlockType type{"Q3_K", 11, 256, 110, with_nested(3, 16)};
  static constexpr Even levels{-4};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 32 + 32 * (part / 4);
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = (from[i] >> shift & 3) | (block[i] >> part & 1) << 2;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    const uint8_t* packed = block + 96;  // 4 bits of each, then 2 bits of each
    to.scale = bits16(block + 108);
    for (int i = 0; i < 16; i++) {
      const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
      const int high = packed[8 + i % 4] >> i / 4 * 2 & 3;
      to.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
  }
};

struct Q4_K {  // two factors, scales, codes
  static constexpr BlockType type{"Q4_K", 12, 256, 144, with_nested(4, 32, MinimumForm::nested)};
  static constexpr Even levels{0};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 16 + 32 * (part / 2);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++) to[32 * part + i] = from[i] >> shift & 15;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    const uint8_t* packed = block + 4;  // 6 bits of each: 4 of both in a byte, 4 spread over two
    to.scale = bits16(block);
    to.minimum = bits16(block + 2);
    for (int i = 0; i < 4; i++) {
      to.scales[i] = packed[i] & 63;
      to.minima[i] = packed[i + 4] & 63;
      to.scales[i + 4] = (packed[i + 8] & 15) | packed[i] >> 6 << 4;
      to.minima[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
  }
};

struct Q5_K {  // Q4_K with fifth bits before codes
  static constexpr BlockType type{"Q5_K", 13, 256, 176, with_nested(5, 32, MinimumForm::nested)};
  static constexpr Even levels{0};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    const uint8_t* fifth = block + 16;
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 48 + 32 * (part / 2);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = (from[i] >> shift & 15) | (fifth[i] >> part & 1) << 4;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) { Q4_K::numbers(block, to); }
};

struct Q6_K {  // 4 bits, 2 bits, scales, factor
  static constexpr BlockType type{"Q6_K", 14, 256, 210, with_nested(6, 16)};
  static constexpr Even levels{-32};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const int whole = part / 4, quarter = part % 4;
      const uint8_t* low = block + 64 * whole + 32 * (quarter % 2);
      const uint8_t* high = block + 128 + 32 * whole;
      const int shift = quarter / 2 * 4;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = (low[i] >> shift & 15) | (high[i] >> 2 * quarter & 3) << 4;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block + 208);
    std::memcpy(to.scales, block + 192, 16);
  }
};

struct IQ4_XS {  // factor, scales, codes
  static constexpr BlockType type{"IQ4_XS", 23, 256, 136, with_nested(4, 32)};
  static constexpr Table levels = kNonLinear;
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) nibbles(block + 8 + 16 * part, to + 32 * part);
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    const int high = bits16(block + 2);  // 2 bits of each; then 4 bits of each
    to.scale = bits16(block);
    for (int i = 0; i < 8; i++) {
      const int low = block[4 + i / 2] >> i % 2 * 4 & 15;
      to.scales[i] = static_cast<uint8_t>((low | (high >> 2 * i & 3) << 4) - 32);
    }
  }
};
