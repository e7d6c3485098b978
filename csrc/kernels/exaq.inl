// Attention by codes: a softmax input is compared with a few borders, and a table says what it
// weighs (EXAQ). The sum of weights comes from counts, so it is exact whatever the order.

// Scores of `count` query rows for the tiles from block `begin` to `end`, [tile][count][kTileRows].
template <Type KT>
void score_tiles_of(const Head& head, const float* const* query_rows, const Visible* visible,
                    int count, int begin, int end, float* scores, float* peaks, float* scratch) {
  const int size = head.size;
  int16_t* const codes = reinterpret_cast<int16_t*>(scratch + round_up(count, 16));
  const Queries queries{query_rows, codes, scratch};
  if constexpr (KT == Type::i8)
    for (int q = 0; q < count; q++)
      quantize_query(query_rows[q], size, codes + q * size, scratch + q);
  const int most = rows_in_use(visible, count);
  for (int q = 0; q < count; q++) peaks[q] = kLowest;
  for (int i = begin; i < end; i += kTileBlocks, scores += count * kTileRows) {
    const Tile tile = tile_at<KT, Type::f32>(head, nullptr, i, end, end, most);  // keys alone
    score<KT>(head, tile, queries, count, scores);
    for (int q = 0; q < count; q++) {
      float* row = scores + q * kTileRows;
      hide(tile, visible[q], row);
      const float found = greatest_of(tile, row);
      peaks[q] = found > peaks[q] ? found : peaks[q];
    }
  }
}

inline void score_tiles(const Head& head, const float* const* queries, const Visible* visible,
                        int count, int begin, int end, float* scores, float* peaks,
                        float* scratch) {
  for_type(head.key_type, [&]<Type KT>() {
    score_tiles_of<KT>(head, queries, visible, count, begin, end, scores, peaks, scratch);
  });
}

// Bit i: score i of a tile reaches the lowest border. Lane by lane, `reached` [Borders][W] counts
// the scores that reach each.
template <int Borders>
SUFFICE_INLINE uint64_t count_borders(const Levels& levels, float peak, const float* scores,
                                      int blocks, int32_t* reached) {
  vf border[Borders];
  vi total[Borders];
  for (int b = 0; b < Borders; b++) {
    border[b] = splat(peak + levels.borders[b]);
    total[b] = load_bits(reached + b * W);
  }
  uint64_t above = 0;
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf x = load(scores + i);
    const vi lowest = x >= border[0];
    above |= static_cast<uint64_t>(lane_bits(lowest)) << i;
    total[0] -= lowest;  // a lane that holds is -1
    for (int b = 1; b < Borders; b++) total[b] -= x >= border[b];
  }
  for (int b = 0; b < Borders; b++) std::memcpy(reached + b * W, total + b, sizeof(vi));
  return above;
}

SUFFICE_INLINE uint64_t count_codes(const Levels& levels, float peak, const float* scores,
                                    int blocks, int32_t* reached) {
  switch (levels.codes) {
    case 4: return count_borders<3>(levels, peak, scores, blocks, reached);
    case 8: return count_borders<7>(levels, peak, scores, blocks, reached);
    default: return count_borders<15>(levels, peak, scores, blocks, reached);
  }
}

// The query rows of one token whose scores are known: [tile][`stride`], the first row's in front.
template <Type VT>
struct Coded {
  const Head& head;
  const Visible& visible;
  const Levels* levels;  // [count]
  const int count, size, most;
  const bool summed;  // the sum of all values is known: what they weigh at least is left to it
  const Partial& state;
  Weights weights, packed;
  int32_t* reached;  // [count][borders][W]

  Coded(const Head& head, const Visible& visible, const Levels* levels, int count, bool summed,
        const Partial& state, float* scratch)
      : head(head),
        visible(visible),
        levels(levels),
        count(count),
        size(head.size),
        most(rows_in_use(&visible, 1)),
        summed(summed),
        state(state) {
    float* const values = scratch + round_up(count, 16);
    float* const packed_values = values + count * kTileRows;
    int16_t* const codes = reinterpret_cast<int16_t*>(packed_values + count * kTileRows);
    weights = {values, codes, scratch};
    packed = {packed_values, codes, scratch};
    reached = reinterpret_cast<int32_t*>(codes + count * kTileRows);
    std::memset(reached, 0, sizeof(int32_t) * count * kMostCodes * W);
    std::memset(state.output, 0, sizeof(float) * count * size);
  }

  uint64_t visible_rows(const Tile& tile) const {
    uint64_t rows = 0;
    for (int b = 0; b < tile.blocks; b++)
      rows |= static_cast<uint64_t>(visible_bits(visible, tile.row[b])) << (b * kPanel);
    return rows;
  }

  int64_t add_tile(const Tile& tile, const float* scores) {
    uint64_t rows = 0;
    bool all = false;
    for (int q = 0; q < count; q++) {
      rows |= count_codes(levels[q], state.peak[q], scores + q * kTileRows, tile.blocks,
                          reached + q * kMostCodes * W);
      all |= !summed && levels[q].weights[0] != 0;
    }
    if (all) rows = visible_rows(tile);
    if (!rows) return 0;
    for (int q = 0; q < count; q++) {
      const float base = summed ? levels[q].weights[0] : 0.0f;
      for (int i = 0; i < tile.blocks * kPanel; i += W)
        store(weights.values + q * kTileRows + i,
              weight_of(levels[q], state.peak[q], base, load(scores + q * kTileRows + i)));
    }
    const Picked picked = pick<VT>(head, tile, rows, weights, packed, count);
    in_units<kQueries>(count, [&]<int Q>(int first) {
      in_units<units_for(Q)>(size / kPanel, [&]<int U>(int unit) {
        add_picked<VT, Q, U>(picked, size, first, unit, packed, state.output);
      });
    });
    return picked.count;
  }

  // The sum of weights: how many keys have which code says it exactly.
  float sum(int q) const {
    const Levels& own = levels[q];
    double total = static_cast<double>(own.weights[0]) * visible.rows();
    for (int b = 0; b + 1 < own.codes; b++) {
      int64_t keys = 0;
      for (int i = 0; i < W; i++) keys += reached[(q * kMostCodes + b) * W + i];
      total += (static_cast<double>(own.weights[b + 1]) - own.weights[b]) * keys;
    }
    return static_cast<float>(total);
  }
};

inline int64_t add_coded(const Head& head, const Visible& visible, const Levels* levels, int count,
                         int begin, int end, const float* scores, int stride, bool summed,
                         const Partial& state, float* scratch) {
  return for_type(head.value_type, [&]<Type VT>() {
    Coded<VT> coded(head, visible, levels, count, summed, state, scratch);
    int64_t rows = 0;
    for (int i = begin; i < end; i += kTileBlocks, scores += stride)
      rows += coded.add_tile(
          tile_at<Type::f32, VT>(head, nullptr, i, end, end, coded.most),  // values alone
          scores);
    for (int q = 0; q < count; q++) state.sum[q] = coded.sum(q);
    arrange_row<VT>(state.output, count * head.size);
    return rows;
  });
}
