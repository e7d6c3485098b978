// Decode attention of one token's query heads, block after block of a list, until a rule stops it.
//
// All heads that share a key/value head read the same rows and stop together: a value is read if
// some head needs it, and the traversal ends once every head may stop.

// State that the rules check. One entry per query row, weights in units of 2^peak.
struct Seen {
  int count, size, length;
  int known = 0;    // visible keys that were read
  float* greatest;  // scores in base 2
  const float* peak;
  const float* sums;    // [count][W]
  const float* output;  // [count][size], unnormalised
};

// Algorithm 1 of Scrooge, lines 11 to 14, for one head.
inline bool known_enough(const Aet& rule, const Seen& seen, int q) {
  const float known = sum_of(load(seen.sums + q * W));
  const float heaviest = std::exp2(seen.greatest[q] - seen.peak[q]);
  const float average = (known - heaviest) / static_cast<float>(seen.known - 1);
  const float unknown = average * static_cast<float>(seen.length - seen.known);
  return (known + unknown) * rule.key_share <= known;
}

// Eqs. 2 and 3 of ART for one head: the probe is units of 16 elements, spread over the output.
inline bool settled(const Art& rule, const Seen& seen, int q, const float* output, float* before,
                    int32_t* steady) {
  const vf inverse = splat(1.0f / sum_of(load(seen.sums + q * W)));
  const int units = seen.size / kPanel;
  const int probes = rule.probe < seen.size ? rule.probe / kPanel : units;
  vf change = {}, dot = {}, now_square = {}, before_square = {};
  for (int p = 0; p < probes; p++) {
    const float* from = output + p * units / probes * kPanel;
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

// Bit i: row i of the tile has, in some head, at least the rule's share of the largest weight.
// `per_head`: such rows, summed over heads.
inline uint64_t wanted(const AttentionRule& rule, const Seen& seen, const Tile& tile,
                       uint64_t rows_there, const float* weights, int64_t& per_head) {
  uint64_t rows = 0;
  for (int q = 0; q < seen.count; q++) {
    const float least = rule.value_share * std::exp2(seen.greatest[q] - seen.peak[q]);
    const uint64_t of_head = rows_there & tile_bits(weights + q * kTileRows, tile.blocks, least);
    per_head += __builtin_popcountll(of_head);
    rows |= of_head;
  }
  return rows;
}

template <Type KT, Type VT>
struct Walk {
  const Visible& visible;
  const AttentionRule& rule;
  const Aet* const aet;  // null: another technique
  const Art* const art;
  const bool never_stops;
  const int count;
  Running<KT, VT> running;
  float* probes;    // [count][size]
  int32_t* steady;  // [count]
  Seen seen;
  Reads reads;
  const int end_row;                     // one past the last row that may be seen
  const SoftmaxTable* tables = nullptr;  // [count], or null: weights are 2^x

  Walk(const KVHead& head, const float* const* query_rows, const Visible& visible, int count,
       const AttentionRule& rule, const Partial& state, float* scratch)
      : visible(visible),
        rule(rule),
        aet(rule.aet()),
        art(rule.art()),
        never_stops(rule.never_stops()),
        count(count),
        running(head, query_rows, count, state, scratch),
        end_row(rows_in_use(&visible, 1)) {
    float* const greatest = scratch + attend_scratch(count, head.size);
    probes = greatest + count;
    steady = reinterpret_cast<int32_t*>(probes + count * head.size);
    for (int q = 0; q < count; q++) {
      greatest[q] = -kInfinity;
      steady[q] = 0;
    }
    std::memset(probes, 0, sizeof(float) * count * head.size);
    seen = {count, head.size, visible.rows(), 0, greatest, state.peak, running.sums, state.output};
  }

  // Turns the scores of a tile into weights; `always`: its keys count for AET's largest score.
  void weigh(const Tile& tile, bool always) {
    running.score_tile(tile);
    running.add_picked_rows();
    for (int q = 0; q < count; q++) {
      float* row = running.row(q);
      hide(tile, visible, row);
      if (always || !aet) {
        const float found = greatest_of(tile, row);
        seen.greatest[q] = found > seen.greatest[q] ? found : seen.greatest[q];
      }
      if (tables)
        running.soften_row_by_codes(tables[q], tile, q);
      else
        running.soften_row(tile, q);
    }
    for (int b = 0; b < tile.blocks; b++)
      seen.known += __builtin_popcount(visible_bits(visible, tile.row[b]));
    reads.key_rows += rows_of(tile, end_row);
  }

  // Stores the sum of weights of each of a tile's blocks, with the peak that it is relative to.
  void keep_masses(const Tile& tile, float* to) {
    for (int b = 0; b < tile.blocks; b++)
      for (int q = 0; q < count; q++, to += 2) {
        vf mass = {};
        for (int i = 0; i < kPanel; i += W) mass += load(running.row(q) + b * kPanel + i);
        to[0] = sum_of(mass);
        to[1] = seen.peak[q];
      }
  }

  void finish_masses(int blocks, float* masses) {
    for (int i = 0; i < blocks * count; i++)
      masses[i] = masses[2 * i] * std::exp2(masses[2 * i + 1] - seen.peak[i % count]);
  }

  void add_values_of(const Tile& tile, bool always) {
    if (always || rule.value_share == 0) {
      const int rows = rows_of(tile, end_row);
      reads.value_rows += rows;
      reads.per_head_rows += static_cast<int64_t>(rows) * count;
      return running.add_tile(tile);
    }
    const uint64_t rows = wanted(rule, seen, tile, row_bits(tile, end_row), running.weights.values,
                                 reads.per_head_rows);
    reads.value_rows += __builtin_popcountll(rows);
    for (int q = 0; running.state.dropped && q < count; q++)
      running.state.dropped[q] += running.weight_without(tile, rows, q);
    running.pick_rows(tile, rows);
    if (art) running.add_picked_rows();  // its check needs the output
  }

  bool settled_at(int q) {
    const int size = seen.size;
    const float* output = seen.output + q * size;
    alignas(64) float rotated[kMaxSize];
    if constexpr (VT == Type::kmeans4) {  // the probe is of the final, rotated back output
      std::memcpy(rotated, output, sizeof(float) * size);
      rotate_row(rotated, size);
      output = rotated;
    }
    return settled(*art, seen, q, output, probes + q * size, steady + q);
  }

  bool enough() {
    if (never_stops) return false;
    bool all = true;
    for (int q = 0; q < count; q++) all &= aet ? known_enough(*aet, seen, q) : settled_at(q);
    return all;
  }

  // Position of the next check: multiples of `check_blocks` from row 0, which depend on the keys
  // alone; in a ranked order, multiples of `check_blocks` in the list.
  int next_check(const Order& order, int i) const {
    const int next = i + rule.check_blocks;
    if (never_stops) return order.count;
    if (order.ranked) return next < order.count ? next : order.count;
    const int unit = order.blocks[i] / rule.check_blocks;
    while (i < order.count && order.blocks[i] / rule.check_blocks == unit) i++;
    return i;
  }

  void go(const Order& order, float* masses) {
    tables = order.tables;
    for (int i = 0; i < order.count;) {
      const bool always = i < order.always;
      const int together = tables ? i + 1 : order.always;  // codes depend on the current peak
      const int end = always ? together : next_check(order, i);
      Tile tile = tile_at<KT, VT>(running.head, order.blocks, i, end, order.count, end_row);
      if (!always && rule.value_share > 0)  // the next values to read are not known yet
        for (int b = 0; b < tile.blocks; b++) tile.next_values[b] = tile.values[b];
      weigh(tile, always);
      if (masses && always) keep_masses(tile, masses + i * count * 2);
      add_values_of(tile, always);
      i += tile.blocks;
      if (i >= order.always && enough()) break;
    }
    running.finish();
    if (masses) finish_masses(order.always, masses);
  }
};

inline Reads traverse(const KVHead& head, const float* const* queries, const Visible& visible,
                      int count, const Order& order, const AttentionRule& rule,
                      const Partial& state, float* masses, float* scratch) {
  return for_type(head.key_type, [&]<Type KT>() {
    return for_type(head.value_type, [&]<Type VT>() {
      Walk<KT, VT> walk(head, queries, visible, count, rule, state, scratch);
      walk.go(order, masses);
      return walk.reads;
    });
  });
}
