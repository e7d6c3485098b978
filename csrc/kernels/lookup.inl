// Lookup of centroids by codes, and their integer products.

// The centroid of each code, by its low 4 bits. Codes are below 128.
SUFFICE_INLINE vi look_up(vi levels, vi codes) {
#if SUFFICE_LEVEL == 4
  return reinterpret_cast<vi>(
      _mm512_shuffle_epi8(reinterpret_cast<__m512i>(levels), reinterpret_cast<__m512i>(codes)));
#elif SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(
      _mm256_shuffle_epi8(reinterpret_cast<__m256i>(levels), reinterpret_cast<__m256i>(codes)));
#else
  uint8_t table[kVectorBytes], index[kVectorBytes];
  std::memcpy(table, &levels, sizeof table);
  std::memcpy(index, &codes, sizeof index);
  for (uint8_t& entry : index) entry = table[entry % kLevels];
  return load_bits(index);
#endif
}

SUFFICE_INLINE vi add_bytes(vi a, vi b) {
  typedef uint8_t vb __attribute__((vector_size(kVectorBytes)));
  return reinterpret_cast<vi>(reinterpret_cast<vb>(a) + reinterpret_cast<vb>(b));
}

// 16 bytes, repeated.
SUFFICE_INLINE vi repeat_levels(const uint8_t* levels) {
  uint8_t all[kVectorBytes];
  for (int i = 0; i < kVectorBytes; i += kLevels) std::memcpy(all + i, levels, kLevels);
  return load_bits(all);
}

// The bytes of `set` where bit `bit` of the byte of `plane` is set, elsewhere those of `clear`.
SUFFICE_INLINE vi choose(vi plane, int bit, vi clear, vi set) {
#if SUFFICE_LEVEL == 4
  const __mmask64 chosen = _mm512_test_epi8_mask(reinterpret_cast<__m512i>(plane),
                                                 _mm512_set1_epi8(static_cast<char>(1 << bit)));
  return reinterpret_cast<vi>(_mm512_mask_blend_epi8(chosen, reinterpret_cast<__m512i>(clear),
                                                     reinterpret_cast<__m512i>(set)));
#elif SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(
      _mm256_blendv_epi8(reinterpret_cast<__m256i>(clear), reinterpret_cast<__m256i>(set),
                         _mm256_slli_epi16(reinterpret_cast<__m256i>(plane), 7 - bit)));
#else
  const vi chosen = (plane >> bit & splat_bits(0x01010101)) * 0xff;
  return (clear & ~chosen) | (set & chosen);
#endif
}

// Adds to each lane the sum of four codes or centroids of `first` times the signed bytes of `low`,
// and of `second` times those of `high`. With AVX2 and no VNNI sums are in 16 bits until `widen`.
SUFFICE_INLINE vi dot_halves(vi total, vi first, vi second, vi low, vi high) {
#if SUFFICE_VNNI
  return dot_bytes(dot_bytes(total, first, low), second, high);
#elif SUFFICE_LEVEL == 3
  const __m256i a =
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(first), reinterpret_cast<__m256i>(low));
  const __m256i b =
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(second), reinterpret_cast<__m256i>(high));
  return reinterpret_cast<vi>(
      _mm256_add_epi16(reinterpret_cast<__m256i>(total), _mm256_add_epi16(a, b)));
#else
  for (int shift = 0; shift < 32; shift += 8) {
    total += (first >> shift & 0xff) * (low << (24 - shift) >> 24);
    total += (second >> shift & 0xff) * (high << (24 - shift) >> 24);
  }
  return total;
#endif
}

SUFFICE_INLINE vi widen(vi total) {
#if SUFFICE_LEVEL == 3 && !SUFFICE_VNNI
  return reinterpret_cast<vi>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(total), _mm256_set1_epi16(1)));
#else
  return total;
#endif
}

#if SUFFICE_LEVEL == 3
// The sums of two products of a byte and a signed byte, int16; and the sum of such sums.
SUFFICE_INLINE vi dot_words(vi bytes, vi signed_bytes) {
  return reinterpret_cast<vi>(_mm256_maddubs_epi16(reinterpret_cast<__m256i>(bytes),
                                                   reinterpret_cast<__m256i>(signed_bytes)));
}
SUFFICE_INLINE vi add_words(vi a, vi b) {
  return reinterpret_cast<vi>(
      _mm256_add_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#endif

// Adds to each lane the sum of four products of a byte and a signed byte. Any two products must fit
// int16: 2 * 255 * 59, weights of rows and centroids of values; 2 * 127 * 127, centroids and
// inputs.
SUFFICE_INLINE vi add_quads(vi total, vi bytes, vi signed_bytes) {
#if SUFFICE_VNNI
  return dot_bytes(total, bytes, signed_bytes);
#elif SUFFICE_LEVEL == 3
  return total + widen(dot_words(bytes, signed_bytes));
#else
  for (int shift = 0; shift < 32; shift += 8)
    total += (bytes >> shift & 0xff) * (signed_bytes << (24 - shift) >> 24);
  return total;
#endif
}
