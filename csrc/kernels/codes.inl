// y = W x of weights in codes: 4 bits choose one of 16 levels, a permute away, and integer products
// of the levels with the inputs are summed group by group. Inputs `In` are int16, which take four
// vectors of levels for 8 columns, or int8, which take two.

// How far ahead of the arithmetic weights are asked for, in bytes. They take about as long as
// reading and must not wait for it: far enough for a busy memory, and into the L1 cache.
constexpr int kAheadCodes = 8192;

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
    return add_pairs(total, part, inputs);
}

template <class In>
SUFFICE_INLINE const In* inputs_of(const Inputs& x, int row) {
  const size_t at = static_cast<size_t>(row) * x.stride;
  if constexpr (sizeof(In) == 1)
    return x.codes + at;
  else
    return x.wide + at;
}

// The sums of a row's codes before every 8th.
SUFFICE_INLINE const int32_t* sums_of(const Inputs& x, int row) {
  return x.sums + static_cast<size_t>(row) * (x.stride / 8 + 1);
}

// Runs over the columns of a panel by stretches whose integer sums go to float32 together: of one
// group, at most kMostSummed.
struct Stretch {
  int columns, group, group_end, end;
  const uint16_t* scale;  // [kPanel], of the group
  int begin = 0;

  Stretch(const Linear& w, int panel)
      : columns(w.steps() * 8),
        group(w.group),
        group_end(group < columns ? group : columns),
        end(group_end < kMostSummed ? group_end : kMostSummed),
        scale(reinterpret_cast<const uint16_t*>(w.data + panel * w.panel_bytes())) {}

  SUFFICE_INLINE bool done() const { return begin >= columns; }

  SUFFICE_INLINE void next() {
    begin = end;
    if (begin == group_end) {
      group_end = group_end + group < columns ? group_end + group : columns;
      scale += kPanel;
    }
    end = begin + kMostSummed < group_end ? begin + kMostSummed : group_end;
  }
};

// Adds a row's integer sums over a stretch to its total, less the offset of the levels, of which
// `sums` [columns / 8 + 1] of the inputs has the share.
template <class In>
SUFFICE_INLINE void add_summed(const Stretch& at, const int32_t* sums, const vi* summed,
                               vf* total) {
  const int32_t offset = kOffset<In> * (sums[at.end >> 3] - sums[at.begin >> 3]);
  for (int v = 0; v < kVectors; v++)
    total[v] = to_float(summed[v] - offset) * load_f16(at.scale + v * W) + total[v];
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

SUFFICE_INLINE const std::byte* lines_of(const Linear& w, int panel) {
  return w.data + panel * w.panel_bytes() + w.scale_bytes();
}

// One panel times B rows. Every (row, output) is summed in the same order whatever B is.
template <class In, int B>
void codes_tile(const Linear& w, int panel, const Inputs& x, int row, float* y, int y_stride) {
  // Products of AVX-512 take 5 cycles: with few rows, a sum for each part hides them.
  constexpr int kChains = SUFFICE_LEVEL == 4 && B <= 2 ? kParts<In> : 1;
  const std::byte* line = lines_of(w, panel);
  const In* input = inputs_of<In>(x, row);
  const vi levels = levels_of<In>(w);
  vf total[B][kVectors] = {};
  for (Stretch at(w, panel); !at.done(); at.next()) {
    vi sum[B][kVectors][kChains] = {};
    for (int k = at.begin; k < at.end; k += 8, line += kLineBytes) {
      fetch_near(line + kAheadCodes);
      for (int v = 0; v < kVectors; v++) {
        vi parts[kParts<In>];
        decode<In>(levels, line + v * kVectorBytes, parts);
        for (int b = 0; b < B; b++)
          for (int i = 0; i < kParts<In>; i++) {
            const In* from = input + static_cast<size_t>(b) * x.stride + k + i * 8 / kParts<In>;
            vi& to = sum[b][v][i % kChains];
            to = add_part<In>(to, parts[i], broadcast<vi>(from));
          }
      }
    }
    for (int b = 0; b < B; b++) {
      vi summed[kVectors];
      for (int v = 0; v < kVectors; v++) {
        summed[v] = sum[b][v][0];
        for (int i = 1; i < kChains; i++) summed[v] += sum[b][v][i];
      }
      add_summed<In>(at, sums_of(x, row + b), summed, total[b]);
    }
  }
  for (int b = 0; b < B; b++)
    store_totals(w, panel, x.scales[row + b], total[b],
                 y + static_cast<size_t>(row + b) * y_stride);
}

// From so many rows on, levels are looked up once for all of them, and not once for each tile: of
// int8 inputs, whose products take half as long, from twice as many.
template <class In>
constexpr int kDecodeRows = SUFFICE_LEVEL == 4 || sizeof(In) == 1 ? 9 : 5;
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

// B rows of inputs, `stride` apart, times such levels: the integer sums.
template <class In, int B>
SUFFICE_INLINE void sum_decoded(const vi* parts, int columns, const In* input, int stride,
                                vi (*summed)[kVectors]) {
  vi sum[B][kVectors] = {};
  for (int k = 0; k < columns; k += 8 / kParts<In>, parts += kVectors)
    for (int b = 0; b < B; b++) {
      const vi taken = broadcast<vi>(input + static_cast<size_t>(b) * stride + k);
      for (int v = 0; v < kVectors; v++) sum[b][v] = add_part<In>(sum[b][v], parts[v], taken);
    }
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) summed[b][v] = sum[b][v];
}

// One panel times `count` rows, at most kDecodedRows; with the bits of codes_tile.
template <class In>
void decoded_panel(const Linear& w, int panel, const Inputs& x, int first, int count, float* y,
                   int y_stride) {
  constexpr int kTile = SUFFICE_LEVEL == 4 ? 8 : 6;
  vi parts[kMostSummed / 8 * kParts<In> * kVectors];
  vf total[kDecodedRows][kVectors] = {};
  const std::byte* lines = lines_of(w, panel);
  const vi levels = levels_of<In>(w);
  for (Stretch at(w, panel); !at.done(); at.next()) {
    const int columns = at.end - at.begin;
    decode_columns<In>(levels, lines + at.begin / 8 * kLineBytes, columns, parts);
    in_units<kTile>(count, [&]<int B>(int row) {
      vi summed[B][kVectors];
      sum_decoded<In, B>(parts, columns, inputs_of<In>(x, first + row) + at.begin, x.stride,
                         summed);
      for (int b = 0; b < B; b++)
        add_summed<In>(at, sums_of(x, first + row + b), summed[b], total[row + b]);
    });
  }
  for (int row = 0; row < count; row++)
    store_totals(w, panel, x.scales[first + row], total[row],
                 y + static_cast<size_t>(first + row) * y_stride);
}

// A panel at a time, which is one sequential stream.
template <class In>
void codes_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  for (int panel = first; panel < last; panel++) {
    if (x.count < kDecodeRows<In>) {
      in_units<SUFFICE_LEVEL == 4 ? 8 : 4>(
          x.count, [&]<int B>(int row) { codes_tile<In, B>(w, panel, x, row, y, y_stride); });
      continue;
    }
    for (int row = 0; row < x.count; row += kDecodedRows)
      decoded_panel<In>(w, panel, x, row,
                        x.count - row < kDecodedRows ? x.count - row : kDecodedRows, y, y_stride);
  }
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

// Codes up to `most` of a row of `size` values, and their sums before every 8th.
template <class In>
SUFFICE_INLINE float quantize_row(const float* from, int size, float most, In* to, int32_t* sums) {
  const float scale = max_magnitude(from, size) / most;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < size; i += W)
    store_narrow(__builtin_convertvector(round_even(load(from + i) * inverse), vi), to + i);
  sums[0] = 0;
  for (int i = 0; i < size; i += 8) {
    int32_t own = 0;
    for (int j = 0; j < 8; j++) own += to[i + j];
    sums[i / 8 + 1] = sums[i / 8] + own;
  }
  return scale;
}

// Puts columns where the bytes of `decode` have their levels: the middle two of four change places.
SUFFICE_INLINE void reorder(int8_t* codes, int size) {
  for (int i = 0; i < size; i += 4) {
    uint32_t four;
    std::memcpy(&four, codes + i, 4);
    four = (four & 0xff0000ff) | (four >> 8 & 0xff00) | (four & 0xff00) << 8;
    std::memcpy(codes + i, &four, 4);
  }
}

// `stride` is a multiple of 16 and the values beyond `columns` are 0, so whole vectors are read.
inline void quantize_for_codes(const float* values, int stride, int count, const Linear& w,
                               int8_t* narrow, int16_t* wide, float* scales, int32_t* sums) {
  const int size = round_up(w.columns, kPanel);
  const auto most = static_cast<float>(w.most);
  for (int row = 0; row < count; row++, values += stride, sums += stride / 8 + 1) {
    const size_t at = static_cast<size_t>(row) * stride;
    if (w.narrow) {
      scales[row] = quantize_row(values, size, most, narrow + at, sums);
      reorder(narrow + at, size);
    } else {
      scales[row] = quantize_row(values, size, most, wide + at, sums);
    }
  }
}
