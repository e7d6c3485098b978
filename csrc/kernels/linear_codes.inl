// y = W x for weights of few bits: integer products of levels and inputs, summed by stretches.
//
// Levels are bytes, less the lowest one. Inputs are signed bytes (of 16 bits: low and high ones,
// whose sums are added up as 256 high + low) or pairs of int16. Bytes take half the instructions.

// Inputs lie in parts of at most this number of rows: [parts][columns / 32][rows of the part]. They
// share a lookup of levels; their totals stay in the L1 cache, their inputs in the L2 cache.
constexpr int kPartRows = SUFFICE_LEVEL == 4 ? 128 : 64;

// The part of `count` rows that has row `row`.
struct InputPart {
  size_t first;  // stretches of the parts before it
  int rows;

  SUFFICE_INLINE InputPart(int columns, int count, int row) {
    const int begin = row / kPartRows * kPartRows;
    first = static_cast<size_t>(begin) * (round_up(columns, kUnit) / kUnit);
    rows = count - begin < kPartRows ? count - begin : kPartRows;
  }
};

// Of V vectors of weights, those whose products are added up together: they share the inputs of a
// row. With 16 registers, several rows leave room for one.
template <int Sums, int V>
constexpr int kAtOnce =
    SUFFICE_LEVEL == 4 || SUFFICE_NEON || Sums * V <= (SUFFICE_VNNI ? 12 : 8) ? V : 1;

// Inputs of 1 or 2 bytes. Without VNNI, products of two columns pass through int16, where `Kept`
// fours can be added up.
template <int Bytes, int Kept = 1>
struct ByteInputs {
  static constexpr int four_bytes = Bytes * kQuad, kept = Kept;
  // Sums of each byte; with VNNI enough of them, of few rows, to hide the latency of a product.
  template <int B>
  static constexpr int chains =
      !SUFFICE_VNNI || SUFFICE_NEON || Bytes * B > 2 ? 1 : 4 / (Bytes * B);
  template <int B>
  static constexpr int sums = SUFFICE_VNNI ? Bytes * chains<B> : 1;
  static constexpr bool starts = SUFFICE_VNNI;  // sums begin with those of the lowest level

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.bytes);
  }

  // Adds the levels of some fours, `levels(v, four)`, times those of the inputs of B rows.
  template <int B, int V, int Fours, class F>
  static SUFFICE_INLINE void add([[maybe_unused]] F levels, const std::byte* input,
                                 [[maybe_unused]] vi (*sum)[B][sums<B>]) {
    constexpr int N = kAtOnce<B * Bytes, V>;
    const auto taken = [=](int four, int b, int i) __attribute__((always_inline)) {
      return word<vi>(input + (b * kFours + four) * four_bytes + i * kQuad);
    };
    for (int first_v = 0; first_v < V; first_v += N) {
#if SUFFICE_VNNI
#pragma GCC unroll 8
      for (int four = 0; four < Fours; four++) {
        vi part[N];
        for (int v = 0; v < N; v++) part[v] = levels(first_v + v, four);
#pragma GCC unroll 8
        for (int b = 0; b < B; b++)
          for (int i = 0; i < Bytes; i++)
            for (int v = 0; v < N; v++) {
              vi& to = sum[first_v + v][b][i * chains<B> + four % chains<B>];
              to = dot_bytes(to, part[v], taken(four, b, i));
            }
      }
#elif SUFFICE_LEVEL > 0
      constexpr int together = Kept < Fours ? Kept : Fours;
#pragma GCC unroll 8
      for (int first = 0; first < Fours; first += together) {
        vi kept[B][Bytes][N];
#pragma GCC unroll 8
        for (int four = first; four < first + together; four++) {
          vi part[N];
          for (int v = 0; v < N; v++) part[v] = levels(first_v + v, four);
#pragma GCC unroll 8
          for (int b = 0; b < B; b++)
            for (int i = 0; i < Bytes; i++)
              for (int v = 0; v < N; v++) {
                const vi found = dot_words(part[v], taken(four, b, i));
                vi& sum_of_words = kept[b][i][v];
                sum_of_words = four == first ? found : add_words(sum_of_words, found);
#if !SUFFICE_NEON
                asm("" : "+x"(sum_of_words));  // else GCC adds in pairs, and runs out of registers
#endif
              }
        }
        for (int b = 0; b < B; b++)
          for (int i = 0; i < Bytes; i++)
            for (int v = 0; v < N; v++) {
              const vi part = sum_words(kept[b][i][v], 8 * i);
              vi& to = sum[first_v + v][b][0];
              to = first == 0 && i == 0 ? part : to + part;
            }
      }
#endif
    }
  }

  template <int B>
  static SUFFICE_INLINE vi total(const vi* sum) {
    if constexpr (!SUFFICE_VNNI) return sum[0];
    vi of_bytes[Bytes];
    for (int i = 0; i < Bytes; i++) {
      of_bytes[i] = sum[i * chains<B>];
      for (int j = 1; j < chains<B>; j++) of_bytes[i] += sum[i * chains<B> + j];
    }
    if constexpr (Bytes == 2) return of_bytes[0] + (of_bytes[1] << 8);
    return of_bytes[0];
  }
};

// Inputs of int16, for levels whose products do not fit int16.
struct PairInputs {
  static constexpr int four_bytes = 2 * kQuad, kept = 1;
  template <int B>
  static constexpr int sums = 1;
  static constexpr bool starts = true;

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.pairs);
  }

  template <int B, int V, int Fours, class F>
  static SUFFICE_INLINE void add(F levels, const std::byte* input, vi (*sum)[B][1]) {
    for (int v = 0; v < V; v++)
#pragma GCC unroll 8
      for (int four = 0; four < Fours; four++) {
        const vi part = levels(v, four);
        const vi first = part & splat_bits(0x00ff00ff);
        const vi second = reinterpret_cast<vi>(reinterpret_cast<vu>(part) >> 8);
#pragma GCC unroll 8
        for (int b = 0; b < B; b++) {
          const std::byte* at = input + (b * kFours + four) * four_bytes;
          sum[v][b][0] = multiply_add(first, broadcast<vi>(at), sum[v][b][0]);
          sum[v][b][0] = multiply_add(second, broadcast<vi>(at + kQuad), sum[v][b][0]);
        }
      }
  }

  template <int B>
  static SUFFICE_INLINE vi total(const vi* sum) {
    return sum[0];
  }
};

// B rows times the levels of units of V / kVectors panels, `levels(v, four)`, added to their
// totals. `scales`: like BatchScales. `stretch`, `input`: those of the first row.
template <class In, int B, int V, class F, class S>
SUFFICE_INLINE void add_unit(const Linear& w, const F& levels, const S& scales,
                             const InputStretch* stretch, const std::byte* input, vf (*total)[V]) {
  constexpr int sums = In::template sums<B>;
  vi sum[V][B][sums];
  const auto start = [&](int which) __attribute__((always_inline)) {
    if (!In::starts) {
#if SUFFICE_NEON  // GCC 12 otherwise adds to sums before it sets them, below -O3
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) sum[v][b][0] = vi{};
#endif
      return;
    }
    for (int b = 0; b < B; b++) {
      const vi first = splat_bits(lowest_of(w) * stretch[b].sums[which].codes);
      for (int v = 0; v < V; v++) {
        sum[v][b][0] = first;
        for (int i = 1; i < sums; i++) sum[v][b][i] = vi{};
      }
    }
  };
  const auto end = [&](int which) __attribute__((always_inline)) {
    const int half = which == 2;
    // Scales are loaded where they multiply: kept for a second half, they would take registers.
    asm("" : "+r"(stretch));
    if (!In::starts && lowest_of(w))
      for (int b = 0; b < B; b++) {
        const vi of_lowest = splat_bits(lowest_of(w) * stretch[b].sums[which].codes);
        for (int v = 0; v < V; v++) sum[v][b][0] += of_lowest;
      }
    for (int b = 0; b < B; b++)
      for (int v = 0; v < V; v++) {
        const vf scaled = scales.scale(v, half) * stretch[b].scale;
        total[b][v] = to_float(In::template total<B>(sum[v][b])) * scaled + total[b][v];
      }
    if (!scales.minima) return;
    for (int b = 0; b < B; b++)
      for (int v = 0; v < V; v++)
        total[b][v] = scales.minimum(v, half) * stretch[b].sums[which].values + total[b][v];
  };
  const auto part = [&]<int From, int Fours>(int which) __attribute__((always_inline)) {
    start(which);
    const auto of_four = [&](int v, int four)
                             __attribute__((always_inline)) { return levels(v, From + four); };
    In::template add<B, V, Fours>(of_four, input + From * In::four_bytes, sum);
    end(which);
  };
  if (!scales.halves) return part.template operator()<0, kFours>(0);
  part.template operator()<0, kFours / 2>(1);
  part.template operator()<kFours / 2, kFours / 2>(2);
}

// Looks up the levels of a unit of P panels, [8 fours][P * kVectors].
template <int Bits, bool Even, int P>
SUFFICE_INLINE void find_levels(const Levels<Bits, Even>& levels, const UnitBatch* batches,
                                int unit, vi* found) {
  for (int p = 0; p < P; p++) {
    const std::byte* const from = batches[p].units + unit * unit_bytes(Bits);
    if (batches[p].in_memory()) fetch_lines(from, static_cast<int>(unit_bytes(Bits)));
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, from);
#pragma GCC unroll 8
    for (int four = 0; four < kFours; four++)
      for (int v = 0; v < kVectors; v++) found[(four * P + p) * kVectors + v] = of_unit(v, four);
  }
}

SUFFICE_INLINE void store_totals(const Linear& w, int panel, const vf* total, float* y) {
  for (int v = 0; v < kVectors; v++) {
    const int n = panel * kPanel + v * W;
    store(y + n, w.bias ? total[v] + load(w.bias + n) : total[v]);
  }
}

// From this number of rows on, levels are looked up once for all rows instead of once per tile.
// With AVX2, bytes of inputs times levels of few bits take so few instructions that it pays late.
constexpr int kDecodeRows = SUFFICE_LEVEL == 4 ? 17 : SUFFICE_LEVEL > 0 ? 6 : 3;
SUFFICE_INLINE int decode_rows(const Linear& w) {
  const bool late = SUFFICE_LEVEL == 3 && w.max_code == kMaxByte && w.layout.bits <= kNarrow;
  return late ? 24 : kDecodeRows;
}

// Rows in registers until then.
template <class In, int Bits>
constexpr int kDirectRows = SUFFICE_LEVEL == 4        ? 8
                            : SUFFICE_LEVEL == 0      ? 2
                            : SUFFICE_NEON            ? (In::four_bytes == kQuad ? 4 : 2)
                            : In::four_bytes == kQuad ? 4
                            : Bits <= kNarrow         ? 2
                                                      : 3;

// Levels of this range, times bytes of inputs, fit what the products pass through.
constexpr int kByteRange = SUFFICE_VNNI ? 255 : SUFFICE_LEVEL > 0 ? 127 : -1;

// Calls f.operator()<In, Bits, Even>() for the narrowest inputs that the range of levels allows.
template <int Bits, bool Even, class F>
SUFFICE_INLINE void by_inputs(const Linear& w, F f) {
  constexpr bool fits = Even && (1 << Bits) - 1 <= kByteRange;  // whatever the levels are
  constexpr int kept = SUFFICE_VNNI || !Even ? 1 : Bits == 6 ? 2 : Bits == 5 ? 4 : 8;
  // Without VNNI, pairs are as fast as two bytes if nothing of them is kept.
  constexpr bool two_bytes = SUFFICE_VNNI || kept > 1;
  if constexpr (fits || (!Even && kByteRange > 0)) {
    if (w.range <= kByteRange && w.max_code == kMaxByte)
      return f.template operator()<ByteInputs<1, kept>, Bits, Even>();
    if constexpr (two_bytes)
      if (w.range <= kByteRange) return f.template operator()<ByteInputs<2, kept>, Bits, Even>();
  }
  if constexpr (!SUFFICE_VNNI && !fits) f.template operator()<PairInputs, Bits, Even>();
}

// Calls f.operator()<Bits, Even>() for the bits of codes, from Least to Most, and whether each
// level is that before it plus 1.
template <int Least = 2, int Most = 8, class F>
SUFFICE_INLINE void by_levels(const Linear& w, F f) {
  by_bits<Least, Most>(w, [&]<int Bits>() {
    if constexpr (Bits == 8) return f.template operator()<8, true>();
    if (w.even) return f.template operator()<Bits, true>();
    f.template operator()<Bits, false>();
  });
}
