// Attention in three tiers: rows that are skipped, rows read by their bases, and exact rows.
//
// A token's scores by bases come first, in tiles; see attention/tier_search.h.

// masses [count][stride]: the sum of 2^(score - peak) of each block, from the first of `tiles` on.
inline void sum_blocks(const CodedTiles& tiles, int count, const float* peaks, float* masses,
                       int stride) {
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i += kTileBlocks, scores += tiles.stride) {
    const int blocks = tiles.end - i < kTileBlocks ? tiles.end - i : kTileBlocks;
    for (int q = 0; q < count; q++)
      for (int b = 0; b < blocks; b++) {
        vf mass = {};
        for (int key = b * kPanel; key < (b + 1) * kPanel; key += W)
          mass += exp2(load(scores + q * kTileRows + key) - splat(peaks[q]));
        masses[static_cast<size_t>(q) * stride + i - tiles.begin + b] = sum_of(mass);
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

// The length of a query in the measure dual to that of `rest_length`: their product bounds what a
// base lacks of a score, in units of the key's scale.
inline float dual_length(const float* query, int size, const KeyRounding* by) {
  alignas(64) double sums[kMaxSize];
  double square = 0;
  for (int i = size - 1; i >= 0; i--) {
    double left = query[i];
    const float* const passed = by ? by->passed + static_cast<size_t>(i) * size : nullptr;
    for (int j = i + 1; by && j < size; j++) left -= passed[j] * sums[j];
    sums[i] = left;
    square += left * left / (by ? by->weights[i] : 1.0f);
  }
  return static_cast<float>(std::sqrt(square));
}

// Room for the rounding of float32 sums, and of exact attention's queries to int16.
constexpr float kErrorSlack = 1.001f;
constexpr float kInt16Step = 0.5f / kGreatestPlaneCode;
constexpr float kMostError = 100;  // in base 2: more would exceed float32, and bound no better

// A query as products with exact keys take it; for those in planes, up to half a step of int16.
inline void load_multiplied(Type type, const float* query, int size, float* to) {
  std::memcpy(to, query, sizeof(float) * size);
  if (type == Type::i8) {
    alignas(64) int16_t codes[kMaxSize];
    const float unit = quantize_to_int16([&](int i) { return load(query + i * W); }, size / W,
                                         max_magnitude(query, size), codes);
    for (int i = 0; i < size; i++) to[i] = unit * codes[i];
  } else if (type == Type::bf16 && kBf16Pairs<Type::bf16>) {
    for (int i = 0; i < size; i++) to[i] = from_bf16(to_bf16(query[i]));
  }
}

inline void measure_queries(const KVHead& head, const float* const* queries, int count,
                            ErrorUnits* to) {
  alignas(64) float query[kMaxSize];
  alignas(64) float turned[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  int32_t unused;
  const int size = head.size;
  for (int q = 0; q < count; q++) {
    load_multiplied(head.key_type, queries[q], size, query);
    turn_query(head, query, turned);
    const float unit = quantize_to_int8(head, queries[q], codes, &unused);
    const float step =
        head.key_type == Type::planes ? max_magnitude(turned, size) * kInt16Step : 0.0f;
    float rounding = 0, mean = 0, steps = 0;
    for (int i = 0; i < size; i++) {
      const float lost = turned[i] - unit * codes[i];
      rounding += std::fabs(lost) * kGreatestLevel + step * (kGreatestLevel + kLevels / 2);
      if (!head.rounding) continue;
      mean += lost * head.rounding->mean[i];
      steps += step * std::fabs(head.rounding->mean[i]);
    }
    to[q] = {kErrorSlack * dual_length(turned, size, head.rounding), kErrorSlack * rounding,
             kErrorSlack * (std::fabs(mean) + steps)};
  }
}

// By how much the scores of W keys from `row` on may be off, for one query.
SUFFICE_INLINE vf score_errors(const KVHead& head, int row, const ErrorUnits& units) {
  const vi pair = load_bits(head.key_scales + row);
  const vf scale = first_bf16(pair), share = second_bf16(pair);
  const vf of_scale =
      splat(units.length) * load_lengths(head.key_errors + row) + splat(units.rounding);
  const vf error = max(scale, -scale) * of_scale + max(share, -share) * splat(units.mean);
  return -max(-error, splat(-kMostError));
}

inline void bound_blocks(const KVHead& head, const CodedTiles& tiles, int count, const float* peaks,
                         const ErrorUnits* units, const uint64_t* kept, const uint64_t* exact,
                         const BlockErrors& to) {
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i++) {
    const int within = (i - tiles.begin) % kTileBlocks;
    if (i != tiles.begin && within == 0) scores += tiles.stride;
    const int row = (tiles.list ? tiles.list[i] : i) * kPanel;
    const uint64_t counts = kept[(i - tiles.begin) / kTileBlocks] >> (within * kPanel);
    const uint64_t off = ~exact[(i - tiles.begin) / kTileBlocks] >> (within * kPanel);
    for (int q = 0; q < count; q++) {
      vf used = {}, more = {}, less = {}, lost = {};
      for (int key = 0; key < kPanel; key += W) {
        const vf error = score_errors(head, row + key, units[q]);
        const vf score = load(scores + q * kTileRows + within * kPanel + key) - splat(peaks[q]);
        const auto bits = static_cast<uint32_t>(counts >> key);
        const vf weight = keep_lanes(exp2(score), bits);
        used += weight;
        more += keep_lanes(exp2(score + error) - weight, static_cast<uint32_t>(off >> key));
        less += weight - keep_lanes(exp2(score - error), bits);
        lost += weight * load_lengths(head.value_errors + row + key);
      }
      const size_t at = static_cast<size_t>(q) * to.stride + i - tiles.begin;
      to.used[at] = sum_of(used);
      to.more[at] = sum_of(more);
      to.less[at] = sum_of(less);
      to.lost[at] = sum_of(lost) / kErrorUnit;
    }
  }
}

inline void compare_blocks(const CodedTiles& tiles, const int32_t* chosen, int blocks, int count,
                           const float* peaks, const uint64_t* kept, const uint64_t* exact,
                           const float* scores, float* more, float* less) {
  for (int i = 0; i < blocks; i++) {
    const int tile = chosen[i] / kTileBlocks, within = chosen[i] % kTileBlocks * kPanel;
    const uint64_t counts = kept[tile] >> within, off = ~exact[tile] >> within;
    const float* const estimates = tiles.scores + static_cast<size_t>(tile) * tiles.stride + within;
    const float* const own = scores + static_cast<size_t>(i / kTileBlocks) * count * kTileRows +
                             i % kTileBlocks * kPanel;
    for (int q = 0; q < count; q++) {
      vf above = {}, below = {};
      for (int key = 0; key < kPanel; key += W) {
        const vf peak = splat(peaks[q]), none = {};
        const vf used = keep_lanes(exp2(load(estimates + q * kTileRows + key) - peak),
                                   static_cast<uint32_t>(counts >> key));
        const vf lost = keep_lanes(exp2(load(own + q * kTileRows + key) - peak) - used,
                                   static_cast<uint32_t>(off >> key));
        above += max(lost, none);
        below += max(-lost, none);
      }
      more[static_cast<size_t>(q) * blocks + i] = sum_of(above);
      less[static_cast<size_t>(q) * blocks + i] = sum_of(below);
    }
  }
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
    scale_packed<Type::kmeans4>(scales, packed, count, picked);
    add_all_picked<Type::kmeans4>(picked, head.size, count, packed, state.output);
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
    light.pack(tile_at<Type::f32, Type::kmeans4>(head, tiles.list, i, tiles.end, tiles.end, 0),
               mask, scores);  // values only
  }
  light.add();
  restore<Type::kmeans4>(state.output, count, head.size);
  return rows;
}

template <Type KT, Type VT>
void attend_kept_of(const KVHead& head, const float* const* queries, int end_row, int count,
                    const int32_t* list, const uint16_t* kept, int blocks, const Partial& state,
                    float* scratch) {
  Running<KT, VT> running(head, queries, count, state, scratch);
  for (int i = 0; i < blocks;) {
    Tile tile = tile_at<KT, VT>(head, list, i, blocks, blocks, end_row);
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

// As `attend` for one token's query rows and `blocks` of a list, but bit i of kept[block] says
// whether row i of the block counts.
inline void attend_kept(const KVHead& head, const float* const* queries, int end_row, int count,
                        const int32_t* list, const uint16_t* kept, int blocks, const Partial& state,
                        float* scratch) {
  for_type(head.key_type, [&]<Type KT>() {
    for_type(head.value_type, [&]<Type VT>() {
      attend_kept_of<KT, VT>(head, queries, end_row, count, list, kept, blocks, state, scratch);
    });
  });
}
