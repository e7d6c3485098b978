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

#if SUFFICE_LEVEL >= 3
// The bytes of 16 int16 that fit a byte, those of a four in the order of a four of codes.
SUFFICE_INLINE __m128i bytes_of_fours(__m128i first, __m128i second) {
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  static_assert(kCodeOrder[1] == 2 && kCodeOrder[2] == 1);
  return _mm_shuffle_epi8(_mm_packs_epi16(first, second), order);
}

// Stores the low bytes of 32 integers, and the high ones unless all fit a byte, four columns after
// four columns.
SUFFICE_INLINE void store_bytes(const int16_t* codes, bool high, int8_t* to) {
  for (int i = 0; i < kUnit; i += kPanel) {
    __m128i low[2], rest[2];
    for (int j = 0; j < 2; j++) {
      const __m128i all =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i + j * kPanel / 2));
      low[j] = _mm_srai_epi16(_mm_slli_epi16(all, 8), 8);
      rest[j] = _mm_srai_epi16(_mm_sub_epi16(all, low[j]), 8);
    }
    auto* at = reinterpret_cast<__m128i*>(to + i * (1 + high));
    const __m128i bytes = bytes_of_fours(low[0], low[1]);
    if (!high) {
      _mm_storeu_si128(at, bytes);
      continue;
    }
    const __m128i upper = bytes_of_fours(rest[0], rest[1]);
    _mm_storeu_si128(at, _mm_unpacklo_epi32(bytes, upper));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(bytes, upper));
  }
}
#else
SUFFICE_INLINE void store_bytes(const int16_t*, bool, int8_t*) {}  // not kTakesBytes
#endif

// `stride` is a multiple of 16 and values beyond `columns` are 0. The last 32 columns may end
// beyond that: these inputs are 0.
inline void quantize_for_codes(const float* values, int stride, int first, int last, int count,
                               int columns, int most, int8_t* bytes, int16_t* pairs,
                               InputStretch* stretches) {
  const bool high = most > kMaxByte;
  const int size = round_up(columns, kPanel);
  // Rows are the inner loop: what is written is then adjacent, and no power of two apart.
  for (int k = 0; k < columns; k += kUnit)
    for (int row = first; row < last; row++) {
      const float* from = values + static_cast<size_t>(row) * stride + k;
      float last[kUnit];
      if (size - k < kUnit) {
        std::memset(last, 0, sizeof last);
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
