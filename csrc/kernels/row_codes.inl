// Rows of keys and values in codes, of which types.h has the layout.

// What a row's element i lies in: a byte, and from which bit on.
struct Nibble {
  size_t byte;
  int shift;
};

SUFFICE_INLINE Nibble key_nibble(int i) {
  return {static_cast<size_t>(i / 8) * kLineBytes + i % 4, i % 8 / 4 * 4};
}

SUFFICE_INLINE Nibble value_nibble(int i) {
  return {static_cast<size_t>(i / 16) * 8 + i % 8, i % 16 / 8 * 4};
}

// Codes of the levels that are nearest to row / scale. Sums up, in every lane, what the best scale
// for these codes follows from.
SUFFICE_INLINE void nearest_codes(const float* row, int size, float scale, int8_t* codes,
                                  vf* products, vf* squares) {
  const vf inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
  for (int i = 0; i < size; i += W) {
    const vf x = load(row + i), normal = x * inverse;
    vi code = {}, level = splat_bits(kRowLevels.at[0]);
    for (int b = 0; b + 1 < kLevels; b++) {
      const int below = kRowLevels.at[b], above = kRowLevels.at[b + 1];
      const vi reaches = normal > splat(0.5f * static_cast<float>(below + above));
      code -= reaches;  // a lane that holds is -1
      level += reaches & (above - below);
    }
    store_narrow(code, codes + i);
    *products += x * to_float(level);
    *squares += to_float(level * level);
  }
}

// Codes of a row and their scale: from the deviation of the elements, then twice the scale with
// which the codes found so far are nearest to the row.
inline float encode_row(const float* row, int size, int8_t* codes) {
  vf square = {};
  for (int i = 0; i < size; i += W) square += load(row + i) * load(row + i);
  float scale = std::sqrt(sum_of(square) / static_cast<float>(size)) / kLevelUnit;
  for (int round = 0; round < 2; round++) {
    vf products = {}, squares = {};
    nearest_codes(row, size, scale, codes, &products, &squares);
    scale = sum_of(products) / sum_of(squares);
  }
  vf unused = {};
  nearest_codes(row, size, scale, codes, &unused, &unused);
  return scale;
}

template <class Place>
SUFFICE_INLINE void store_codes(const float* from, int size, std::byte* to, float* scale,
                                Place place) {
  alignas(64) float row[kMostSize];
  alignas(64) int8_t codes[kMostSize];
  std::memcpy(row, from, sizeof(float) * size);
  rotate_row(row, size);
  *scale = encode_row(row, size, codes);
  for (int i = 0; i < size; i++) {
    const Nibble at = place(i);
    const auto others = static_cast<std::byte>(0xf0 >> at.shift);
    to[at.byte] = (to[at.byte] & others) | static_cast<std::byte>(codes[i] << at.shift);
  }
}

template <class Place>
SUFFICE_INLINE void load_codes(const std::byte* from, int size, float scale, float* to,
                               Place place) {
  for (int i = 0; i < size; i++) {
    const Nibble at = place(i);
    to[i] = scale * kRowLevels.at[static_cast<int>(from[at.byte]) >> at.shift & 15];
  }
  rotate_row(to, size);
}

// A query of keys in codes: rotated as they are, and rounded to int8, which moves a score by a
// fifteenth of what the codes of a key do. Returns the scale. `offset`: see score_blocks.
inline float quantize_to_int8(const float* query, int size, int8_t* codes, int32_t* offset) {
  alignas(64) float own[kMostSize];
  std::memcpy(own, query, sizeof(float) * size);
  rotate_row(own, size);
  const float scale = max_magnitude(own, size) / 127.0f;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  vi sum = {};
  for (int i = 0; i < size; i += W) {
    const vi code = __builtin_convertvector(round_even(load(own + i) * inverse), vi);
    store_narrow(code, codes + i);
    sum += code;
  }
  int32_t all = 0;
  for (int i = 0; i < W; i++) all += sum[i];
  *offset = -kGreatestLevel * all;
  return scale;
}

// The query that its int8 codes stand for.
inline void round_query(const float* query, int size, float* to) {
  alignas(64) int8_t codes[kMostSize];
  int32_t unused;
  const float scale = quantize_to_int8(query, size, codes, &unused);
  for (int i = 0; i < size; i++) to[i] = scale * codes[i];
  rotate_row(to, size);
}

// Of 16 elements of four rows of values the levels, four bytes for each element.
SUFFICE_INLINE void zip_levels(const std::byte* const* rows, vi* to) {
#if SUFFICE_LEVEL >= 3
  const auto row = [&](int i) __attribute__((always_inline)) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[i]));
  };
  const __m128i a = _mm_unpacklo_epi8(row(0), row(1)), b = _mm_unpacklo_epi8(row(2), row(3));
  const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kRowLevels.at));
  const __m256i half = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, half));
  const __m256i high =
      _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), half));
#if SUFFICE_LEVEL == 4
  to[0] = reinterpret_cast<vi>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
#else
  to[0] = reinterpret_cast<vi>(low);
  to[1] = reinterpret_cast<vi>(high);
#endif
#else
  for (int v = 0; v < kVectors; v++) {
    int8_t part[kVectorBytes];
    for (int j = 0; j < W; j++) {
      const Nibble at = value_nibble(v * W + j);
      for (int i = 0; i < 4; i++)
        part[4 * j + i] = kRowLevels.at[static_cast<int>(rows[i][at.byte]) >> at.shift & 15];
    }
    to[v] = load_bits(part);
  }
#endif
}

// Stores W lanes, which are below 256, as bytes.
SUFFICE_INLINE void store_bytes(vi value, uint8_t* to) {
#if SUFFICE_LEVEL == 3
  const __m256i all = reinterpret_cast<__m256i>(value);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  store_narrow(value, reinterpret_cast<int8_t*>(to));  // which does not saturate
#endif
}

// Weights of rows as whole numbers below 256, in units of which one is returned. Small ones,
// rounded each for itself, would all be lost: what a row's rounding leaves goes on to the row that
// comes W later, and the lanes begin with remainders that are spread evenly.
SUFFICE_INLINE float quantize_weights(const float* values, int size, float most, uint8_t* codes) {
  const float inverse = most > 0 ? 254.0f / most : 0.0f;
  vf sum, before = {};
  for (int i = 0; i < W; i++) sum[i] = (static_cast<float>(i) + 0.5f) / W - 0.5f;
  for (int i = 0; i < size; i += W) {
    sum += load(values + i) * inverse;
    const vf rounded = round_even(sum);
    store_bytes(__builtin_convertvector(rounded - before, vi), codes + i);
    before = rounded;
  }
  return most / 254.0f;
}
