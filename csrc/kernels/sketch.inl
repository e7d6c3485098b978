// Scores from a sketch: products of 4-bit codes with queries rounded to 8 bits.

constexpr float kRounding = 1e-4f;  // of scores, in base 2

// Dimensions that fit into 16-bit sums (AVX2) before these must be widened: 4 at a time, 15 * 127
// for each pair.
constexpr int kNarrowDimensions = 32;

struct Folded {  // a query times the scales of a chunk's channels
  alignas(64) int8_t codes[kMaxSize];
  float unit, bias, offset;
};

// score = sum code * folded + sum low * query. With x the rounded folded query, and 7.5 times the
// differences added, the rounding error is (code - 7.5) * (folded - x * unit): at most 7.5 times
// each difference.
template <int Q>
SUFFICE_INLINE void fold(const float* const* queries, const std::byte* sketch, int size,
                         Folded* to) {
  const uint16_t* scale = reinterpret_cast<const uint16_t*>(sketch);
  const uint16_t* low = scale + size;
  alignas(64) float folded[Q][kMaxSize];
  vf greatest[Q], bias[Q], differences[Q], magnitudes[Q];
  clear(greatest), clear(bias), clear(differences), clear(magnitudes);
  for (int d = 0; d < size; d += W) {
    const vf scales = load_bf16(scale + d), lows = load_bf16(low + d);
    for (int q = 0; q < Q; q++) {
      const vf query = load(queries[q] + d), value = query * scales;
      store(folded[q] + d, value);
      greatest[q] = max(greatest[q], max(value, -value));
      bias[q] += query * lows;
    }
  }
  float inverse[Q];
  for (int q = 0; q < Q; q++) {
    to[q].unit = max_of(greatest[q]) / 127.0f;
    inverse[q] = to[q].unit > 0 ? 1.0f / to[q].unit : 0.0f;
  }
  for (int d = 0; d < size; d += W)
    for (int q = 0; q < Q; q++) {
      const vf value = load(folded[q] + d);
      const vf rounded = round_even(value * inverse[q]);
      store_narrow(__builtin_convertvector(rounded, vi), to[q].codes + d);
      const vf difference = value - rounded * to[q].unit;
      differences[q] += difference;
      magnitudes[q] += max(difference, -difference);
    }
  for (int q = 0; q < Q; q++) {
    to[q].bias = sum_of(bias[q] + 7.5f * differences[q]);
    to[q].offset = 7.5f * sum_of(magnitudes[q]);
  }
}

// Scores of a block's 16 keys for Q queries; what lies `ahead` of it is read later.
template <int Q>
SUFFICE_INLINE void score_codes(const std::byte* codes, int size, size_t ahead,
                                const Folded* folded, vf (*scores)[kVectors]) {
  const vi half = splat_bits(0x0f0f0f0f);
  vi sum[Q][kVectors];
  clear(sum);
  for (int start = 0; start < size; start += kNarrowDimensions) {
    const int left = size - start;
    const int end = start + (left < kNarrowDimensions ? left : kNarrowDimensions);
    vi part[Q][kVectors];
    clear(part);
    for (int d = start; d < end; d += 8, codes += kLineBytes) {
      fetch_near(codes + ahead);
      for (int v = 0; v < kVectors; v++) {
        const vi both = load_bits(codes + v * kVectorBytes);
        const vi first = both & half, second = (both >> 4) & half;
        for (int q = 0; q < Q; q++)
          part[q][v] = dot_halves(part[q][v], first, second, word<vi>(folded[q].codes + d),
                                  word<vi>(folded[q].codes + d + 4));
      }
    }
    for (int q = 0; q < Q; q++)
      for (int v = 0; v < kVectors; v++) sum[q][v] += widen(part[q][v]);
  }
  for (int q = 0; q < Q; q++)
    for (int v = 0; v < kVectors; v++)
      scores[q][v] = to_float(sum[q][v]) * splat(folded[q].unit) + splat(folded[q].bias);
}

// One chunk and Q queries from `first` on. `largest` [count][W] keeps the largest scores in every
// lane; `peak` a score that none exceeds by more than 2^8.
template <int Q>
SUFFICE_INLINE void estimate_chunk(const KVHead& head, const float* const* queries, int first,
                                   int index, const float* slopes, const Estimates& to, vf* largest,
                                   float* peak) {
  const int size = head.size;
  const std::byte* sketch = head.sketch + (to.first + index) * sketch_bytes(size);
  const float* residual = reinterpret_cast<const float*>(sketch + 4 * static_cast<size_t>(size));
  const std::byte* codes = sketch + sketch_codes_at(size);
  Folded folded[Q];
  fold<Q>(queries + first, sketch, size, folded);
  vf scores[kSketchBlocks][Q][kVectors];
  for (int b = 0; b < kSketchBlocks; b++)
    score_codes<Q>(codes + static_cast<size_t>(b) * kPanel * size / 2, size, sketch_bytes(size),
                   folded, scores[b]);
  for (int i = 0; i < Q; i++) {
    const int q = first + i;
    vf top = scores[0][i][0];
    for (int b = 0; b < kSketchBlocks; b++)
      for (int v = 0; v < kVectors; v++) top = max(top, scores[b][i][v]);
    largest[q] = max(largest[q], top);
    if (any(top > splat(peak[q] + kRescale))) peak[q] = max_of(top);
    vf masses[kSketchBlocks] = {};
    for (int b = 0; b < kSketchBlocks; b++)
      for (int v = 0; v < kVectors; v++) masses[b] += exp2(scores[b][i][v] - splat(peak[q]));
    const size_t entry = q * to.blocks() + static_cast<size_t>(index) * kSketchBlocks;
    sum_four(masses, to.masses + entry);
    for (int b = 0; b < kSketchBlocks; b++) to.peaks[entry + b] = peak[q];
    if (!to.bounds) continue;
    for (int b = 0; b < kSketchBlocks; b++)
      to.bounds[entry + b] = residual[b] * slopes[q] * kSquareSlack + folded[i].offset + kRounding;
  }
}

inline void estimate(const KVHead& head, const float* const* queries, int begin, int end,
                     const Estimates& to, float* greatest) {
  constexpr int max_queries = 16;  // at a time
  vf largest[max_queries];
  float peak[max_queries], slopes[max_queries];
  alignas(64) float rounded[max_queries][kMaxSize];  // as products with the keys use them
  for (int start = 0; start < to.count; start += max_queries) {
    const int left = to.count - start, count = left < max_queries ? left : max_queries;
    Estimates part = to;
    part.masses += start * to.blocks();
    if (to.bounds) part.bounds += start * to.blocks();
    part.peaks += start * to.blocks();
    const float* of_rows[max_queries];
    for (int q = 0; q < count; q++) {
      of_rows[q] = queries[start + q];
      if (head.key_type == Type::kmeans4) round_query(head, of_rows[q], rounded[q]);
      const bool in_pairs = kBf16Pairs<Type::bf16> && head.key_type == Type::bf16;
      for (int d = 0; in_pairs && d < head.size; d++)
        rounded[q][d] = from_bf16(to_bf16(of_rows[q][d]));
      if (in_pairs || head.key_type == Type::kmeans4) of_rows[q] = rounded[q];
      largest[q] = splat(-kInfinity);
      peak[q] = kLowest;
      vf square = {};
      for (int d = 0; d < head.size; d += W) {
        const vf value = load(of_rows[q] + d);
        square += value * value;
      }
      slopes[q] = std::sqrt(sum_of(square));
    }
    for (int i = begin; i < end; i++)
      in_units<3>(count, [&]<int Q>(int first) {
        estimate_chunk<Q>(head, of_rows, first, i, slopes, part, largest, peak);
      });
    for (int q = 0; q < count; q++) greatest[start + q] = max_of(largest[q]);
  }
}

inline void combine(const Estimates& of, const float* peaks, float* totals, float* shares) {
  std::memset(shares, 0, sizeof(float) * of.blocks());
  for (int q = 0; q < of.count; q++) {
    float* const masses = of.masses + q * of.blocks();
    vf total = {};
    for (size_t i = 0; i < of.blocks(); i += W) {
      const vf factor = exp2(load(of.peaks + q * of.blocks() + i) - splat(peaks[q]));
      const vf mass = load(masses + i) * factor;
      store(masses + i, mass);
      total += mass;
    }
    totals[q] = sum_of(total);
    const vf inverse = splat(totals[q] > 0 ? 1.0f / totals[q] : 0.0f);
    for (size_t i = 0; i < of.blocks(); i += W) {
      store(shares + i, load(shares + i) + load(masses + i) * inverse);
      if (!of.bounds) continue;
      float* const bound = of.bounds + q * of.blocks() + i;
      store(bound, load(masses + i) * exp2(load(bound)) * kSquareSlack);
    }
  }
}
