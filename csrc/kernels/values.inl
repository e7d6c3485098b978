// Weights times the values of a tile, added to the output.

template <Type T, bool Pairs>
SUFFICE_INLINE const void* weights_at(const Weights& weights, int q, int place) {
  if constexpr (!has_scales(T) && !Pairs) return weights.values + q * kTileRows + place;
  const int16_t* row = weights.codes + q * kTileRows;
  if constexpr (byte_weights(T)) return reinterpret_cast<const uint8_t*>(row) + place;
  return row + place;
}

// Rows of values whose weights are multiplied at once.
template <Type T, bool Pairs>
constexpr int kRowsAtOnce = byte_weights(T)          ? 4
                            : has_scales(T) || Pairs ? 2
                                                     : 1;

#if SUFFICE_LEVEL == 4
template <Type T>
SUFFICE_INLINE void zip_many(const std::byte* const* rows, ptrdiff_t rest, vi* to) {
  if constexpr (T == Type::planes)
    zip_many_planes(rows, rest, to);
  else
    zip_many_levels(rows, to);
}
#endif

// 16 U elements of as many rows of values as are multiplied at once; second planes are `rest` away.
template <Type T, bool Pairs, int U, class Taken>
SUFFICE_INLINE void load_units(const std::byte* const* rows, ptrdiff_t rest,
                               Taken (*loaded)[kVectors]) {
  // Units of 16 elements, if there are.
  constexpr int together = byte_weights(T) || Pairs ? 2 : 1;
  constexpr bool many = SUFFICE_LEVEL == 4 && is_four_bits(T);
  for (int u = 0; u < U; u += many && u + 4 <= U ? 4 : u + together <= U ? together : 1) {
    const std::byte* from[kRowsAtOnce<T, Pairs>];
    for (int i = 0; i < kRowsAtOnce<T, Pairs>; i++)
      from[i] = rows[i] + u * elements_bytes(T, kPanel);
    if constexpr (many) {
      if (u + 4 <= U) {
        zip_many<T>(from, rest, loaded[u]);
        continue;
      }
    }
    if constexpr (T == Type::kmeans4) {
      if (u + together <= U)
        zip_two_levels(from, loaded[u]);
      else
        zip_levels(from, loaded[u]);
    } else if constexpr (byte_weights(T)) {
      if (u + together <= U)
        zip_four_planes<2>(from, rest, loaded[u]);
      else
        zip_four_planes<1>(from, rest, loaded[u]);
    } else if constexpr (T == Type::planes) {
      zip_planes(from[0], from[1], rest, loaded[u]);
    } else if constexpr (has_scales(T)) {
      zip_rows(from[0], from[1], loaded[u]);
    } else if constexpr (Pairs) {
      if (u + together <= U)
        zip_halves<2>(from[0], from[1], loaded[u]);
      else
        zip_halves<1>(from[0], from[1], loaded[u]);
    } else {
      load_sixteen<T>(from[0], loaded[u]);
    }
  }
}

// Sums of Q query rows (from `first` on) for 16 U of their elements from 16 `unit` on, held in
// registers from `begin` to `end`. Outputs have the element order in which values of this type
// load. `Pairs`: as products of bfloat16. `Lines`: of lines that were unpacked, two units at once.
template <Type T, int Q, int U, bool Pairs = false, bool Lines = false>
struct WeightedSums {
  static constexpr bool integers = has_scales(T);
  static constexpr int rows = kRowsAtOnce<T, Pairs>;
  static constexpr int unit_bytes = elements_bytes(T, kPanel);
  using Sum = std::conditional_t<integers, vi, vf>;
  using Taken = std::conditional_t<integers || Pairs, vi, vf>;

  Sum total[Q][U][kVectors];

  SUFFICE_INLINE WeightedSums() { clear(total); }

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

  // Adds the values [rows] times the weights at `place` of the tile, of query rows from `first` on;
  // second planes of values are `rest` away.
  SUFFICE_INLINE void add(const std::byte* const* values, ptrdiff_t rest, const Weights& weights,
                          int first, int place) {
    Taken loaded[U][kVectors];
    load_units<T, Pairs, U>(values, rest, loaded);
    for (int q = 0; q < Q; q++) {
      const auto weight = word<Taken>(weights_at<T, Pairs>(weights, first + q, place));
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++)
          if constexpr (byte_weights(T))
            total[q][u][v] = add_quads(total[q][u][v], weight, loaded[u][v]);
          else if constexpr (Pairs)
            total[q][u][v] = dot_bf16(total[q][u][v], weight, loaded[u][v]);
          else
            total[q][u][v] = multiply_add(loaded[u][v], weight, total[q][u][v]);
    }
  }

  SUFFICE_INLINE void end(float* output, int size, const float* units) {
#if SUFFICE_LEVEL == 4
    if constexpr (is_four_bits(T))
      for (int q = 0; q < Q; q++) order_units<U, Lines ? 2 : 4>(total[q]);
#endif
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

// Takes the place of a row that does not exist, whose memory might not be finite.
alignas(kLineBytes) constexpr std::byte kNoValues[2 * kMaxSize] = {};

// Adds the values of a tile to Q query rows.
template <Type T, int Q, int U>
SUFFICE_INLINE void add_values(const KVHead& head, const Tile& tile, int first, int unit,
                               const Weights& weights, float* output) {
  using Sums = WeightedSums<T, Q, U, kBf16Pairs<T>>;
  constexpr int line_rows = kLineBytes / Sums::unit_bytes;
  const int row_bytes = static_cast<int>(elements_bytes(T, head.size));
  float* to = output + first * head.size + unit * kPanel;
  Sums sums;
  sums.begin(to, head.size);
  for (int block = 0; block < tile.blocks; block++) {
    const int left = tile.rows - block * kPanel;
    const int end = left < kPanel ? left : kPanel;
    const std::byte* values = tile.values[block] + unit * Sums::unit_bytes;
    const std::byte* next = tile.next_values[block] + unit * kPanel * Sums::unit_bytes;
    const auto add = [&](int row) __attribute__((always_inline)) {
      const std::byte* row_values[Sums::rows];
      for (int i = 0; i < Sums::rows; i++)
        row_values[i] =
            kBf16Pairs<T> && row + i >= end ? kNoValues : values + (row + i) * row_bytes;
      sums.add(row_values, tile.value_rest, weights, first, block * kPanel + row);
    };
    if (end == kPanel) {
      for (int row = 0; row < kPanel; row += line_rows) {
        for (int u = 0; u < U; u++) {
          const std::byte* const ahead = next + (u * kPanel + row) * Sums::unit_bytes;
          fetch(ahead);
          if constexpr (T == Type::planes) fetch(ahead + tile.value_rest);
        }
#pragma GCC unroll 4
        for (int i = 0; i < line_rows; i += Sums::rows) add(row + i);
      }
    } else {
      for (int row = 0; row < end; row += Sums::rows) add(row);
    }
  }
  sums.end(to, head.size, weights.units + first);
}

// Restores the element order of complete outputs [count][size], and undoes the rotation of values.
template <Type T>
void restore(float* output, int count, int size) {
  arrange_row<T>(output, count * size);
  if constexpr (is_four_bits(T))
    for (int q = 0; q < count; q++) rotate_row(output + q * size, size);
}

template <Type T>
void add(const KVHead& head, const Tile& tile, const Weights& weights, int count, float* output) {
  in_units<kQueriesOf<T>>(count, [&]<int Q>(int first) {
    in_units<units_for(Q)>(head.value_size / kPanel, [&]<int U>(int unit) {
      add_values<T, Q, U>(head, tile, first, unit, weights, output);
    });
  });
}
