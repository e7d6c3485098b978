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

// Adds the values of Q query rows (from `first` on), 16 U of their elements from 16 `unit` on. The
// output stays in the order in which values of this type are loaded.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_values(const Head& head, const Tile& tile, int first, int unit,
                               const Weights& weights, float* output) {
  constexpr bool integers = T == Type::i8;
  constexpr int rows = integers ? 2 : 1;  // rows of values in one product
  constexpr int unit_bytes = kPanel * size_of(T);
  constexpr int line_rows = kLineBytes / unit_bytes;
  using Sum = std::conditional_t<integers, vi, vf>;
  const int row_bytes = head.size * size_of(T);
  float* to[Q];
  for (int q = 0; q < Q; q++) to[q] = output + (first + q) * head.size + unit * kPanel;
  Sum total[Q][U][kVectors] = {};
  if constexpr (!integers)
    for (int q = 0; q < Q; q++)
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++) total[q][u][v] = load(to[q] + u * kPanel + v * W);
  for (int block = 0; block < tile.blocks; block++) {
    const int left = tile.rows - block * kPanel;
    const int end = left < kPanel ? left : kPanel;
    const std::byte* values = tile.values[block] + unit * unit_bytes;
    const std::byte* next = tile.next_values[block] + unit * kPanel * unit_bytes;
    const int at = first * kTileRows + block * kPanel;
    const auto add = [&](int row) __attribute__((always_inline)) {
      for (int u = 0; u < U; u++) {
        Sum value[kVectors];
        const std::byte* from = values + row * row_bytes + u * unit_bytes;
        if constexpr (integers)
          zip_rows(from, from + row_bytes, value);
        else
          load_sixteen<T>(from, value);
        for (int q = 0; q < Q; q++) {
          const void* weight =
              integers ? static_cast<const void*>(weights.codes + at + q * kTileRows + row)
                       : weights.values + at + q * kTileRows + row;
          for (int v = 0; v < kVectors; v++)
            total[q][u][v] = multiply_add(value[v], broadcast<Sum>(weight), total[q][u][v]);
        }
      }
    };
    if (end == kPanel) {
      for (int row = 0; row < kPanel; row += line_rows) {
        for (int u = 0; u < U; u++) fetch(next + (u * kPanel + row) * unit_bytes);
#pragma GCC unroll 4
        for (int i = 0; i < line_rows; i += rows) add(row + i);
      }
    } else {
      for (int row = 0; row < end; row += rows) add(row);
    }
  }
  for (int q = 0; q < Q; q++)
    for (int u = 0; u < U; u++)
      for (int v = 0; v < kVectors; v++) {
        float* at = to[q] + u * kPanel + v * W;
        if constexpr (integers)
          store(at, to_float(total[q][u][v]) * splat(weights.units[first + q]) + load(at));
        else
          store(at, total[q][u][v]);
      }
}

template <Type T>
void add(const Head& head, const Tile& tile, const Weights& weights, int count, float* output) {
  in_units<kQueries>(count, [&]<int Q>(int first) {
    in_units<units_for(Q)>(head.size / kPanel, [&]<int U>(int unit) {
      add_values<T, Q, U>(head, tile, first, unit, weights, output);
    });
  });
}
