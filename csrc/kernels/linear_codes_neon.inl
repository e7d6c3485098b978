// Many rows times weights of few bits with NEON, where it adds products of bytes to sums.
//
// Inputs of 16 bits are multiplied in two passes, by their high bytes and then, once these sums are
// shifted, by their low ones: so there is one sum for both.
#if SUFFICE_NEON && SUFFICE_VNNI
// Sums with 8-bit inputs are below 2^22. Begun with the bits of 1.5 * 2^23, they become floats by a
// subtraction; a conversion takes two or four times as long on some cores.
constexpr int32_t kSumBits = 0x4b400000;

template <int Bytes>
SUFFICE_INLINE vf float_of_sum(vi sum) {
  return Bytes == 1 ? as_float(sum) - splat(12582912.0f) : to_float(sum);
}

// Sums of B rows, by lanes of inputs or in matrices of two rows and two outputs: begins them with
// `first(i)`, and adds the products of one byte of the inputs after the other by add(byte).
template <int Bytes, int B, int V, class First, class Add>
SUFFICE_INLINE void add_passes(int lowest, vi (*sum)[V], First first, Add add) {
  for (int byte = Bytes - 1; byte >= 0; byte--) {
    for (int i = 0; i < B; i++) {
      const vi begin = lowest && byte == 0 ? lowest * first(i) : vi{};
      for (int v = 0; v < V; v++)
        sum[i][v] = byte < Bytes - 1 ? (sum[i][v] << 8) + begin
                    : Bytes == 1     ? begin + kSumBits
                                     : vi{};
    }
    add(byte);
  }
}

#if SUFFICE_BF16
// Matrices of two outputs and eight columns, times those of two rows.
template <int Bytes>
struct MatrixInputs {
  static constexpr int four_bytes = Bytes * kQuad, kept = 1, row_bytes = kFours * four_bytes;
  static constexpr int rows = 6;  // in registers
  static constexpr bool paired = true;
  // Of V vectors of a unit: levels of each two fours, two outputs in a vector; the scales of these
  // outputs, each twice, of the unit or of its halves; minima alike.
  static constexpr int vectors = kFours + 8, scales_at = kFours, minima_at = kFours + 4;

  static const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.bytes);
  }

  template <int Bits, bool Even, int P>
  static SUFFICE_INLINE void find(const Linear& w, const Levels<Bits, Even>& levels,
                                  const UnitBatch* batch, int unit, vi* found) {
    static_assert(P == 1);
    const std::byte* const from = batch->units + unit * unit_bytes(Bits);
    if (batch->in_memory()) fetch_lines(from, static_cast<int>(unit_bytes(Bits)));
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, from);
    const auto zip = [&](vi a, vi b, vi* to) __attribute__((always_inline)) {
      to[0] = vzip1q_s32(a, b);
      to[1] = vzip2q_s32(a, b);
    };
    for (int v = 0; v < kVectors; v++)
#pragma GCC unroll 4
      for (int four = 0; four < kFours; four += 2)
        zip(of_unit(v, four), of_unit(v, four + 1), found + four * kVectors + 2 * v);
    const int halves = w.layout.group < kUnit ? 2 : 1;
    const BatchScales scales(w, batch->scale[0] + unit * halves * kPanel);
    for (int half = 0; half < halves; half++)
      for (int v = 0; v < kVectors; v++) {
        const int at = (half * kVectors + v) * 2;
        const vi scale = as_bits(scales.scale(v, half));
        zip(scale, scale, found + scales_at * kVectors + at);
        if (!scales.minima) continue;
        const vi minimum = as_bits(scales.minimum(v, half));
        zip(minimum, minimum, found + minima_at * kVectors + at);
      }
  }

  // Eight columns of two rows, from `four` on: one of their bytes.
  static SUFFICE_INLINE vi two_rows(const std::byte* first, const std::byte* second, int four,
                                    int byte) {
    const int at = four * four_bytes / kVectorBytes * kVectorBytes;
    const vi a = load_bits(first + at), b = load_bits(second + at);
    if constexpr (Bytes == 2) return byte ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
    const auto c = vreinterpretq_s64_s32(a), d = vreinterpretq_s64_s32(b);
    return vreinterpretq_s32_s64(four % 4 ? vzip2q_s64(c, d) : vzip1q_s64(c, d));
  }

  // As add_unit, of one panel; totals of two rows lie as their sums, two of an output side by side.
  template <int B, int V>
  static SUFFICE_INLINE void add_unit(const Linear& w, const vi* found, const BatchScales& scales,
                                      const InputStretch* stretch, const std::byte* input,
                                      vf (*total)[V]) {
    constexpr int R = (B + 1) / 2, S = 2 * V;
    vi sum[R][S];
    const auto last = [](int r) { return 2 * r + 1 < B ? 2 * r + 1 : 2 * r; };
    // A number of each of two rows, twice.
    const auto both = [&](int r, const auto& of) __attribute__((always_inline)) {
      const auto first = of(stretch[2 * r]), second = of(stretch[last(r)]);
      return vcombine_s32(int32x2_t{first, second}, int32x2_t{first, second});
    };
    const auto add = [&](int from, int fours, int which) __attribute__((always_inline)) {
      const auto codes = [&](int r) __attribute__((always_inline)) {
        return vi(both(r, [=](const InputStretch& s) { return s.sums[which].codes; }));
      };
      add_passes<Bytes, R, S>(w.lowest, sum, codes, [&](int byte) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int four = from; four < from + fours; four += 2) {
          asm volatile("" ::
                           : "memory");  // keeps loads where they are used: sums fill the registers
          vi x[R];
          for (int r = 0; r < R; r++)
            x[r] = two_rows(input + 2 * r * row_bytes, input + last(r) * row_bytes, four, byte);
#pragma GCC unroll 8
          for (int i = 0; i < S; i++) {
            const auto level = reinterpret_cast<uint8x16_t>(found[four * V + i]);
            for (int r = 0; r < R; r++)
              sum[r][i] = vusmmlaq_s32(sum[r][i], level, reinterpret_cast<int8x16_t>(x[r]));
          }
        }
      });
    };
    const auto end = [&](int which) __attribute__((always_inline)) {
      const vi* const scale = found + (scales_at + (which == 2) * 2) * V;
      for (int r = 0; r < R; r++) {
        const vf own = as_float(
            both(r, [](const InputStretch& s) { return std::bit_cast<int32_t>(s.scale); }));
        vf* const to = total[2 * r];
        for (int i = 0; i < S; i++)
          to[i] = float_of_sum<Bytes>(sum[r][i]) * (as_float(scale[i]) * own) + to[i];
        if (!scales.minima) continue;
        const vf values = as_float(both(r, [=](const InputStretch& s) {
          return std::bit_cast<int32_t>(s.sums[which].values);
        }));
        const vi* const minimum = scale + (minima_at - scales_at) * V;
        for (int i = 0; i < S; i++) to[i] = as_float(minimum[i]) * values + to[i];
      }
    };
    if (!scales.halves) {
      add(0, kFours, 0);
      return end(0);
    }
    add(0, kFours / 2, 1);
    end(1);
    add(kFours / 2, kFours / 2, 2);
    end(2);
  }

  // Gives each row its own totals.
  template <int V>
  static SUFFICE_INLINE void part_rows(vf (*total)[V], int count) {
    for (int row = 0; row < count; row += 2) {
      vf own[2 * V];
      std::memcpy(own, total[row], sizeof own);
      for (int v = 0; v < V; v++) {
        total[row][v] = vuzp1q_f32(own[2 * v], own[2 * v + 1]);
        total[row + 1][v] = vuzp2q_f32(own[2 * v], own[2 * v + 1]);
      }
    }
  }
};

template <int Bytes>
using NeonInputs = MatrixInputs<Bytes>;
#else
// Levels of four outputs and columns times lanes of inputs.
template <int Bytes>
struct LaneInputs {
  static constexpr int four_bytes = Bytes * kQuad, kept = 1, row_bytes = kFours * four_bytes;
  static constexpr int rows = 5, vectors = kFours;
  static constexpr bool paired = false;

  static const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.bytes);
  }

  template <int Bits, bool Even, int P>
  static SUFFICE_INLINE void find(const Linear&, const Levels<Bits, Even>& levels,
                                  const UnitBatch* batch, int unit, vi* found) {
    find_levels<Bits, Even, P>(levels, batch, unit, found);
  }

  template <int B, int V>
  static SUFFICE_INLINE void add_unit(const Linear& w, const vi* found, const BatchScales& scales,
                                      const InputStretch* stretch, const std::byte* input,
                                      vf (*total)[V]) {
    vi sum[B][V];
    const auto add = [&](int from, int fours, int which) __attribute__((always_inline)) {
      const auto codes = [&](int b) { return splat_bits(stretch[b].sums[which].codes); };
      const auto pass = [&](int byte) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int four = from; four < from + fours; four++) {
          asm volatile("" ::
                           : "memory");  // keeps loads where they are used: sums fill the registers
#pragma GCC unroll 8
          for (int b = 0; b < B; b++) {
            const Word x = word<vi>(input + b * row_bytes + (four * Bytes + byte) * kQuad);
            for (int v = 0; v < V; v++) sum[b][v] = dot_bytes(sum[b][v], found[four * V + v], x);
          }
        }
      };
      add_passes<Bytes, B, V>(lowest_of(w), sum, codes, pass);
    };
    const auto end = [&](int which) __attribute__((always_inline)) {
      const int half = which == 2;
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) {
          const vf scaled = scales.scale(v, half) * stretch[b].scale;
          total[b][v] = float_of_sum<Bytes>(sum[b][v]) * scaled + total[b][v];
        }
      if (!scales.minima) return;
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++)
          total[b][v] = scales.minimum(v, half) * stretch[b].sums[which].values + total[b][v];
    };
    if (!scales.halves) {
      add(0, kFours, 0);
      return end(0);
    }
    add(0, kFours / 2, 1);
    end(1);
    add(kFours / 2, kFours / 2, 2);
    end(2);
  }
};

template <int Bytes>
using NeonInputs = LaneInputs<Bytes>;
#endif

template <class In>
struct FoundInputs {
  using type = NeonInputs<In::four_bytes / kQuad>;
};
#else
template <class In>
struct FoundInputs {
  using type = In;
};
#endif

// Inputs that have their own way to look up a unit and to add it.
template <class In>
concept OwnUnits = requires { In::vectors; };
