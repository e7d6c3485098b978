// Decode attention of one key/value head: one traversal, for all query rows that share the head.
//
// For each tile of up to four blocks of 16 keys: scores of all rows, one check of the running
// maximum (the output is rescaled only when it grows by more than 2^8), exponentials, values.
// Scores are in base 2. A query row's operations have the same order whatever the other rows are,
// and a key that a row may not see adds exactly zero to it: in a batch of drafts, each row gets the
// bits that it gets when decoded alone.

constexpr float kRescale = 8.0f;
constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -1e30f;  // the peak of no keys: finite, so that hidden keys weigh nothing

// Bit i: row `row` + i of a block is in [begin, end).
inline uint32_t range_bits(int row, int begin, int end) {
  const auto below = [=](int border) {
    const int count = border - row;
    return count <= 0 ? 0u : count >= kPanel ? 0xffffu : (1u << count) - 1;
  };
  return below(end) & ~below(begin);
}

// Bit i: the query row may see row `row` + i of the block.
inline uint32_t visible_bits(const Visible& visible, int row) {
  const int draft = row - visible.committed;
  const uint32_t drafts = draft >= 32       ? 0
                          : draft >= 0      ? visible.tentative >> draft
                          : draft > -kPanel ? visible.tentative << -draft
                                            : 0;
  return range_bits(row, visible.first, visible.committed) | range_bits(row, 0, visible.sinks) |
         (drafts & 0xffff);
}

// Scores of the keys that `visible` hides become -infinity.
inline void hide(const Tile& tile, const Visible& visible, float* scores) {
  for (int block = 0; block < tile.blocks; block++) {
    const int row = tile.row[block];
    if (visible.sees_block(row)) continue;
    const uint32_t bits = visible_bits(visible, row);
    for (int i = 0; i < kPanel; i += W) {
      float* const to = scores + block * kPanel + i;
      store(to, select_lanes(load(to), splat(-kInfinity), bits >> i));
    }
  }
}

// Copies the scores of one query row to the positions of their keys' rows.
inline void keep_scores(const Tile& tile, const float* scores, float* to) {
  for (int block = 0; block < tile.blocks; block++)
    for (int i = 0; i < kPanel; i += W)
      store(to + tile.row[block] + i, load(scores + block * kPanel + i));
}

// The largest of a query row's scores.
inline float greatest_of(const Tile& tile, const float* scores) {
  vf top = load(scores);
  for (int i = W; i < tile.blocks * kPanel; i += W) top = max(top, load(scores + i));
  return max_of(top);
}

// Bit i: row i of the tile exists. `end_row`: one past the last existing row.
inline uint64_t row_bits(const Tile& tile, int end_row) {
  uint64_t rows = 0;
  for (int b = 0; b < tile.blocks; b++) {
    const int left = end_row - tile.row[b];
    rows |= (left < kPanel ? (uint64_t{1} << left) - 1 : 0xffff) << (b * kPanel);
  }
  return rows;
}

inline int rows_of(const Tile& tile, int end_row) {
  return __builtin_popcountll(row_bits(tile, end_row));
}

// Raises the peak of one row to the largest of its scores if that is much larger; rescales the
// output and, in every lane, the partial sum of weights.
SUFFICE_INLINE void follow(vf largest, int size, float* peak, vf& total, float* output) {
  if (!any(largest > splat(*peak + kRescale))) return;
  const float top = max_of(largest);
  const vf factor = exp2(splat(*peak - top));
  for (int i = 0; i < size; i += W) store(output + i, load(output + i) * factor);
  total *= factor;
  *peak = top;
}

// Turns the scores of one row into weights exp2(score - peak), each given to keep(place, weight);
// updates the peak, the output and, in every lane, the partial sum of weights.
template <class Keep>
SUFFICE_INLINE void soften_each(int blocks, const float* scores, int size, float* peak, float* sums,
                                float* output, Keep keep) {
  vf largest = load(scores), total = load(sums);
  for (int i = W; i < blocks * kPanel; i += W) largest = max(largest, load(scores + i));
  follow(largest, size, peak, total, output);
  const vf base = splat(*peak);
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf weight = exp2(load(scores + i) - base);
    keep(i, weight);
    total += weight;
  }
  store(sums, total);
}

// The same: of whole tiles, the compiler knows the size and overlaps the exponentials.
template <class Keep>
SUFFICE_INLINE void soften(int blocks, const float* scores, int size, float* peak, float* sums,
                           float* output, Keep keep) {
  if (blocks == kTileBlocks)
    soften_each(kTileBlocks, scores, size, peak, sums, output, keep);
  else
    soften_each(blocks, scores, size, peak, sums, output, keep);
}

// The same; weights take the place of the scores.
inline void soften(int blocks, float* scores, int size, float* peak, float* sums, float* output) {
  soften(blocks, scores, size, peak, sums, output,
         [=](int i, vf weight) { store(scores + i, weight); });
}

// As `soften` for a whole tile, but folds the values' `scales` into the weights, which leave the
// registers only as integers.
template <Type T>
void soften_and_fold(const float* scores, const vf* scales, int size, float* peak, float* sums,
                     float* output, const Weights& weights, int row) {
  constexpr int vectors = kTileRows / W;
  vf folded[vectors], largest = load(scores), total = load(sums), greatest = {};
  for (int i = 0; i < vectors; i++) largest = max(largest, folded[i] = load(scores + i * W));
  follow(largest, size, peak, total, output);
  const vf base = splat(*peak);
  for (int i = 0; i < vectors; i++) {
    const vf weight = exp2(folded[i] - base);
    total += weight;
    folded[i] = weight * scales[i];
    greatest = max(greatest, folded[i]);
  }
  store(sums, total);
  weights.quantize<T>(row, [&](int i) { return folded[i]; }, vectors, max_of(greatest));
}

// Replaces 2^(x - peak), less `base`; a hidden key has weight 0.
SUFFICE_INLINE vf weight_of(const SoftmaxTable& table, float peak, float base, vf x) {
  const vf none = {};
  vf weight = x > splat(kLowest) ? splat(table.weights[0] - base) : none;
  for (int b = 0; b + 1 < table.codes; b++)
    weight = x >= splat(peak + table.borders[b]) ? splat(table.weights[b + 1] - base) : weight;
  return weight;
}

// Turns the scores of one row into weights as `soften` does. Codes are relative to the largest
// score so far, so the peak follows it at once.
inline void soften_by_codes(const SoftmaxTable& table, int blocks, float* scores, int size,
                            float* peak, float* sums, float* output) {
  vf largest = load(scores);
  for (int i = W; i < blocks * kPanel; i += W) largest = max(largest, load(scores + i));
  const float top = max_of(largest);
  if (top > *peak) {
    const vf factor = exp2(splat(*peak - top));
    for (int i = 0; i < size; i += W) store(output + i, load(output + i) * factor);
    store(sums, load(sums) * factor);
    *peak = top;
  }
  vf total = load(sums);
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf weight = weight_of(table, *peak, 0, load(scores + i));
    store(scores + i, weight);
    total += weight;
  }
  store(sums, total);
}

// One past the last row that any query row may see.
inline int rows_in_use(const Visible* visible, int count) {
  int end_row = 0;
  for (int q = 0; q < count; q++) {
    const int drafts = visible[q].tentative ? 32 - __builtin_clz(visible[q].tentative) : 0;
    end_row = visible[q].committed + drafts > end_row ? visible[q].committed + drafts : end_row;
  }
  return end_row;
}

// The keys that all of some query rows certainly see.
inline Visible seen_by_all(const Visible* visible, int count) {
  Visible all = {visible[0].first, visible[0].committed, 0, visible[0].sinks};
  for (int q = 1; q < count; q++) {
    all.first = visible[q].first > all.first ? visible[q].first : all.first;
    all.committed = visible[q].committed < all.committed ? visible[q].committed : all.committed;
    all.sinks = visible[q].sinks < all.sinks ? visible[q].sinks : all.sinks;
  }
  return all;
}

inline bool sees_tile(const Visible& visible, const Tile& tile) {
  for (int block = 0; block < tile.blocks; block++)
    if (!visible.sees_block(tile.row[block])) return false;
  return true;
}

// Scores [count][kTileRows] of a tile; `lines`: memory for a tile that many rows need unpacked.
template <Type KT>
void multiply_keys(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                   float* scores, std::byte* lines) {
  bool done = false;
  if constexpr (kUnpacks<KT>)
    if ((done = count > kManyRows)) score_unpacked<KT>(head, tile, queries, count, scores, lines);
  if (!done) score<KT>(head, tile, queries, count, scores);
  for (int q = 0; head.cap != 0 && q < count; q++)
    soft_cap(scores + q * kTileRows, tile.blocks * kPanel, head.cap);
}

// The running softmax of query rows that go through the tiles together.
template <Type KT, Type VT>
struct Running {
  const KVHead& head;
  const int count, size;
  const Partial& state;
  const Queries& queries;
  Weights weights;
  Weights packed;    // of the values in `picked`
  Picked picked;     // values that are being fetched and still have to be added
  float* sums;       // [count][W]
  std::byte* lines;  // memory for a tile that many rows need unpacked

  // `scratch`: see attend_scratch.
  Running(const KVHead& head, const Queries& queries, int count, const Partial& state,
          float* scratch)
      : head(head), count(count), size(head.size), state(state), queries(queries) {
    float* const units = scratch;
    sums = units + round_up(count, 16);
    float* const values = sums + count * W;
    float* const packed_values = values + count * kTileRows;
    int16_t* const codes = reinterpret_cast<int16_t*>(packed_values + count * kTileRows);
    weights = {values, codes, units};
    packed = {packed_values, codes, units};
    lines = whole_lines(codes + count * kTileRows);
    for (int q = 0; q < count; q++) state.peak[q] = kLowest;
    if (state.dropped) std::memset(state.dropped, 0, sizeof(float) * count);
    std::memset(sums, 0, sizeof(float) * count * W);
    std::memset(state.output, 0, sizeof(float) * count * size);
  }

  float* row(int q) const { return weights.values + q * kTileRows; }
  float known(int q) const { return sum_of(load(sums + q * W)); }

  void score_tile(const Tile& tile) { score_tile(tile, weights.values); }
  void score_tile(const Tile& tile, float* to) {
    multiply_keys<KT>(head, tile, queries, count, to, lines);
  }

  void add_weighted(const Tile& tile) {
    if constexpr (kUnpacks<VT>)
      if (count > kManyRows)
        return add_unpacked<VT>(head, tile, weights, count, state.output, lines);
    add<VT>(head, tile, weights, count, state.output);
  }

  void soften_row(const Tile& tile, int q) {
    const float before = state.peak[q];
    soften(tile.blocks, row(q), size, state.peak + q, sums + q * W, state.output + q * size);
    if (state.dropped && state.peak[q] != before)
      state.dropped[q] *= std::exp2(before - state.peak[q]);
  }

  // Turns a tile's scores into weights for `add_weighted`, unless a score raises a peak: then
  // returns false. `after` [blocks][count][W]: the sums after each block.
  bool weigh_blocks(const Tile& tile, float* after) {
    for (int q = 0; q < count; q++) {
      vf largest = load(row(q));
      for (int i = W; i < tile.blocks * kPanel; i += W) largest = max(largest, load(row(q) + i));
      if (any(largest > splat(state.peak[q] + kRescale))) return false;
    }
    for (int q = 0; q < count; q++) {
      const vf base = splat(state.peak[q]);
      vf total = load(sums + q * W);
      for (int b = 0; b < tile.blocks; b++) {
        for (int i = b * kPanel; i < (b + 1) * kPanel; i += W) {
          const vf weight = exp2(load(row(q) + i) - base);
          total += weight;
          if constexpr (kBf16Pairs<VT>)
            store_bf16(weight, weights.codes + q * kTileRows + i);
          else
            store(row(q) + i, weight);
        }
        store(after + (b * count + q) * W, total);
      }
    }
    return true;
  }

  void keep_sums(const float* from) { std::memcpy(sums, from, sizeof(float) * count * W); }

  // Adds all values of the tile with the weights of its scores; keeps no weights.
  void soften_and_add_tile(const Tile& tile) {
    if (kBf16Pairs<VT> && !state.dropped) {
      for (int q = 0; q < count; q++)
        soften(tile.blocks, row(q), size, state.peak + q, sums + q * W, state.output + q * size,
               [&](int i, vf weight) { store_bf16(weight, weights.codes + q * kTileRows + i); });
      return add_weighted(tile);
    }
    if (!has_scales(VT) || tile.blocks < kTileBlocks || state.dropped) {
      for (int q = 0; q < count; q++) soften_row(tile, q);
      return add_tile(tile);
    }
    vf scales[kTileRows / W];
    for (int i = 0; i < kTileRows; i += W)
      scales[i / W] = load(head.value_scales + tile.row[i / kPanel] + i % kPanel);
    for (int q = 0; q < count; q++)
      soften_and_fold<VT>(row(q), scales, size, state.peak + q, sums + q * W,
                          state.output + q * size, weights, q);
    add_weighted(tile);
  }

  // Sum of the weights of a tile's keys for one query row, without those in `mask`.
  float weight_without(const Tile& tile, uint64_t mask, int q) const {
    vf sum = {};
    for (int i = 0; i < tile.blocks * kPanel; i += W) {
      const vf all = load(row(q) + i);
      sum += all - keep_lanes(all, static_cast<uint32_t>(mask >> i));
    }
    return sum_of(sum);
  }

  void soften_row_by_codes(const SoftmaxTable& table, const Tile& tile, int q) {
    soften_by_codes(table, tile.blocks, row(q), size, state.peak + q, sums + q * W,
                    state.output + q * size);
  }

  // Adds all values of the tile.
  void add_tile(const Tile& tile) {
    for (int q = 0; q < count; q++)
      if constexpr (has_scales(VT))
        fold_value_scales<VT>(head, tile, weights, q);
      else if constexpr (kBf16Pairs<VT>)
        weights.round(q, tile.blocks * kPanel);
    add_weighted(tile);
  }

  // Fetches the values of the rows in `mask`; `add_picked_rows` adds them once they are in the
  // cache.
  void pick_rows(const Tile& tile, uint64_t mask) {
    picked = pick<VT>(head, tile, mask, weights, packed, count);
  }

  void add_picked_rows() { add_all_picked<VT>(picked, size, count, packed, state.output); }

  void finish() {
    add_picked_rows();
    for (int q = 0; q < count; q++) state.sum[q] = known(q);
    restore<VT>(state.output, count, size);
  }
};

template <Type KT, Type VT>
void attend_of(const KVHead& head, const Queries& queries, const Visible* visible, int count,
               const int32_t* list, int begin, int end, const Partial& state, float* scratch,
               const Scores& kept) {
  Running<KT, VT> running(head, queries, count, state, scratch);
  const int end_row = rows_in_use(visible, count);
  const Visible all = seen_by_all(visible, count);
  for (int i = begin; i < end;) {
    const Tile tile = tile_at<KT, VT>(head, list, i, end, end, end_row);
    i += tile.blocks;
    running.score_tile(tile);
    const bool whole = sees_tile(all, tile);
    for (int q = 0; !whole && q < count; q++) hide(tile, visible[q], running.row(q));
    for (int q = 0; kept.rows && q < count; q++)
      keep_scores(tile, running.row(q), kept.rows + static_cast<size_t>(q) * kept.stride);
    running.soften_and_add_tile(tile);
  }
  running.finish();
}

// Calls f.operator()<T>() for the given type.
template <class F>
auto for_type(Type type, F f) {
  switch (type) {
    case Type::f32: return f.template operator()<Type::f32>();
    case Type::bf16: return f.template operator()<Type::bf16>();
    case Type::f16: return f.template operator()<Type::f16>();
    case Type::i8: return f.template operator()<Type::i8>();
    case Type::planes: return f.template operator()<Type::planes>();
    default: return f.template operator()<Type::kmeans4>();
  }
}

inline void prepare_queries(const KVHead& head, const Queries& queries, int count) {
  for_type(head.key_type, [&]<Type KT>() { prepare<KT>(head, queries, count); });
}

inline void attend(const KVHead& head, const Queries& queries, const Visible* visible, int count,
                   const int32_t* list, int begin, int end, const Partial& state, float* scratch,
                   const Scores& kept) {
  for_type(head.key_type, [&]<Type KT>() {
    for_type(head.value_type, [&]<Type VT>() {
      attend_of<KT, VT>(head, queries, visible, count, list, begin, end, state, scratch, kept);
    });
  });
}
