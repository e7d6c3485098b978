// Selected rows of a tile's values, packed with the weights of their keys.

// Multiplies the packed weights of values by their scales [picked.count] and rounds them to
// integers.
inline void scale_packed(Type type, const float* scales, const Weights& packed, int count,
                         Picked& picked) {
  for (int i = 0; i < 3; i++)  // up to four rows are added at once
    picked.rows[picked.count + i] = picked.rows[picked.count > 0 ? picked.count - 1 : 0];
  const int padded = round_up(picked.count, kPanel);
  for (int q = 0; q < count; q++) {
    float* const row = packed.values + q * kTileRows;
    for (int i = 0; i < picked.count; i++) row[i] *= scales[i];
    for (int i = picked.count; i < padded; i++) row[i] = 0;
    quantize_row(type, packed, q, row, padded);
  }
}

// Fetches the values of the rows in `mask` and packs the weights of their keys.
inline Picked pick(const KVHead& head, const Tile& tile, uint64_t mask, const Weights& weights,
                   const Weights& packed, int count) {
  Picked picked;
  picked.rest = tile.value_rest;
  float scales[kTileRows];
  const Type type = head.value_type;
  const ptrdiff_t row_bytes = elements_bytes(type, head.size);
  for (; mask; mask &= mask - 1) {
    const int row = __builtin_ctzll(mask);
    const int block = row / kPanel, within = row % kPanel;
    const std::byte* value = tile.values[block] + within * row_bytes;
    fetch_row(value, static_cast<int>(row_bytes));
    if (type == Type::planes) fetch_row(value + picked.rest, static_cast<int>(row_bytes));
    const int to = picked.count++;
    picked.rows[to] = value;
    if (has_scales(type)) scales[to] = head.value_scales[tile.row[block] + within];
    for (int q = 0; q < count; q++)
      packed.values[q * kTileRows + to] = weights.values[q * kTileRows + row];
  }
  if (has_scales(type)) scale_packed(type, scales, packed, count, picked);
  return picked;
}
