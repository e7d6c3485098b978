// Selected rows of a tile's values, gathered from memory.

// Selected rows of values; their keys' weights are packed in the same order.
struct Picked {
  const std::byte* rows[kTileRows + 3];
  int count = 0;
  ptrdiff_t rest = 0;  // from the first plane of a row to the second
};

// Adds the selected values to Q query rows (from `first` on), for 16 U of their elements from 16
// `unit` on.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_picked(const Picked& picked, int size, int first, int unit,
                               const Weights& weights, float* output) {
  using Sums = WeightedSums<T, Q, U>;
  float* to = output + first * size + unit * kPanel;
  Sums sums;
  sums.begin(to, size);
  for (int i = 0; i < picked.count; i += Sums::rows) {
    const std::byte* values[Sums::rows];
    for (int j = 0; j < Sums::rows; j++) values[j] = picked.rows[i + j] + unit * Sums::unit_bytes;
    sums.add(values, picked.rest, weights, first, i);
  }
  sums.end(to, size, weights.units + first);
}

// Adds the selected values to all query rows; then none are left.
template <Type T>
void add_all_picked(Picked& picked, int size, int count, const Weights& packed, float* output) {
  if (picked.count == 0) return;
  in_units<kQueries>(count, [&]<int Q>(int first) {
    in_units<units_for(Q)>(size / kPanel, [&]<int U>(int unit) {
      add_picked<T, Q, U>(picked, size, first, unit, packed, output);
    });
  });
  picked.count = 0;
}

// Multiplies the packed weights of values by their scales [picked.count] and rounds them to
// integers.
template <Type T>
void scale_packed(const float* scales, const Weights& packed, int count, Picked& picked) {
  for (int i = 0; i < 3; i++)  // up to four rows are added at once
    picked.rows[picked.count + i] = picked.rows[picked.count > 0 ? picked.count - 1 : 0];
  const int padded = round_up(picked.count, kPanel);
  for (int q = 0; q < count; q++) {
    float* const row = packed.values + q * kTileRows;
    for (int i = 0; i < picked.count; i++) row[i] *= scales[i];
    for (int i = picked.count; i < padded; i++) row[i] = 0;
    packed.quantize<T>(q, row, padded);
  }
}

// Fetches the values of the rows in `mask` and packs the weights of their keys.
template <Type T>
Picked pick(const KVHead& head, const Tile& tile, uint64_t mask, const Weights& weights,
            const Weights& packed, int count) {
  Picked picked;
  picked.rest = tile.value_rest;
  float scales[kTileRows];
  const ptrdiff_t row_bytes = elements_bytes(T, head.size);
  for (; mask; mask &= mask - 1) {
    const int row = __builtin_ctzll(mask);
    const int block = row / kPanel, within = row % kPanel;
    const std::byte* value = tile.values[block] + within * row_bytes;
    fetch_row(value, static_cast<int>(row_bytes));
    if constexpr (T == Type::planes) fetch_row(value + picked.rest, static_cast<int>(row_bytes));
    const int to = picked.count++;
    picked.rows[to] = value;
    if constexpr (has_scales(T)) scales[to] = head.value_scales[tile.row[block] + within];
    for (int q = 0; q < count; q++)
      packed.values[q * kTileRows + to] = weights.values[q * kTileRows + row];
  }
  if constexpr (has_scales(T)) scale_packed<T>(scales, packed, count, picked);
  return picked;
}
