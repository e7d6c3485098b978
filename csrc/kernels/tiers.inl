// Attention in three tiers: rows that are skipped, rows read by their bases, and exact rows.
//
// A token's scores by bases come first, in tiles; see attention/tier_search.h.

// The sum of 2^(score - peak) of a block, in all lanes together.
SUFFICE_INLINE vf sum_block(const float* scores, vf peak) {
  vf sum = {};
#pragma GCC unroll 4
  for (int key = 0; key < kPanel; key += W) sum += exp2(load(scores + key) - peak);
  return sum;
}

// masses [count][stride]: the sum of 2^(score - peak) of each block, from the first of `tiles` on.
inline void sum_blocks(const CodedTiles& tiles, int count, const float* peaks, float* masses,
                       int stride) {
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride) {
    const int blocks = tiles.end - i < kTileBlocks ? tiles.end - i : kTileBlocks;
    for (int q = 0; q < count; q++) {
      const float* const from = scores + q * kTileRows;
      float* const to = masses + static_cast<size_t>(q) * stride + i - tiles.begin;
      if (blocks < kTileBlocks) {
        for (int b = 0; b < blocks; b++)
          to[b] = sum_of(sum_block(from + b * kPanel, splat(peaks[q])));
        continue;
      }
      vf sums[kTileBlocks];
#pragma GCC unroll 4
      for (int b = 0; b < kTileBlocks; b++) sums[b] = sum_block(from + b * kPanel, splat(peaks[q]));
      sum_four(sums, to);
    }
  }
}

// kept[tile], bit i: row i has, in some head, a score of at least the floor. Returns the number of
// such rows in the blocks with bits in `heavy` [tile], summed over heads.
inline int64_t keep_rows(const CodedTiles& tiles, int count, const float* floors,
                         const uint64_t* heavy, uint64_t* kept) {
  int64_t per_head = 0;
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride) {
    const int blocks = tiles.end - i < kTileBlocks ? tiles.end - i : kTileBlocks;
    const int tile = (i - tiles.begin) / kTileBlocks;
    kept[tile] = 0;
    for (int q = 0; q < count; q++) {
      const uint64_t of_head = tile_bits(scores + q * kTileRows, blocks, floors[q]);
      per_head += __builtin_popcountll(of_head & heavy[tile]);
      kept[tile] |= of_head;
    }
  }
  return per_head;
}

// Rows that are read by their bases, up to kTileRows at a time.
struct LightRows {
  const KVHead& head;  // by its bases
  const int count;
  const Partial& state;
  Weights packed;
  Picked picked;
  float scales[kTileRows];

  LightRows(const KVHead& head, int count, const Partial& state, float* scratch)
      : head(head), count(count), state(state), packed(CodedScratch(scratch, count).packed) {
    std::memset(state.sum, 0, sizeof(float) * count);
    std::memset(state.output, 0, sizeof(float) * count * head.size);
  }

  // Packs the scores of the `rows` of a tile.
  void pack(const Tile& tile, uint64_t rows, const float* scores) {
    if (picked.count + __builtin_popcountll(rows) > kTileRows) add();
    for (int i = 0, place = picked.count; i < kTileRows && rows >> i; i += W) {
      const auto bits = static_cast<uint32_t>(rows >> i) & kLanes;
      if (!bits) continue;
      const float* const scale = head.value_scales + tile.row[i / kPanel] + i % kPanel;
      pack_lanes(load(scale), bits, scales + place);
      for (int q = 0; q < count; q++)
        pack_lanes(load(scores + q * kTileRows + i), bits, packed.values + q * kTileRows + place);
      place += __builtin_popcount(bits);
    }
    const ptrdiff_t row_bytes = elements_bytes(Type::kmeans4, head.size);
    for (; rows; rows &= rows - 1) {
      const int row = __builtin_ctzll(rows);
      const std::byte* const value = tile.values[row / kPanel] + row % kPanel * row_bytes;
      fetch_row(value, static_cast<int>(row_bytes));
      picked.rows[picked.count++] = value;
    }
  }

  void add() {
    if (picked.count == 0) return;
    for (int q = 0; q < count; q++) {
      float* const row = packed.values + q * kTileRows;
      for (int i = picked.count; i % W != 0; i++) row[i] = -kInfinity;
      vf total = {};
      for (int i = 0; i < picked.count; i += W) {
        const vf weight = exp2(load(row + i) - splat(state.peak[q]));
        store(row + i, weight);
        total += weight;
      }
      state.sum[q] += sum_of(total);
    }
    scale_packed(Type::kmeans4, scales, packed, count, picked);
    add_picked(head, Type::kmeans4, picked, count, packed, state.output);
  }
};

// Weights from the scores of the rows in `kept` [tile], relative to the peaks in `state`, and
// values by their bases. Returns the number of rows.
inline int64_t add_light(const KVHead& head, const CodedTiles& tiles, const uint64_t* kept,
                         int count, const Partial& state, float* scratch) {
  LightRows light(head, count, state, scratch);
  int64_t rows = 0;
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride) {
    const uint64_t mask = kept[(i - tiles.begin) / kTileBlocks];
    if (!mask) continue;
    rows += __builtin_popcountll(mask);
    light.pack(tile_at(head, tiles.list, i, tiles.end, tiles.end, 0), mask, scores);
  }
  light.add();
  restore_values(Type::kmeans4, state.output, count, head.size);
  return rows;
}

// As `attend` for one token's query rows and `blocks` of a list, but bit i of kept[block] says
// whether row i of the block counts.
inline void attend_kept(const KVHead& head, const Queries& queries, int end_row, int count,
                        const int32_t* list, const uint16_t* kept, int blocks, const Partial& state,
                        float* scratch) {
  Running running(head, queries, count, state, scratch);
  for (int i = 0; i < blocks;) {
    Tile tile = tile_at(head, list, i, blocks, blocks, end_row);
    uint64_t rows = 0;
    for (int b = 0; b < tile.blocks; b++) {
      rows |= static_cast<uint64_t>(kept[i + b]) << (b * kPanel);
      tile.next_values[b] = tile.values[b];  // which come next is not known yet
    }
    i += tile.blocks;
    running.score_tile(tile);
    running.add_picked_rows();
    for (int q = 0; q < count; q++) {
      float* const scores = running.row(q);
      for (int key = 0; key < tile.blocks * kPanel; key += W)
        store(scores + key, select_lanes(load(scores + key), splat(-kInfinity),
                                         static_cast<uint32_t>(rows >> key)));
      running.soften_row(tile, q);
    }
    if (rows == row_bits(tile, end_row))
      running.add_tile(tile);
    else
      running.pick_rows(tile, rows);
  }
  running.finish();
}
