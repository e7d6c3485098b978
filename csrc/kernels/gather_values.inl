// Selected rows of a tile's values, gathered from memory.

// Adds the selected values to Q query rows (from `first` on), for 16 U of their elements from 16
// `unit` on.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_picked_units(const Picked& picked, int size, int first, int unit,
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
void add_all_picked(const KVHead& head, Picked& picked, int count, const Weights& packed,
                    float* output) {
  if (picked.count == 0) return;
  in_units<kQueries>(count, [&]<int Q>(int first) {
    in_units<units_for(Q)>(head.value_size / kPanel, [&]<int U>(int unit) {
      add_picked_units<T, Q, U>(picked, head.size, first, unit, packed, output);
    });
  });
  picked.count = 0;
}
