// Block types of 256 values that are places in a grid: entries of 8 or 4 columns. A type declares
//
//     type       its name, number, values and bytes, and the layout of its panels
//     levels     the levels of its codes
//     factor     of the block's float16: a group's scale is factor * float16 * whole number
//     places     writes what a block says about its entries
//     numbers    writes its float16, and the whole numbers of its groups

constexpr CodeLayout of_grid(Grid grid, int bits, int group) {
  return {bits, group, ScaleForm::nested32, MinimumForm::none, grid};
}

struct Places {
  uint16_t entries[64];  // with the sign of the entry above the place, if entries have one
  uint8_t signs[32];     // a bit for each column
};

// The last of eight signs makes the number of negative ones even.
inline uint8_t eight_signs(uint32_t seven) {
  seven &= 127;
  return static_cast<uint8_t>(seven | (__builtin_popcount(seven) & 1) << 7);
}

inline uint32_t bits32(const uint8_t* from) {
  uint32_t bits;
  std::memcpy(&bits, from, 4);
  return bits;
}

// Two groups a byte.
inline void odd_scales(const uint8_t* from, int groups, Numbers& to) {
  for (int i = 0; i < groups; i++) to.scales[i] = 2 * (from[i / 2] >> i % 2 * 4 & 15) + 1;
}

constexpr Table kTwoBitSizes{{8, 25, 43, 43, -8, -25, -43, -43}};

struct IQ2_XXS {  // factor; of each group four places, then four times seven signs, scale
  static constexpr BlockType type{"IQ2_XXS", 16, 256, 66, of_grid(Grid::iq2_xxs, 3, 32)};
  static constexpr Table levels = kTwoBitSizes;
  static constexpr float factor = 0.125f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 32; i++) {
      const uint8_t* group = block + 2 + i / 4 * 8;
      to.entries[i] = group[i % 4];
      to.signs[i] = eight_signs(bits32(group + 4) >> i % 4 * 7);
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    for (int i = 0; i < 8; i++) to.scales[i] = 2 * (block[2 + 8 * i + 7] >> 4) + 1;
  }
};

struct IQ2_XS {  // factor, places with seven signs, scales
  static constexpr BlockType type{"IQ2_XS", 17, 256, 74, of_grid(Grid::iq2_xs, 3, 16)};
  static constexpr Table levels = kTwoBitSizes;
  static constexpr float factor = 0.125f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 32; i++) {
      const uint16_t both = bits16(block + 2 + 2 * i);
      to.entries[i] = both & 511;
      to.signs[i] = eight_signs(both >> 9);
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    odd_scales(block + 66, 16, to);
  }
};

struct IQ2_S {  // factor, low bytes of places, signs, high bits of places, scales
  static constexpr BlockType type{"IQ2_S", 22, 256, 82, of_grid(Grid::iq2_s, 3, 16)};
  static constexpr Table levels = kTwoBitSizes;
  static constexpr float factor = 0.125f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 32; i++)
      to.entries[i] = block[2 + i] | (block[66 + i / 4] >> i % 4 * 2 & 3) << 8;
    std::memcpy(to.signs, block + 34, 32);
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    odd_scales(block + 74, 16, to);
  }
};

constexpr Table kShifted{{-7, 1, 9, 9, -9, -1, 7, 7}};  // 8 times -1, 0 and 1, plus or minus 1

struct IQ1_S {  // factor, low bytes of places; of each group high bits of places, scale, sign
  static constexpr BlockType type{"IQ1_S", 19, 256, 50, of_grid(Grid::iq1, 3, 32)};
  static constexpr Table levels = kShifted;
  static constexpr float factor = 0.125f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 32; i++) {
      const int of_group = bits16(block + 34 + i / 4 * 2);
      to.entries[i] = block[2 + i] | (of_group >> i % 4 * 3 & 7) << 8 | of_group >> 15 << 11;
    }
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    for (int i = 0; i < 8; i++) to.scales[i] = 2 * (bits16(block + 34 + 2 * i) >> 12 & 7) + 1;
  }
};

struct IQ1_M {  // low bytes of places, their high bits with signs, scales with the factor
  static constexpr BlockType type{"IQ1_M", 29, 256, 56, of_grid(Grid::iq1, 3, 16)};
  static constexpr Table levels = kShifted;
  static constexpr float factor = 0.125f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 32; i++)
      to.entries[i] = block[i] | (block[32 + i / 2] >> i % 2 * 4 & 15) << 8;
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = 0;
    for (int i = 0; i < 4; i++) to.scale |= bits16(block + 48 + 2 * i) >> 12 << 4 * i;
    for (int i = 0; i < 16; i++)
      to.scales[i] = 2 * (bits16(block + 48 + i / 4 * 2) >> i % 4 * 3 & 7) + 1;
  }
};

struct IQ3_XXS {  // factor, places; of each group four times seven signs, scale
  static constexpr BlockType type{"IQ3_XXS", 18, 256, 98, of_grid(Grid::iq3_xxs, 4, 32)};
  static constexpr Table levels{{4, 12, 20, 28, 36, 44, 52, 62,  //
                                 -4, -12, -20, -28, -36, -44, -52, -62}};
  static constexpr float factor = 0.25f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 64; i++) to.entries[i] = block[2 + i];
    for (int i = 0; i < 32; i++)
      to.signs[i] = eight_signs(bits32(block + 66 + i / 4 * 4) >> i % 4 * 7);
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    for (int i = 0; i < 8; i++) to.scales[i] = 2 * (block[66 + 4 * i + 3] >> 4) + 1;
  }
};

struct IQ3_S {  // factor, low bytes of places, their high bits, signs, scales
  static constexpr BlockType type{"IQ3_S", 21, 256, 110, of_grid(Grid::iq3_s, 4, 32)};
  static constexpr Table levels{{1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}};
  static constexpr float factor = 1.0f;
  static void places(const uint8_t* block, Places& to) {
    for (int i = 0; i < 64; i++)
      to.entries[i] = block[2 + i] | (block[66 + i / 8] >> i % 8 & 1) << 8;
    std::memcpy(to.signs, block + 74, 32);
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    odd_scales(block + 106, 8, to);
  }
};
