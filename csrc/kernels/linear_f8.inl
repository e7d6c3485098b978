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
#else
  vf to;
  for (int i = 0; i < W; i++) to[i] = half_to_float(static_cast<uint16_t>(halves[j * W + i]));
  return to;
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

// The dense rows of the panels [first, last).
inline void unpack_f8(const Linear& w, int first, int last, float* to, int stride) {
  constexpr int columns_of_line = weight_pair(Type::f8);
  for (int panel = first; panel < last; panel++) {
    const std::byte* line = w.data + panel * w.panel_bytes();
    const int rows = w.rows - panel * kPanel < kPanel ? w.rows - panel * kPanel : kPanel;
    float* out = to + static_cast<size_t>(panel - first) * kPanel * stride;
    vf scale[kVectors];
    for (int k = 0; k < w.columns; k += columns_of_line, line += kLineBytes) {
      if (k % kFloat8Span == 0) {
        for (int v = 0; v < kVectors; v++) scale[v] = as_float(load_bits(line + v * kVectorBytes));
        line += kLineBytes;
      }
      vf columns[columns_of_line][kVectors];
      float8_columns(line, columns);
      for (int i = 0; i < columns_of_line && k + i < w.columns; i++) {
        float values[kPanel];
        for (int v = 0; v < kVectors; v++) store(values + v * W, columns[i][v] * scale[v]);
        for (int row = 0; row < rows; row++)
          out[static_cast<size_t>(row) * stride + k + i] = values[row];
      }
    }
  }
}
