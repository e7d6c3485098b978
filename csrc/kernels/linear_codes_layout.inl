// Layout of codebook weights (see linear/linear.h), and lookup of their centroids.

// Vectors that hold the centroids of 8 columns.
template <class In>
constexpr int kParts = 2 * sizeof(In);

// Offset of the centroids: as stored, or lowered for int8 inputs to keep centroids below 128, so
// that two products fit int16.
template <class In>
constexpr int kOffset = sizeof(In) == 1 ? kNarrowOffset : kLevelOffset;

// A permute selects among 16 centroids, or 4 for codes of less than 4 bits; further bits select the
// permute.
template <int Bits>
constexpr int kTables = 1 << (Bits - low_bits(Bits));

// The centroids of a layer's codebook, repeated in every 16 bytes of each table.
template <class In, int Bits>
struct WeightCodebook {
  vi tables[kTables<Bits>];

  explicit SUFFICE_INLINE WeightCodebook(const Linear& w) {
    constexpr int each = 1 << low_bits(Bits);
    for (int t = 0; t < kTables<Bits>; t++) {
      uint8_t levels[kLevels] = {};
      for (int i = 0; i < each; i++)
        levels[i] = static_cast<uint8_t>(w.levels[t * each + i] - (kLevelOffset - kOffset<In>));
      tables[t] = repeat_levels(levels);
    }
  }
};

// The centroids of the four columns `four` of a unit, a byte each: columns 0, 2, 1, 3 of a row.
template <int Bits>
SUFFICE_INLINE vi levels_of(const vi* tables, const std::byte* unit, int four) {
  constexpr int low = low_bits(Bits), each = 8 / low;
  const vi codes = load_bits(unit + four / each * kLineBytes) >> four % each * low &
                   splat_bits(low == 4 ? 0x0f0f0f0f : 0x03030303);
  vi found[kTables<Bits>];
  for (int t = 0; t < kTables<Bits>; t++) found[t] = look_up(tables[t], codes);
  for (int bit = low; bit < Bits; bit++) {
    const vi plane = load_bits(unit + bit * kLineBytes);
    for (int t = 0; t < 1 << (Bits - bit - 1); t++)
      found[t] = choose(plane, four, found[2 * t], found[2 * t + 1]);
  }
  return found[0];
}

typedef uint16_t vu __attribute__((vector_size(kVectorBytes)));

// The centroids of 8 columns of a unit in the order of multiplication: for int8 inputs columns 0,
// 2, 1, 3 and 4, 6, 5, 7; for int16 inputs the pairs 0 and 1, 2 and 3, 4 and 5, 6 and 7.
template <class In, int Bits>
SUFFICE_INLINE void decode(const vi* tables, const std::byte* unit, int eight, vi* parts) {
  const vi low = levels_of<Bits>(tables, unit, 2 * eight);
  const vi high = levels_of<Bits>(tables, unit, 2 * eight + 1);
  if constexpr (sizeof(In) == 1) {
    parts[0] = low;
    parts[1] = high;
  } else {
    const vi bytes = splat_bits(0x00ff00ff);
    parts[0] = low & bytes;
    parts[1] = reinterpret_cast<vi>(reinterpret_cast<vu>(low) >> 8);
    parts[2] = high & bytes;
    parts[3] = reinterpret_cast<vi>(reinterpret_cast<vu>(high) >> 8);
  }
}

// Columns after which a sum moves to float32: 255 * 32767 * 256 is still below 2^31.
constexpr int kMaxSummed = 256;

// Iterates over a panel's columns in stretches whose integer sums move to float32 together: at most
// kMaxSummed columns of one group.
struct Stretch {
  int columns, group, bits, group_end, end;
  int begin = 0, index = 0, groups_before = 0;

  explicit Stretch(const Linear& w)
      : columns(w.whole_columns()),
        group(w.group),
        bits(w.bits),
        group_end(group < columns ? group : columns),
        end(group_end < kMaxSummed ? group_end : kMaxSummed) {}

  SUFFICE_INLINE bool done() const { return begin >= columns; }

  SUFFICE_INLINE void next() {
    begin = end;
    index++;
    if (begin == group_end) {
      group_end = group_end + group < columns ? group_end + group : columns;
      groups_before++;
    }
    end = begin + kMaxSummed < group_end ? begin + kMaxSummed : group_end;
  }

  // The scales of its group, and its first unit, in a panel.
  SUFFICE_INLINE const std::byte* scales(const std::byte* panel) const {
    const int pairs = groups_before / 2;
    return panel + pairs * kLineBytes + code_bytes(bits, 2 * pairs * group) +
           groups_before % 2 * (kLineBytes / 2);
  }
  SUFFICE_INLINE const std::byte* units(const std::byte* panel) const {
    return panel + (groups_before / 2 + 1) * kLineBytes + code_bytes(bits, begin);
  }
};

// A unit's dense weights for a panel's 16 rows: [unit_columns][kPanel].
template <int Bits>
SUFFICE_INLINE void unpack_unit(const vi* tables, const std::byte* unit, const vf* scale,
                                float* to) {
  for (int four = 0; four < unit_columns(Bits) / 4; four++)
    for (int v = 0; v < kVectors; v++) {
      const vi levels = levels_of<Bits>(tables, unit + v * kVectorBytes, four);
      for (int j = 0; j < 4; j++) {
        const vi level = (levels >> 8 * j & splat_bits(0xff)) - kLevelOffset;
        store(to + (four * 4 + kCodeOrder[j]) * kPanel + v * W, to_float(level) * scale[v]);
      }
    }
}

// The dense rows of a panel, [existing rows][columns].
template <int Bits>
void unpack_panel(const Linear& w, int panel, float* to, int stride) {
  constexpr int columns = unit_columns(Bits);
  const std::byte* from = w.data + panel * w.panel_bytes();
  const int rows = w.rows - panel * kPanel < kPanel ? w.rows - panel * kPanel : kPanel;
  const WeightCodebook<int16_t, Bits> codebook(w);
  for (Stretch at(w); !at.done(); at.next()) {
    const auto* scales = reinterpret_cast<const uint16_t*>(at.scales(from));
    const std::byte* unit = at.units(from);
    vf scale[kVectors];
    for (int v = 0; v < kVectors; v++) scale[v] = load_f16(scales + v * W);
    for (int k = at.begin; k < at.end; k += columns, unit += code_bytes(Bits, columns)) {
      float found[columns * kPanel];
      unpack_unit<Bits>(codebook.tables, unit, scale, found);
      const int left = w.columns - k < columns ? w.columns - k : columns;
      for (int row = 0; row < rows; row++)
        for (int i = 0; i < left; i++)
          to[static_cast<size_t>(row) * stride + k + i] = found[i * kPanel + row];
    }
  }
}

// The dense rows of the panels [first, last); for rotated inputs if there is a rotation.
inline void unpack_codes(const Linear& w, int first, int last, float* to, int stride) {
  dispatch<kMaxBits, kMinBits>(w.bits, [&]<int Bits>() {
    for (int panel = first; panel < last; panel++)
      unpack_panel<Bits>(w, panel, to + static_cast<size_t>(panel - first) * kPanel * stride,
                         stride);
  });
}

// The 4-bit code of row `row` of a panel and a column, in a panel of one group.
SUFFICE_INLINE int code_at(const std::byte* units, int row, int column) {
  // The order is its own inverse: it swaps two columns.
  const std::byte byte = units[code_bytes(4, column / 8 * 8) + row * 4 + kCodeOrder[column % 4]];
  return static_cast<int>(byte) >> (column % 8 / 4 * 4) & 15;
}

inline void count_pairs(const Linear& w, int first, int last, const uint8_t* x,
                        const float* x_levels, float* y) {
  float terms[kLevels * kLevels];
  for (int i = 0; i < kLevels; i++)
    for (int j = 0; j < kLevels; j++)
      terms[i * kLevels + j] = x_levels[i] * (w.levels[j] - kLevelOffset);
  const Stretch start(w);
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    const std::byte* panel = w.data + n / kPanel * w.panel_bytes();
    const std::byte* units = start.units(panel);
    int32_t counts[kLevels * kLevels] = {};
    for (int k = 0; k < w.columns; k++) counts[x[k] << 4 | code_at(units, n % kPanel, k)]++;
    float sum = 0.0f;
    for (int i = 0; i < kLevels * kLevels; i++) sum += static_cast<float>(counts[i]) * terms[i];
    y[n] = sum * half_to_float(reinterpret_cast<const uint16_t*>(start.scales(panel))[n % kPanel]);
  }
}
