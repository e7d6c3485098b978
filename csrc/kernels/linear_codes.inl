// y = W x for weights of few bits: integer products of levels and inputs, summed by stretches.
//
// Levels are bytes, less the lowest one. Inputs are signed bytes (of 16 bits: low and high ones,
// whose sums are added up as 256 high + low) or pairs of int16. Bytes take half the instructions.

// Inputs of 1 or 2 bytes. Without VNNI, products of two columns pass through int16, where `Kept`
// fours can be added up.
template <int Bytes, int Kept = 1>
struct ByteInputs {
  static constexpr int four_bytes = Bytes * kQuad, sums = SUFFICE_VNNI ? Bytes : 1;

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.bytes);
  }

  // Adds the levels of four fours, `levels(four)`, times a row's inputs, `step` bytes apart.
  template <int B, class F>
  static SUFFICE_INLINE void add(F levels, const std::byte* input, size_t step, vi (*sum)[sums]) {
#if SUFFICE_VNNI
#pragma GCC unroll 4
    for (int four = 0; four < 4; four++) {
      const vi part = levels(four);
#pragma GCC unroll 8
      for (int b = 0; b < B; b++)
        for (int i = 0; i < Bytes; i++)
          sum[b][i] = dot_bytes(sum[b][i], part,
                                broadcast<vi>(input + four * step + b * four_bytes + i * kQuad));
    }
#elif SUFFICE_LEVEL == 3
#pragma GCC unroll 4
    for (int first = 0; first < 4; first += Kept) {
      vi kept[B][Bytes] = {};
#pragma GCC unroll 4
      for (int four = first; four < first + Kept; four++) {
        const vi part = levels(four);
#pragma GCC unroll 8
        for (int b = 0; b < B; b++)
          for (int i = 0; i < Bytes; i++) {
            const vi found =
                dot_words(part, broadcast<vi>(input + four * step + b * four_bytes + i * kQuad));
            kept[b][i] = four == first ? found : add_words(kept[b][i], found);
          }
      }
      for (int b = 0; b < B; b++)
        for (int i = 0; i < Bytes; i++)
          sum[b][0] += dot_pairs(kept[b][i], splat_bits(i == 0 ? 0x00010001 : 0x01000100));
    }
#endif
  }

  static SUFFICE_INLINE vi total(const vi* sum) {
    if constexpr (sums == 2) return sum[0] + (sum[1] << 8);
    return sum[0];
  }
};

typedef uint16_t vu __attribute__((vector_size(kVectorBytes)));

// Inputs of int16, for levels whose products do not fit int16.
struct PairInputs {
  static constexpr int four_bytes = 2 * kQuad, sums = 1;

  static SUFFICE_INLINE const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.pairs);
  }

  template <int B, class F>
  static SUFFICE_INLINE void add(F levels, const std::byte* input, size_t step, vi (*sum)[sums]) {
#pragma GCC unroll 4
    for (int four = 0; four < 4; four++) {
      const vi part = levels(four);
      const vi first = part & splat_bits(0x00ff00ff);
      const vi second = reinterpret_cast<vi>(reinterpret_cast<vu>(part) >> 8);
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
        const std::byte* at = input + four * step + b * four_bytes;
        sum[b][0] = multiply_add(first, broadcast<vi>(at), sum[b][0]);
        sum[b][0] = multiply_add(second, broadcast<vi>(at + kQuad), sum[b][0]);
      }
    }
  }

  static SUFFICE_INLINE vi total(const vi* sum) { return sum[0]; }
};

// B rows times the levels of a unit, `levels(v)(four)`, added to their totals. `scale`, `minimum`
// [kPanel] of its group, or [2][kPanel] if `halves`; `stretch`, `input`: those of the first row.
template <class In, int B, class F>
SUFFICE_INLINE void add_unit(const Linear& w, F levels, const float* scale, const float* minimum,
                             const InputStretch* stretch, const std::byte* input, size_t step,
                             vf (*total)[kVectors]) {
  const bool halves = w.layout.group < kUnit;
  vi sum[kVectors][B][In::sums];
  const auto start = [&](int which) __attribute__((always_inline)) {
    for (int b = 0; b < B; b++) {
      const vi first = splat_bits(w.lowest * stretch[b].sums[which].codes);
      for (int v = 0; v < kVectors; v++) {
        sum[v][b][0] = first;
        for (int i = 1; i < In::sums; i++) sum[v][b][i] = vi{};
      }
    }
  };
  const auto add = [&](int from) __attribute__((always_inline)) {
    for (int v = 0; v < kVectors; v++)
      In::template add<B>([&, of_rows = levels(v)](int four)
                              __attribute__((always_inline)) { return of_rows(from + four); },
                          input + from * step, step, sum[v]);
  };
  const auto end = [&](int which) __attribute__((always_inline)) {
    for (int b = 0; b < B; b++)
      for (int v = 0; v < kVectors; v++)
        total[b][v] =
            to_float(In::total(sum[v][b])) * (load(scale + v * W) * stretch[b].scale) + total[b][v];
    if (!minimum) return;
    for (int b = 0; b < B; b++)
      for (int v = 0; v < kVectors; v++)
        total[b][v] = load(minimum + v * W) * stretch[b].sums[which].values + total[b][v];
  };
  start(halves ? 1 : 0);
  add(0);
  if (halves) {
    end(1);
    start(2);
    scale += kPanel;
    if (minimum) minimum += kPanel;
  }
  add(4);
  end(halves ? 2 : 0);
}

// The levels of a unit's codes: W rows, then four columns of them.
template <int Bits, class L>
SUFFICE_INLINE auto levels_of(const L& levels, const std::byte* unit) {
  return [&levels, unit](int v) __attribute__((always_inline)) {
    return [&levels, codes = UnitCodes<Bits>(unit + v * kVectorBytes)](int four)
               __attribute__((always_inline)) { return levels(codes(four)); };
  };
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
  const size_t step = static_cast<size_t>(x.count) * In::four_bytes;
  const std::byte* input = In::of(x) + row * In::four_bytes;
  const InputStretch* stretch = x.stretches + row;
  const Levels<Bits, Even> levels(w);
  vf total[B][kVectors] = {};
  for_units<Bits>(w, panel,
                  [&](const std::byte* unit, const float* scale, const float* minimum)
                      __attribute__((always_inline)) {
                        add_unit<In, B>(w, levels_of<Bits>(levels, unit), scale, minimum, stretch,
                                        input, step, total);
                        input += 8 * step;
                        stretch += x.count;
                      });
  for (int b = 0; b < B; b++)
    store_totals(w, panel, total[b], y + static_cast<size_t>(row + b) * y_stride);
}

// From this number of rows on, levels are looked up once for all rows instead of once per tile.
// With AVX-512, looking up is cheaper than storing the results.
constexpr int kDecodeRows = SUFFICE_LEVEL == 4 ? 1 << 30 : 3;
constexpr int kDecodedRows = 32;  // rows that share a lookup; their totals stay in the L1 cache
constexpr int kFoundRows = 4;     // of these, at a time

// The same with levels that were looked up, [8 fours][kVectors].
template <class In>
__attribute__((noinline)) void add_found(const Linear& w, const vi* found, const float* scale,
                                         const float* minimum, const InputStretch* stretch,
                                         const std::byte* input, int count, size_t step,
                                         vf (*total)[kVectors]) {
  in_units<kFoundRows>(count, [&]<int B>(int row) {
    const auto levels = [=](int v) { return [=](int four) { return found[four * kVectors + v]; }; };
    add_unit<In, B>(w, levels, scale, minimum, stretch + row, input + row * In::four_bytes, step,
                    total + row);
  });
}

// One panel times `count` rows, at most kDecodedRows; same bits as codes_tile.
template <class In, int Bits, bool Even>
void decoded_panel(const Linear& w, int panel, const Inputs& x, int first, int count, float* y,
                   int y_stride) {
  const size_t step = static_cast<size_t>(x.count) * In::four_bytes;
  const std::byte* input = In::of(x) + first * In::four_bytes;
  const InputStretch* stretch = x.stretches + first;
  const Levels<Bits, Even> levels(w);
  vf total[kDecodedRows][kVectors] = {};
  for_units<Bits>(w, panel,
                  [&](const std::byte* unit, const float* scale, const float* minimum)
                      __attribute__((always_inline)) {
                        vi found[kUnit / 4 * kVectors];
                        for (int v = 0; v < kVectors; v++) {
                          const auto of_rows = levels_of<Bits>(levels, unit)(v);
#pragma GCC unroll 8
                          for (int four = 0; four < kUnit / 4; four++)
                            found[four * kVectors + v] = of_rows(four);
                        }
                        add_found<In>(w, found, scale, minimum, stretch, input, count, step, total);
                        input += 8 * step;
                        stretch += x.count;
                      });
  for (int row = 0; row < count; row++)
    store_totals(w, panel, total[row], y + static_cast<size_t>(first + row) * y_stride);
}

template <class In, int Bits, bool Even>
void codes_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  if (x.count >= kDecodeRows) {
    for (int panel = first; panel < last; panel++)
      for (int row = 0; row < x.count; row += kDecodedRows)
        decoded_panel<In, Bits, Even>(w, panel, x, row,
                                      x.count - row < kDecodedRows ? x.count - row : kDecodedRows,
                                      y, y_stride);
    return;
  }
  constexpr int max_rows = SUFFICE_LEVEL == 4 ? 8 : kDecodeRows - 1;
  for (int panel = first; panel < last; panel++)
    in_units<max_rows>(x.count, [&]<int B>(int row) {
      codes_tile<In, Bits, Even, B>(w, panel, x, row, y, y_stride);
    });
}

// Levels of this range, times bytes of inputs, fit what the products pass through.
constexpr int kByteRange = SUFFICE_VNNI ? 255 : SUFFICE_LEVEL == 3 ? 127 : -1;

template <int Bits, bool Even>
void codes_with(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  constexpr int kept = !Even ? 1 : Bits == 6 ? 2 : 4;
  // Without VNNI, pairs are as fast as two bytes if nothing of them is kept.
  constexpr bool two_bytes = SUFFICE_VNNI || kept > 1;
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
