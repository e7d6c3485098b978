// Blocks decoded to float32: value = scale * level + minimum. Products and sums must not be fused
// (CMakeLists.txt).

template <class Type>
float scale_of(const Numbers& of, int group) {
  constexpr CodeLayout layout = Type::type.layout;
  if constexpr (layout.scales == ScaleForm::power) return power(of.scales[group]);
  if constexpr (layout.scales == ScaleForm::e4m3) return small_float(of.scales[group]);
  if constexpr (layout.scales == ScaleForm::f16) return half(of.scale);
  return half(of.scale) * static_cast<float>(static_cast<int8_t>(of.scales[group]));
}

template <class Type>
float minimum_of(const Numbers& of, int group) {
  if constexpr (Type::type.layout.minima == MinimumForm::f16) return half(of.minimum);
  return -(half(of.minimum) * static_cast<float>(of.minima[group]));
}

constexpr int kFewValues = 2048;  // decoded at a time: their codes and values stay in the L1 cache

// Decodes some blocks: first all codes, so that no value waits for codes that were just stored.
template <class Type>
void decode_few(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  constexpr CodeLayout layout = Type::type.layout;
  constexpr int values = Type::type.values, group = layout.group, groups = values / group;
  constexpr bool adds = layout.minima != MinimumForm::none;
  alignas(64) uint8_t codes[kFewValues];
  float scale[kFewValues / group], add[kFewValues / group];
  for (size_t i = 0; i < count; i++) {
    const uint8_t* block = from + i * Type::type.bytes;
    Numbers numbers;
    Type::codes(block, codes + i * values);
    Type::numbers(block, numbers);
    for (int g = 0; g < groups; g++) {
      scale[i * groups + g] = scale_of<Type>(numbers, g);
      if constexpr (adds) add[i * groups + g] = minimum_of<Type>(numbers, g);
    }
  }
  Type::levels.look_up(codes, count * values);
  for (size_t g = 0; g < count * groups; g++) {
    const uint8_t* code = codes + g * group;
    float* value = to + g * group;
    const float factor = scale[g], addend = adds ? add[g] : 0.0f;
#pragma GCC unroll 1
    for (int i = 0; i < group; i++) {
      value[i] = factor * Type::levels.value(code[i]);
      if constexpr (adds) value[i] += addend;
    }
  }
}

struct F32 {
  static constexpr BlockType type{"F32", 0, 1, 4};
};

struct F16 {
  static constexpr BlockType type{"F16", 1, 1, 2};
};

struct BF16 {
  static constexpr BlockType type{"BF16", 30, 1, 2};
};

template <>
void decode_few<F32>(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  std::memcpy(to, from, count * 4);
}

template <>
void decode_few<F16>(const uint8_t* __restrict from, size_t count, float* __restrict to) {
  for (size_t i = 0; i < count; i++) to[i] = half(bits16(from + 2 * i));
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
  return most < kInfiniteF32;
}

// `infinity`: kInfiniteF16 or kInfiniteBF16.
inline bool words_finite(const uint8_t* values, size_t count, int infinity) {
  int16_t most = 0;
  for (size_t i = 0; i < count; i++)
    most = std::max(most, static_cast<int16_t>(bits16(values + 2 * i) & 0x7fff));
  return most < infinity;
}

template <class Type>
bool decode(const uint8_t* from, size_t count, float* to) {
  constexpr size_t few = kFewValues / Type::type.values;
  bool finite = true;
  for (size_t at = 0; at < count; at += few) {
    const size_t now = std::min(few, count - at);
    float* values = to + at * Type::type.values;
    decode_few<Type>(from + at * Type::type.bytes, now, values);
    finite &= floats_finite(reinterpret_cast<const uint8_t*>(values), now * Type::type.values);
  }
  return finite;
}
