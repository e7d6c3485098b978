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
};

// Queries as the key kernel takes them: float32, or int16 pairs with a scale per row.
struct Queries {
  const float* const* values;
  const int32_t* pairs;  // [count][D/2]
  const float* scales;   // [count]
};

template <Type T, int Q, int P>
SUFFICE_INLINE void score_blocks(const Head& head, const Tile& tile, int block, const Queries& query,
                                 int first, float* scores) {
  constexpr int pair = key_pair(T);
  constexpr int step_bytes = kPanel * pair * size_of(T);
  const int steps = head.size / pair;
  if constexpr (T == Type::i8) {
    vi total[P][Q][kVectors] = {};
    for (int step = 0; step < steps; step++)
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++) {
          const vi key = widen(reinterpret_cast<const int8_t*>(tile.keys[block + p]) +
                               step * step_bytes + v * 2 * W);
          for (int q = 0; q < Q; q++)
            total[p][q][v] += dot_pairs(
                key, splat_bits(query.pairs[static_cast<size_t>(first + q) * steps + step]));
        }
    for (int p = 0; p < P; p++)
      for (int q = 0; q < Q; q++)
        for (int v = 0; v < kVectors; v++) {
          const vf scale = load(head.key_scales + tile.row[block + p] + v * W);
          store(scores + (first + q) * kTileRows + (block + p) * kPanel + v * W,
                to_float(total[p][q][v]) * (scale * query.scales[first + q]));
        }
  } else {
    vf total[P][Q][kVectors] = {};
    for (int step = 0; step < steps; step++)
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++) {
          const std::byte* at = tile.keys[block + p] + step * step_bytes + v * W * pair * size_of(T);
          vf key[pair];
          if constexpr (T == Type::bf16) {
            const vi bits = load_bits(at);
            key[0] = first_bf16(bits);
            key[1] = second_bf16(bits);
          } else if constexpr (T == Type::f16) {
            key[0] = load_f16(reinterpret_cast<const uint16_t*>(at));
          } else {
            key[0] = load(reinterpret_cast<const float*>(at));
          }
          for (int q = 0; q < Q; q++)
            for (int i = 0; i < pair; i++)
              total[p][q][v] =
                  key[i] * splat(query.values[first + q][step * pair + i]) + total[p][q][v];
        }
    for (int p = 0; p < P; p++)
      for (int q = 0; q < Q; q++)
        for (int v = 0; v < kVectors; v++)
          store(scores + (first + q) * kTileRows + (block + p) * kPanel + v * W, total[p][q][v]);
  }
}

template <Type T, int Q>
void score_rows(const Head& head, const Tile& tile, const Queries& query, int first,
                float* scores) {
  constexpr int room = kAccumulators + 4 * (SUFFICE_LEVEL != 4);
  constexpr int wide = room / (Q * kVectors) >= 4 ? 4 : room / (Q * kVectors) >= 2 ? 2 : 1;
  int block = 0;
  for (; block + wide <= tile.blocks; block += wide)
    score_blocks<T, Q, wide>(head, tile, block, query, first, scores);
  for (; block < tile.blocks; block++)
    score_blocks<T, Q, 1>(head, tile, block, query, first, scores);
}

// Values come in groups of 16 elements of a row. bfloat16 pairs are split into evens and odds; the
// output keeps that order until `attend` puts it right.
template <Type T>
SUFFICE_INLINE void load_values(const std::byte* row, int at, vf (&to)[kVectors]) {
  if constexpr (T == Type::bf16) {
    if constexpr (kVectors == 1) {  // 16 lanes: widen in order
      for (int i = 0; i < W; i++) {
        uint16_t half;
        std::memcpy(&half, row + (at + i) * 2, 2);
        to[0][i] = from_bf16(half);
      }
    } else {
      for (int v = 0; v < kVectors / 2; v++) {
        const vi bits = load_bits(row + (at + 2 * v * W) * 2);
        to[2 * v] = first_bf16(bits);
        to[2 * v + 1] = second_bf16(bits);
      }
    }
  } else if constexpr (T == Type::f16) {
    for (int v = 0; v < kVectors; v++)
      to[v] = load_f16(reinterpret_cast<const uint16_t*>(row) + at + v * W);
  } else {
    for (int v = 0; v < kVectors; v++)
      to[v] = load(reinterpret_cast<const float*>(row) + at + v * W);
  }
}

template <Type T, int Q, int N>
SUFFICE_INLINE void add_values(const Head& head, const Tile& tile, int first, int at,
                               const float* weights, float* output) {
  const int size = head.size;
  vf total[Q][N][kVectors];
  for (int q = 0; q < Q; q++)
    for (int n = 0; n < N; n++)
      for (int v = 0; v < kVectors; v++)
        total[q][n][v] = load(output + (first + q) * size + at + n * kPanel + v * W);
  for (int row = 0; row < tile.rows; row++) {
    const std::byte* values =
        tile.values[row / kPanel] + static_cast<size_t>(row % kPanel) * size * size_of(T);
    for (int n = 0; n < N; n++) {
      vf value[kVectors];
      load_values<T>(values, at + n * kPanel, value);
      for (int q = 0; q < Q; q++) {
        const vf weight = splat(weights[(first + q) * kTileRows + row]);
        for (int v = 0; v < kVectors; v++) total[q][n][v] = value[v] * weight + total[q][n][v];
      }
    }
  }
  for (int q = 0; q < Q; q++)
    for (int n = 0; n < N; n++)
      for (int v = 0; v < kVectors; v++)
        store(output + (first + q) * size + at + n * kPanel + v * W, total[q][n][v]);
}

// int8 values: pairs of rows against pairs of int16 weights (row scales folded in), in int32.
template <int Q>
SUFFICE_INLINE void add_int8_values(const Head& head, const Tile& tile, int first, int at,
                                    const int32_t* pairs, const float* scales, float* output) {
  const int size = head.size;
  vi total[Q][kVectors] = {};
  for (int row = 0; row < tile.rows; row += 2) {
    const int8_t* values = reinterpret_cast<const int8_t*>(tile.values[row / kPanel]) +
                           static_cast<size_t>(row % kPanel) * size + at;
    int8_t mixed[2 * kPanel];
    for (int i = 0; i < kPanel; i++) {
      mixed[2 * i] = values[i];
      mixed[2 * i + 1] = values[size + i];
    }
    for (int v = 0; v < kVectors; v++) {
      const vi value = widen(mixed + v * 2 * W);
      for (int q = 0; q < Q; q++)
        total[q][v] +=
            dot_pairs(value, splat_bits(pairs[(first + q) * (kTileRows / 2) + row / 2]));
    }
  }
  for (int q = 0; q < Q; q++)
    for (int v = 0; v < kVectors; v++) {
      float* to = output + (first + q) * size + at + v * W;
      store(to, to_float(total[q][v]) * splat(scales[first + q]) + load(to));
    }
}

template <Type T, int Q>
void value_rows(const Head& head, const Tile& tile, int first, const float* weights,
                const int32_t* pairs, const float* scales, float* output) {
  if constexpr (T == Type::i8) {
    for (int at = 0; at < head.size; at += kPanel)
      add_int8_values<Q>(head, tile, first, at, pairs, scales, output);
  } else {
    constexpr int room = kAccumulators + 4 * (SUFFICE_LEVEL != 4);
    constexpr int wide = room / (Q * kVectors) >= 4 ? 4 : room / (Q * kVectors) >= 2 ? 2 : 1;
    int at = 0;
    for (; at + wide * kPanel <= head.size; at += wide * kPanel)
      add_values<T, Q, wide>(head, tile, first, at, weights, output);
    for (; at < head.size; at += kPanel)
      add_values<T, Q, 1>(head, tile, first, at, weights, output);
  }
}

// Calls f.operator()<Q>(first) for groups of at most `most` rows.
template <class F>
SUFFICE_INLINE void in_groups(int count, F f) {
  constexpr int most = 6;
  const int groups = (count + most - 1) / most;
  for (int i = 0; i < groups; i++) {
    const int first = count * i / groups;
    switch (count * (i + 1) / groups - first) {
      case 1: f.template operator()<1>(first); break;
      case 2: f.template operator()<2>(first); break;
      case 3: f.template operator()<3>(first); break;
      case 4: f.template operator()<4>(first); break;
      case 5: f.template operator()<5>(first); break;
      case 6: f.template operator()<6>(first); break;
    }
  }
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

// Weights times the rows' value scales as pairs of int16, and what one unit is worth.
inline void fold_value_scales(const Head& head, const Tile& tile, const float* weights,
                              int32_t* pairs, float* unit) {
  float folded[kTileRows] = {};
  float most = 0;
  for (int row = 0; row < tile.rows; row++) {
    folded[row] = weights[row] * head.value_scales[tile.row[row / kPanel] + row % kPanel];
    most = folded[row] > most ? folded[row] : most;
  }
  const float inverse = most > 0 ? 32767.0f / most : 0.0f;
  for (int i = 0; i < kTileRows / 2; i++) {
    const int low = static_cast<int>(std::lrintf(folded[2 * i] * inverse));
    const int high = static_cast<int>(std::lrintf(folded[2 * i + 1] * inverse));
    pairs[i] = low | high << 16;
  }
  *unit = most / 32767.0f;
}

inline void quantize_query(const float* query, int size, int32_t* pairs, float* scale) {
  float most = 0;
  for (int i = 0; i < size; i++) most = std::fabs(query[i]) > most ? std::fabs(query[i]) : most;
  const float inverse = most > 0 ? 32767.0f / most : 0.0f;
  for (int i = 0; i < size / 2; i++) {
    const int low = static_cast<int>(std::lrintf(query[2 * i] * inverse));
    const int high = static_cast<int>(std::lrintf(query[2 * i + 1] * inverse));
    pairs[i] = (low & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(high) << 16);
  }
  *scale = most / 32767.0f;
}

// bfloat16 outputs are kept as evens and odds of each 2 W elements.
template <bool ToNatural>
inline void reorder_output(float* output, int size) {
  if constexpr (kVectors == 1) return;
  float group[2 * W];
  for (int at = 0; at < size; at += 2 * W) {
    for (int i = 0; i < W; i++) {
      if constexpr (ToNatural) {
        group[2 * i] = output[at + i];
        group[2 * i + 1] = output[at + W + i];
      } else {
        group[i] = output[at + 2 * i];
        group[W + i] = output[at + 2 * i + 1];
      }
    }
    std::memcpy(output + at, group, sizeof group);
  }
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
      quantize_query(queries[q], size, query_pairs + q * (size / 2), query_scales + q);
  const Queries query{queries, query_pairs, query_scales};
  int most = 0;  // one past the last row that any query may see
  for (int q = 0; q < count; q++) {
    const int drafts = visible[q].tentative ? 32 - __builtin_clz(visible[q].tentative) : 0;
    most = visible[q].committed + drafts > most ? visible[q].committed + drafts : most;
  }
  if constexpr (VT == Type::bf16)
    for (int q = 0; q < count; q++) reorder_output<false>(state.output + q * size, size);

  for (int i = begin; i < end;) {
    Tile tile;
    for (; tile.blocks < kTileBlocks && i < end; tile.blocks++, i++) {
      const int row = (list ? list[i] : i) * kPanel;
      tile.row[tile.blocks] = row;
      tile.keys[tile.blocks] =
          head.keys + static_cast<size_t>(row) * size * size_of(KT);
      tile.values[tile.blocks] = head.values + static_cast<size_t>(row) * size * size_of(VT);
      const int filled = most - row < kPanel ? most - row : kPanel;
      tile.rows = tile.blocks * kPanel + filled;
    }
    in_groups(count, [&]<int Q>(int first) __attribute__((always_inline)) {
      score_rows<KT, Q>(head, tile, query, first, scores);
    });
    for (int q = 0; q < count; q++) {
      hide(tile, visible[q], scores + q * kTileRows);
      soften(tile.blocks, scores + q * kTileRows, size, state.peak + q, state.sum + q,
             state.output + q * size);
      if constexpr (VT == Type::i8)
        fold_value_scales(head, tile, scores + q * kTileRows, value_pairs + q * (kTileRows / 2),
                          units + q);
    }
    in_groups(count, [&]<int Q>(int first) __attribute__((always_inline)) {
      value_rows<VT, Q>(head, tile, first, scores, value_pairs, units, state.output);
    });
  }
  if constexpr (VT == Type::bf16)
    for (int q = 0; q < count; q++) reorder_output<true>(state.output + q * size, size);
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
      return attend_keys<Type::f32>(head, queries, visible, count, list, begin, end, state, scratch);
    case Type::bf16:
      return attend_keys<Type::bf16>(head, queries, visible, count, list, begin, end, state, scratch);
    case Type::f16:
      return attend_keys<Type::f16>(head, queries, visible, count, list, begin, end, state, scratch);
    case Type::i8:
      return attend_keys<Type::i8>(head, queries, visible, count, list, begin, end, state, scratch);
  }
}
