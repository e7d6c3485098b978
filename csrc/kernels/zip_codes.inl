// Four rows of values in 4-bit codes, zipped: four bytes for each element, as products with bytes
// of weights take them.

// The centroids of 16 elements of four rows of values, four bytes for each element.
SUFFICE_INLINE void zip_levels(const std::byte* const* rows, vi* to) {
#if SUFFICE_LEVEL >= 3
  const auto row = [&](int i) __attribute__((always_inline)) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[i]));
  };
  const __m128i a = _mm_unpacklo_epi8(row(0), row(1)), b = _mm_unpacklo_epi8(row(2), row(3));
  const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
  const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(kRowCodebook.levels));
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
#elif SUFFICE_NEON
  const auto two = [&](int i) __attribute__((always_inline)) {
    const auto row = [&](int j) { return vld1_u8(reinterpret_cast<const uint8_t*>(rows[j])); };
    return vreinterpretq_u16_u8(
        vcombine_u8(vzip1_u8(row(i), row(i + 1)), vzip2_u8(row(i), row(i + 1))));
  };
  const uint16x8_t a = two(0), b = two(2);
  const vi levels = load_bits(kRowCodebook.levels);
  for (int i = 0; i < 2; i++) {
    const vi codes = reinterpret_cast<vi>(i == 0 ? vzip1q_u16(a, b) : vzip2q_u16(a, b));
    to[i] = look_up(levels, codes);
    to[2 + i] = look_up(levels, codes >> 4);
  }
#else
  for (int v = 0; v < kVectors; v++) {
    int8_t part[kVectorBytes];
    for (int j = 0; j < W; j++) {
      const size_t byte = kValueCodes.byte(v * W + j);
      const int shift = kValueCodes.shift(v * W + j);
      for (int i = 0; i < 4; i++)
        part[4 * j + i] = kRowCodebook.levels[static_cast<int>(rows[i][byte]) >> shift & 15];
    }
    to[v] = load_bits(part);
  }
#endif
}

#if SUFFICE_LEVEL == 4
// The codes of 16 `Units` elements of four rows of values, four bytes for each two elements. Of 32,
// low halves of bytes are elements 0 to 7 and 16 to 23, high ones the others.
template <int Units>
SUFFICE_INLINE vi zip_codes(const std::byte* const* rows) {
  const auto row = [&](int i) __attribute__((always_inline)) {
    const auto* const from = reinterpret_cast<const __m128i*>(rows[i]);
    return Units == 2 ? _mm_loadu_si128(from) : _mm_loadl_epi64(from);
  };
  __m512i codes = _mm512_castsi128_si512(row(0));
  codes = _mm512_inserti32x4(codes, row(1), 1);
  codes = _mm512_inserti32x4(codes, row(2), 2);
  codes = _mm512_inserti32x4(codes, row(3), 3);
  // Four bytes of each row into a lane, then one byte of each row next to each other.
  const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i ones =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return reinterpret_cast<vi>(_mm512_shuffle_epi8(_mm512_permutexvar_epi32(fours, codes), ones));
}

// The same of 64 elements, by shuffles of half the size. In the first vector, units 0 and 2 of 16
// elements take turns, four elements of each; in the second, units 1 and 3.
SUFFICE_INLINE void zip_many_codes(const std::byte* const* rows, vi* to) {
  const auto row = [&](int i) __attribute__((always_inline)) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i]));
  };
  const auto both = [](__m256i low, __m256i high) __attribute__((always_inline)) {
    return reinterpret_cast<vi>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  };
  const __m256i a = _mm256_unpacklo_epi8(row(0), row(1)), b = _mm256_unpacklo_epi8(row(2), row(3));
  const __m256i c = _mm256_unpackhi_epi8(row(0), row(1)), d = _mm256_unpackhi_epi8(row(2), row(3));
  to[0] = both(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
  to[1] = both(_mm256_unpacklo_epi16(c, d), _mm256_unpackhi_epi16(c, d));
}

// From low and high halves of such codes: units 0 and 2, or 1 and 3.
SUFFICE_INLINE void exchange_quarters(vi& low, vi& high) {
  const __m512i a = reinterpret_cast<__m512i>(low), b = reinterpret_cast<__m512i>(high);
  low = reinterpret_cast<vi>(_mm512_shuffle_i32x4(a, b, 0x88));
  high = reinterpret_cast<vi>(_mm512_shuffle_i32x4(a, b, 0xdd));
}

// From elements 0 to 7 and 16 to 23 of 32, and the others: the first 16, and the others.
SUFFICE_INLINE void exchange_halves(vi& low, vi& high) {
  const __m512i a = reinterpret_cast<__m512i>(low), b = reinterpret_cast<__m512i>(high);
  low = reinterpret_cast<vi>(_mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1));
  high = reinterpret_cast<vi>(_mm512_shuffle_i64x2(a, b, 0xee));
}
#endif

// The same as `zip_levels` for 32 elements; AVX-512 leaves them in the order of `zip_codes`.
SUFFICE_INLINE void zip_two_levels(const std::byte* const* rows, vi* to) {
#if SUFFICE_LEVEL == 4
  const vi codes = zip_codes<2>(rows), half = splat_bits(0x0f0f0f0f);
  const vi levels = load_bits(kRowCodebook.levels);
  to[0] = look_up(levels, codes & half);
  to[1] = look_up(levels, (codes >> 4) & half);
#else
  const std::byte* next[4];
  for (int i = 0; i < 4; i++) next[i] = rows[i] + elements_bytes(Type::kmeans4, kPanel);
  zip_levels(rows, to);
  zip_levels(next, to + kVectors);
#endif
}

#if SUFFICE_LEVEL == 4
// The same for 64 elements.
SUFFICE_INLINE void zip_many_levels(const std::byte* const* rows, vi* to) {
  const vi half = splat_bits(0x0f0f0f0f), levels = load_bits(kRowCodebook.levels);
  vi codes[2];
  zip_many_codes(rows, codes);
  for (int i = 0; i < 2; i++) {
    to[2 * i] = look_up(levels, codes[i] & half);
    to[2 * i + 1] = look_up(levels, (codes[i] >> 4) & half);
  }
}

// Brings sums of units of 16 such elements into order. `Together` were zipped at once, and fewer
// where no more were left.
template <int Units, int Together, class Sum>
SUFFICE_INLINE void order_units(Sum (*sums)[kVectors]) {
  int u = 0;
  for (; Together == 4 && u + 4 <= Units; u += 4) {
    for (int i = 0; i < 4; i += 2) exchange_quarters(sums[u + i][0], sums[u + i + 1][0]);
    std::swap(sums[u + 1][0], sums[u + 2][0]);
  }
  for (; u + 2 <= Units; u += 2) exchange_halves(sums[u][0], sums[u + 1][0]);
}
#endif
