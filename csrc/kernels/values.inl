// Weights times the values of a tile, added to the output.

// Weights of a tile's keys: float32, and for int8 values also times the values' scales as int16.
struct Weights {
  float* values;   // [count][kTileRows]
  int16_t* codes;  // [count][kTileRows]
  float* units;    // [count]: what one unit of the codes is worth
};

// Folds the values' scales into the weights of one query row.
inline void fold_value_scales(const Head& head, const Tile& tile, const Weights& weights, int row) {
  float folded[kTileRows];
  vf most = {};
  for (int i = 0; i < tile.blocks * kPanel; i += W) {
    const vf scale = load(head.value_scales + tile.row[i / kPanel] + i % kPanel);
    const vf weight = load(weights.values + row * kTileRows + i) * scale;
    store(folded + i, weight);
    most = max(most, weight);
  }
  weights.units[row] = quantize_to_int16(folded, tile.blocks * kPanel, max_of(most),
                                         weights.codes + row * kTileRows);
}

// The sums of Q query rows (from `first` on) for 16 U of their elements from 16 `unit` on, held in
// registers from `begin` to `end`. The output is in the order in which values of this type load.
template <Type T, int Q, int U>
struct WeightedSums {
  static constexpr bool integers = T == Type::i8;
  static constexpr int rows = integers ? 2 : 1;  // rows of values in one product
  static constexpr int unit_bytes = kPanel * size_of(T);
  using Sum = std::conditional_t<integers, vi, vf>;

  Sum total[Q][U][kVectors] = {};

  SUFFICE_INLINE static float* at(float* output, int size, int q, int u, int v) {
    return output + q * size + u * kPanel + v * W;
  }

  // `output`: the elements of the first row.
  SUFFICE_INLINE void begin(float* output, int size) {
    if constexpr (!integers)
      for (int q = 0; q < Q; q++)
        for (int u = 0; u < U; u++)
          for (int v = 0; v < kVectors; v++) total[q][u][v] = load(at(output, size, q, u, v));
  }

  // Adds the row at `value` (and for integers the one at `second`) times the weights at `place` of
  // the tile.
  SUFFICE_INLINE void add(const std::byte* value, const std::byte* second, const Weights& weights,
                          int place) {
    for (int u = 0; u < U; u++) {
      Sum loaded[kVectors];
      if constexpr (integers)
        zip_rows(value + u * unit_bytes, second + u * unit_bytes, loaded);
      else
        load_sixteen<T>(value + u * unit_bytes, loaded);
      for (int q = 0; q < Q; q++) {
        const int from = place + q * kTileRows;
        const void* weight =
            integers ? static_cast<const void*>(weights.codes + from) : weights.values + from;
        for (int v = 0; v < kVectors; v++)
          total[q][u][v] = multiply_add(loaded[v], broadcast<Sum>(weight), total[q][u][v]);
      }
    }
  }

  SUFFICE_INLINE void end(float* output, int size, const float* units) {
    for (int q = 0; q < Q; q++)
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++) {
          float* to = at(output, size, q, u, v);
          if constexpr (integers)
            store(to, to_float(total[q][u][v]) * splat(units[q]) + load(to));
          else
            store(to, total[q][u][v]);
        }
  }
};

// Adds the values of a tile to Q query rows.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_values(const Head& head, const Tile& tile, int first, int unit,
                               const Weights& weights, float* output) {
  using Sums = WeightedSums<T, Q, U>;
  constexpr int line_rows = kLineBytes / Sums::unit_bytes;
  const int row_bytes = head.size * size_of(T);
  float* to = output + first * head.size + unit * kPanel;
  Sums sums;
  sums.begin(to, head.size);
  for (int block = 0; block < tile.blocks; block++) {
    const int left = tile.rows - block * kPanel;
    const int end = left < kPanel ? left : kPanel;
    const std::byte* values = tile.values[block] + unit * Sums::unit_bytes;
    const std::byte* next = tile.next_values[block] + unit * kPanel * Sums::unit_bytes;
    const auto add = [&](int row) __attribute__((always_inline)) {
      const std::byte* value = values + row * row_bytes;
      sums.add(value, value + row_bytes, weights, first * kTileRows + block * kPanel + row);
    };
    if (end == kPanel) {
      for (int row = 0; row < kPanel; row += line_rows) {
        for (int u = 0; u < U; u++) fetch(next + (u * kPanel + row) * Sums::unit_bytes);
#pragma GCC unroll 4
        for (int i = 0; i < line_rows; i += Sums::rows) add(row + i);
      }
    } else {
      for (int row = 0; row < end; row += Sums::rows) add(row);
    }
  }
  sums.end(to, head.size, weights.units + first);
}

template <Type T>
void add(const Head& head, const Tile& tile, const Weights& weights, int count, float* output) {
  in_units<kQueries>(count, [&]<int Q>(int first) {
    in_units<units_for(Q)>(head.size / kPanel, [&]<int U>(int unit) {
      add_values<T, Q, U>(head, tile, first, unit, weights, output);
    });
  });
}
