// Queries times the keys of a tile.

// Elements of a query in the order in which `load_plane_pairs` has those of keys, out of four.
constexpr int kPlaneOrder[4] = {0, 2, 1, 3};

// A query for keys in planes: rotated like the keys, in 16 bits whose upper byte is above -128. In
// that order, or split: all upper bytes, then all lower ones, which have a sign too. Returns the
// scale. `mean`: its product with the mean key; `offset`: what keys as unsigned bytes add.
inline float quantize_for_planes(const KVHead& head, const float* query, int16_t* codes,
                                 float* mean, int32_t* offset) {
  alignas(64) float rotated[kMaxSize];
  alignas(64) int16_t ordered[kMaxSize];
  const int size = head.size;
  turn_query(head, query, rotated);
  const float greatest = max_magnitude(rotated, size);
  const float inverse = greatest > 0 ? kGreatestPlaneCode / greatest : 0.0f;
  int8_t* const bytes = reinterpret_cast<int8_t*>(codes);
  vf product = {};
  vi sum = {};
  for (int i = 0; i < size; i += W) {
    const vi code = nearest(load(rotated + i), inverse);
    if (head.rounding) product += load(head.rounding->mean + i) * to_float(code);
    sum += code;
    store_narrow(code, ordered + i);
    if (!kSplitsPlanes) continue;
    const vi upper = (code + 128) >> 8;
    store_narrow(upper, bytes + i);
    store_narrow(code - 256 * upper, bytes + size + i);
  }
  for (int i = 0; i < size && !kSplitsPlanes; i++)
    codes[i] = ordered[i / 4 * 4 + kPlaneOrder[i % 4]];
  const float scale = greatest / kGreatestPlaneCode;
  *mean = sum_of(product) * scale;
  *offset = kSplitsPlanes ? -kByteOffset * sum_of_lanes(sum) : 0;
  return scale;
}

// A query for keys in codes: rotated like the keys, in 8 bits. Returns the scale.
inline float quantize_for_codes(const KVHead& head, const float* query, int8_t* codes, float* mean,
                                int32_t* offset) {
  int32_t sum;
  const float scale = quantize_to_int8(head, query, codes, &sum);
  vf product = {};
  for (int i = 0; head.rounding && i < head.size; i += W)
    product += load(head.rounding->mean + i) *
               to_float(load_bytes<int8_t>(reinterpret_cast<const std::byte*>(codes + i)));
  *mean = sum_of(product) * scale;
  *offset = -kGreatestLevel * sum;
  return scale;
}

// Queries are float32; pairs of int16 for int8 keys, rotated for those in planes; rotated and in
// int8 for keys in codes; bfloat16 for keys multiplied in such pairs.
template <Type T>
void prepare(const KVHead& head, const Queries& queries, int count) {
  const int size = head.size;
  for (int q = 0; q < count; q++) {
    const float* const values = queries.values[q];
    int16_t* const codes = queries.codes + q * size;
    if constexpr (T == Type::i8)
      queries.scales[q] = quantize_to_int16([&](int i) { return load(values + i * W); }, size / W,
                                            max_magnitude(values, size), codes);
    else if constexpr (T == Type::planes)
      queries.scales[q] =
          quantize_for_planes(head, values, codes, queries.means + q, queries.offsets + q);
    else if constexpr (T == Type::kmeans4)
      queries.scales[q] = quantize_for_codes(head, values, reinterpret_cast<int8_t*>(codes),
                                             queries.means + q, queries.offsets + q);
    else if constexpr (kBf16Pairs<T>)
      for (int i = 0; i < size; i += W) store_bf16(load(values + i), codes + i);
  }
}

template <Type T>
SUFFICE_INLINE const std::byte* row_of(const Queries& queries, int q, int size) {
  if constexpr (has_scales(T) || kBf16Pairs<T>)
    return reinterpret_cast<const std::byte*>(queries.codes + q * size);
  return reinterpret_cast<const std::byte*>(queries.values[q]);
}

// Adds one line of each of U blocks of keys times Q queries with their bytes at `query`.
template <Type T, int Q, int U, class Sum>
SUFFICE_INLINE void add_line(const std::byte* const* keys, int at, const std::byte* const* query,
                             Sum (*total)[Q][kVectors]) {
  constexpr int step_bytes = kPanel * key_run(T);  // each step takes 4 bytes of a query
#pragma GCC unroll 2
  for (int step = 0; step < kLineBytes / step_bytes; step++) {
    Sum key[U][kVectors];
    for (int u = 0; u < U; u++) {
      const std::byte* from = keys[u] + at + step * step_bytes;
      if constexpr (T == Type::i8)
        load_pairs(from, key[u]);
      else
        load_sixteen<T>(from, key[u]);
    }
    for (int q = 0; q < Q; q++)
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++)
          total[u][q][v] = multiply_add(key[u][v], word<Sum>(query[q] + 4 * step), total[u][q][v]);
  }
}

// For pairs of bfloat16: a line has two elements of 16 keys, one after the other.
template <int Q, int U>
SUFFICE_INLINE void add_line_of_pairs(const std::byte* const* keys, int at,
                                      const std::byte* const* query, vf (*total)[Q][kVectors]) {
  vi key[U][kVectors];
  for (int u = 0; u < U; u++) zip_halves<1>(keys[u] + at, keys[u] + at + kLineBytes / 2, key[u]);
  for (int q = 0; q < Q; q++)
    for (int u = 0; u < U; u++)
      for (int v = 0; v < kVectors; v++)
        total[u][q][v] = dot_bf16(total[u][q][v], key[u][v], word<vi>(query[q]));
}

// For keys in planes: 8 elements of 16 keys.
template <int Q, int U>
SUFFICE_INLINE void add_line_of_planes(const std::byte* const* keys, ptrdiff_t rest, int at,
                                       const std::byte* const* query, vi (*total)[Q][kVectors]) {
  for (int u = 0; u < U; u++)
    for (int v = 0; v < kVectors; v++) {
      vi pairs[4];
      load_plane_pairs(keys[u] + at + v * kVectorBytes, rest, pairs);
      for (int q = 0; q < Q; q++)
        for (int i = 0; i < 4; i++)
          total[u][q][v] = multiply_add(pairs[i], word<vi>(query[q] + 4 * i), total[u][q][v]);
    }
}

// For keys in planes as bytes: 8 elements of 16 keys; `low` are the sums of the queries' lower
// bytes, `size` bytes after the upper ones.
template <int Q, int U>
SUFFICE_INLINE void add_line_of_bytes(const std::byte* const* keys, ptrdiff_t rest, int at,
                                      const std::byte* const* query, int size,
                                      vi (*total)[Q][kVectors], vi (*low)[Q][kVectors]) {
  vi bytes[U][kVectors][2];
  for (int u = 0; u < U; u++)
    for (int v = 0; v < kVectors; v++)
      load_plane_bytes(keys[u] + at + v * kVectorBytes, rest, bytes[u][v]);
  for (int q = 0; q < Q; q++)
    for (int i = 0; i < 2; i++) {
      const auto upper = word<vi>(query[q] + 4 * i);
      const auto lower = word<vi>(query[q] + 4 * i + size);
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++) {
          total[u][q][v] = add_quads(total[u][q][v], bytes[u][v][i], upper);
          low[u][q][v] = add_quads(low[u][q][v], bytes[u][v][i], lower);
        }
    }
}

// For keys in codes: 8 elements of 16 keys.
template <int Q, int U>
SUFFICE_INLINE void add_line_of_codes(const std::byte* const* keys, int at,
                                      const std::byte* const* query, vi (*total)[Q][kVectors]) {
  const vi levels = load_bits(kKeyCodebook.levels), half = splat_bits(0x0f0f0f0f);
  for (int u = 0; u < U; u++) {
    vi low[kVectors], high[kVectors];
    for (int v = 0; v < kVectors; v++) {
      const vi codes = load_bits(keys[u] + at + v * kVectorBytes);
      low[v] = look_up(levels, codes & half);
      high[v] = look_up(levels, (codes >> 4) & half);
    }
    for (int q = 0; q < Q; q++) {
      const auto first = word<vi>(query[q]), second = word<vi>(query[q] + 4);
      for (int v = 0; v < kVectors; v++)
        if constexpr (SUFFICE_VNNI)
          total[u][q][v] = dot_halves(total[u][q][v], low[v], high[v], first, second);
        else  // a 16-bit sum has no room for more
          total[u][q][v] += widen(dot_halves(vi{}, low[v], high[v], first, second));
    }
  }
}

// Scores of query row `q` for the block at `row`, from its sums.
template <Type T, class Sum>
SUFFICE_INLINE void store_scores(const KVHead& head, int row, const Queries& queries, int q,
                                 Sum* total, float* to) {
  const float* scale = head.key_scales + row;
  if constexpr (is_four_bits(T)) {
    for (int v = 0; v < kVectors; v++) {
      const vi pair = load_bits(scale + v * W);  // a scale and a multiple of the mean
      const vi products = (T == Type::kmeans4 ? 2 * total[v] : total[v]) + queries.offsets[q];
      const vf sum = to_float(products);
      store(to + v * W,
            sum * (first_bf16(pair) * queries.scales[q]) + second_bf16(pair) * queries.means[q]);
    }
  } else if constexpr (has_scales(T)) {
    for (int v = 0; v < kVectors; v++)
      store(to + v * W, to_float(total[v]) * (load(scale + v * W) * queries.scales[q]));
  } else {
    arrange<T>(total);
    for (int v = 0; v < kVectors; v++) store(to + v * W, total[v]);
  }
}

// Scores of Q query rows (from `first` on) for U blocks: scores[row][key of the tile].
template <Type T, int Q, int U>
SUFFICE_INLINE void score_blocks(const KVHead& head, const Tile& tile, int block,
                                 const Queries& queries, int first, float* scores) {
  using Sum = std::conditional_t<has_scales(T), vi, vf>;
  constexpr int line_query = T == Type::kmeans4  ? 8
                             : kSplit<T>         ? 8
                             : T == Type::planes ? 16
                             : kBf16Pairs<T>     ? 4
                                                 : 4 * kLineBytes / (kPanel * key_run(T));
  const int bytes = static_cast<int>(kPanel * elements_bytes(T, head.size));
  const std::byte* query[Q];
  for (int q = 0; q < Q; q++) query[q] = row_of<T>(queries, first + q, head.size);
  const std::byte* keys[U];
  const std::byte* next[U];
  for (int u = 0; u < U; u++) {
    keys[u] = tile.keys[block + u];
    next[u] = tile.next_keys[block + u];
  }
  Sum total[U][Q][kVectors], low[kSplit<T> ? U : 1][Q][kVectors];
  clear(total);
  clear(low);
  for (int at = 0; at < bytes; at += kLineBytes) {
    for (int u = 0; u < U; u++) {
      fetch(next[u] + at);
      if constexpr (T == Type::planes) fetch(next[u] + at + tile.key_rest);
    }
    if constexpr (kSplit<T>)
      add_line_of_bytes<Q, U>(keys, tile.key_rest, at, query, head.size, total, low);
    else if constexpr (T == Type::planes)
      add_line_of_planes<Q, U>(keys, tile.key_rest, at, query, total);
    else if constexpr (T == Type::kmeans4)
      add_line_of_codes<Q, U>(keys, at, query, total);
    else if constexpr (kBf16Pairs<T>)
      add_line_of_pairs<Q, U>(keys, at, query, total);
    else
      add_line<T, Q, U>(keys, at, query, total);
    for (int q = 0; q < Q; q++) query[q] += line_query;
  }
  for (int u = 0; u < U; u++)
    for (int q = 0; q < Q; q++) {
      if constexpr (kSplit<T>)
        for (int v = 0; v < kVectors; v++) total[u][q][v] = 256 * total[u][q][v] + low[u][q][v];
      store_scores<T>(head, tile.row[block + u], queries, first + q, total[u][q],
                      scores + (first + q) * kTileRows + (block + u) * kPanel);
    }
}

template <Type T>
void score(const KVHead& head, const Tile& tile, const Queries& queries, int count, float* scores) {
  in_units<kQueriesOf<T>>(count, [&]<int Q>(int first) {
    in_units<units_of<T>(Q)>(tile.blocks, [&]<int U>(int block) {
      score_blocks<T, Q, U>(head, tile, block, queries, first, scores);
    });
  });
}

inline void prepare_queries(const KVHead& head, const Queries& queries, int count) {
  for_type(head.key_type, [&]<Type T>() {
    if constexpr (!is_four_bits(T))
      if (head.joint) return prepare_joint<T>(head, queries, count);
    prepare<T>(head, queries, count);
  });
}
