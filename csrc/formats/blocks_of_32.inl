// Block types of 32 values with one scale. A type declares
//
//     type       its name, number, values and bytes, and the layout of its panels
//     levels     the levels of its codes
//     codes      writes the codes of a block, a byte each
//     numbers    writes what a block says about its groups
//
// A code of 4 bits is the low half of a byte, then the high one.

// The scales and minima of a block's groups, in the forms of code_layout.h: f16 in the first two,
// one group; nested and powers in the bytes, with the outer factors in the first two.
struct Numbers {
  uint16_t scale, minimum;
  uint8_t scales[16], minima[16];
};

constexpr CodeLayout with_f16(int bits, MinimumForm minima = MinimumForm::none) {
  return {bits, 32, ScaleForm::f16, minima};
}

// level = code + first
struct Even {
  int first;
  constexpr int operator[](int code) const { return code + first; }
  void look_up(uint8_t*, size_t) const {}
  float value(uint8_t code) const { return static_cast<float>(code + first); }
};

// One of 16 int8 levels. `look_up` replaces `count` codes, a multiple of 16, by levels.
struct Table {
  using Bytes = int8_t __attribute__((vector_size(16)));
  int8_t levels[16];
  constexpr int operator[](int code) const { return levels[code]; }
  void look_up(uint8_t* codes, size_t count) const {
    Bytes table;
    std::memcpy(&table, levels, sizeof table);
    for (size_t i = 0; i < count; i += sizeof(Bytes)) {
      Bytes sixteen;
      std::memcpy(&sixteen, codes + i, sizeof sixteen);
#if defined(__clang__)  // which makes it one instruction
      const Bytes places = sixteen;
      for (size_t j = 0; j < sizeof(Bytes); j++) sixteen[j] = table[places[j] & 15];
#else
      sixteen = __builtin_shuffle(table, sixteen);
#endif
      std::memcpy(codes + i, &sixteen, sizeof sixteen);
    }
  }
  float value(uint8_t level) const { return static_cast<float>(static_cast<int8_t>(level)); }
};

// 32 codes of 4 bits: the low halves of 16 bytes, then the high ones.
inline void nibbles(const uint8_t* __restrict from, uint8_t* __restrict to) {
#pragma GCC unroll 1  // the compiler makes vectors of loops of 16 only if it does not unroll them
  for (int i = 0; i < 16; i++) to[i] = from[i] & 15;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i + 16] = from[i] >> 4;
}

// The same with 5 bits, the fifth ones in a number of 32 bits.
inline void nibbles_and_fifth(const uint8_t* __restrict from, const uint8_t* __restrict fifth,
                              uint8_t* __restrict to) {
  uint32_t bits;
  std::memcpy(&bits, fifth, 4);
  uint8_t high[32];
  for (int i = 0; i < 32; i++) high[i] = bits >> i << 4 & 16;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i] = high[i] | (from[i] & 15);
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i + 16] = high[i + 16] | from[i] >> 4;
}

struct Q4_0 {  // scale, codes
  static constexpr BlockType type{"Q4_0", 2, 32, 18, with_f16(4)};
  static constexpr Even levels{-8};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles(block + 2, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block); }
};

struct Q4_1 {  // scale, minimum, codes
  static constexpr BlockType type{"Q4_1", 3, 32, 20, with_f16(4, MinimumForm::f16)};
  static constexpr Even levels{0};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles(block + 4, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) {
    to.scale = bits16(block);
    to.minimum = bits16(block + 2);
  }
};

struct Q5_0 {  // scale, fifth bits, codes
  static constexpr BlockType type{"Q5_0", 6, 32, 22, with_f16(5)};
  static constexpr Even levels{-16};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles_and_fifth(block + 6, block + 2, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block); }
};

struct Q5_1 {  // scale, minimum, fifth bits, codes
  static constexpr BlockType type{"Q5_1", 7, 32, 24, with_f16(5, MinimumForm::f16)};
  static constexpr Even levels{0};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles_and_fifth(block + 8, block + 4, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) { Q4_1::numbers(block, to); }
};

struct Q8_0 {  // scale, signed numbers
  static constexpr BlockType type{"Q8_0", 8, 32, 34, with_f16(8)};
  static constexpr Even levels{-128};
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    for (int i = 0; i < 32; i++) to[i] = block[2 + i] ^ 128;
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block); }
};

constexpr Table kNonLinear{{-127, -104, -83, -65, -49, -35, -22, -10,  //
                            1, 13, 25, 38, 53, 69, 89, 113}};

struct IQ4_NL {  // scale, codes
  static constexpr BlockType type{"IQ4_NL", 20, 32, 18, with_f16(4)};
  static constexpr Table levels = kNonLinear;
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles(block + 2, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scale = bits16(block); }
};

constexpr Table kFourBitFloats{{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

struct MXFP4 {  // exponent of the scale, codes
  static constexpr BlockType type{"MXFP4", 39, 32, 17, {4, 32, ScaleForm::power}};
  static constexpr Table levels = kFourBitFloats;
  static void codes(const uint8_t* __restrict block, uint8_t* __restrict to) {
    nibbles(block + 1, to);
  }
  static void numbers(const uint8_t* block, Numbers& to) { to.scales[0] = block[0]; }
};
