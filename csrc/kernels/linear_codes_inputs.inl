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
// four columns, `step` bytes apart; columns within a four are those of a four of codes.
SUFFICE_INLINE void store_bytes(const int16_t* codes, bool high, std::byte* to, size_t step) {
  int8_t bytes[2][kUnit];
  for (int i = 0; i < kUnit; i++) {
    const int at = i / 4 * 4 + kCodeOrder[i % 4];
    bytes[0][i] = static_cast<int8_t>(codes[at]);
    bytes[1][i] = static_cast<int8_t>((codes[at] - bytes[0][i]) >> 8);
  }
  for (int four = 0; four < kUnit / 4; four++)
    for (int part = 0; part < 1 + high; part++)
      std::memcpy(to + four * step + part * kQuad, bytes[part] + four * 4, kQuad);
}

// `stride` is a multiple of 16 and values beyond `columns` are 0. The last 32 columns may end
// beyond that: these inputs are 0.
inline void quantize_for_codes(const float* values, int stride, int count, int columns, int most,
                               int8_t* bytes, int16_t* pairs, InputStretch* stretches) {
  const bool high = most > kMaxByte;
  const size_t step = static_cast<size_t>(count) * kQuad;  // int16 of a four
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
      stretches[static_cast<size_t>(k / kUnit) * count + row] = quantize_stretch(from, most, codes);
      if (kTakesBytes)
        store_bytes(codes, high,
                    reinterpret_cast<std::byte*>(bytes) + (k / 4 * step + row * kQuad) * (1 + high),
                    step * (1 + high));
      if (kTakesPairs)
        for (int four = 0; four < kUnit / 4; four++)
          std::memcpy(pairs + (k / 4 + four) * step + row * kQuad, codes + four * 4,
                      4 * sizeof(int16_t));
    }
}
