// Values of 8 and 16 bits: two rows interleaved into pairs, and lanes stored as such values.

// 32 int8 values as int16: 16 pairs.
SUFFICE_INLINE void load_pairs(const std::byte* from, vi* to) {
#if SUFFICE_LEVEL == 4
  to[0] = reinterpret_cast<vi>(
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif SUFFICE_LEVEL == 3
  for (int i = 0; i < 2; i++)
    to[i] = reinterpret_cast<vi>(
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i)));
#elif SUFFICE_NEON
  const auto* codes = reinterpret_cast<const int8_t*>(from);
  for (int i = 0; i < kVectors; i++) to[i] = reinterpret_cast<vi>(vmovl_s8(vld1_s8(codes + 8 * i)));
#else
  const int8_t* codes = reinterpret_cast<const int8_t*>(from);
  for (int i = 0; i < kVectors; i++) {
    vh part;
    for (int j = 0; j < 2 * W; j++) part[j] = codes[2 * W * i + j];
    to[i] = reinterpret_cast<vi>(part);
  }
#endif
}

// 16 int8 values of each of two rows as int16: the pairs (a[i], b[i]).
SUFFICE_INLINE void zip_rows(const std::byte* a, const std::byte* b, vi* to) {
#if SUFFICE_LEVEL >= 3
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
  const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
  const __m128i low = _mm_unpacklo_epi8(x, y);
  const __m128i high = _mm_unpackhi_epi8(x, y);
#if SUFFICE_LEVEL == 4
  to[0] = reinterpret_cast<vi>(_mm512_cvtepi8_epi16(_mm256_set_m128i(high, low)));
#else
  to[0] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(low));
  to[1] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(high));
#endif
#elif SUFFICE_NEON
  const int8x16_t x = vld1q_s8(reinterpret_cast<const int8_t*>(a));
  const int8x16_t y = vld1q_s8(reinterpret_cast<const int8_t*>(b));
  for (int i = 0; i < 2; i++) {
    const int8x16_t both = i == 0 ? vzip1q_s8(x, y) : vzip2q_s8(x, y);
    to[2 * i] = reinterpret_cast<vi>(vmovl_s8(vget_low_s8(both)));
    to[2 * i + 1] = reinterpret_cast<vi>(vmovl_high_s8(both));
  }
#else
  const int8_t* x = reinterpret_cast<const int8_t*>(a);
  const int8_t* y = reinterpret_cast<const int8_t*>(b);
  for (int i = 0; i < kVectors; i++) {
    vh part;
    for (int j = 0; j < W; j++) {
      part[2 * j] = x[i * W + j];
      part[2 * j + 1] = y[i * W + j];
    }
    to[i] = reinterpret_cast<vi>(part);
  }
#endif
}

// Pairs (a[i], b[i]) of 16 `Units` values of 16 bits of two rows.
template <int Units>
SUFFICE_INLINE void zip_halves(const std::byte* a, const std::byte* b, vi* to) {
#if SUFFICE_LEVEL == 4
  alignas(64) static constexpr int16_t order[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const auto row = [](const std::byte* from) __attribute__((always_inline)) {
    if constexpr (Units == 2) return reinterpret_cast<__m512i>(load_bits(from));
    return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  for (int u = 0; u < Units; u++)
    to[u] = reinterpret_cast<vi>(
        _mm512_permutex2var_epi16(row(a), _mm512_load_si512(order[u]), row(b)));
#elif SUFFICE_NEON
  for (int i = 0; i < 2 * Units; i++) {
    const int16x8_t x = vreinterpretq_s16_s32(load_bits(a + i * kVectorBytes));
    const int16x8_t y = vreinterpretq_s16_s32(load_bits(b + i * kVectorBytes));
    to[2 * i] = reinterpret_cast<vi>(vzip1q_s16(x, y));
    to[2 * i + 1] = reinterpret_cast<vi>(vzip2q_s16(x, y));
  }
#else
  for (int i = 0; i < Units * kPanel; i++) {
    std::memcpy(reinterpret_cast<std::byte*>(to) + 4 * i, a + 2 * i, 2);
    std::memcpy(reinterpret_cast<std::byte*>(to) + 4 * i + 2, b + 2 * i, 2);
  }
#endif
}

constexpr uint32_t kLanes = static_cast<uint32_t>((uint64_t{1} << W) - 1);

// Stores the lanes with their bit set next to each other.
SUFFICE_INLINE void pack_lanes(vf value, uint32_t bits, float* to) {
#if SUFFICE_LEVEL == 4
  const auto lanes = static_cast<__mmask16>(bits);
  const auto first = static_cast<__mmask16>((1u << __builtin_popcount(bits)) - 1);
  _mm512_mask_storeu_ps(to, first, _mm512_maskz_compress_ps(lanes, value));
#else
  alignas(kVectorBytes) float lane[W];
  store(lane, value);
  for (; bits; bits &= bits - 1) *to++ = lane[__builtin_ctz(bits)];
#endif
}

// Stores W lanes that fit as int16 or int8. (Compilers split a plain conversion into parts.)
SUFFICE_INLINE void store_narrow(vi value, int16_t* to) {
#if SUFFICE_LEVEL == 4
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(value)));
#elif SUFFICE_LEVEL == 3
  const __m256i all = reinterpret_cast<__m256i>(value);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#elif SUFFICE_NEON
  vst1_s16(to, vmovn_s32(value));
#else
  for (int i = 0; i < W; i++) to[i] = static_cast<int16_t>(value[i]);
#endif
}

SUFFICE_INLINE void store_narrow(vi value, int8_t* to) {
#if SUFFICE_LEVEL == 4
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(value)));
#elif SUFFICE_LEVEL == 3
  const __m256i all = reinterpret_cast<__m256i>(value);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
#elif SUFFICE_NEON
  const int16x4_t words = vmovn_s32(value);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  std::memcpy(to, &bytes, W);
#else
  for (int i = 0; i < W; i++) to[i] = static_cast<int8_t>(value[i]);
#endif
}
