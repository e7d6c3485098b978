// Decode attention of one token's query heads, block after block of a list, until that suffices.
//
// All heads that share a key/value head read the same rows and stop together: a value is read if
// some head wants it, and the traversal ends once every head may.

// What the rules look at. One entry per query row, weights in units of 2^peak.
struct Seen {
  int count, size, length;
  int known = 0;    // visible keys that were read
  float* greatest;  // scores in base 2
  const float* peak;
  const float* sums;    // [count][W]
  const float* output;  // [count][size], unnormalised
};

// Algorithm 1 of Scrooge, lines 11 to 14, for one head.
inline bool known_enough(const Rule& rule, const Seen& seen, int q) {
  const float known = sum_of(load(seen.sums + q * W));
  const float most = std::exp2(seen.greatest[q] - seen.peak[q]);
  const float average = (known - most) / static_cast<float>(seen.known - 1);
  const float unknown = average * static_cast<float>(seen.length - seen.known);
  return (known + unknown) * rule.key_share <= known;
}

// Eqs. 2 and 3 of ART for one head: the probe is units of 16 elements, spread over the output.
inline bool settled(const Rule& rule, const Seen& seen, int q, float* before, int32_t* steady) {
  const vf inverse = splat(1.0f / sum_of(load(seen.sums + q * W)));
  const int units = seen.size / kPanel;
  const int probes = rule.probe < seen.size ? rule.probe / kPanel : units;
  vf change = {}, dot = {}, now_square = {}, before_square = {};
  for (int p = 0; p < probes; p++) {
    const float* from = seen.output + q * seen.size + p * units / probes * kPanel;
    for (int i = 0; i < kPanel; i += W) {
      float* kept = before + p * kPanel + i;
      const vf x = load(from + i) * inverse, y = load(kept), d = x - y;
      change += d * d;
      dot += x * y;
      now_square += x * x;
      before_square += y * y;
      store(kept, x);
    }
  }
  const float norms = std::sqrt(sum_of(now_square) * sum_of(before_square));
  const bool stable =
      sum_of(change) < rule.scale * rule.scale && sum_of(dot) > (1.0f - rule.direction) * norms;
  *steady = stable ? *steady + 1 : 0;
  return *steady >= rule.patience;
}

// Bit i: row i of the tile has, in some head, a weight of at least the rule's share of the largest.
inline uint64_t wanted(const Rule& rule, const Seen& seen, const Tile& tile, const float* weights) {
  uint64_t rows = 0;
  for (int q = 0; q < seen.count; q++) {
    const vf least = splat(rule.value_share * std::exp2(seen.greatest[q] - seen.peak[q]));
    for (int i = 0; i < tile.blocks * kPanel; i += W)
      rows |= static_cast<uint64_t>(lane_bits(load(weights + q * kTileRows + i) >= least)) << i;
  }
  return rows;
}

template <Type KT, Type VT>
struct Walk {
  const Head& head;
  const Visible& visible;
  const Rule& rule;
  const Partial& state;
  const int count, size;
  Queries queries;
  Weights weights;
  float* sums;
  float* probes;    // [count][size]
  int32_t* steady;  // [count]
  Seen seen;
  Reads reads;
  float* dropped;  // [count]: the weights of visited keys whose values were not read
  float* before;   // [count]: the peaks that they are relative to
  const int most;  // one past the last row that may be seen
  const Levels* levels = nullptr;  // [count], or null: weights are 2^x

  Walk(const Head& head, const float* const* query_rows, const Visible& visible, int count,
       const Rule& rule, const Partial& state, float* scratch)
      : head(head),
        visible(visible),
        rule(rule),
        state(state),
        count(count),
        size(head.size),
        most(rows_in_use(&visible, 1)) {
    const int padded = round_up(count, 16);
    float* const scales = scratch;
    sums = scales + 2 * padded;
    float* const values = sums + count * W;
    int16_t* const codes = reinterpret_cast<int16_t*>(values + count * kTileRows);
    int16_t* const query_codes = codes + count * kTileRows;
    float* const greatest = scratch + attend_scratch(count, size);
    probes = greatest + count;
    steady = reinterpret_cast<int32_t*>(probes + count * size);
    dropped = probes + count * (size + 1);
    before = dropped + count;
    queries = {query_rows, query_codes, scales};
    weights = {values, codes, scales + padded};
    if constexpr (KT == Type::i8)
      for (int q = 0; q < count; q++)
        quantize_query(query_rows[q], size, query_codes + q * size, scales + q);
    for (int q = 0; q < count; q++) {
      state.peak[q] = kLowest;
      greatest[q] = -kInfinity;
      steady[q] = 0;
      dropped[q] = 0;
      before[q] = kLowest;
    }
    std::memset(sums, 0, sizeof(float) * count * W);
    std::memset(state.output, 0, sizeof(float) * count * size);
    std::memset(probes, 0, sizeof(float) * count * size);
    const int length = visible.committed - visible.first + __builtin_popcount(visible.tentative);
    seen = {count, size, length, 0, greatest, state.peak, sums, state.output};
  }

  // Scores of a tile become weights; `always`: its keys count for the largest score of AET.
  void weigh(const Tile& tile, bool always) {
    score<KT>(head, tile, queries, count, weights.values);
    for (int q = 0; q < count; q++) {
      float* row = weights.values + q * kTileRows;
      hide(tile, visible, row);
      if (always || rule.stop != Stop::aet) {
        vf top = load(row);
        for (int i = W; i < tile.blocks * kPanel; i += W) top = max(top, load(row + i));
        const float found = max_of(top);
        seen.greatest[q] = found > seen.greatest[q] ? found : seen.greatest[q];
      }
      float *peak = state.peak + q, *sum = sums + q * W, *output = state.output + q * size;
      if (levels)
        soften_by_codes(levels[q], tile.blocks, row, size, peak, sum, output);
      else
        soften(tile.blocks, row, size, peak, sum, output);
    }
    for (int b = 0; b < tile.blocks; b++) {
      seen.known += __builtin_popcount(visible_bits(visible, tile.row[b]));
      reads.key_rows += most - tile.row[b] < kPanel ? most - tile.row[b] : kPanel;
    }
  }

  // Keeps the sum of weights of each of a tile's blocks with the peak that it is relative to.
  void keep_masses(const Tile& tile, float* to) {
    for (int b = 0; b < tile.blocks; b++)
      for (int q = 0; q < count; q++, to += 2) {
        vf mass = {};
        for (int i = 0; i < kPanel; i += W)
          mass += load(weights.values + q * kTileRows + b * kPanel + i);
        to[0] = sum_of(mass);
        to[1] = state.peak[q];
      }
  }

  void finish_masses(int blocks, float* masses) {
    for (int i = 0; i < blocks * count; i++)
      masses[i] = masses[2 * i] * std::exp2(masses[2 * i + 1] - state.peak[i % count]);
  }

  // Bit i: row i of the tile exists and is read.
  uint64_t chosen(const Tile& tile, bool always) {
    uint64_t rows = 0;
    for (int b = 0; b < tile.blocks; b++) {
      const int left = most - tile.row[b];
      rows |= (left < kPanel ? (uint64_t{1} << left) - 1 : 0xffff) << (b * kPanel);
    }
    if (always || rule.value_share == 0) return rows;
    const uint64_t some = rows & wanted(rule, seen, tile, weights.values);
    return rule.stop != Stop::certified || affordable(tile, some) ? some : rows;
  }

  // Whether what is dropped besides `rows` leaves, in every head, half of what may be missing.
  bool affordable(const Tile& tile, uint64_t rows) {
    for (int q = 0; q < count; q++) {
      vf lost = {};
      for (int i = 0; i < tile.blocks * kPanel; i += W) {
        const vf all = load(weights.values + q * kTileRows + i);
        lost += all - keep_lanes(all, static_cast<uint32_t>(rows >> i));
      }
      const float so_far = dropped[q] * std::exp2(before[q] - state.peak[q]);
      const float known = sum_of(load(sums + q * W));
      if (so_far + sum_of(lost) > rule.missing / 2 * known) return false;
    }
    return true;
  }

  void drop(const Tile& tile, uint64_t rows) {
    for (int q = 0; q < count; q++) {
      if (before[q] != state.peak[q]) dropped[q] *= std::exp2(before[q] - state.peak[q]);
      before[q] = state.peak[q];
      vf lost = {};
      for (int i = 0; i < tile.blocks * kPanel; i += W) {
        float* at = weights.values + q * kTileRows + i;
        const vf all = load(at), kept = keep_lanes(all, static_cast<uint32_t>(rows >> i));
        lost += all - kept;
        store(at, kept);
      }
      dropped[q] += sum_of(lost);
    }
  }

  // The share of a head's sum of weights that is missing from its output, as bounded, if the
  // traversal ends before position `i`.
  float missing(const Order& order, int i, int q) {
    const float known = sum_of(load(sums + q * W));
    const float rest = order.rest[i * count + q] * std::exp2(order.peaks[q] - state.peak[q]);
    const float lost = dropped[q] * std::exp2(before[q] - state.peak[q]);
    return (rest + lost) / (known + rest);
  }

  bool certain(const Order& order, int i) {
    float most = 0;
    for (int q = 0; q < count; q++) {
      const float share = missing(order, i, q);
      most = share > most ? share : most;
    }
    reads.missing = most;
    return most <= rule.missing;
  }

  void add_values_of(const Tile& tile, bool always) {
    const uint64_t rows = chosen(tile, always);
    const bool some = !always && rule.value_share > 0;
    if (some) drop(tile, rows);
    reads.value_rows += __builtin_popcountll(rows);
    if constexpr (VT == Type::i8)
      for (int q = 0; q < count; q++) fold_value_scales(head, tile, weights, q);
    if (!some) return add<VT>(head, tile, weights, count, state.output);
    const Picked picked = pick<VT>(head, tile, rows, weights, count);
    in_units<kQueries>(count, [&]<int Q>(int first) {
      in_units<units_for(Q)>(size / kPanel, [&]<int U>(int unit) {
        add_picked<VT, Q, U>(picked, size, first, unit, weights, state.output);
      });
    });
  }

  bool enough(const Order& order, int i) {
    if (rule.stop == Stop::never) return false;
    if (rule.stop == Stop::certified) return order.rest && certain(order, i);
    bool all = true;
    for (int q = 0; q < count; q++)
      all &= rule.stop == Stop::aet ? known_enough(rule, seen, q)
                                    : settled(rule, seen, q, probes + q * size, steady + q);
    return all;
  }

  void go(const Order& order, float* masses) {
    levels = order.levels;
    for (int i = 0; i < order.count;) {
      const bool always = i < order.always;
      const int together = levels ? 1 : order.always - i;  // codes are of their block's time
      // Looks are at multiples of `look_blocks` from row 0: they depend on the keys alone.
      const int step = always                         ? together
                       : rule.stop == Stop::certified ? rule.look_blocks
                                                      : order.blocks[i] % rule.look_blocks + 1;
      const int end = i + step < order.count ? i + step : order.count;
      Tile tile = tile_at<KT, VT>(head, order.blocks, i, end, order.count, most);
      if (!always && rule.value_share > 0)  // which values come next is not known yet
        for (int b = 0; b < tile.blocks; b++) tile.next_values[b] = tile.values[b];
      weigh(tile, always);
      if (masses && always) keep_masses(tile, masses + i * count * 2);
      add_values_of(tile, always);
      i += tile.blocks;
      if (i >= order.always && enough(order, i)) break;
    }
    for (int q = 0; q < count; q++) state.sum[q] = sum_of(load(sums + q * W));
    if (masses) finish_masses(order.always, masses);
    arrange_row<VT>(state.output, count * size);
  }
};

inline Reads traverse(const Head& head, const float* const* queries, const Visible& visible,
                      int count, const Order& order, const Rule& rule, const Partial& state,
                      float* masses, float* scratch) {
  return for_type(head.key_type, [&]<Type KT>() {
    return for_type(head.value_type, [&]<Type VT>() {
      Walk<KT, VT> walk(head, queries, visible, count, rule, state, scratch);
      walk.go(order, masses);
      return walk.reads;
    });
  });
}
