// Queries times the keys of a tile.

// Query rows as the products take them: float32, or for int8 keys pairs of int16.
struct Queries {
  const float* const* values;  // [count] -> [D]
  const int16_t* codes;        // [count][D]
  const float* scales;         // [count]

  template <Type T>
  const std::byte* row(int i, int size) const {
    const void* at = T == Type::i8 ? static_cast<const void*>(codes + i * size) : values[i];
    return static_cast<const std::byte*>(at);
  }
};

inline void quantize_query(const float* query, int size, int16_t* codes, float* scale) {
  *scale = quantize_to_int16(query, size, max_magnitude(query, size), codes);
}

// Scores of Q query rows (from `first` on) for U blocks: scores[row][key of the tile].
template <Type T, int Q, int U>
SUFFICE_INLINE void score_blocks(const Head& head, const Tile& tile, int block,
                                 const Queries& queries, int first, float* scores) {
  constexpr int pair = key_pair(T);
  constexpr int step_bytes = kPanel * pair * size_of(T);
  constexpr int line_steps = kLineBytes / step_bytes;
  using Sum = std::conditional_t<T == Type::i8, vi, vf>;
  const int bytes = head.size / pair * step_bytes;
  const std::byte* query[Q];
  for (int q = 0; q < Q; q++) query[q] = queries.template row<T>(first + q, head.size);
  const std::byte* keys[U];
  const std::byte* next[U];
  for (int u = 0; u < U; u++) {
    keys[u] = tile.keys[block + u];
    next[u] = tile.next_keys[block + u];
  }
  Sum total[U][Q][kVectors] = {};
  for (int at = 0; at < bytes; at += kLineBytes) {  // each step takes 4 bytes of a query
    for (int u = 0; u < U; u++) fetch(next[u] + at);
#pragma GCC unroll 2
    for (int step = 0; step < line_steps; step++) {
      for (int u = 0; u < U; u++) {
        Sum key[kVectors];
        const std::byte* from = keys[u] + at + step * step_bytes;
        if constexpr (T == Type::i8)
          load_pairs(from, key);
        else
          load_sixteen<T>(from, key);
        for (int q = 0; q < Q; q++)
          for (int v = 0; v < kVectors; v++)
            total[u][q][v] =
                multiply_add(key[v], broadcast<Sum>(query[q] + 4 * step), total[u][q][v]);
      }
    }
    for (int q = 0; q < Q; q++) query[q] += 4 * line_steps;
  }
  for (int u = 0; u < U; u++)
    for (int q = 0; q < Q; q++) {
      float* to = scores + (first + q) * kTileRows + (block + u) * kPanel;
      if constexpr (T == Type::i8) {
        const float* scale = head.key_scales + tile.row[block + u];
        for (int v = 0; v < kVectors; v++)
          store(to + v * W,
                to_float(total[u][q][v]) * (load(scale + v * W) * queries.scales[first + q]));
      } else {
        arrange<T>(total[u][q]);
        for (int v = 0; v < kVectors; v++) store(to + v * W, total[u][q][v]);
      }
    }
}

template <Type T>
void score(const Head& head, const Tile& tile, const Queries& queries, int count, float* scores) {
  in_units<kQueries>(count, [&]<int Q>(int first) {
    constexpr int most = units_for(Q) < kTileBlocks ? units_for(Q) : kTileBlocks;
    in_units<most>(tile.blocks, [&]<int U>(int block) {
      score_blocks<T, Q, U>(head, tile, block, queries, first, scores);
    });
  });
}
