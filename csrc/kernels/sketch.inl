// Scores from a sketch: products of 4-bit codes with queries rounded to 8 bits.

// total += in each lane the sum of four codes, the low and the high halves of its bytes, times the
// four int8 values of `low` and of `high`.
SUFFICE_INLINE vi dot_halves(vi total, vi codes, int32_t low, int32_t high) {
#if SUFFICE_LEVEL >= 3
  const vi half = splat_bits(0x0f0f0f0f);
  const vi first = codes & half, second = (codes >> 4) & half;
#if SUFFICE_LEVEL == 4
  total = reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total),
                                                   reinterpret_cast<__m512i>(first),
                                                   reinterpret_cast<__m512i>(splat_bits(low))));
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(second),
                                                  reinterpret_cast<__m512i>(splat_bits(high))));
#else
  const __m256i a = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(first), _mm256_set1_epi32(low));
  const __m256i b =
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(second), _mm256_set1_epi32(high));
  const __m256i sum = _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
  return total + reinterpret_cast<vi>(sum);
#endif
#else
  for (int shift = 0; shift < 32; shift += 8) {
    total += (codes >> shift & 0x0f) * (low << (24 - shift) >> 24);
    total += (codes >> (shift + 4) & 0x0f) * (high << (24 - shift) >> 24);
  }
  return total;
#endif
}

struct Folded {  // a query times the scales of a chunk's channels
  alignas(64) int8_t codes[512];
  float unit, bias, offset;
};

// score = sum code * folded + sum low * query. With x the rounded folded query, what rounding
// leaves is (code - 7.5) * (folded - x * unit), at most 7.5 of each, once 7.5 times the differences
// is added.
inline void fold(const float* query, const float* scale, const float* low, int size, Folded* to) {
  alignas(64) float folded[512];
  for (int d = 0; d < size; d += W) store(folded + d, load(query + d) * load(scale + d));
  to->unit = max_magnitude(folded, size) / 127.0f;
  const float inverse = to->unit > 0 ? 1.0f / to->unit : 0.0f;
  vf bias = {}, differences = {}, magnitudes = {};
  for (int d = 0; d < size; d += W) {
    const vf value = load(folded + d);
    const vf rounded = round_even(value * inverse);
    store_narrow(__builtin_convertvector(rounded, vi), to->codes + d);
    const vf difference = value - rounded * to->unit;
    bias += load(query + d) * load(low + d);
    differences += difference;
    magnitudes += max(difference, -difference);
  }
  to->bias = sum_of(bias) + 7.5f * sum_of(differences);
  to->offset = 7.5f * sum_of(magnitudes);
}

inline void estimate(const Head& head, int chunk, const float* const* queries, int count,
                     float* scores, float* peaks, float* slopes, float* offsets) {
  const int size = head.size;
  const std::byte* from = head.sketch + chunk * sketch_bytes(size);
  const float* scale = reinterpret_cast<const float*>(from);
  const float* low = scale + size;
  const std::byte* codes = reinterpret_cast<const std::byte*>(low + size + kSketchRows);
  for (int q = 0; q < count; q++) {
    Folded folded;
    fold(queries[q], scale, low, size, &folded);
    vf square = {};
    for (int d = 0; d < size; d += W) square += load(queries[q] + d) * load(queries[q] + d);
    slopes[q] = std::sqrt(sum_of(square));
    offsets[q] = folded.offset;
    vf most = splat(-kInfinity);
    for (int block = 0; block < kSketchBlocks; block++) {
      vi total[kVectors] = {};
      const std::byte* at = codes + static_cast<size_t>(block) * kPanel * size / 2;
      for (int d = 0; d < size; d += 8, at += kLineBytes) {
        int32_t quads[2];
        std::memcpy(quads, folded.codes + d, 8);
        for (int v = 0; v < kVectors; v++)
          total[v] = dot_halves(total[v], load_bits(at + v * kVectorBytes), quads[0], quads[1]);
      }
      for (int v = 0; v < kVectors; v++) {
        const vf score = to_float(total[v]) * splat(folded.unit) + splat(folded.bias);
        store(scores + q * kSketchRows + block * kPanel + v * W, score);
        most = max(most, score);
      }
    }
    const float top = max_of(most);
    peaks[q] = top > peaks[q] ? top : peaks[q];
  }
}

inline void sum_blocks(const float* scores, float peak, float* masses) {
  for (int block = 0; block < kSketchBlocks; block++) {
    vf mass = {};
    for (int i = 0; i < kPanel; i += W)
      mass += exp2(load(scores + block * kPanel + i) - splat(peak));
    masses[block] = sum_of(mass);
  }
}
