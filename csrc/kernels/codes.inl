// y = W x of weights in codes: 4 bits choose one of 16 levels, a permute away, and integer products
// of the levels with the inputs are summed group by group. Inputs `In` are int16, which take four
// vectors of levels for 8 columns, or int8, which take two.

// How far ahead of the arithmetic weights are asked for, in bytes of a stream, into the L1 cache.
// With AVX2 they take about as long as reading and must not wait for it.
constexpr int kAheadCodes = SUFFICE_LEVEL == 4 ? 4096 : 8192;
constexpr int kAheadScales = 256;  // of 2 bytes each

// Columns after which a sum goes to float32: 255 * 32767 * 256 is still below 2^31.
constexpr int kMostSummed = 256;

template <class In>
constexpr int kParts = sizeof(In) == 1 ? 2 : 4;

// What is added to the levels: as they are stored, or with inputs of int8 to less than 128, so that
// two products fit int16.
template <class In>
constexpr int kOffset = sizeof(In) == 1 ? kNarrowOffset : kLevelOffset;

// The levels of a layer, in every 16 bytes.
template <class In>
SUFFICE_INLINE vi levels_of(const Linear& w) {
  uint8_t levels[kLevels];
  for (int i = 0; i < kLevels; i++)
    levels[i] = static_cast<uint8_t>(w.levels[i] - (kLevelOffset - kOffset<In>));
  return repeat_levels(levels);
}

typedef uint16_t vu __attribute__((vector_size(kVectorBytes)));

// The levels of 8 columns: of int8 inputs columns 0, 2, 1, 3 and then 4, 6, 5, 7; of int16 ones the
// pairs 0 and 1, 2 and 3, 4 and 5, 6 and 7.
template <class In>
SUFFICE_INLINE void decode(vi levels, const std::byte* line, vi* parts) {
  const vi bits = load_bits(line);
  const vi nibbles = splat_bits(0x0f0f0f0f), bytes = splat_bits(0x00ff00ff);
  const vi low = look_up(levels, bits & nibbles);
  const vi high = look_up(levels, (bits >> 4) & nibbles);
  if constexpr (sizeof(In) == 1) {
    parts[0] = low;
    parts[1] = high;
  } else {
    parts[0] = low & bytes;
    parts[1] = reinterpret_cast<vi>(reinterpret_cast<vu>(low) >> 8);
    parts[2] = high & bytes;
    parts[3] = reinterpret_cast<vi>(reinterpret_cast<vu>(high) >> 8);
  }
}

// total += such levels times the 4 bytes of inputs that are in every lane.
template <class In>
SUFFICE_INLINE vi add_part(vi total, vi part, vi inputs) {
  if constexpr (sizeof(In) == 1)
    return add_quads(total, part, inputs);
  else
    return multiply_add(part, inputs, total);
}

// Of each row 4 bytes come together, so many columns.
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

// What a row's integer sums start with, one for each stretch: the offset of the levels taken off.
SUFFICE_INLINE const int32_t* starts_of(const Inputs& x, int row) {
  return x.starts + static_cast<size_t>(row) * (x.stride / 8);
}

// Runs over the columns of a panel by stretches whose integer sums go to float32 together: of one
// group, at most kMostSummed.
struct Stretch {
  int columns, group, group_end, end;
  int begin = 0, index = 0, groups_before = 0;

  explicit Stretch(const Linear& w)
      : columns(w.steps() * 8),
        group(w.group),
        group_end(group < columns ? group : columns),
        end(group_end < kMostSummed ? group_end : kMostSummed) {}

  SUFFICE_INLINE bool done() const { return begin >= columns; }

  SUFFICE_INLINE void next() {
    begin = end;
    index++;
    if (begin == group_end) {
      group_end = group_end + group < columns ? group_end + group : columns;
      groups_before++;
    }
    end = begin + kMostSummed < group_end ? begin + kMostSummed : group_end;
  }
};

// Adds integer sums over a stretch to a total. `scale` [kPanel]: of its group.
SUFFICE_INLINE void add_summed(const uint16_t* scale, const vi* summed, vf* total) {
  for (int v = 0; v < kVectors; v++)
    total[v] = to_float(summed[v]) * load_f16(scale + v * W) + total[v];
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

SUFFICE_INLINE const uint16_t* scales_of(const Linear& w, int panel) {
  return reinterpret_cast<const uint16_t*>(w.data + panel * w.panel_bytes());
}

SUFFICE_INLINE const std::byte* lines_of(const Linear& w, int panel) {
  return w.data + panel * w.panel_bytes() + w.scale_bytes();
}

// Sums that hide what a product that is added to one takes, 5 cycles with VNNI, in each vector.
constexpr int kSumsAtOnce = SUFFICE_LEVEL == 4 ? 16 : SUFFICE_VNNI ? 2 : 1;

// The integer sums of P panels times B rows over a stretch. Where these are too few to hide what a
// product takes, each has more than one chain of sums.
template <class In, int P, int B>
struct StretchSums {
  static constexpr int parts = kParts<In>;
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

  // Adds a line of each panel, `gap` bytes apart, times 8 columns of the rows, of `count`.
  SUFFICE_INLINE void add(vi levels, const std::byte* line, size_t gap, const In* input,
                          int count) {
    for (int v = 0; v < kVectors; v++) {
      vi part[P][parts];
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) decode<In>(levels, line + p * gap + v * kVectorBytes, part[p]);
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
  }

  // `scale` [kPanel]: of the first panel.
  SUFFICE_INLINE void end(const uint16_t* scale, size_t gap, vf (*total)[B][kVectors]) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int b = 0; b < B; b++) {
#pragma GCC unroll 4
        for (int i = 1; i < chains; i++)
          for (int v = 0; v < kVectors; v++) sum[p][b][0][v] += sum[p][b][i][v];
        add_summed(scale + p * (gap / 2), sum[p][b][0], total[p][b]);
      }
  }
};

// How far ahead of the arithmetic the line is that is asked for at a column: in the next panel
// beyond its scales, which are asked for while they are still far.
SUFFICE_INLINE size_t ahead_of(const Linear& w, int column) {
  const size_t left = static_cast<size_t>(w.steps() - column / 8) * kLineBytes;
  return kAheadCodes + (kAheadCodes < left ? 0 : w.scale_bytes());
}

// P panels, `apart` of them, times B rows. Every (row, output) is summed in the same order whatever
// P and B are.
template <class In, int P, int B>
void codes_tile(const Linear& w, int panel, int apart, const Inputs& x, int row, float* y,
                int y_stride) {
  const size_t gap = apart * w.panel_bytes();
  const uint16_t* scales = scales_of(w, panel);
  const std::byte* line = lines_of(w, panel);
  const In* input = inputs_of<In>(x, row);
  const vi levels = levels_of<In>(w);
  const int count = x.count;
  const int32_t* starts[B];
  for (int b = 0; b < B; b++) starts[b] = starts_of(x, row + b);
  vf total[P][B][kVectors] = {};
  for (Stretch at(w); !at.done(); at.next()) {
    const uint16_t* scale = scales + at.groups_before * kPanel;
    StretchSums<In, P, B> sums(starts, at.index);
    for (int p = 0; p < P; p++) fetch_near(scale + p * (gap / 2) + kAheadScales);
    const size_t further = ahead_of(w, at.begin);
    for (int k = at.begin; k < at.end; k += 8, line += kLineBytes, input += 8 * count) {
      for (int p = 0; p < P; p++) fetch_near(line + p * gap + further);
      sums.add(levels, line, gap, input, count);
    }
    sums.end(scale, gap, total);
  }
  for (int p = 0; p < P; p++)
    for (int b = 0; b < B; b++)
      store_totals(w, panel + p * apart, x.scales[row + b], total[p][b],
                   y + static_cast<size_t>(row + b) * y_stride);
}

// From so many rows on, levels are looked up once for all of them, and not once for each tile: of
// int8 inputs, whose products without VNNI go through 16 bits, from twice as many. With AVX-512
// looking up is a tenth of a tile's work, less than writing down what was found.
constexpr bool kDecodesOnce = SUFFICE_LEVEL < 4;
template <class In>
constexpr int kDecodeRows = sizeof(In) == 1 && !SUFFICE_VNNI ? 9 : 5;
constexpr int kDecodedRows = 32;  // that share them; their totals stay in the L1 cache

// The levels of some columns of a panel: [columns / 8][kParts][kVectors].
template <class In>
SUFFICE_INLINE void decode_columns(vi levels, const std::byte* line, int columns, vi* to) {
  for (int k = 0; k < columns; k += 8, line += kLineBytes, to += kParts<In> * kVectors) {
    fetch_near(line + kAheadCodes);
    for (int v = 0; v < kVectors; v++) {
      vi parts[kParts<In>];
      decode<In>(levels, line + v * kVectorBytes, parts);
      for (int i = 0; i < kParts<In>; i++) to[i * kVectors + v] = parts[i];
    }
  }
}

// B rows of inputs, of `count`, times such levels, added to integer sums.
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

// One panel times `count` rows, at most kDecodedRows; with the bits of codes_tile.
template <class In>
void decoded_panel(const Linear& w, int panel, const Inputs& x, int first, int count, float* y,
                   int y_stride) {
  vi parts[kMostSummed / 8 * kParts<In> * kVectors];
  vf total[kDecodedRows][kVectors] = {};
  const std::byte* lines = lines_of(w, panel);
  const vi levels = levels_of<In>(w);
  for (Stretch at(w); !at.done(); at.next()) {
    const int columns = at.end - at.begin;
    const uint16_t* scale = scales_of(w, panel) + at.groups_before * kPanel;
    decode_columns<In>(levels, lines + at.begin / 8 * kLineBytes, columns, parts);
    in_units<6>(count, [&]<int B>(int row) {
      vi summed[B][kVectors];
      for (int b = 0; b < B; b++)
        for (int v = 0; v < kVectors; v++)
          summed[b][v] = splat_bits(starts_of(x, first + row + b)[at.index]);
      sum_decoded<In, B>(parts, columns, inputs_of<In>(x, first + row, at.begin), x.count, summed);
      for (int b = 0; b < B; b++) add_summed(scale, summed[b], total[row + b]);
    });
  }
  for (int row = 0; row < count; row++)
    store_totals(w, panel, x.scales[first + row], total[row],
                 y + static_cast<size_t>(first + row) * y_stride);
}

template <class In, int P>
void codes_tiles(const Linear& w, int panel, int apart, const Inputs& x, float* y, int y_stride) {
  in_units<SUFFICE_LEVEL == 4 ? 8 : 4>(
      x.count, [&]<int B>(int row) { codes_tile<In, P, B>(w, panel, apart, x, row, y, y_stride); });
}

template <class In>
void codes_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  if (kDecodesOnce && x.count >= kDecodeRows<In>) {
    for (int panel = first; panel < last; panel++)
      for (int row = 0; row < x.count; row += kDecodedRows)
        decoded_panel<In>(w, panel, x, row,
                          x.count - row < kDecodedRows ? x.count - row : kDecodedRows, y, y_stride);
    return;
  }
  const auto tiles = [&]<int P>(int panel, int apart) {
    codes_tiles<In, P>(w, panel, apart, x, y, y_stride);
  };
  // Two streams share what is broadcast; more than memory reads well. Of AVX2 one row is as fast as
  // memory with one stream.
  if (SUFFICE_VNNI && (SUFFICE_LEVEL == 4 || x.count > 1))
    in_streams<SUFFICE_VNNI ? 2 : 1>(first, last, tiles);
  else
    in_streams<1>(first, last, tiles);
}

inline void linear_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  if (w.narrow)
    codes_of<int8_t>(w, first, last, x, y, y_stride);
  else
    codes_of<int16_t>(w, first, last, x, y, y_stride);
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
