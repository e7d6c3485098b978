// y = W x for weights of few bits: integer products of levels and inputs, summed by stretches.
//
// Levels are bytes, less the lowest one. Inputs are signed bytes (of 16 bits: low and high ones,
// whose sums are added up as 256 high + low) or pairs of int16. Bytes take half the instructions.

// Of V vectors of weights, those whose products are added up together: they share the inputs of a
// row. With 16 registers, several rows leave room for one.
template <int B, int V>
constexpr int kAtOnce = SUFFICE_LEVEL == 4 || B == 1 ? V : 1;

// Inputs of 1 or 2 bytes. Without VNNI, products of two columns pass through int16, where `Kept`
// fours can be added up.
template <int Bytes, int Kept = 1>
struct ByteInputs {
  static constexpr int four_bytes = Bytes * kQuad;
  // Sums of each byte; with VNNI enough of them, of few rows, to hide the latency of a product.
  template <int B>
  static constexpr int chains = !SUFFICE_VNNI || Bytes * B > 2 ? 1 : 4 / (Bytes * B);
  template <int B>
  static constexpr int sums = SUFFICE_VNNI ? Bytes * chains<B> : 1;

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.bytes);
  }

  // Adds the levels of four fours, `levels(v, four)`, times those of the inputs of B rows.
  template <int B, int V, class F>
  static SUFFICE_INLINE void add(F levels, const std::byte* input, vi (*sum)[B][sums<B>]) {
    constexpr int N = kAtOnce<B, V>;
    const auto taken = [=](int four, int b, int i) __attribute__((always_inline)) {
      return broadcast<vi>(input + (b * kFours + four) * four_bytes + i * kQuad);
    };
    for (int first_v = 0; first_v < V; first_v += N) {
#if SUFFICE_VNNI
#pragma GCC unroll 4
      for (int four = 0; four < 4; four++) {
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
#elif SUFFICE_LEVEL == 3
#pragma GCC unroll 4
      for (int first = 0; first < 4; first += Kept) {
        vi kept[B][Bytes][N] = {};
#pragma GCC unroll 4
        for (int four = first; four < first + Kept; four++) {
          vi part[N];
          for (int v = 0; v < N; v++) part[v] = levels(first_v + v, four);
#pragma GCC unroll 8
          for (int b = 0; b < B; b++)
            for (int i = 0; i < Bytes; i++)
              for (int v = 0; v < N; v++) {
                const vi found = dot_words(part[v], taken(four, b, i));
                kept[b][i][v] = four == first ? found : add_words(kept[b][i][v], found);
              }
        }
        for (int b = 0; b < B; b++)
          for (int i = 0; i < Bytes; i++)
            for (int v = 0; v < N; v++)
              sum[first_v + v][b][0] +=
                  dot_pairs(kept[b][i][v], splat_bits(i == 0 ? 0x00010001 : 0x01000100));
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
  static constexpr int four_bytes = 2 * kQuad;
  template <int B>
  static constexpr int sums = 1;

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.pairs);
  }

  template <int B, int V, class F>
  static SUFFICE_INLINE void add(F levels, const std::byte* input, vi (*sum)[B][1]) {
    for (int v = 0; v < V; v++)
#pragma GCC unroll 4
      for (int four = 0; four < 4; four++) {
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
    for (int b = 0; b < B; b++) {
      const vi first = splat_bits(w.lowest * stretch[b].sums[which].codes);
      for (int v = 0; v < V; v++) {
        sum[v][b][0] = first;
        for (int i = 1; i < sums; i++) sum[v][b][i] = vi{};
      }
    }
  };
  const auto add = [&](int from) __attribute__((always_inline)) {
    const auto of_four = [&](int v, int four)
                             __attribute__((always_inline)) { return levels(v, from + four); };
    In::template add<B, V>(of_four, input + from * In::four_bytes, sum);
  };
  const auto end = [&](int which) __attribute__((always_inline)) {
    const int half = which == 2;
    // Scales are loaded where they multiply: kept for a second half, they would take registers.
    asm("" : "+r"(stretch));
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
  start(scales.halves ? 1 : 0);
  add(0);
  if (scales.halves) {
    end(1);
    start(2);
  }
  add(4);
  end(scales.halves ? 2 : 0);
}

SUFFICE_INLINE void store_totals(const Linear& w, int panel, const vf* total, float* y) {
  for (int v = 0; v < kVectors; v++) {
    const int n = panel * kPanel + v * W;
    store(y + n, w.bias ? total[v] + load(w.bias + n) : total[v]);
  }
}

// A panel times B rows. Every (row, output) is summed in the same order whatever B is. Not inlined:
// inside another function, the surrounding code takes registers.
template <class In, int Bits, bool Even, int B>
__attribute__((noinline)) void codes_tile(const Linear& w, int panel, const Inputs& x, int row,
                                          float* y, int y_stride) {
  const std::byte* input = In::of(x) + row * kFours * In::four_bytes;
  const InputStretch* stretch = x.stretches + row;
  const Levels<Bits, Even> levels(w);
  // These loops are unrolled early, so that totals are registers, even where units are prepared.
  vf total[B][kVectors];
#pragma GCC unroll 8
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) total[b][v] = vf{};
  const auto add = [&](const std::byte* unit, const float* scale) __attribute__((always_inline)) {
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, unit);
    add_unit<In, B, kVectors>(w, of_unit, BatchScales(w, scale), stretch, input, total);
    input += static_cast<size_t>(x.count) * kFours * In::four_bytes;
    stretch += x.count;
  };
  for_units<Bits>(w, panel, add);
#pragma GCC unroll 8
  for (int b = 0; b < B; b++)
    store_totals(w, panel, total[b], y + static_cast<size_t>(row + b) * y_stride);
}

// From this number of rows on, levels are looked up once for all rows instead of once per tile.
constexpr int kDecodeRows = SUFFICE_LEVEL == 4 ? 17 : 3;
constexpr int kDirectRows = SUFFICE_LEVEL == 4 ? 8 : kDecodeRows - 1;  // in registers, up to then
constexpr int kDecodedRows = 128;  // rows that share a lookup; their totals stay in the L1 cache
// Panels that share the inputs of a row, and rows that share the levels of panels, in registers.
constexpr int kFoundPanels = SUFFICE_LEVEL == 4 ? 2 : 1;
template <class In>
constexpr int kFoundRows = SUFFICE_LEVEL < 4         ? 2
                           : In::four_bytes == kQuad ? 6
                                                     : 4;

// Vectors that are kept of a unit's levels for each of a panel, and units that are kept.
template <class In>
constexpr int kFoundVectors = kCrosses<In> ? kCrossedVectors : kFours;
template <class In>
constexpr int kFoundUnits = kCrosses<In> ? kCrossedUnits : kUnitsAtOnce;

// Units of panels whose levels were looked up, and their scales, `step` apart.
struct FoundUnits {
  const vi* levels;  // [count][8 fours][V], or as find_crossed has them
  const float* scale;
  int count, step;
};

// Units of P panels times `count` rows. The rows' inputs of a unit are `apart` rows from those of
// the next. Totals leave the registers once for all units.
template <class In, int V>
__attribute__((noinline)) void add_found(const Linear& w, const FoundUnits& units,
                                         const InputStretch* stretch, const std::byte* input,
                                         int apart, int count, vf (*total)[V]) {
  constexpr int most = kFoundRows<In>, row_bytes = kFours * In::four_bytes;
  const auto tile = [&]<int B>(int row) __attribute__((always_inline)) {
    vf sum[B][V];
    for (int b = 0; b < B; b++)
      for (int v = 0; v < V; v++) sum[b][v] = total[row + b][v];
    const vi* found = units.levels;
    const float* scale = units.scale;
    const InputStretch* of_rows = stretch + row;
    const std::byte* from = input + row * row_bytes;
    for (int i = 0; i < units.count; i++, found += kFoundVectors<In> * V, scale += units.step) {
      const auto levels = [=](int v, int four) { return found[four * V + v]; };
      if constexpr (kCrosses<In>)
        In::template add_unit<B, V>(found, BatchScales(w, scale), of_rows, from, sum);
      else
        add_unit<In, B, V>(w, levels, BatchScales(w, scale), of_rows, from, sum);
      of_rows += apart;
      from += static_cast<size_t>(apart) * row_bytes;
    }
    for (int b = 0; b < B; b++)
      for (int v = 0; v < V; v++) total[row + b][v] = sum[b][v];
  };
  int row = 0;
  for (; row + most <= count; row += most) tile.template operator()<most>(row);
  if (row < count)
    dispatch<most - 1>(count - row, [&]<int B>() { tile.template operator()<B>(row); });
}

// Looks up the levels of a unit of P panels, [8 fours][P * kVectors].
template <int Bits, bool Even, int P>
SUFFICE_INLINE void find_levels(const Levels<Bits, Even>& levels, const UnitBatch* batches,
                                int unit, vi* found) {
  for (int p = 0; p < P; p++) {
    const std::byte* const from = batches[p].units + unit * unit_bytes(Bits);
    fetch_lines(from, static_cast<int>(unit_bytes(Bits)));
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, from);
#pragma GCC unroll 8
    for (int four = 0; four < kFours; four++)
      for (int v = 0; v < kVectors; v++) found[(four * P + p) * kVectors + v] = of_unit(v, four);
  }
}

// P panels times `count` rows, at most kDecodedRows; same bits as codes_tile.
template <class In, int Bits, bool Even, int P>
void decoded_panels(const Linear& w, int panel, const Inputs& x, int first, int count, float* y,
                    int y_stride) {
  constexpr int V = P * kVectors;
  const std::byte* input = In::of(x) + first * kFours * In::four_bytes;
  const InputStretch* stretch = x.stretches + first;
  const Levels<Bits, Even> levels(w);
  vf total[kDecodedRows][V];
  for (int row = 0; row < count; row++)
    for (int v = 0; v < V; v++) total[row][v] = vf{};
  for_batches_of<P>(w, panel, [&](const UnitBatch* batches, int units, int step) {
    vi found[kFoundUnits<In> * kFoundVectors<In> * V];
    for (int from = 0; from < units; from += kFoundUnits<In>) {
      const int some = units - from < kFoundUnits<In> ? units - from : kFoundUnits<In>;
      for (int i = 0; i < some; i++) {
        vi* const to = found + i * kFoundVectors<In> * V;
        if constexpr (kCrosses<In>)
          In::template find<Bits, Even, P>(w, levels, batches, from + i, to);
        else
          find_levels<Bits, Even, P>(levels, batches, from + i, to);
      }
      add_found<In, V>(w, {found, batches[0].scale[0] + from * step, some, step}, stretch, input,
                       x.count, count, total);
      input += static_cast<size_t>(some) * x.count * kFours * In::four_bytes;
      stretch += static_cast<size_t>(some) * x.count;
    }
  });
  for (int row = 0; row < count; row++)
    for (int p = 0; p < P; p++)
      store_totals(w, panel + p, total[row] + p * kVectors,
                   y + static_cast<size_t>(first + row) * y_stride);
}

// Codes of few bits are looked up by one instruction: not doing so pays only for one row.
template <int Bits, bool Even, int B>
constexpr bool kDirect = Even && (Bits > 4 || B == 1);

// Multiplies a few rows, unless the form of the scales is none of those in linear_codes_row.inl.
template <class In, int Bits, bool Even>
bool rows_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride);

// All rows with levels that are looked up once.
template <class In, int Bits, bool Even>
void found_codes(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  // Panels go round for each part of the rows: the inputs of more would leave the L2 cache.
  for (int row = 0; row < x.count; row += kDecodedRows) {
    const int count = x.count - row < kDecodedRows ? x.count - row : kDecodedRows;
    int panel = first;
    for (; panel + kFoundPanels <= last; panel += kFoundPanels)
      decoded_panels<In, Bits, Even, kFoundPanels>(w, panel, x, row, count, y, y_stride);
    for (; panel < last; panel++)
      decoded_panels<In, Bits, Even, 1>(w, panel, x, row, count, y, y_stride);
  }
}

template <class In, int Bits, bool Even>
void codes_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  if (x.count >= kDecodeRows) return found_codes<In, Bits, Even>(w, first, last, x, y, y_stride);
  if (rows_of_codes<In, Bits, Even>(w, first, last, x, y, y_stride)) return;
  for (int panel = first; panel < last; panel++)
    in_units<kDirectRows>(x.count, [&]<int B>(int row) {
      codes_tile<In, Bits, kDirect<Bits, Even, B>, B>(w, panel, x, row, y, y_stride);
    });
}

// Levels of this range, times bytes of inputs, fit what the products pass through.
constexpr int kByteRange = SUFFICE_VNNI ? 255 : SUFFICE_LEVEL == 3 ? 127 : -1;

template <int Bits, bool Even>
void codes_with(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  constexpr int kept = SUFFICE_VNNI || !Even ? 1 : Bits == 6 ? 2 : 4;
  // Without VNNI, pairs are as fast as two bytes if nothing of them is kept.
  constexpr bool two_bytes = SUFFICE_VNNI || kept > 1;
  if constexpr (kCrossedRows > 0)
    if (x.crossed) return found_codes<CrossedInputs, Bits, Even>(w, first, last, x, y, y_stride);
  if constexpr ((Even ? (1 << Bits) - 1 : 0) <= kByteRange) {
    if (w.range <= kByteRange && w.max_code == kMaxByte)
      return codes_of<ByteInputs<1, kept>, Bits, Even>(w, first, last, x, y, y_stride);
    if constexpr (two_bytes)
      if (w.range <= kByteRange)
        return codes_of<ByteInputs<2, kept>, Bits, Even>(w, first, last, x, y, y_stride);
  }
  if constexpr (!SUFFICE_VNNI) codes_of<PairInputs, Bits, Even>(w, first, last, x, y, y_stride);
}

inline void linear_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  by_bits(w, [&]<int Bits>() {
    if constexpr (Bits == 8) return codes_with<8, true>(w, first, last, x, y, y_stride);
    if (w.even) return codes_with<Bits, true>(w, first, last, x, y, y_stride);
    codes_with<Bits, false>(w, first, last, x, y, y_stride);
  });
}
