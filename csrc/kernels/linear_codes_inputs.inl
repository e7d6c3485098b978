// Inputs of weights in few bits, in the order that the kernels read.

// Forms that the kernels of this instruction set take.
constexpr bool kTakesBytes = SUFFICE_LEVEL >= 3, kTakesPairs = !SUFFICE_VNNI;

SUFFICE_INLINE int sum_whole(vi values) {  // below 2^24
  return static_cast<int>(sum_of(to_float(values)));
}

// Integers of 32 values, their scale and their sums. A scale below the normal numbers would have no
// inverse.
SUFFICE_INLINE InputStretch quantize_stretch(const float* from, int most, int16_t* codes) {
  constexpr float least = 1.17549435e-38f;
  InputStretch found;
  const float scale = max_magnitude(from, kUnit) / static_cast<float>(most);
  found.scale = scale > least ? scale : least;
  const float inverse = 1.0f / found.scale;
  int sums[2];
  for (int half = 0; half < 2; half++) {
    vi sum = {};
    for (int i = half * kPanel; i < (half + 1) * kPanel; i += W) {
      const vi whole = nearest(load(from + i), inverse);
      store_narrow(whole, codes + i);
      sum += whole;
    }
    sums[half] = sum_whole(sum);
  }
  const int by_part[] = {sums[0] + sums[1], sums[0], sums[1]};
  for (int i = 0; i < 3; i++)
    found.sums[i] = {by_part[i], static_cast<float>(by_part[i]) * found.scale};
  return found;
}

// Stores the low bytes of 32 integers, and the high ones unless all fit a byte, four columns after
// four columns; columns within a four are those of a four of codes.
SUFFICE_INLINE void store_bytes(const int16_t* codes, bool high, int8_t* to) {
  int8_t bytes[2][kUnit];
  for (int i = 0; i < kUnit; i++) {
    const int at = i / 4 * 4 + kCodeOrder[i % 4];
    bytes[0][i] = static_cast<int8_t>(codes[at]);
    bytes[1][i] = static_cast<int8_t>((codes[at] - bytes[0][i]) >> 8);
  }
  for (int four = 0; four < kFours; four++)
    for (int part = 0; part < 1 + high; part++, to += kQuad)
      std::memcpy(to, bytes[part] + four * kQuad, kQuad);
}

// `stride` is a multiple of 16 and values beyond `columns` are 0. The last 32 columns may end
// beyond that: these inputs are 0.
inline void quantize_for_codes(const float* values, int stride, int count, int columns, int most,
                               int8_t* bytes, int16_t* pairs, InputStretch* stretches) {
  const bool high = most > kMaxByte;
  const int size = round_up(columns, kPanel);
  for (int row = 0; row < count; row++)
    for (int k = 0; k < columns; k += kUnit) {
      const float* from = values + static_cast<size_t>(row) * stride + k;
      float last[kUnit] = {};
      if (size - k < kUnit) {
        std::memcpy(last, from, kPanel * sizeof(float));
        from = last;
      }
      int16_t codes[kUnit];
      const size_t at = static_cast<size_t>(k / kUnit) * count + row;
      stretches[at] = quantize_stretch(from, most, codes);
      if (kTakesBytes) store_bytes(codes, high, bytes + at * kUnit * (1 + high));
      if (kTakesPairs) std::memcpy(pairs + at * kUnit, codes, sizeof codes);
    }
}
