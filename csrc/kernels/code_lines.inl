// Weights in codes: where they lie (see types.h), and the levels that they choose.

// The vectors that the levels of 8 columns make.
template <class In>
constexpr int kParts = 2 * sizeof(In);

// What is added to the levels: as they are stored, or with inputs of int8 to less than 128, so that
// two products fit int16.
template <class In>
constexpr int kOffset = sizeof(In) == 1 ? kNarrowOffset : kLevelOffset;

// A permute chooses among 16 levels, or 4 of codes of less than 4 bits; further bits choose the
// permute.
template <int Bits>
constexpr int kTables = 1 << (Bits - low_bits(Bits));

// The levels of a layer, in every 16 bytes of each table.
template <class In, int Bits>
struct LevelTables {
  vi at[kTables<Bits>];

  explicit SUFFICE_INLINE LevelTables(const Linear& w) {
    constexpr int each = 1 << low_bits(Bits);
    for (int t = 0; t < kTables<Bits>; t++) {
      uint8_t levels[kLevels] = {};
      for (int i = 0; i < each; i++)
        levels[i] = static_cast<uint8_t>(w.levels[t * each + i] - (kLevelOffset - kOffset<In>));
      at[t] = repeat_levels(levels);
    }
  }
};

// The levels of the four columns `four` of a unit, a byte each: columns 0, 2, 1, 3 of a row.
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

// The levels of 8 columns of a unit as they are multiplied: of int8 inputs columns 0, 2, 1, 3 and
// then 4, 6, 5, 7; of int16 ones the pairs 0 and 1, 2 and 3, 4 and 5, 6 and 7.
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

// Columns after which a sum goes to float32: 255 * 32767 * 256 is still below 2^31.
constexpr int kMostSummed = 256;

// Runs over the columns of a panel by stretches whose integer sums go to float32 together: of one
// group, at most kMostSummed.
struct Stretch {
  int columns, group, bits, group_end, end;
  int begin = 0, index = 0, groups_before = 0;

  explicit Stretch(const Linear& w)
      : columns(w.whole_columns()),
        group(w.group),
        bits(w.bits),
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

// Whole codes, one at a time: the code of row `row` of a panel, `four` and `column` of its unit.
SUFFICE_INLINE int code_of(const std::byte* unit, int bits, int row, int column) {
  const int low = low_bits(bits), each = 8 / low, four = column / 4;
  // The order is its own inverse: two columns change places.
  const std::byte* at = unit + row * 4 + kCodeOrder[column % 4];
  int code =
      static_cast<int>(at[four / each * kLineBytes]) >> (four % each * low) & ((1 << low) - 1);
  for (int bit = low; bit < bits; bit++)
    code |= (static_cast<int>(at[bit * kLineBytes]) >> four & 1) << bit;
  return code;
}

// Calls f(column, code, scale) for the columns of a row, one after the other.
template <class F>
SUFFICE_INLINE void for_codes(const Linear& w, int n, F f) {
  const std::byte* panel = w.data + n / kPanel * w.panel_bytes();
  const int row = n % kPanel, unit = unit_columns(w.bits);
  for (Stretch at(w); !at.done(); at.next()) {
    const float scale = half_to_float(reinterpret_cast<const uint16_t*>(at.scales(panel))[row]);
    const std::byte* units = at.units(panel);
    for (int k = at.begin; k < at.end && k < w.columns; k++) {
      const int inside = k - at.begin;
      f(k, code_of(units + code_bytes(w.bits, inside / unit * unit), w.bits, row, inside % unit),
        scale);
    }
  }
}

// The dense rows of the panels [first, last), of rotated inputs if there is a rotation.
inline void unpack_codes(const Linear& w, int first, int last, float* to, int stride) {
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    float* out = to + static_cast<size_t>(n - first * kPanel) * stride;
    for_codes(w, n, [&](int k, int code, float scale) {
      out[k] = scale * (w.levels[code] - kLevelOffset);
    });
  }
}

inline void count_pairs(const Linear& w, int first, int last, const uint8_t* x,
                        const float* x_levels, float* y) {
  float terms[kLevels * kLevels];
  for (int i = 0; i < kLevels; i++)
    for (int j = 0; j < kLevels; j++)
      terms[i * kLevels + j] = x_levels[i] * (w.levels[j] - kLevelOffset);
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    int32_t counts[kLevels * kLevels] = {};
    float of_row = 0.0f;
    for_codes(w, n, [&](int k, int code, float scale) {
      counts[x[k] << 4 | code]++;
      of_row = scale;
    });
    float sum = 0.0f;
    for (int i = 0; i < kLevels * kLevels; i++) sum += static_cast<float>(counts[i]) * terms[i];
    y[n] = sum * of_row;
  }
}
