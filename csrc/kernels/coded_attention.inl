// Attention by codes (EXAQ): a score is compared with a few borders, and a table gives its weight.
// The sum of weights follows from counts, so it is exact in any order.
//
// All keys are first compared with the lowest border alone: one compare and one bit per key. Few
// keys reach it in some head. Their scores are packed, compared with the other borders, weighted
// and counted.

// The greatest score of a query row in some blocks, whose tiles are `stride` apart.
SUFFICE_INLINE float greatest_in_tiles(const float* scores, int stride, int blocks) {
  vf largest[kTileBlocks];
  for (vf& lanes : largest) lanes = splat(kLowest);
  for (; blocks >= kTileBlocks; blocks -= kTileBlocks, scores += stride)
    for (int b = 0; b < kTileBlocks; b++)
      for (int i = b * kPanel; i < (b + 1) * kPanel; i += W)
        largest[b] = max(largest[b], load(scores + i));
  for (int i = 0; i < blocks * kPanel; i += W) largest[0] = max(largest[0], load(scores + i));
  return max_of(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
}

// Scores of `count` query rows for the tiles from block `begin` to `end`, [tile][count][kTileRows].
inline void score_tiles(const KVHead& head, const Queries& queries, const Visible* visible,
                        int count, const int32_t* list, int begin, int end, float* scores,
                        float* peaks) {
  const int end_row = rows_in_use(visible, count), stride = count * kTileRows;
  const Visible all = seen_by_all(visible, count);
  float* to = scores;
  for (int i = begin; i < end; i += kTileBlocks, to += stride) {
    const Tile tile = tile_at(head, list, i, end, end, end_row);
    score_keys(head, tile, queries, count, to, nullptr);
    if (sees_tile(all, tile)) continue;
    for (int q = 0; q < count; q++) hide(tile, visible[q], to + q * kTileRows);
  }
  for (int q = 0; q < count; q++)
    peaks[q] = greatest_in_tiles(scores + q * kTileRows, stride, end - begin);
}

// Turns scores into weights less `base`; `reached` [Borders][W] counts, lane by lane, the scores
// that reach each border.
template <int Borders>
SUFFICE_INLINE void weigh_packed(const SoftmaxTable& table, float peak, float base, int count,
                                 float* scores, int32_t* reached) {
  vf border[Borders];
  vi total[Borders];
  for (int b = 0; b < Borders; b++) {
    border[b] = splat(peak + table.borders[b]);
    total[b] = load_bits(reached + b * W);
  }
  const vf none = {};
  for (int i = 0; i < count; i += W) {
    const vf x = load(scores + i);
    vf weight = x > splat(kLowest) ? splat(table.weights[0] - base) : none;
    for (int b = 0; b < Borders; b++) {
      const vi reaches = x >= border[b];
      total[b] -= reaches;  // true lanes are -1
      weight = reaches ? splat(table.weights[b + 1] - base) : weight;
    }
    store(scores + i, weight);
  }
  for (int b = 0; b < Borders; b++) std::memcpy(reached + b * W, total + b, sizeof(vi));
}

// The codes of one token's query rows. Scores are packed from several tiles, up to kTileRows keys:
// vectors are full, and single stores have completed before vectors load them.
struct Codes {
  const SoftmaxTable* tables;  // [count]
  const float* peaks;          // [count]
  const int count;
  const bool summed;     // the lowest weight is left to the sum of all values
  const bool whole;      // no such sum, and that weight is not 0: all keys are weighted
  float* packed;         // [count][kTileRows]: scores, later weights
  int32_t* reached;      // [count][kMaxCodes][W]
  int held = 0;          // packed keys
  int64_t per_head = 0;  // weighted keys, summed over heads

  Codes(const SoftmaxTable* tables, const float* peaks, int count, bool summed, float* packed,
        int32_t* reached)
      : tables(tables),
        peaks(peaks),
        count(count),
        summed(summed),
        whole(!summed && any_tail(tables, count)),
        packed(packed),
        reached(reached) {
    std::memset(reached, 0, sizeof(int32_t) * count * kMaxCodes * W);
  }

  static bool any_tail(const SoftmaxTable* tables, int count) {
    bool any = false;
    for (int q = 0; q < count; q++) any |= tables[q].weights[0] != 0;
    return any;
  }

  // Bit i: key i of the tile reaches the lowest border in some head.
  SUFFICE_INLINE uint64_t select(const float* scores, int blocks) {
    uint64_t rows = 0;
    for (int q = 0; q < count; q++) {
      const uint64_t of_head =
          tile_bits(scores + q * kTileRows, blocks, peaks[q] + tables[q].borders[0]);
      per_head += __builtin_popcountll(of_head);
      rows |= of_head;
    }
    return rows;
  }

  bool fits(uint64_t rows) const { return held + __builtin_popcountll(rows) <= kTileRows; }

  // Packs the scores of `rows` of a tile, and calls f(place, row) for each.
  template <class F>
  SUFFICE_INLINE void pack(uint64_t rows, const float* scores, F f) {
    for (; rows; rows &= rows - 1, held++) {
      const int row = __builtin_ctzll(rows);
      for (int q = 0; q < count; q++) packed[q * kTileRows + held] = scores[q * kTileRows + row];
      f(held, row);
    }
  }

  // Turns the packed scores into weights.
  void weigh() {
    for (int q = 0; q < count; q++) {
      const SoftmaxTable& table = tables[q];
      const float base = summed ? table.weights[0] : 0.0f;
      float* const row = packed + q * kTileRows;
      int32_t* const counts = reached + q * kMaxCodes * W;
      for (int i = held; i % W != 0; i++) row[i] = -kInfinity;
      switch (table.codes) {
        case 4: weigh_packed<3>(table, peaks[q], base, held, row, counts); break;
        case 8: weigh_packed<7>(table, peaks[q], base, held, row, counts); break;
        default: weigh_packed<15>(table, peaks[q], base, held, row, counts);
      }
    }
    held = 0;
  }

  // The sum of weights of a head that sees `keys` keys: exact, because it follows from the number
  // of keys with each code.
  float sum(int q, int64_t keys) const {
    const SoftmaxTable& table = tables[q];
    double total = static_cast<double>(table.weights[0]) * keys;
    for (int b = 0; b + 1 < table.codes; b++) {
      int64_t above = 0;
      for (int i = 0; i < W; i++) above += reached[(q * kMaxCodes + b) * W + i];
      total += (static_cast<double>(table.weights[b + 1]) - table.weights[b]) * above;
    }
    return static_cast<float>(total);
  }
};

// `scratch`: see coded_scratch.
struct CodedScratch {
  Weights packed;
  int32_t* reached;

  CodedScratch(float* scratch, int count) {
    float* const values = scratch + round_up(count, 16);
    packed = {values, reinterpret_cast<int16_t*>(values + count * kTileRows), scratch};
    reached = reinterpret_cast<int32_t*>(packed.codes + count * kTileRows);
  }
};

// Weights by codes, and the values that they need.
struct Coded {
  const KVHead& head;
  const Type type;  // of values
  const Visible& visible;
  const Partial& state;
  Weights packed;
  Codes codes;
  Picked picked;  // values that are being fetched and still have to be added
  float scales[kTileRows];
  int64_t rows = 0;

  Coded(const KVHead& head, const Visible& visible, const SoftmaxTable* tables, int count,
        bool summed, const Partial& state, const CodedScratch& room)
      : head(head),
        type(head.value_type),
        visible(visible),
        state(state),
        packed(room.packed),
        codes(tables, state.peak, count, summed, packed.values, room.reached) {
    std::memset(state.output, 0, sizeof(float) * count * head.size);
  }

  uint64_t visible_rows(const Tile& tile) const {
    uint64_t rows = 0;
    for (int b = 0; b < tile.blocks; b++)
      rows |= static_cast<uint64_t>(visible_bits(visible, tile.row[b])) << (b * kPanel);
    return rows;
  }

  void add_tile(const Tile& tile, const float* scores) {
    const uint64_t mask = codes.whole ? visible_rows(tile) : codes.select(scores, tile.blocks);
    if (!codes.fits(mask)) add_packed();
    const ptrdiff_t row_bytes = elements_bytes(type, head.size);
    picked.rest = tile.value_rest;
    codes.pack(mask, scores, [&](int place, int row) {
      const int block = row / kPanel, within = row % kPanel;
      picked.rows[place] = tile.values[block] + within * row_bytes;
      fetch_row(picked.rows[place], static_cast<int>(row_bytes));
      if (type == Type::planes)
        fetch_row(picked.rows[place] + picked.rest, static_cast<int>(row_bytes));
      if (has_scales(type)) scales[place] = head.value_scales[tile.row[block] + within];
    });
  }

  void add_packed() {
    picked.count = codes.held;
    rows += picked.count;
    codes.weigh();
    if (has_scales(type)) scale_packed(type, scales, packed, codes.count, picked);
    add_picked(head, type, picked, codes.count, packed, state.output);
  }

  ValueReads finish(int64_t keys) {
    add_packed();
    for (int q = 0; q < codes.count; q++) state.sum[q] = codes.sum(q, keys);
    restore_values(type, state.output, codes.count, head.size);
    return {rows, codes.whole ? rows * codes.count : codes.per_head};
  }
};

inline ValueReads add_coded(const KVHead& head, const Visible& visible, const SoftmaxTable* tables,
                            int count, const CodedTiles& tiles, const Partial& state,
                            float* scratch) {
  const CodedScratch room(scratch, count);
  const int end_row = rows_in_use(&visible, 1);
  Coded coded(head, visible, tables, count, tiles.summed, state, room);
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride)
    coded.add_tile(tile_at(head, tiles.list, i, tiles.end, tiles.end, end_row), scores);
  return coded.finish(tiles.keys);
}

inline void add_coded_masses(const KVHead& head, const SoftmaxTable* tables, int count,
                             const CodedTiles& tiles, const Partial& state, float* masses) {
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride) {
    const Tile tile = tile_at(head, tiles.list, i, tiles.end, tiles.end, 0);
    for (int q = 0; q < count; q++) {
      const vf share = splat(state.sum[q] > 0 ? 1.0f / state.sum[q] : 0.0f);
      for (int key = 0; key < tile.blocks * kPanel; key += W) {
        float* const to = masses + tile.row[key / kPanel] + key % kPanel;
        const vf weight =
            weight_of(tables[q], state.peak[q], 0, load(scores + q * kTileRows + key));
        store(to, load(to) + weight * share);
      }
    }
  }
}

inline float soften_tiles(float* scores, int tiles, int count, const SoftmaxTable* tables,
                          float* scratch) {
  const int stride = count * kTileRows;
  float* const peaks = scratch;
  float* const lanes = peaks + round_up(count, 16);
  const CodedScratch room(lanes + count * kPanel, count);
  float total = 0;
  if (!tables) {
    for (int q = 0; q < count; q++) {
      peaks[q] = kLowest;
      store(lanes + q * W, vf{});
    }
    for (int i = 0; i < tiles; i++)
      for (int q = 0; q < count; q++)
        soften(kTileBlocks, scores + i * stride + q * kTileRows, 0, peaks + q, lanes + q * W,
               nullptr);
    for (int q = 0; q < count; q++) total += sum_of(load(lanes + q * W));
    return total;
  }
  for (int q = 0; q < count; q++)
    peaks[q] = greatest_in_tiles(scores + q * kTileRows, stride, tiles * kTileBlocks);
  Codes codes(tables, peaks, count, true, room.packed.values, room.reached);
  for (int i = 0; i < tiles; i++) {
    const uint64_t rows = codes.select(scores + i * stride, kTileBlocks);
    if (!codes.fits(rows)) codes.weigh();
    codes.pack(rows, scores + i * stride, [](int, int) {});
  }
  codes.weigh();
  for (int q = 0; q < count; q++) total += codes.sum(q, static_cast<int64_t>(tiles) * kTileRows);
  return total;
}
