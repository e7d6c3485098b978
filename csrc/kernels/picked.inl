// Values of some of a tile's rows.

// Some rows of values, packed one behind the other, and the weights of their keys in that order.
struct Picked {
  const std::byte* rows[kTileRows + 1];
  int count = 0;
};

// Adds picked values to Q query rows (from `first` on), 16 U of their elements from 16 `unit` on.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_picked(const Picked& picked, int size, int first, int unit,
                               const Weights& weights, float* output) {
  using Sums = ValueSums<T, Q, U>;
  float* to = output + first * size + unit * kPanel;
  Sums sums;
  sums.begin(to, size);
  for (int i = 0; i < picked.count; i += Sums::rows) {
    const int from = unit * Sums::unit_bytes;
    const std::byte* second = Sums::rows > 1 ? picked.rows[i + 1] + from : nullptr;
    sums.add(picked.rows[i] + from, second, weights, first * kTileRows + i);
  }
  sums.end(to, size, weights.units + first);
}

// Moves the weights of the rows in `mask` to the front and returns where their values are.
template <Type T>
Picked pick(const Head& head, const Tile& tile, uint64_t mask, const Weights& weights, int count) {
  Picked picked;
  const ptrdiff_t row_bytes = static_cast<ptrdiff_t>(head.size) * size_of(T);
  for (; mask; mask &= mask - 1) {
    const int row = __builtin_ctzll(mask);
    const std::byte* value = tile.values[row / kPanel] + row % kPanel * row_bytes;
    fetch_row(value, static_cast<int>(row_bytes));
    const int to = picked.count++;
    picked.rows[to] = value;
    for (int q = 0; q < count; q++) {
      weights.values[q * kTileRows + to] = weights.values[q * kTileRows + row];
      if constexpr (T == Type::i8)
        weights.codes[q * kTileRows + to] = weights.codes[q * kTileRows + row];
    }
  }
  if (T == Type::i8 && picked.count % 2) {  // rows go in pairs
    picked.rows[picked.count] = picked.rows[picked.count - 1];
    for (int q = 0; q < count; q++) weights.codes[q * kTileRows + picked.count] = 0;
  }
  return picked;
}

// Bit i: row `row` + i of the block is one that the query row may see.
inline uint32_t visible_bits(const Visible& visible, int row) {
  if (row >= visible.first && row + kPanel <= visible.committed) return 0xffff;
  uint32_t bits = 0;
  for (int i = 0; i < kPanel; i++) {
    const int key = row + i, draft = key - visible.committed;
    const bool seen = draft < 0    ? key >= visible.first
                      : draft < 32 ? visible.tentative >> draft & 1
                                   : false;
    bits |= static_cast<uint32_t>(seen) << i;
  }
  return bits;
}
