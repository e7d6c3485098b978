// Lookup of centroids by codes, and their integer products.

// The centroid of each code, by its low 4 bits. Codes are below 128.
SUFFICE_INLINE vi look_up(vi levels, vi codes) {
#if SUFFICE_LEVEL == 4
  return reinterpret_cast<vi>(
      _mm512_shuffle_epi8(reinterpret_cast<__m512i>(levels), reinterpret_cast<__m512i>(codes)));
#elif SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(
      _mm256_shuffle_epi8(reinterpret_cast<__m256i>(levels), reinterpret_cast<__m256i>(codes)));
#elif SUFFICE_NEON
  const vi places = codes & splat_bits(0x0f0f0f0f);
  return reinterpret_cast<vi>(
      vqtbl1q_u8(reinterpret_cast<uint8x16_t>(levels), reinterpret_cast<uint8x16_t>(places)));
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
#elif SUFFICE_NEON
  const auto bits = reinterpret_cast<uint8x16_t>(plane);
  const uint8x16_t chosen = vtstq_u8(bits, vdupq_n_u8(static_cast<uint8_t>(1 << bit)));
  return reinterpret_cast<vi>(
      vbslq_u8(chosen, reinterpret_cast<uint8x16_t>(set), reinterpret_cast<uint8x16_t>(clear)));
#else
  const vi chosen = (plane >> bit & splat_bits(0x01010101)) * 0xff;
  return (clear & ~chosen) | (set & chosen);
#endif
}

// Adds to each lane the sum of four codes or centroids of `first` times the signed bytes of `low`,
// and of `second` times those of `high`; they are below 128. Where no instruction adds products of
// bytes, sums are in 16 bits until `widen`.
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
#elif SUFFICE_NEON
  const auto a = reinterpret_cast<int8x16_t>(first), b = reinterpret_cast<int8x16_t>(low);
  const auto c = reinterpret_cast<int8x16_t>(second), d = reinterpret_cast<int8x16_t>(high);
  const int16x8_t begin =
      vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_low_s8(c), vget_low_s8(d));
  const int16x8_t end = vmlal_high_s8(vmull_high_s8(a, b), c, d);
  return reinterpret_cast<vi>(reinterpret_cast<vh>(total) + vh(vpaddq_s16(begin, end)));
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
#elif SUFFICE_NEON && !SUFFICE_VNNI
  return vpaddlq_s16(reinterpret_cast<int16x8_t>(total));
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
// Sums of each two of such sums, times 2^left.
SUFFICE_INLINE vi sum_words(vi words, int left) {
  return dot_pairs(words, splat_bits(0x00010001 << left));
}
#elif SUFFICE_NEON
SUFFICE_INLINE vi sum_words(vi words, int left) {
  return vi(vpaddlq_s16(reinterpret_cast<int16x8_t>(words))) << left;
}
SUFFICE_INLINE vi dot_words(vi bytes, vi signed_bytes) {  // bytes below 128
  const auto a = reinterpret_cast<int8x16_t>(bytes), b = reinterpret_cast<int8x16_t>(signed_bytes);
  return reinterpret_cast<vi>(
      vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
}
SUFFICE_INLINE vi add_words(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<vh>(a) + reinterpret_cast<vh>(b));
}
#endif

// Adds to each lane the sum of four products of a byte and a signed byte. Any two products must fit
// int16: 2 * 255 * 59, weights of rows and centroids of values; 2 * 127 * 127, centroids and
// inputs.
SUFFICE_INLINE vi add_quads(vi total, vi bytes, vi signed_bytes) {
#if SUFFICE_NEON && !SUFFICE_BF16  // u s = (u - 128) s + 128 s
  const vi less = bytes ^ splat_bits(static_cast<int32_t>(0x80808080));
#if SUFFICE_VNNI
  const vi half = splat_bits(0x40404040);
  return dot_bytes(total, less, signed_bytes) +
         dot_bytes(dot_bytes(vi{}, signed_bytes, half), signed_bytes, half);
#else
  const auto a = reinterpret_cast<int8x16_t>(less), b = reinterpret_cast<int8x16_t>(signed_bytes);
  const int16x8_t begin = vmlal_s8(vshll_n_s8(vget_low_s8(b), 7), vget_low_s8(a), vget_low_s8(b));
  const int16x8_t end = vmlal_high_s8(vshll_high_n_s8(b, 7), a, b);
  return vpadalq_s16(total, vpaddq_s16(begin, end));
#endif
#elif SUFFICE_VNNI
  return dot_bytes(total, bytes, signed_bytes);
#elif SUFFICE_LEVEL == 3
  return total + widen(dot_words(bytes, signed_bytes));
#else
  for (int shift = 0; shift < 32; shift += 8)
    total += (bytes >> shift & 0xff) * (signed_bytes << (24 - shift) >> 24);
  return total;
#endif
}

#if SUFFICE_NEON
SUFFICE_INLINE vi dot_halves(vi total, vi first, vi second, Word low, Word high) {
#if SUFFICE_VNNI
  return dot_bytes(dot_bytes(total, first, low), second, high);
#else
  return dot_halves(total, first, second, in_all_lanes(low), in_all_lanes(high));
#endif
}
SUFFICE_INLINE vi dot_words(vi bytes, Word x) { return dot_words(bytes, in_all_lanes(x)); }
SUFFICE_INLINE vi add_quads(vi total, vi bytes, Word x) {
#if SUFFICE_BF16
  return dot_bytes(total, bytes, x);
#else
  return add_quads(total, bytes, in_all_lanes(x));
#endif
}
SUFFICE_INLINE vi add_quads(vi total, Word bytes, vi signed_bytes) {
  return add_quads(total, in_all_lanes(bytes), signed_bytes);
}
#endif
