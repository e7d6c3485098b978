// Decoders of the block types, included once per instruction set inside its namespace. Plain loops,
// which the compiler turns into vector code; products and sums must not be fused (CMakeLists.txt).
// Scales are float16 and little-endian; a code of 4 bits is the low half of a byte, then the high.

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

inline float half_at(const uint8_t* from) { return half(bits16(from)); }

// 32 codes of 4 bits less an offset: the low halves of 16 bytes, then the high ones.
inline void nibbles(const uint8_t* __restrict from, int offset, int8_t* __restrict to) {
#pragma GCC unroll 1  // the compiler makes vectors of loops of 16 only if it does not unroll them
  for (int i = 0; i < 16; i++) to[i] = (from[i] & 15) - offset;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i + 16] = (from[i] >> 4) - offset;
}

// The same with 5 bits, the fifth ones in a number of 32 bits.
inline void nibbles_and_fifth(const uint8_t* __restrict from, const uint8_t* __restrict fifth,
                              int offset, int8_t* __restrict to) {
  uint32_t bits;
  std::memcpy(&bits, fifth, 4);
  uint8_t high[32];
  for (int i = 0; i < 32; i++) high[i] = bits >> i << 4 & 16;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i] = (high[i] | (from[i] & 15)) - offset;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) to[i + 16] = (high[i + 16] | from[i] >> 4) - offset;
}

// 16 int8 levels, looked up for 32 codes.
using Levels = int8_t __attribute__((vector_size(16)));
inline void look_up(Levels levels, int8_t* codes) {
  Levels halves[2];
  std::memcpy(halves, codes, 32);
  for (Levels& each : halves) each = __builtin_shuffle(levels, each);
  std::memcpy(codes, halves, 32);
}

// Each type has `values` codes in `bytes` bytes. `part` adjacent codes share a scale and an addend,
// which most types do not have: value = scale * code + addend.
struct Q4_0 {
  static constexpr int values = 32, bytes = 18, part = 32;  // scale, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    nibbles(block + 2, 8, to);
  }
  static void scales(const uint8_t* block, float* scale, float*) { *scale = half_at(block); }
};

struct Q4_1 {
  static constexpr int values = 32, bytes = 20, part = 32;  // scale, addend, codes
  static constexpr bool adds = true;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    nibbles(block + 4, 0, to);
  }
  static void scales(const uint8_t* block, float* scale, float* add) {
    *scale = half_at(block);
    *add = half_at(block + 2);
  }
};

struct Q5_0 {
  static constexpr int values = 32, bytes = 22, part = 32;  // scale, fifth bits, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    nibbles_and_fifth(block + 6, block + 2, 16, to);
  }
  static void scales(const uint8_t* block, float* scale, float*) { *scale = half_at(block); }
};

struct Q5_1 {
  static constexpr int values = 32, bytes = 24, part = 32;  // scale, addend, fifth bits, codes
  static constexpr bool adds = true;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    nibbles_and_fifth(block + 8, block + 4, 0, to);
  }
  static void scales(const uint8_t* block, float* scale, float* add) {
    Q4_1::scales(block, scale, add);
  }
};

struct Q8_0 {
  static constexpr int values = 32, bytes = 34, part = 32;  // scale, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    std::memcpy(to, block + 2, 32);
  }
  static void scales(const uint8_t* block, float* scale, float*) { *scale = half_at(block); }
};

struct Q2_K {
  static constexpr int values = 256, bytes = 84, part = 16;  // scales, codes, two factors of scales
  static constexpr bool adds = true;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 16 + 32 * (part / 4);
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; i++) to[32 * part + i] = from[i] >> shift & 3;
    }
  }
  static void scales(const uint8_t* block, float* scale, float* add) {
    const float factor = half_at(block + 80), least = half_at(block + 82);
    for (int i = 0; i < 16; i++) {
      scale[i] = factor * static_cast<float>(block[i] & 15);
      add[i] = -(least * static_cast<float>(block[i] >> 4));
    }
  }
};

struct Q3_K {
  static constexpr int values = 256, bytes = 110, part = 16;  // high bits, codes, scales, factor
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 32 + 32 * (part / 4);
      const int shift = part % 4 * 2;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = (from[i] >> shift & 3) + ((block[i] >> part & 1) << 2) - 4;
    }
  }
  static void scales(const uint8_t* block, float* scale, float*) {
    const uint8_t* packed = block + 96;  // 4 bits of each, then 2 bits of each
    const float factor = half_at(block + 108);
    for (int i = 0; i < 16; i++) {
      const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
      const int high = packed[8 + i % 4] >> i / 4 * 2 & 3;
      scale[i] = factor * static_cast<float>((low | high << 4) - 32);
    }
  }
};

struct Q4_K {
  static constexpr int values = 256, bytes = 144, part = 32;  // two factors, scales, codes
  static constexpr bool adds = true;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 16 + 32 * (part / 2);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++) to[32 * part + i] = from[i] >> shift & 15;
    }
  }
  static void scales(const uint8_t* block, float* scale, float* add) {
    const float factor = half_at(block), least = half_at(block + 2);
    const uint8_t* packed = block + 4;  // 6 bits of each: 4 of both in a byte, 4 spread over two
    for (int i = 0; i < 4; i++) {
      scale[i] = factor * static_cast<float>(packed[i] & 63);
      add[i] = -(least * static_cast<float>(packed[i + 4] & 63));
      const int high = (packed[i + 8] & 15) | (packed[i] >> 6) << 4;
      scale[i + 4] = factor * static_cast<float>(high);
      const int high_add = packed[i + 8] >> 4 | (packed[i + 4] >> 6) << 4;
      add[i + 4] = -(least * static_cast<float>(high_add));
    }
  }
};

struct Q5_K {
  static constexpr int values = 256, bytes = 176, part = 32;  // Q4_K with fifth bits before codes
  static constexpr bool adds = true;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    const uint8_t* fifth = block + 16;
    for (int part = 0; part < 8; part++) {
      const uint8_t* from = block + 48 + 32 * (part / 2);
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = (from[i] >> shift & 15) | (fifth[i] >> part & 1) << 4;
    }
  }
  static void scales(const uint8_t* block, float* scale, float* add) {
    Q4_K::scales(block, scale, add);
  }
};

struct Q6_K {
  static constexpr int values = 256, bytes = 210, part = 16;  // 4 bits, 2 bits, scales, factor
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      const int whole = part / 4, quarter = part % 4;
      const uint8_t* low = block + 64 * whole + 32 * (quarter % 2);
      const uint8_t* high = block + 128 + 32 * whole;
      const int shift = quarter / 2 * 4;
      for (int i = 0; i < 32; i++)
        to[32 * part + i] = ((low[i] >> shift & 15) | (high[i] >> 2 * quarter & 3) << 4) - 32;
    }
  }
  static void scales(const uint8_t* block, float* scale, float*) {
    const float factor = half_at(block + 208);
    for (int i = 0; i < 16; i++)
      scale[i] = factor * static_cast<float>(static_cast<int8_t>(block[192 + i]));
  }
};

constexpr Levels kNonLinear = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

struct IQ4_NL {
  static constexpr int values = 32, bytes = 18, part = 32;  // scale, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    nibbles(block + 2, 0, to);
    look_up(kNonLinear, to);
  }
  static void scales(const uint8_t* block, float* scale, float*) { *scale = half_at(block); }
};

struct IQ4_XS {
  static constexpr int values = 256, bytes = 136, part = 32;  // factor, scales, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    for (int part = 0; part < 8; part++) {
      nibbles(block + 8 + 16 * part, 0, to + 32 * part);
      look_up(kNonLinear, to + 32 * part);
    }
  }
  static void scales(const uint8_t* block, float* scale, float*) {
    const float factor = half_at(block);
    const int high = bits16(block + 2);  // 2 bits of each; then 4 bits of each
    for (int i = 0; i < 8; i++) {
      const int low = block[4 + i / 2] >> i % 2 * 4 & 15;
      scale[i] = factor * static_cast<float>((low | (high >> 2 * i & 3) << 4) - 32);
    }
  }
};

struct MXFP4 {
  static constexpr int values = 32, bytes = 17, part = 32;  // exponent of the scale, codes
  static constexpr bool adds = false;
  static void codes(const uint8_t* __restrict block, int8_t* __restrict to) {
    constexpr Levels doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    nibbles(block + 1, 0, to);
    look_up(doubled, to);
  }
  static void scales(const uint8_t* block, float* scale, float*) {
    const uint32_t power = block[0];  // the scale is 2^(power - 128), subnormal below 2
    *scale = from_bits(power < 2 ? 0x00200000u << power : (power - 1) << 23);
  }
};

// Decodes some blocks: first all codes, so that no value waits for codes that were just stored.
template <class Type>
void decode_few(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  constexpr int parts = Type::values / Type::part;
  alignas(64) int8_t codes[kFewValues];
  float scale[kFewValues / Type::part], add[kFewValues / Type::part];
  for (size_t i = 0; i < count; i++) {
    const uint8_t* block = from + i * Type::bytes;
    Type::codes(block, codes + i * Type::values);
    Type::scales(block, scale + i * parts, add + i * parts);
  }
  for (size_t part = 0; part < count * parts; part++) {
    const int8_t* code = codes + part * Type::part;
    float* value = to + part * Type::part;
    const float factor = scale[part], addend = Type::adds ? add[part] : 0.0f;
#pragma GCC unroll 1
    for (int i = 0; i < Type::part; i++) {
      value[i] = factor * static_cast<float>(code[i]);
      if constexpr (Type::adds) value[i] += addend;
    }
  }
}

struct F32 {
  static constexpr int values = 1, bytes = 4;
};

struct F16 {
  static constexpr int values = 1, bytes = 2;
};

struct BF16 {
  static constexpr int values = 1, bytes = 2;
};

template <>
void decode_few<F32>(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  std::memcpy(to, from, count * 4);
}

template <>
void decode_few<F16>(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; i++) to[i] = half_at(from + 2 * i);
}

template <>
void decode_few<BF16>(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; i++)
    to[i] = from_bits(static_cast<uint32_t>(bits16(from + 2 * i)) << 16);
}

// The largest magnitude by its bits: those of infinities and NaN are above all others.
inline bool floats_finite(const uint8_t* values, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    int32_t bits;
    std::memcpy(&bits, values + 4 * i, 4);
    most = std::max(most, bits & 0x7fffffff);
  }
  return most < 0x7f800000;
}

inline bool words_finite(const uint8_t* values, size_t count, int infinity) {
  int16_t most = 0;
  for (size_t i = 0; i < count; i++)
    most = std::max(most, static_cast<int16_t>(bits16(values + 2 * i) & 0x7fff));
  return most < infinity;
}

template <class Type>
bool decode(const uint8_t* from, size_t count, float* to) {
  constexpr size_t few = kFewValues / Type::values;
  bool finite = true;
  for (size_t at = 0; at < count; at += few) {
    const size_t now = std::min(few, count - at);
    float* values = to + at * Type::values;
    decode_few<Type>(from + at * Type::bytes, now, values);
    finite &= floats_finite(reinterpret_cast<const uint8_t*>(values), now * Type::values);
  }
  return finite;
}

template <class... Types>
constexpr Decoders decoders_of() {
  int at = 0;
  Decoders all{};
  ((all.fits &= kBlockTypes[at].values == Types::values && kBlockTypes[at].bytes == Types::bytes,
    all.decode[at++] = decode<Types>),
   ...);
  all.fits &= at == kBlockTypeCount;
  all.floats_finite = floats_finite;
  all.words_finite = words_finite;
  return all;
}

// In the order of kBlockTypes.
constexpr Decoders decoders = decoders_of<F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K,
                                          Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4>();
static_assert(decoders.fits);
