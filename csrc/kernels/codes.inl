// y = W x of weights in codes: 4 bits choose one of 16 levels, a permute away, and integer products
// of the levels with the inputs in int16 are summed group by group.

// How far ahead of the arithmetic weights are asked for, in bytes.
constexpr int kAheadCodes = 2048;

// Columns after which a sum goes to float32: 255 * 32767 * 256 is still below 2^31.
constexpr int kMostSummed = 256;

// The levels, at each code's place. Bytes of codes are 0..15.
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
  for (uint8_t& each : index) each = table[each];
  return load_bits(index);
#endif
}

// 16 bytes, repeated.
SUFFICE_INLINE vi repeat_levels(const uint8_t* levels) {
  uint8_t all[kVectorBytes];
  for (int i = 0; i < kVectorBytes; i += kLevels) std::memcpy(all + i, levels, kLevels);
  return load_bits(all);
}

// total += in each lane the sum of two products of int16.
SUFFICE_INLINE vi add_pairs(vi total, vi a, vi b) {
#if SUFFICE_LEVEL == 4
  return reinterpret_cast<vi>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(a),
                                                  reinterpret_cast<__m512i>(b)));
#else
  return multiply_add(a, b, total);
#endif
}

// total += in each lane the sum of four codes or levels of `first` times the signed bytes of `low`,
// and of `second` times those of `high`; in 16 bits with AVX2, which `widen` ends.
SUFFICE_INLINE vi dot_halves(vi total, vi first, vi second, vi low, vi high) {
#if SUFFICE_LEVEL == 4
  const __m512i sum =
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total), reinterpret_cast<__m512i>(first),
                          reinterpret_cast<__m512i>(low));
  return reinterpret_cast<vi>(
      _mm512_dpbusd_epi32(sum, reinterpret_cast<__m512i>(second), reinterpret_cast<__m512i>(high)));
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
#if SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(total), _mm256_set1_epi16(1)));
#else
  return total;
#endif
}

typedef uint16_t vu __attribute__((vector_size(kVectorBytes)));

// The levels of 8 columns, as pairs of int16: columns 0 and 1, 2 and 3, 4 and 5, 6 and 7.
SUFFICE_INLINE void pairs_of_levels(vi levels, const std::byte* line, vi* pairs) {
  const vi bits = load_bits(line);
  const vi nibbles = splat_bits(0x0f0f0f0f), bytes = splat_bits(0x00ff00ff);
  const vi low = look_up(levels, bits & nibbles);
  const vi high = look_up(levels, (bits >> 4) & nibbles);
  pairs[0] = low & bytes;
  pairs[1] = reinterpret_cast<vi>(reinterpret_cast<vu>(low) >> 8);
  pairs[2] = high & bytes;
  pairs[3] = reinterpret_cast<vi>(reinterpret_cast<vu>(high) >> 8);
}

// The sums of a row's codes before every 8th.
SUFFICE_INLINE const int32_t* sums_of(const Inputs& x, int row) {
  return x.wide_sums + static_cast<size_t>(row) * (x.stride / 8 + 1);
}

// One past the last column of those that are summed as integers from column `k` on: of one group.
SUFFICE_INLINE int summed_end(const Linear& w, int k, int columns) {
  const int group_end = (k / w.group + 1) * w.group;
  const int end = k + kMostSummed < columns ? k + kMostSummed : columns;
  return group_end < end ? group_end : end;
}

// Adds a row's integer sums over the columns [begin, end) of a group to its total, less the offset
// of the levels, of which `sums` [columns / 8 + 1] of the inputs has the share.
SUFFICE_INLINE void add_summed(const Linear& w, int panel, int begin, int end, const int32_t* sums,
                               const vi* summed, vf* total) {
  const int32_t offset = kLevelOffset * (sums[end / 8] - sums[begin / 8]);
  const auto* scale = reinterpret_cast<const uint16_t*>(w.data + panel * w.panel_bytes()) +
                      begin / w.group * kPanel;
  for (int v = 0; v < kVectors; v++)
    total[v] = to_float(summed[v] - offset) * load_f16(scale + v * W) + total[v];
}

SUFFICE_INLINE void store_totals(const Linear& w, int panel, float scale, const vf* total,
                                 float* y) {
  for (int v = 0; v < kVectors; v++) {
    const int n = panel * kPanel + v * W;
    vf out = total[v] * scale;
    if (w.bias) out += load(w.bias + n);
    store(y + n, out);
  }
}

// One panel times B rows. Every (row, output) is summed in the same order whatever B is.
template <int B>
void codes_tile(const Linear& w, int panel, const Inputs& x, int row, float* y, int y_stride) {
  // dpwssd takes 5 cycles: with few rows, four sums for each output hide them.
  constexpr int kChains = SUFFICE_LEVEL == 4 && B <= 2 ? 4 : 1;
  const std::byte* line = w.data + panel * w.panel_bytes() + w.scale_bytes();
  const int16_t* input = x.wide + static_cast<size_t>(row) * x.stride;
  const vi levels = repeat_levels(w.levels);
  const int columns = w.steps() * 8;
  vf total[B][kVectors] = {};
  for (int k = 0; k < columns;) {
    const int begin = k, end = summed_end(w, k, columns);
    vi sum[B][kVectors][kChains] = {};
    for (; k < end; k += 8, line += kLineBytes) {
      fetch(line + kAheadCodes);
      for (int v = 0; v < kVectors; v++) {
        vi pairs[4];
        pairs_of_levels(levels, line + v * kVectorBytes, pairs);
        for (int b = 0; b < B; b++)
          for (int i = 0; i < 4; i++) {
            const int16_t* at = input + static_cast<size_t>(b) * x.stride + k + 2 * i;
            vi& to = sum[b][v][i % kChains];
            to = add_pairs(to, pairs[i], broadcast<vi>(at));
          }
      }
    }
    for (int b = 0; b < B; b++) {
      vi summed[kVectors];
      for (int v = 0; v < kVectors; v++) {
        summed[v] = sum[b][v][0];
        for (int i = 1; i < kChains; i++) summed[v] += sum[b][v][i];
      }
      add_summed(w, panel, begin, end, sums_of(x, row + b), summed, total[b]);
    }
  }
  for (int b = 0; b < B; b++)
    store_totals(w, panel, x.scales[row + b], total[b],
                 y + static_cast<size_t>(row + b) * y_stride);
}

// From so many rows on, levels are looked up once for all of them, and not once for each tile.
constexpr int kDecodeRows = SUFFICE_LEVEL == 4 ? 9 : 5;
constexpr int kDecodedRows = 32;  // that share them; their totals stay in the L1 cache

// The levels of some columns of a panel, as pairs of int16: [columns / 2][kVectors].
SUFFICE_INLINE void decode_columns(vi levels, const std::byte* line, int columns, vi* to) {
  for (int k = 0; k < columns; k += 8, line += kLineBytes, to += 4 * kVectors) {
    fetch(line + kAheadCodes);
    for (int v = 0; v < kVectors; v++) {
      vi pairs[4];
      pairs_of_levels(levels, line + v * kVectorBytes, pairs);
      for (int i = 0; i < 4; i++) to[i * kVectors + v] = pairs[i];
    }
  }
}

// B rows of inputs, `stride` apart, times such pairs: the integer sums.
template <int B>
SUFFICE_INLINE void sum_decoded(const vi* pairs, int columns, const int16_t* input, int stride,
                                vi (*summed)[kVectors]) {
  vi sum[B][kVectors] = {};
  for (int k = 0; k < columns; k += 2, pairs += kVectors)
    for (int b = 0; b < B; b++) {
      const vi both = broadcast<vi>(input + static_cast<size_t>(b) * stride + k);
      for (int v = 0; v < kVectors; v++) sum[b][v] = add_pairs(sum[b][v], pairs[v], both);
    }
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) summed[b][v] = sum[b][v];
}

// One panel times `count` rows, at most kDecodedRows; with the bits of codes_tile.
inline void decoded_panel(const Linear& w, int panel, const Inputs& x, int first, int count,
                          float* y, int y_stride) {
  constexpr int kTile = SUFFICE_LEVEL == 4 ? 8 : 6;
  vi pairs[kMostSummed / 2 * kVectors];
  vf total[kDecodedRows][kVectors] = {};
  const std::byte* lines = w.data + panel * w.panel_bytes() + w.scale_bytes();
  const vi levels = repeat_levels(w.levels);
  const int columns = w.steps() * 8;
  for (int begin = 0, end; begin < columns; begin = end) {
    end = summed_end(w, begin, columns);
    decode_columns(levels, lines + begin / 8 * kLineBytes, end - begin, pairs);
    in_units<kTile>(count, [&]<int B>(int row) {
      const int16_t* input = x.wide + static_cast<size_t>(first + row) * x.stride + begin;
      vi summed[B][kVectors];
      sum_decoded<B>(pairs, end - begin, input, x.stride, summed);
      for (int b = 0; b < B; b++)
        add_summed(w, panel, begin, end, sums_of(x, first + row + b), summed[b], total[row + b]);
    });
  }
  for (int row = 0; row < count; row++)
    store_totals(w, panel, x.scales[first + row], total[row],
                 y + static_cast<size_t>(first + row) * y_stride);
}

// A panel at a time, which is one sequential stream.
inline void linear_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  for (int panel = first; panel < last; panel++) {
    if (x.count < kDecodeRows) {
      dispatch<kDecodeRows - 1>(x.count,
                                [&]<int B>() { codes_tile<B>(w, panel, x, 0, y, y_stride); });
      continue;
    }
    for (int row = 0; row < x.count; row += kDecodedRows)
      decoded_panel(w, panel, x, row, x.count - row < kDecodedRows ? x.count - row : kDecodedRows,
                    y, y_stride);
  }
}

// The code of row `row` of a panel and a column.
SUFFICE_INLINE int code_at(const std::byte* lines, int row, int column) {
  // The order is its own inverse: two columns change places.
  const std::byte byte = lines[(column / 8) * kLineBytes + row * 4 + kCodeOrder[column % 4]];
  return static_cast<int>(byte) >> (column % 8 / 4 * 4) & 15;
}

SUFFICE_INLINE float scale_at(const Linear& w, int panel, int row, int column) {
  const auto* scales = reinterpret_cast<const uint16_t*>(w.data + panel * w.panel_bytes());
  return half_to_float(scales[column / w.group * kPanel + row]);
}

// The dense rows of the panels [first, last), of rotated inputs if there is a rotation.
inline void unpack_codes(const Linear& w, int first, int last, float* to, int stride) {
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    const int panel = n / kPanel, row = n % kPanel;
    const std::byte* lines = w.data + panel * w.panel_bytes() + w.scale_bytes();
    float* out = to + static_cast<size_t>(n - first * kPanel) * stride;
    for (int k = 0; k < w.columns; k++)
      out[k] = scale_at(w, panel, row, k) * (w.levels[code_at(lines, row, k)] - kLevelOffset);
  }
}

inline void count_pairs(const Linear& w, int first, int last, const uint8_t* x,
                        const float* x_levels, float* y) {
  float terms[kLevels * kLevels];
  for (int i = 0; i < kLevels; i++)
    for (int j = 0; j < kLevels; j++)
      terms[i * kLevels + j] = x_levels[i] * (w.levels[j] - kLevelOffset);
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    const std::byte* lines = w.data + n / kPanel * w.panel_bytes() + w.scale_bytes();
    int32_t counts[kLevels * kLevels] = {};
    for (int k = 0; k < w.columns; k++) counts[x[k] << 4 | code_at(lines, n % kPanel, k)]++;
    float sum = 0.0f;
    for (int i = 0; i < kLevels * kLevels; i++) sum += static_cast<float>(counts[i]) * terms[i];
    y[n] = sum * scale_at(w, n / kPanel, n % kPanel, 0);
  }
}

// `stride` is a multiple of 16 and the values beyond `columns` are 0, so whole vectors are read.
inline void quantize_wide(const float* values, int stride, int count, int columns, int most,
                          int16_t* codes, float* scales, int32_t* sums) {
  const int size = round_up(columns, kPanel);
  for (int row = 0; row < count; row++) {
    const float* from = values + static_cast<size_t>(row) * stride;
    int16_t* to = codes + static_cast<size_t>(row) * stride;
    int32_t* sum = sums + static_cast<size_t>(row) * (stride / 8 + 1);
    scales[row] = max_magnitude(from, size) / static_cast<float>(most);
    const float inverse = scales[row] > 0 ? 1.0f / scales[row] : 0.0f;
    for (int i = 0; i < size; i += W)
      store_narrow(__builtin_convertvector(round_even(load(from + i) * inverse), vi), to + i);
    sum[0] = 0;
    for (int i = 0; i < size; i += 8) {
      int32_t own = 0;
      for (int j = 0; j < 8; j++) own += to[i + j];
      sum[i / 8 + 1] = sum[i / 8] + own;
    }
  }
}
