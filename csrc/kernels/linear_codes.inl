// y = W x for codebook weights: integer products of centroids and inputs (`In` int16 or int8),
// summed group by group.

// Prefetch distance in bytes of one of P streams, into the L1 cache. With AVX2, arithmetic takes
// about as long as reading and must not wait for it.
template <int P>
constexpr int kAheadCodes = SUFFICE_LEVEL == 4 ? 8192 / P : 8192;

template <int Bits, int P>
SUFFICE_INLINE void fetch_unit(const std::byte* unit) {
  constexpr int bytes = static_cast<int>(code_bytes(Bits, unit_columns(Bits)));
#pragma GCC unroll 6
  for (int at = 0; at < bytes; at += kLineBytes) fetch_near(unit + at + kAheadCodes<P>);
}

// total += centroids times the 4 bytes of inputs in every lane.
template <class In>
SUFFICE_INLINE vi add_part(vi total, vi part, vi inputs) {
  if constexpr (sizeof(In) == 1)
    return add_quads(total, part, inputs);
  else
    return multiply_add(part, inputs, total);
}

// Columns in the 4 bytes of a row that lie together.
template <class In>
constexpr int kRun = kQuad / sizeof(In);

// The inputs from a row and a column on.
template <class In>
SUFFICE_INLINE const In* inputs_of(const Inputs& x, int row, int column = 0) {
  const size_t at = static_cast<size_t>(column) * x.count + row * kRun<In>;
  if constexpr (sizeof(In) == 1)
    return x.codes + at;
  else
    return x.wide + at;
}

// Start values of a row's integer sums, one per stretch: they cancel the centroids' offset.
SUFFICE_INLINE const int32_t* starts_of(const Inputs& x, int row) {
  return x.starts + static_cast<size_t>(row) * (x.stride / 8);
}

// Adds integer sums over a stretch to a total. `scales` [kPanel] float16: those of its group.
SUFFICE_INLINE void add_summed(const std::byte* scales, const vi* summed, vf* total) {
  const auto* of_rows = reinterpret_cast<const uint16_t*>(scales);
  for (int v = 0; v < kVectors; v++)
    total[v] = to_float(summed[v]) * load_f16(of_rows + v * W) + total[v];
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

// Independent sums, in each vector, that hide the latency of a product added to a sum (5 cycles
// with VNNI).
constexpr int kSumsAtOnce = SUFFICE_LEVEL == 4 ? 16 : SUFFICE_VNNI ? 2 : 1;

// The integer sums of P panels times B rows over a stretch. If they are too few to hide a product's
// latency, each has more than one chain of sums.
template <class In, int Bits, int P, int B>
struct StretchSums {
  static constexpr int parts = kParts<In>, eights = unit_columns(Bits) / 8;
  static constexpr int most_chains = kSumsAtOnce / (P * B);
  static constexpr int chains = most_chains >= parts ? parts : most_chains >= 2 ? 2 : 1;

  vi sum[P][B][chains][kVectors];

  SUFFICE_INLINE StretchSums(const int32_t* const* starts, int index) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int b = 0; b < B; b++)
#pragma GCC unroll 4
        for (int i = 0; i < chains; i++)
          for (int v = 0; v < kVectors; v++)
            sum[p][b][i][v] = i == 0 ? splat_bits(starts[b][index]) : vi{};
  }

  // Adds a unit of each panel, `gap` bytes apart, times its columns of B of the `count` rows.
  SUFFICE_INLINE void add(const vi* tables, const std::byte* unit, size_t gap, const In* input,
                          int count) {
    for (int v = 0; v < kVectors; v++)
#pragma GCC unroll 4
      for (int eight = 0; eight < eights; eight++) {
        vi part[P][parts];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++)
          decode<In, Bits>(tables, unit + p * gap + v * kVectorBytes, eight, part[p]);
        add_eight(part, v, input + eight * 8 * count, count);
      }
  }

  SUFFICE_INLINE void add_eight(const vi (*part)[parts], int v, const In* input, int count) {
#pragma GCC unroll 8
    for (int b = 0; b < B; b++)
#pragma GCC unroll 4
      for (int i = 0; i < parts; i++) {
        const vi taken = broadcast<vi>(input + (i * count + b) * kRun<In>);
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) {
          vi& to = sum[p][b][i % chains][v];
          to = add_part<In>(to, part[p][i], taken);
        }
      }
  }

  // `scales` [kPanel] float16: those of the first panel.
  SUFFICE_INLINE void end(const std::byte* scales, size_t gap, vf (*total)[B][kVectors]) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
#pragma GCC unroll 4
        for (int i = 1; i < chains; i++)
          for (int v = 0; v < kVectors; v++) sum[p][b][0][v] += sum[p][b][i][v];
        add_summed(scales + p * gap, sum[p][b][0], total[p][b]);
      }
  }
};

// P panels, `apart` panels from one to the next, times B rows. Every (row, output) is summed in the
// same order whatever P and B are. Not inlined: inside another function, the surrounding code takes
// registers.
template <class In, int Bits, int P, int B>
__attribute__((noinline)) void codes_tile(const Linear& w, int panel, int apart, const Inputs& x,
                                          int row, float* y, int y_stride) {
  constexpr int columns = unit_columns(Bits);
  const size_t gap = apart * w.panel_bytes();
  const std::byte* from = w.data + panel * w.panel_bytes();
  const In* input = inputs_of<In>(x, row);
  const WeightCodebook<In, Bits> codebook(w);
  const int count = x.count;
  const int32_t* starts[B];
  for (int b = 0; b < B; b++) starts[b] = starts_of(x, row + b);
  vf total[P][B][kVectors] = {};
  for (Stretch at(w); !at.done(); at.next()) {
    const std::byte *scales = at.scales(from), *unit = at.units(from);
    for (int p = 0; p < P; p++) fetch_near(scales + p * gap + kAheadCodes<P>);
    StretchSums<In, Bits, P, B> sums(starts, at.index);
    for (int k = at.begin; k < at.end; k += columns) {
      for (int p = 0; p < P; p++) fetch_unit<Bits, P>(unit + p * gap);
      sums.add(codebook.tables, unit, gap, input, count);
      unit += code_bytes(Bits, columns);
      input += columns * count;
    }
    sums.end(scales, gap, total);
  }
  for (int p = 0; p < P; p++)
    for (int b = 0; b < B; b++)
      store_totals(w, panel + p * apart, x.scales[row + b], total[p][b],
                   y + static_cast<size_t>(row + b) * y_stride);
}

// From this number of rows on, centroids are looked up once for all rows instead of once per tile.
// int8 inputs without VNNI, whose products go through 16 bits, need twice as many rows. With
// AVX-512, looking up is cheaper than storing the results.
template <class In, int Bits>
constexpr int kDecodeRows = SUFFICE_LEVEL == 4                 ? 1 << 30
                            : Bits != 4                        ? 3
                            : sizeof(In) == 1 && !SUFFICE_VNNI ? 9
                                                               : 5;
constexpr int kDecodedRows = 32;  // rows that share a lookup; their totals stay in the L1 cache

// Centroids of some columns of a panel: [columns / 8][kParts][kVectors].
template <class In, int Bits>
SUFFICE_INLINE void decode_columns(const vi* tables, const std::byte* unit, int columns, vi* to) {
  constexpr int eights = unit_columns(Bits) / 8;
  for (int k = 0; k < columns; k += 8 * eights, unit += code_bytes(Bits, 8 * eights)) {
    fetch_unit<Bits, 1>(unit);
#pragma GCC unroll 4
    for (int eight = 0; eight < eights; eight++)
      for (int v = 0; v < kVectors; v++) {
        vi parts[kParts<In>];
        decode<In, Bits>(tables, unit + v * kVectorBytes, eight, parts);
        for (int i = 0; i < kParts<In>; i++)
          to[((k / 8 + eight) * kParts<In> + i) * kVectors + v] = parts[i];
      }
  }
}

// B of `count` rows of inputs times these centroids, added to integer sums.
template <class In, int B>
SUFFICE_INLINE void sum_decoded(const vi* parts, int columns, const In* input, int count,
                                vi (*summed)[kVectors]) {
  vi sum[B][kVectors];
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) sum[b][v] = summed[b][v];
  for (int k = 0; k < columns; k += kRun<In>, parts += kVectors, input += count * kRun<In>)
    for (int b = 0; b < B; b++) {
      const vi taken = broadcast<vi>(input + b * kRun<In>);
      for (int v = 0; v < kVectors; v++) sum[b][v] = add_part<In>(sum[b][v], parts[v], taken);
    }
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) summed[b][v] = sum[b][v];
}

// B rows of inputs times the centroids of a stretch, added to their totals.
template <class In, int B>
SUFFICE_INLINE void add_decoded(const Stretch& at, const vi* parts, const std::byte* scales,
                                const Inputs& x, int row, vf (*total)[kVectors]) {
  vi summed[B][kVectors];
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) summed[b][v] = splat_bits(starts_of(x, row + b)[at.index]);
  sum_decoded<In, B>(parts, at.end - at.begin, inputs_of<In>(x, row, at.begin), x.count, summed);
  for (int b = 0; b < B; b++) add_summed(scales, summed[b], total[b]);
}

// One panel times `count` rows, at most kDecodedRows; same bits as codes_tile.
template <class In, int Bits>
void decoded_panel(const Linear& w, int panel, const Inputs& x, int first, int count, float* y,
                   int y_stride) {
  vi parts[kMaxSummed / 8 * kParts<In> * kVectors];
  vf total[kDecodedRows][kVectors] = {};
  const std::byte* from = w.data + panel * w.panel_bytes();
  const WeightCodebook<In, Bits> codebook(w);
  for (Stretch at(w); !at.done(); at.next()) {
    decode_columns<In, Bits>(codebook.tables, at.units(from), at.end - at.begin, parts);
    in_units<6>(count, [&]<int B>(int row) {
      add_decoded<In, B>(at, parts, at.scales(from), x, first + row, total + row);
    });
  }
  for (int row = 0; row < count; row++)
    store_totals(w, panel, x.scales[first + row], total[row],
                 y + static_cast<size_t>(first + row) * y_stride);
}

template <class In, int Bits, int P>
void codes_tiles(const Linear& w, int panel, int apart, const Inputs& x, float* y, int y_stride) {
  constexpr int max_rows = SUFFICE_LEVEL == 4 ? 8 : Bits != 4 ? 2 : 4;
  in_units<max_rows>(x.count, [&]<int B>(int row) {
    codes_tile<In, Bits, P, B>(w, panel, apart, x, row, y, y_stride);
  });
}

template <class In, int Bits>
void codes_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  if (x.count >= kDecodeRows<In, Bits>) {
    for (int panel = first; panel < last; panel++)
      for (int row = 0; row < x.count; row += kDecodedRows)
        decoded_panel<In, Bits>(w, panel, x, row,
                                x.count - row < kDecodedRows ? x.count - row : kDecodedRows, y,
                                y_stride);
    return;
  }
  const auto tiles = [&]<int P>(int panel, int apart) {
    codes_tiles<In, Bits, P>(w, panel, apart, x, y, y_stride);
  };
  // Two streams share the broadcast inputs; memory does not read more streams well. One row is as
  // fast as memory with one stream.
  if (SUFFICE_VNNI && x.count > 1)
    in_streams<SUFFICE_VNNI ? 2 : 1>(first, last, tiles);
  else
    in_streams<1>(first, last, tiles);
}

inline void linear_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  dispatch<kMaxBits, kMinBits>(w.bits, [&]<int Bits>() {
    if (w.narrow)
      codes_of<int8_t, Bits>(w, first, last, x, y, y_stride);
    else
      codes_of<int16_t, Bits>(w, first, last, x, y, y_stride);
  });
}
