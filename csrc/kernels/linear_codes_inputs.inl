// Inputs of weights in few bits, in the order that the kernels read.

// Forms that the kernels of this instruction set take.
constexpr bool kTakesBytes = SUFFICE_LEVEL > 0, kTakesPairs = !SUFFICE_VNNI;

// The sums of the lanes of two vectors, each below 2^24.
SUFFICE_INLINE void sum_two(vi first, vi second, int32_t* of_first, int32_t* of_second) {
#if SUFFICE_LEVEL >= 3
#if SUFFICE_LEVEL == 4
  const auto half = [](vi all) __attribute__((always_inline)) {
    const auto bits = reinterpret_cast<__m512i>(all);
    return _mm256_add_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1));
  };
  const __m256i pairs = _mm256_hadd_epi32(half(first), half(second));
#else
  const __m256i pairs =
      _mm256_hadd_epi32(reinterpret_cast<__m256i>(first), reinterpret_cast<__m256i>(second));
#endif
  const __m128i fours =
      _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const __m128i both = _mm_hadd_epi32(fours, fours);
  *of_first = _mm_cvtsi128_si32(both);
  *of_second = _mm_extract_epi32(both, 1);
#elif SUFFICE_NEON
  *of_first = vaddvq_s32(first);
  *of_second = vaddvq_s32(second);
#else
  *of_first = static_cast<int32_t>(sum_of(to_float(first)));
  *of_second = static_cast<int32_t>(sum_of(to_float(second)));
#endif
}

#if SUFFICE_LEVEL >= 3
// The low bytes of 16 integers.
SUFFICE_INLINE __m128i low_bytes(const vi* whole) {
#if SUFFICE_LEVEL == 4
  return _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(whole[0]));
#else
  // Packed, quarters of the two vectors take turns.
  const __m256i halves = _mm256_packs_epi32(reinterpret_cast<__m256i>(whole[0] << 24 >> 24),
                                            reinterpret_cast<__m256i>(whole[1] << 24 >> 24));
  const __m256i ordered = _mm256_permute4x64_epi64(halves, 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
#endif
}

// Stores the low bytes of 32 integers, and the high ones unless all fit a byte, four columns after
// four columns, those of a four in the order of a four of codes.
SUFFICE_INLINE void store_bytes(vi (*whole)[kVectors], bool high, int8_t* to) {
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  static_assert(kCodeOrder[1] == 2 && kCodeOrder[2] == 1);
  for (int half = 0; half < 2; half++) {
    auto* at = reinterpret_cast<__m128i*>(to + half * kPanel * (1 + high));
    const __m128i bytes = _mm_shuffle_epi8(low_bytes(whole[half]), order);
    if (!high) {
      _mm_storeu_si128(at, bytes);
      continue;
    }
    vi rest[kVectors];  // without the low byte, which is signed
    for (int v = 0; v < kVectors; v++) rest[v] = (whole[half][v] + 128) >> 8;
    const __m128i upper = _mm_shuffle_epi8(low_bytes(rest), order);
    _mm_storeu_si128(at, _mm_unpacklo_epi32(bytes, upper));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi32(bytes, upper));
  }
}
#elif SUFFICE_NEON
SUFFICE_INLINE int8x16_t low_bytes(const vi* whole) {
  const int16x8_t first = vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]));
  const int16x8_t last = vcombine_s16(vmovn_s32(whole[2]), vmovn_s32(whole[3]));
  constexpr uint8_t order[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  return vqtbl1q_s8(vcombine_s8(vmovn_s16(first), vmovn_s16(last)), vld1q_u8(order));
}

SUFFICE_INLINE void store_bytes(vi (*whole)[kVectors], bool high, int8_t* to) {
  for (int half = 0; half < 2; half++) {
    int8_t* at = to + half * kPanel * (1 + high);
    const int8x16_t bytes = low_bytes(whole[half]);
    if (!high) {
      vst1q_s8(at, bytes);
      continue;
    }
    vi rest[kVectors];
    for (int v = 0; v < kVectors; v++) rest[v] = vrshrq_n_s32(whole[half][v], 8);
    const int32x4x2_t both = {{vreinterpretq_s32_s8(bytes), vreinterpretq_s32_s8(low_bytes(rest))}};
    vst2q_s32(reinterpret_cast<int32_t*>(at), both);
  }
}
#else
SUFFICE_INLINE void store_bytes(vi (*)[kVectors], bool, int8_t*) {}  // not kTakesBytes
#endif

// Stretches of 32 values that are quantized together, so that their long chains of operations run
// side by side and their scales are divided at once.
struct StretchGroup {
  const float* from[W];
  size_t at[W];
  int count = 0;
  float ends[W][kUnit];  // copies of stretches that end early
};

// Writes integers, scales and sums, `crossed` or not. A scale below the normal numbers would have
// no inverse.
inline void quantize_group(const StretchGroup& group, int most, bool crossed, int8_t* bytes,
                           int16_t* pairs, InputStretch* stretches) {
  constexpr float least = 1.17549435e-38f;
  const bool high = most > kMaxByte;
  float scales[W] = {}, inverses[W];
  for (int i = 0; i < group.count; i++) scales[i] = max_magnitude(group.from[i], kUnit);
  const vf scale = max(load(scales) / static_cast<float>(most), splat(least));
  store(inverses, 1.0f / scale);
  int32_t sums[3][W] = {};
  for (int i = 0; i < group.count; i++) {
    vi whole[2][kVectors], sum[2] = {};
    for (int half = 0; half < 2; half++)
      for (int v = 0; v < kVectors; v++) {
        whole[half][v] = nearest(load(group.from[i] + half * kPanel + v * W), inverses[i]);
        sum[half] += whole[half][v];
      }
    sum_two(sum[0], sum[1], &sums[1][i], &sums[2][i]);
    const size_t at = group.at[i];
    if (kTakesBytes && !crossed) store_bytes(whole, high, bytes + at * kUnit * (1 + high));
    if (kTakesPairs || crossed)
      for (int j = 0; j < kUnit / W; j++)
        store_narrow(whole[j / kVectors][j % kVectors], pairs + at * kUnit + j * W);
  }
  float values[3][W];
  const vi whole = load_bits(sums[1]) + load_bits(sums[2]);
  std::memcpy(sums[0], &whole, sizeof whole);
  for (int part = 0; part < 3; part++) store(values[part], to_float(load_bits(sums[part])) * scale);
  store(scales, scale);
  for (int i = 0; i < group.count; i++) {
    InputStretch& to = stretches[group.at[i]];
    to.scale = scales[i];
    for (int part = 0; part < 3; part++) to.sums[part] = {sums[part][i], values[part][i]};
    if (crossed) cross_sums(pairs + group.at[i] * kUnit, to);
  }
}

// `stride` is a multiple of 16 and values beyond `columns` are 0. The last 32 columns may end
// beyond that: these inputs are 0.
inline void quantize_for_codes(const float* values, int stride, int first, int last, int count,
                               int columns, int most, bool crossed, int8_t* bytes, int16_t* pairs,
                               InputStretch* stretches) {
  const int size = round_up(columns, kPanel);
  StretchGroup group;
  const auto add = [&](int row, int k, size_t at) {
    const int i = group.count++;
    group.from[i] = values + static_cast<size_t>(row) * stride + k;
    group.at[i] = at;
    if (size - k < kUnit) {
      std::memset(group.ends[i], 0, sizeof group.ends[i]);
      std::memcpy(group.ends[i], group.from[i], kPanel * sizeof(float));
      group.from[i] = group.ends[i];
    }
    if (group.count < W) return;
    quantize_group(group, most, crossed, bytes, pairs, stretches);
    group.count = 0;
  };
  while (first < last) {
    const InputPart part(columns, count, first);
    const int of_part = first % kPartRows, left = part.rows - of_part;
    const int rows = last - first < left ? last - first : left;
    // Rows are the inner loop: what is written is then adjacent, and no power of two apart.
    for (int k = 0; k < columns; k += kUnit)
      for (int row = 0; row < rows; row++)
        add(first + row, k, part.first + k / kUnit * part.rows + of_part + row);
    first += rows;
  }
  quantize_group(group, most, crossed, bytes, pairs, stretches);
}
