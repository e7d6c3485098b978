// Scores [count][kTileRows] of a tile; `lines`: memory for a tile that many rows need unpacked.
inline void multiply_keys(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                          float* scores, std::byte* lines) {
  score_keys(head, tile, queries, count, scores, lines);
  for (int q = 0; head.cap != 0 && q < count; q++)
    soft_cap(scores + q * kTileRows, tile.blocks * kPanel, head.cap);
}

// The running softmax of query rows that go through the tiles together.
struct Running {
  const KVHead& head;
  const Type type;  // of values
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
      : head(head),
        type(head.value_type),
        count(count),
        size(head.size),
        state(state),
        queries(queries) {
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
    multiply_keys(head, tile, queries, count, to, lines);
  }

  void add_weighted(const Tile& tile) {
    add_values(head, tile, weights, count, state.output, lines);
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
          if (bf16_pairs(type))
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
    if (bf16_pairs(type) && !state.dropped) {
      for (int q = 0; q < count; q++)
        soften(tile.blocks, row(q), size, state.peak + q, sums + q * W, state.output + q * size,
               [&](int i, vf weight) { store_bf16(weight, weights.codes + q * kTileRows + i); });
      return add_weighted(tile);
    }
    if (!has_scales(type) || tile.blocks < kTileBlocks || state.dropped) {
      for (int q = 0; q < count; q++) soften_row(tile, q);
      return add_tile(tile);
    }
    vf scales[kTileRows / W];
    for (int i = 0; i < kTileRows; i += W)
      scales[i / W] = load(head.value_scales + tile.row[i / kPanel] + i % kPanel);
    for (int q = 0; q < count; q++)
      soften_and_fold(type, row(q), scales, size, state.peak + q, sums + q * W,
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
      if (has_scales(type))
        fold_value_scales(head, tile, weights, q);
      else if (bf16_pairs(type))
        round_weights(weights, q, tile.blocks * kPanel);
    add_weighted(tile);
  }

  // Fetches the values of the rows in `mask`; `add_picked_rows` adds them once they are in the
  // cache.
  void pick_rows(const Tile& tile, uint64_t mask) {
    picked = pick(head, tile, mask, weights, packed, count);
  }

  void add_picked_rows() { add_picked(head, type, picked, count, packed, state.output); }

  void finish() {
    add_picked_rows();
    for (int q = 0; q < count; q++) state.sum[q] = known(q);
    restore_values(type, state.output, count, size);
  }
};
