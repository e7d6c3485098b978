// Decode attention of one token's query heads, block after block of a list, until a rule stops it.
//
// All heads that share a key/value head read the same rows and stop together: a value is read if
// some head needs it, and the traversal ends once every head may stop.

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

// Whether every query row may stop.
template <class T>
bool every_may_stop(const T& rule, const Seen& seen) {
  if constexpr (requires { all_may_stop(rule, seen); }) {
    return all_may_stop(rule, seen);
  } else if constexpr (T::kKeepsNothing) {  // first the row that could not stop the last time
    int32_t& first = seen.numbers[0];
    if (!may_stop(rule, seen, first)) return false;
    for (int q = 0; q < seen.count; q++)
      if (q != first && !may_stop(rule, seen, q)) {
        first = q;
        return false;
      }
    return true;
  } else {
    bool all = true;
    for (int q = 0; q < seen.count; q++) all &= may_stop(rule, seen, q);
    return all;
  }
}

struct Walk {
  const Visible& visible;
  const AttentionRule& rule;
  // The rule's:
  const bool never_stops, tests_output, greatest_of_always, looks_after_more, oldest_first;
  const int count;
  Running running;
  Seen seen;
  Reads reads;
  const int end_row;                     // one past the last row that may be seen
  const SoftmaxTable* tables = nullptr;  // [count], or null: weights are 2^x
  float* const spare;                    // [count][kTileRows]

  Walk(const KVHead& head, const Queries& queries, const Visible& visible, int count,
       const AttentionRule& rule, const Partial& state, float* scratch)
      : visible(visible),
        rule(rule),
        never_stops(rule.never_stops()),
        tests_output(rule.tests_output()),
        greatest_of_always(rule.greatest_of_always()),
        looks_after_more(rule.looks_after_more()),
        oldest_first(rule.oldest_first()),
        count(count),
        running(head, queries, count, state, scratch),
        end_row(rows_in_use(&visible, 1)),
        spare(scratch + attend_scratch(count, head.size)) {
    int32_t* const numbers = reinterpret_cast<int32_t*>(spare + count * kTileRows);
    float* const greatest = reinterpret_cast<float*>(numbers + kKeptNumbers);
    float* const kept = greatest + count;
    std::memset(numbers, 0, sizeof(int32_t) * kKeptNumbers);
    for (int q = 0; q < count; q++) {
      greatest[q] = -kInfinity;
      std::memset(kept + q * kept_floats(head.size), 0, sizeof(float) * (head.size + kPanel));
    }
    seen = {.count = count,
            .size = head.size,
            .length = visible.rows(),
            .greatest = greatest,
            .peak = state.peak,
            .sums = running.sums,
            .output = state.output,
            .rotated = is_four_bits(head.value_type),
            .kept = kept,
            .numbers = numbers};
  }

  // Takes the scores of a tile's keys, as far as the token may see them.
  void see(ComingScores& scores, const Tile& tile, int i) {
    scores.take(tile, i);
    running.add_picked_rows();
    const bool whole = sees_tile(visible, tile);
    for (int q = 0; !whole && q < count; q++) hide(tile, visible, running.row(q));
    for (int b = 0; b < tile.blocks; b++)
      seen.known += whole ? kPanel : __builtin_popcount(visible_bits(visible, tile.row[b]));
    reads.key_rows += rows_of(tile, end_row);
  }

  void soften(const Tile& tile, bool always) {
    for (int q = 0; q < count; q++) {
      const float* row = running.row(q);
      if (always || !greatest_of_always) {
        const float found = greatest_of(tile, row);
        seen.greatest[q] = found > seen.greatest[q] ? found : seen.greatest[q];
      }
      if (tables)
        running.soften_row_by_codes(tables[q], tile, q);
      else
        running.soften_row(tile, q);
    }
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
      count_values(rows_of(tile, end_row));
      return running.add_tile(tile);
    }
    add_wanted(tile, row_bits(tile, end_row));
  }

  // All `rows` are read, by every head.
  void count_values(int rows) {
    reads.value_rows += rows;
    reads.per_head_rows += static_cast<int64_t>(rows) * count;
  }

  // Adds the values that some head needs of `rows_there`.
  void add_wanted(const Tile& tile, uint64_t rows_there) {
    const uint64_t rows =
        wanted(rule, seen, tile, rows_there, running.weights.values, reads.per_head_rows);
    reads.value_rows += __builtin_popcountll(rows);
    for (int q = 0; running.state.dropped && q < count; q++)
      running.state.dropped[q] += running.weight_without(tile, rows, q);
    running.pick_rows(tile, rows);
    if (tests_output) running.add_picked_rows();
  }

  // Whether every query row may stop.
  bool enough() {
    if (never_stops) return false;
    return std::visit([&](const auto& technique) { return every_may_stop(technique, seen); },
                      rule.technique);
  }

  // Whether the rule leaves out a tile that is scored.
  bool leaves_out_tile(const Tile& tile) {
    const auto largest = [&](int q) { return greatest_of(tile, running.row(q)); };
    return std::visit(
        [&]<class T>(const T& technique) {
          if constexpr (T::kOldestFirst) return leaves_out(technique, seen, tile.row[0], largest);
          return false;
        },
        rule.technique);
  }

  // Position of the next check: multiples of `check_blocks` from row 0, which depend on the keys
  // alone; in a ranked order, multiples of `check_blocks` in the list.
  int next_check(const Order& order, int i) const {
    const int next = i + rule.check_blocks;
    if (never_stops) return order.count;
    if (order.ranked || rule.check_blocks == 1) return next < order.count ? next : order.count;
    const int first = order.blocks[i] / rule.check_blocks * rule.check_blocks;
    while (i < order.count && order.blocks[i] >= first &&
           order.blocks[i] < first + rule.check_blocks)
      i++;
    return i;
  }

  // Whether the rule may be asked once the first `read` entries of the order were read.
  bool looks(const Order& order, int read) const {
    return looks_after_more ? read > order.always : read >= order.always;
  }

  // Scores a block, once for all its rows that are read next to each other.
  Tile scored_block(int block) {
    const Tile tile = tile_at(running.head, &block, 0, 1, 1, end_row);
    running.score_tile(tile);
    for (int q = 0; q < count; q++)
      std::memcpy(spare + q * kPanel, running.row(q), sizeof(float) * kPanel);
    return tile;
  }

  // Row after row: `order` lists rows, all of them visible.
  void go_by_rows(const Order& order, float* masses) {
    tables = order.tables;
    Tile tile;
    for (int i = 0, block = -1; i < order.count; i++) {
      const bool always = i < order.always;
      const int within = order.blocks[i] % kPanel;
      running.add_picked_rows();
      if (order.blocks[i] / kPanel != block) tile = scored_block(block = order.blocks[i] / kPanel);
      for (int q = 0; q < count; q++) {
        for (int at = 0; at < kPanel; at += W) store(running.row(q) + at, splat(-kInfinity));
        running.row(q)[within] = spare[q * kPanel + within];
      }
      soften(tile, always);
      seen.known++;
      reads.key_rows++;
      if (masses && always) keep_masses(tile, masses + i * count * 2);
      const uint64_t row = uint64_t{1} << within;
      if (always || rule.value_share == 0) {
        count_values(1);
        running.pick_rows(tile, row);
      } else {
        add_wanted(tile, row);
      }
      if (looks(order, i + 1) && enough()) break;
    }
    running.finish();
    if (masses) finish_masses(order.always, masses);
  }

  // Blocks from position `i` on that are checked one by one, but weighed and added together, as
  // long as no new peak changes the weights between them. Sets how many were read; 0: none, because
  // of such a peak. Returns whether the traversal ends.
  bool read_together(ComingScores& scores, const Order& order, int i, int& read) {
    const int most = i + kTileBlocks - i % kTileBlocks,
              end = most < order.count ? most : order.count;
    Tile tile = tile_at(running.head, order.blocks, i, end, order.count, end_row);
    read = 0;
    if (!sees_tile(visible, tile)) return false;
    scores.take(tile, i, true);
    if (!running.weigh_blocks(tile, spare)) return false;
    bool stops = false;
    while (read < tile.blocks && !stops) {
      seen.sums = spare + read * count * W;
      seen.known += kPanel;
      read++;
      stops = looks(order, i + read) && enough();
    }
    running.keep_sums(seen.sums);
    seen.sums = running.sums;
    tile.blocks = read;
    tile.rows = read * kPanel;
    reads.key_rows += tile.rows;
    count_values(tile.rows);
    running.add_weighted(tile);
    return stops;
  }

  void go(const Order& order, ScoresAhead& ahead, float* masses) {
    if (order.by_rows) return go_by_rows(order, masses);
    tables = order.tables;
    ComingScores scores(running, order, end_row, ahead);
    const bool plain = !tables && rule.value_share == 0;
    const bool together = plain && !has_scales(running.type) && !tests_output &&
                          rule.check_blocks == 1 && greatest_of_always && !running.state.dropped &&
                          !never_stops;
    for (int i = 0; i < order.count;) {
      const bool always = i < order.always;
      if (int read; together && !always) {
        running.add_picked_rows();
        const bool stops = read_together(scores, order, i, read);
        i += read;
        if (stops) break;
        if (read > 0) continue;
      }
      const int first = tables ? i + 1 : order.always;  // codes depend on the current peak
      const int end = always ? first : next_check(order, i);
      Tile tile = tile_at(running.head, order.blocks, i, end, order.count, end_row);
      // The next values to read are not known yet.
      if (!always && (rule.value_share > 0 || oldest_first))
        for (int b = 0; b < tile.blocks; b++) tile.next_values[b] = tile.values[b];
      see(scores, tile, i);
      if (oldest_first && leaves_out_tile(tile)) {
        i += tile.blocks;
        continue;
      }
      if (plain && !always) {
        count_values(rows_of(tile, end_row));
        running.soften_and_add_tile(tile);
      } else {
        soften(tile, always);
        if (masses && always) keep_masses(tile, masses + i * count * 2);
        add_values_of(tile, always);
      }
      i += tile.blocks;
      if (looks(order, i) && enough()) break;
    }
    running.finish();
    if (masses) finish_masses(order.always, masses);
  }
};

inline Reads traverse(const KVHead& head, const Queries& queries, const Visible& visible, int count,
                      const Order& order, const AttentionRule& rule, const Partial& state,
                      ScoresAhead& ahead, float* masses, float* scratch) {
  Walk walk(head, queries, visible, count, rule, state, scratch);
  walk.go(order, ahead, masses);
  return walk.reads;
}
