// Many rows of 16-bit inputs times weights in few bits, with half of the products.
//
// Each two columns' inputs x, z and levels w, v of an output take one product (Winograd, 1968):
//
//     x w + z v = (x + v) (z + w) - x z - v w
//
// Sums of x z belong to a row, those of v w to an output: each is made once. A sum and an input fit
// 16 bits, and sums of products modulo 2^32 end exact, so the bits are those of other kernels. An
// instruction of products becomes half of one and an addition: that pays with AVX2, where an input
// of 16 bits takes two products of bytes, each added up, and with AVX-512 where a processor adds
// vectors while it multiplies others.
constexpr Crossing kCrossing = SUFFICE_LEVEL == 4                    ? Crossing::on_amd
                               : SUFFICE_LEVEL == 3 && !SUFFICE_VNNI ? Crossing::always
                                                                     : Crossing::never;
constexpr int kCrossedRows = SUFFICE_LEVEL == 4 ? 16 : kDecodeRows;  // the least
constexpr int kCrossedUnits = 4;  // looked up together: with rows and totals they fit the L1 cache
// Of V vectors of a unit: the first two and the last two columns of each four, as pairs, then the
// sum of v w of the unit, or those of its halves if these have scales of their own.
constexpr int kCrossedVectors = 2 * kFours + 2;

#if SUFFICE_LEVEL >= 3
typedef uint32_t vw __attribute__((vector_size(kVectorBytes)));  // vi, modulo 2^32

SUFFICE_INLINE vi difference(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<vw>(a) - reinterpret_cast<vw>(b));
}
SUFFICE_INLINE vi sum_of_pairs(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<vh>(a) + reinterpret_cast<vh>(b));
}

// As find_levels.
template <int Bits, bool Even, int P>
SUFFICE_INLINE void find_crossed(const Linear& w, const Levels<Bits, Even>& levels,
                                 const UnitBatch* batches, int unit, vi* found) {
  constexpr int V = P * kVectors;
  const vi lowest = splat_bits((w.lowest & 0xffff) * 0x00010001u);
  for (int p = 0; p < P; p++) {
    const std::byte* const from = batches[p].units + unit * unit_bytes(Bits);
    if (batches[p].in_memory()) fetch_lines(from, static_cast<int>(unit_bytes(Bits)));
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, from);
    for (int v = 0; v < kVectors; v++) {
      vi* const to = found + p * kVectors + v;
      vi sum[2] = {};
#pragma GCC unroll 8
      for (int four = 0; four < kFours; four++) {
        const vi bytes = of_unit(v, four);
        vi first = bytes & splat_bits(0x00ff00ff);
        vi last = reinterpret_cast<vi>(reinterpret_cast<vu>(bytes) >> 8);
        if (w.lowest) {
          first = sum_of_pairs(first, lowest);
          last = sum_of_pairs(last, lowest);
        }
        sum[four / 4] = multiply_add(first, last, sum[four / 4]);
        to[2 * four * V] = first;
        to[(2 * four + 1) * V] = last;
      }
      if (w.layout.group >= kUnit)
        sum[0] = reinterpret_cast<vi>(reinterpret_cast<vw>(sum[0]) + reinterpret_cast<vw>(sum[1]));
      for (int half = 0; half < 2; half++) to[(2 * kFours + half) * V] = sum[half];
    }
  }
}

// As add_unit, of V panels; `found` as find_crossed gives it.
template <int B, int V>
SUFFICE_INLINE void add_crossed_unit(const vi* found, const BatchScales& scales,
                                     const InputStretch* stretch, const std::byte* input,
                                     vf (*total)[V]) {
  vi sum[B][V];
  const auto start = [&](int which) __attribute__((always_inline)) {
    for (int b = 0; b < B; b++) {
      const vi first = broadcast<vi>(&stretch[b].sums[which].codes);
      for (int v = 0; v < V; v++)
        sum[b][v] = difference(first, found[(2 * kFours + (which == 2)) * V + v]);
    }
  };
  const auto add = [&](int from) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int four = from; four < from + 4; four++) {
      const vi *first = found + 2 * four * V, *last = first + V;
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
        const std::byte* at = input + (b * kFours + four) * 2 * kQuad;
        const vi of_first = broadcast<vi>(at), of_last = broadcast<vi>(at + kQuad);
        for (int v = 0; v < V; v++)
          sum[b][v] = multiply_add(sum_of_pairs(of_first, last[v]), sum_of_pairs(of_last, first[v]),
                                   sum[b][v]);
      }
    }
  };
  const auto end = [&](int which) __attribute__((always_inline)) {
    const int half = which == 2;
    asm("" : "+r"(stretch));  // as in add_unit
    for (int b = 0; b < B; b++)
      for (int v = 0; v < V; v++)
        total[b][v] =
            to_float(sum[b][v]) * (scales.scale(v, half) * stretch[b].scale) + total[b][v];
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

struct CrossedInputs {
  static constexpr int four_bytes = 2 * kQuad, kept = 1, vectors = kCrossedVectors;
  static constexpr bool paired = false;
  static const std::byte* of(const Inputs& x) {
    return reinterpret_cast<const std::byte*>(x.pairs);
  }

  template <int Bits, bool Even, int P>
  static SUFFICE_INLINE void find(const Linear& w, const Levels<Bits, Even>& levels,
                                  const UnitBatch* batches, int unit, vi* found) {
    find_crossed<Bits, Even, P>(w, levels, batches, unit, found);
  }
  template <int B, int V>
  static SUFFICE_INLINE void add_unit(const Linear&, const vi* found, const BatchScales& scales,
                                      const InputStretch* stretch, const std::byte* input,
                                      vf (*total)[V]) {
    add_crossed_unit<B, V>(found, scales, stretch, input, total);
  }
};

// Makes sums of a stretch of inputs those of crossed ones: less the sums of x z, modulo 2^32.
SUFFICE_INLINE void cross_sums(const int16_t* pairs, InputStretch& to) {
  typedef uint64_t Fours __attribute__((vector_size(kVectorBytes)));
  constexpr int lanes = kUnit / 2;  // pairs of a stretch
  int32_t sums[lanes];
  for (int i = 0; i < lanes; i += W) {
    const vi first = load_bits(pairs + 2 * i);
    const vi last = reinterpret_cast<vi>(reinterpret_cast<Fours>(first) >> 32);
    const vi products = multiply_add(first, last, vi{});  // in every second lane
    std::memcpy(sums + i, &products, sizeof products);
  }
  uint32_t of_half[2] = {};
  for (int i = 0; i < lanes; i += 2) of_half[i / (lanes / 2)] -= sums[i];
  for (int half = 0; half < 2; half++)
    to.sums[1 + half].codes = static_cast<int32_t>(of_half[half]);
  to.sums[0].codes = static_cast<int32_t>(of_half[0] + of_half[1]);
}
#else
struct CrossedInputs;
SUFFICE_INLINE void cross_sums(const int16_t*, InputStretch&) {}
#endif

template <class In>
constexpr bool kCrosses = std::is_same_v<In, CrossedInputs>;
