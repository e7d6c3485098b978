// Weights in 8-bit floats (e4m3), see linear/linear.h. A byte s eeee mmm becomes the float16
// s 0eeee mmm0000000, which has 1/256 its value, whether normal or not; so scales are 256 times as
// large. Only the product with the scale is rounded.

// Part j of two of a vector of float16, as float32.
SUFFICE_INLINE vf part_of_f16(vh halves, int j) {
#if SUFFICE_LEVEL == 4
  const __m512i all = reinterpret_cast<__m512i>(halves);
  return reinterpret_cast<vf>(
      _mm512_cvtph_ps(j == 0 ? _mm512_castsi512_si256(all) : _mm512_extracti64x4_epi64(all, 1)));
#elif SUFFICE_LEVEL == 3
  const __m256i all = reinterpret_cast<__m256i>(halves);
  return reinterpret_cast<vf>(
      _mm256_cvtph_ps(j == 0 ? _mm256_castsi256_si128(all) : _mm256_extracti128_si256(all, 1)));
#elif SUFFICE_NEON
  const float16x8_t all = reinterpret_cast<float16x8_t>(halves);
  return j == 0 ? vf(vcvt_f32_f16(vget_low_f16(all))) : vf(vcvt_high_f32_f16(all));
#else
  typedef int16_t part __attribute__((vector_size(W * 2)));
  part own;
  std::memcpy(&own, reinterpret_cast<const std::byte*>(&halves) + j * sizeof own, sizeof own);
  const vi bits = __builtin_convertvector(own, vi);
  const vf size = as_float((bits & 0x7fff) << 13) * 0x1p112f;  // normalises subnormals
  return as_float(as_bits(size) | (bits & splat_bits(static_cast<int32_t>(0x80000000))));
#endif
}

// The four columns of a line, times 1/256.
SUFFICE_INLINE void float8_columns(const std::byte* line, vf (*columns)[kVectors]) {
  constexpr int kHalf = kLineBytes / 2;
  for (int at = 0; at < kLineBytes; at += kVectorBytes) {
    const vh pairs = reinterpret_cast<vh>(load_bits(line + at));
    const vh all = vh{} + static_cast<int16_t>(0xbf80);
    const vh first = (pairs << 8) >> 1 & all, second = pairs >> 1 & all;
    for (int j = 0; j < 2; j++) {
      const int from = at + j * kVectorBytes / 2, v = from % kHalf / (2 * W);
      columns[from / kHalf * 2][v] = part_of_f16(first, j);
      columns[from / kHalf * 2 + 1][v] = part_of_f16(second, j);
    }
  }
}

// The weight of a row and column.
SUFFICE_INLINE float float8_weight(const Linear& w, int row, int column) {
  constexpr int span_lines = kFloat8Span / 4 + 1;
  const std::byte* span =
      w.data + row / kPanel * w.panel_bytes() + column / kFloat8Span * span_lines * kLineBytes;
  const std::byte* line = span + (column % kFloat8Span / 4 + 1) * kLineBytes;
  const int byte = static_cast<int>(line[column % 4 / 2 * 32 + row % kPanel * 2 + column % 2]);
  return half_to_float(static_cast<uint16_t>((byte & 0x80) << 8 | (byte & 0x7f) << 7)) *
         reinterpret_cast<const float*>(span)[row % kPanel];
}
