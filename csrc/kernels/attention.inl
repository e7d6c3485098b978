// Decode attention of one key/value head: all query rows that share it, one traversal.
//
// For each tile of up to four blocks of 16 keys: scores of all rows, one look at the running
// maximum (the output is rescaled only when it grows by more than 2^8), exponentials, values.
// Scores are in base 2. Every query row's arithmetic is in the same order whatever the other rows,
// and a key that a row may not see adds exactly nothing to it: a batch of drafts gives each row the
// bits that decoding it alone would give.

constexpr float kRescale = 8.0f;
constexpr float kInfinity = __builtin_inff();

// Up to four blocks of a tile, by address.
struct Tile {
  int blocks = 0;
  int row[kTileBlocks];  // first row of the block
  const std::byte* keys[kTileBlocks];
  const std::byte* values[kTileBlocks];
  int rows = 0;  // rows of values to read: the last block may be partly filled
  // How far ahead, in bytes, the next tile's blocks lie: fetched into the cache meanwhile.
  ptrdiff_t next_keys[kTileBlocks];
  ptrdiff_t next_values[kTileBlocks];
};

// Queries as the key kernel takes them: float32, or int16 pairs with a scale per row.
struct Queries {
  const float* const* values;
  const int32_t* pairs;  // [count][D/2]
  const float* scales;   // [count]
};

constexpr int kQueries = 6;  // rows handled together

// Calls f.operator()<value>() for a value from 1 to Most.
template <int Most, class F>
SUFFICE_INLINE void dispatch(int value, F f) {
  if constexpr (Most > 1)
    if (value < Most) return dispatch<Most - 1>(value, f);
  f.template operator()<Most>();
}

// A unit is one vector: W keys of a block when scoring, W elements of a value row when adding. Q
// rows times U units are in registers; U is chosen so that there are enough independent sums.
constexpr int units_for(int rows) {
  constexpr int few[] = {8, 8, 4, 4, 3, 2, 2};   // 16 vector registers
  constexpr int many[] = {8, 8, 8, 6, 4, 4, 3};  // 32
  return SUFFICE_LEVEL == 4 ? many[rows] : few[rows];
}

// Calls f.operator()<U>(first) for groups of at most Most units of nearly equal size.
template <int Most, class F>
SUFFICE_INLINE void in_units(int count, F f) {
  const int groups = (count + Most - 1) / Most;
  for (int i = 0, first = 0; i < groups; i++) {
    const int end = count * (i + 1) / groups;
    dispatch<Most>(end - first, [&]<int U>() { f.template operator()<U>(first); });
    first = end;
  }
}

template <Type T, int Q, int U>
SUFFICE_INLINE void score_units(const Head& head, const Tile& tile, int unit, const Queries& query,
                                int first, float* scores) {
  constexpr int pair = key_pair(T);
  constexpr int step_bytes = kPanel * pair * size_of(T);
  const int steps = head.size / pair;
  const std::byte* keys[U];
  const float* values[Q];
  for (int q = 0; q < Q; q++) values[q] = query.values[first + q];
  for (int u = 0; u < U; u++)
    keys[u] = tile.keys[(unit + u) / kVectors] + (unit + u) % kVectors * W * pair * size_of(T);
  const auto fetch_ahead = [&](int step) __attribute__((always_inline)) {
    for (int u = 0; u < U; u += kVectors)
      fetch(keys[u] + step * step_bytes + tile.next_keys[(unit + u) / kVectors]);
  };
  if constexpr (T == Type::i8) {
    vi total[U][Q] = {};
    for (int step = 0; step < steps; step++) {
      if (first == 0) fetch_ahead(step);
      vi key[U];
      for (int u = 0; u < U; u++)
        key[u] = widen(reinterpret_cast<const int8_t*>(keys[u]) + step * step_bytes);
      for (int q = 0; q < Q; q++) {
        const vi value = splat_bits(query.pairs[static_cast<size_t>(first + q) * steps + step]);
        for (int u = 0; u < U; u++) total[u][q] += dot_pairs(key[u], value);
      }
    }
    for (int u = 0; u < U; u++) {
      const int at = (unit + u) % kVectors * W;
      const vf scale = load(head.key_scales + tile.row[(unit + u) / kVectors] + at);
      for (int q = 0; q < Q; q++)
        store(scores + (first + q) * kTileRows + (unit + u) * W,
              to_float(total[u][q]) * (scale * query.scales[first + q]));
    }
  } else {
    vf total[U][Q] = {};
    for (int step = 0; step < steps; step++) {
      if (first == 0) fetch_ahead(step);
      vf key[U];
      for (int u = 0; u < U; u++) key[u] = load_stored<T>(keys[u] + step * step_bytes);
      for (int q = 0; q < Q; q++) {
        const vf value = splat(values[q][step]);
        for (int u = 0; u < U; u++) total[u][q] = key[u] * value + total[u][q];
      }
    }
    for (int u = 0; u < U; u++)
      for (int q = 0; q < Q; q++)
        store(scores + (first + q) * kTileRows + (unit + u) * W, total[u][q]);
  }
}

template <Type T, int Q>
void score_rows(const Head& head, const Tile& tile, const Queries& query, int first,
                float* scores) {
  constexpr int most = kTileRows / W;
  in_units<(units_for(Q) < most ? units_for(Q) : most)>(
      tile.blocks * kVectors,
      [&]<int U>(int unit) { score_units<T, Q, U>(head, tile, unit, query, first, scores); });
}

template <Type T, int Q, int U>
SUFFICE_INLINE void add_values(const Head& head, const Tile& tile, int first, int unit,
                               const float* weights, float* output) {
  const int size = head.size;
  vf total[Q][U];
  for (int q = 0; q < Q; q++)
    for (int u = 0; u < U; u++) total[q][u] = load(output + (first + q) * size + (unit + u) * W);
  for (int row = 0; row < tile.rows; row++) {
    const std::byte* values =
        tile.values[row / kPanel] + static_cast<size_t>(row % kPanel) * size * size_of(T);
    if (first + unit == 0) fetch_row(values + tile.next_values[row / kPanel], size * size_of(T));
    vf value[U];
    for (int u = 0; u < U; u++) value[u] = load_stored<T>(values + (unit + u) * W * size_of(T));
    for (int q = 0; q < Q; q++) {
      const vf weight = splat(weights[(first + q) * kTileRows + row]);
      for (int u = 0; u < U; u++) total[q][u] = value[u] * weight + total[q][u];
    }
  }
  for (int q = 0; q < Q; q++)
    for (int u = 0; u < U; u++) store(output + (first + q) * size + (unit + u) * W, total[q][u]);
}

// int8 values: pairs of rows against pairs of int16 weights (row scales folded in), in int32.
template <int Q, int U>
SUFFICE_INLINE void add_int8_values(const Head& head, const Tile& tile, int first, int unit,
                                    const int32_t* pairs, const float* scales, float* output) {
  const int size = head.size;
  vi total[Q][U] = {};
  for (int row = 0; row < tile.rows; row += 2) {
    const int8_t* values = reinterpret_cast<const int8_t*>(tile.values[row / kPanel]) +
                           static_cast<size_t>(row % kPanel) * size + unit * W;
    if (first + unit == 0) fetch_row(values + tile.next_values[row / kPanel], 2 * size);
    vi value[U];
    for (int u = 0; u < U; u++) value[u] = widen_pairs(values + u * W, values + size + u * W);
    for (int q = 0; q < Q; q++) {
      const vi weight = splat_bits(pairs[(first + q) * (kTileRows / 2) + row / 2]);
      for (int u = 0; u < U; u++) total[q][u] += dot_pairs(value[u], weight);
    }
  }
  for (int q = 0; q < Q; q++)
    for (int u = 0; u < U; u++) {
      float* to = output + (first + q) * size + (unit + u) * W;
      store(to, to_float(total[q][u]) * splat(scales[first + q]) + load(to));
    }
}

template <Type T, int Q>
void value_rows(const Head& head, const Tile& tile, int first, const float* weights,
                const int32_t* pairs, const float* scales, float* output) {
  in_units<units_for(Q)>(head.size / W, [&]<int U>(int unit) {
    if constexpr (T == Type::i8)
      add_int8_values<Q, U>(head, tile, first, unit, pairs, scales, output);
    else
      add_values<T, Q, U>(head, tile, first, unit, weights, output);
  });
}

// codes = round(values / unit) with unit = most / 32767, which is returned.
SUFFICE_INLINE float quantize_to_int16(const float* values, int size, float most, int16_t* codes) {
  typedef int16_t Narrow __attribute__((vector_size(W * 2)));
  const float inverse = most > 0 ? 32767.0f / most : 0.0f;
  for (int i = 0; i < size; i += W) {
    const vf rounded = round_even(load(values + i) * inverse);
    const Narrow narrow = __builtin_convertvector(__builtin_convertvector(rounded, vi), Narrow);
    std::memcpy(codes + i, &narrow, sizeof narrow);
  }
  return most / 32767.0f;
}

// Scores of the keys that `visible` hides become -infinity.
inline void hide(const Tile& tile, const Visible& visible, float* scores) {
  for (int block = 0; block < tile.blocks; block++) {
    const int row = tile.row[block];
    if (row >= visible.first && row + kPanel <= visible.committed) continue;
    for (int i = 0; i < kPanel; i++) {
      const int key = row + i;
      const int draft = key - visible.committed;
      const bool seen = draft < 0    ? key >= visible.first
                        : draft < 32 ? (visible.tentative >> draft & 1)
                                     : false;
      if (!seen) scores[block * kPanel + i] = -kInfinity;
    }
  }
}

// Turns the scores of one row into weights exp2(score - peak), updates peak and sum.
inline void soften(int blocks, float* scores, int size, float* peak, float* sum, float* output) {
  vf most = load(scores);
  for (int i = W; i < blocks * kPanel; i += W) most = max(most, load(scores + i));
  const float top = max_of(most);
  if (top == -kInfinity) {
    for (int i = 0; i < blocks * kPanel; i += W) store(scores + i, vf{});
    return;
  }
  if (top > *peak + kRescale) {
    const float factor = exp2(splat(*peak - top))[0];
    for (int i = 0; i < size; i += W) store(output + i, load(output + i) * factor);
    *sum *= factor;
    *peak = top;
  }
  vf total = {};
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf weight = exp2(load(scores + i) - *peak);
    store(scores + i, weight);
    total += weight;
  }
  *sum += sum_of(total);
}

// Weights times the rows' value scales as int16, and what one unit is worth.
inline void fold_value_scales(const Head& head, const Tile& tile, const float* weights,
                              int16_t* codes, float* unit) {
  float folded[kTileRows];
  vf most = {};
  for (int i = 0; i < tile.blocks * kPanel; i += W) {
    const vf scale = load(head.value_scales + tile.row[i / kPanel] + i % kPanel);
    const vf weight = load(weights + i) * scale;
    store(folded + i, weight);
    most = max(most, weight);
  }
  *unit = quantize_to_int16(folded, tile.blocks * kPanel, max_of(most), codes);
}

inline void quantize_query(const float* query, int size, int16_t* codes, float* scale) {
  vf most = {};
  for (int i = 0; i < size; i += W) most = max(most, max(load(query + i), -load(query + i)));
  *scale = quantize_to_int16(query, size, max_of(most), codes);
}

// The tile of the blocks from position `i` of the list on; `most` is one past the last row in use.
template <Type KT, Type VT>
SUFFICE_INLINE Tile tile_at(const Head& head, const int32_t* list, int i, int end, int most) {
  Tile tile;
  const ptrdiff_t key_bytes = static_cast<ptrdiff_t>(head.size) * size_of(KT);
  const ptrdiff_t value_bytes = static_cast<ptrdiff_t>(head.size) * size_of(VT);
  for (int b = 0; b < kTileBlocks && i < end; b++, i++) {
    const int row = (list ? list[i] : i) * kPanel;
    const int next = !list                   ? row + kTileRows
                     : i + kTileBlocks < end ? list[i + kTileBlocks] * kPanel
                                             : row;
    tile.row[b] = row;
    tile.keys[b] = head.keys + row * key_bytes;
    tile.values[b] = head.values + row * value_bytes;
    tile.next_keys[b] = (next - row) * key_bytes;
    tile.next_values[b] = (next - row) * value_bytes;
    tile.rows = b * kPanel + (most - row < kPanel ? most - row : kPanel);
    tile.blocks = b + 1;
  }
  return tile;
}

template <Type KT, Type VT>
void attend_of(const Head& head, const float* const* queries, const Visible* visible, int count,
               const int32_t* list, int begin, int end, const Partial& state, float* scratch) {
  const int size = head.size;
  float* scores = scratch;
  float* units = scores + static_cast<size_t>(count) * kTileRows;
  float* query_scales = units + round_up(count, 16);
  int32_t* value_pairs = reinterpret_cast<int32_t*>(query_scales + round_up(count, 16));
  int32_t* query_pairs = value_pairs + static_cast<size_t>(count) * kTileRows / 2;
  if constexpr (KT == Type::i8)
    for (int q = 0; q < count; q++)
      quantize_query(queries[q], size, reinterpret_cast<int16_t*>(query_pairs + q * (size / 2)),
                     query_scales + q);
  const Queries query{queries, query_pairs, query_scales};
  int most = 0;  // one past the last row that any query may see
  for (int q = 0; q < count; q++) {
    const int drafts = visible[q].tentative ? 32 - __builtin_clz(visible[q].tentative) : 0;
    most = visible[q].committed + drafts > most ? visible[q].committed + drafts : most;
  }
  for (int q = 0; q < count; q++) {
    state.peak[q] = -kInfinity;
    state.sum[q] = 0;
    std::memset(state.output + q * size, 0, size * sizeof(float));
  }
  for (int i = begin; i < end;) {
    const Tile tile = tile_at<KT, VT>(head, list, i, end, most);
    i += tile.blocks;
    in_units<kQueries>(
        count, [&]<int Q>(int first) { score_rows<KT, Q>(head, tile, query, first, scores); });
    for (int q = 0; q < count; q++) {
      hide(tile, visible[q], scores + q * kTileRows);
      soften(tile.blocks, scores + q * kTileRows, size, state.peak + q, state.sum + q,
             state.output + q * size);
      if constexpr (VT == Type::i8)
        fold_value_scales(head, tile, scores + q * kTileRows,
                          reinterpret_cast<int16_t*>(value_pairs + q * (kTileRows / 2)), units + q);
    }
    in_units<kQueries>(count, [&]<int Q>(int first) {
      value_rows<VT, Q>(head, tile, first, scores, value_pairs, units, state.output);
    });
  }
}

template <Type KT>
void attend_keys(const Head& head, const float* const* queries, const Visible* visible, int count,
                 const int32_t* list, int begin, int end, const Partial& state, float* scratch) {
  const auto call = [&]<Type VT>() {
    attend_of<KT, VT>(head, queries, visible, count, list, begin, end, state, scratch);
  };
  switch (head.value_type) {
    case Type::f32: call.template operator()<Type::f32>(); break;
    case Type::bf16: call.template operator()<Type::bf16>(); break;
    case Type::f16: call.template operator()<Type::f16>(); break;
    case Type::i8: call.template operator()<Type::i8>(); break;
  }
}

inline void attend(const Head& head, const float* const* queries, const Visible* visible, int count,
                   const int32_t* list, int begin, int end, const Partial& state, float* scratch) {
  switch (head.key_type) {
    case Type::f32:
      return attend_keys<Type::f32>(head, queries, visible, count, list, begin, end, state,
                                    scratch);
    case Type::bf16:
      return attend_keys<Type::bf16>(head, queries, visible, count, list, begin, end, state,
                                     scratch);
    case Type::f16:
      return attend_keys<Type::f16>(head, queries, visible, count, list, begin, end, state,
                                    scratch);
    case Type::i8:
      return attend_keys<Type::i8>(head, queries, visible, count, list, begin, end, state, scratch);
  }
}
