// Block types whose weights are ternary, or floats of four bits with scales of eight.

struct TQ1_0 {  // five ternary digits a byte, the first ones by 32 and 16; four digits; scale
  static constexpr BlockType type{"TQ1_0", 34, 256, 54, {2, 256}};
  static constexpr Even levels{-1};
  // The next digit of `count` bytes. A byte is a fraction of 256, its digits those behind the
  // point.
  static void digits(const uint8_t* __restrict from, int count, int power, uint8_t* __restrict to) {
    for (int i = 0; i < count; i++) to[i] = (from[i] * power & 255) * 3 >> 8;
  }
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    constexpr int powers[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < 5; i++) digits(block, 32, powers[i], to + 32 * i);
    for (int i = 0; i < 5; i++) digits(block + 32, 16, powers[i], to + 160 + 16 * i);
    for (int i = 0; i < 4; i++) digits(block + 48, 4, powers[i], to + 240 + 4 * i);
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block + 52); }
};

struct TQ2_0 {  // codes, scale
  static constexpr BlockType type{"TQ2_0", 35, 256, 66, {2, 256}};
  static constexpr Even levels{-1};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 32 * (part / 4);
      for (int i = 0; i < 32; i++) to[32 * part + i] = from[i] >> part % 4 * 2 & 3;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block + 64); }
};

struct NVFP4 {  // scales, codes
  static constexpr BlockType type{"NVFP4", 40, 64, 36, {4, 16, ScaleForm::e4m3}};
  static constexpr Table levels = kFourBitFloats;
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int part = 0; part < 4; part++) {
      const uint8_t* from = block + 4 + 8 * part;
      for (int i = 0; i < 8; i++) to[16 * part + i] = from[i] & 15;
      for (int i = 0; i < 8; i++) to[16 * part + 8 + i] = from[i] >> 4;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    constexpr int nan = 0x7f;  // counts as 0; the highest bit does not count
    for (int i = 0; i < 4; i++) to.scales[i] = block[i] == nan ? 0 : block[i] & 0x7f;
  }
};
