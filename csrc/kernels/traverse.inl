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

// Scores of the blocks list[begin..end) for query rows, [tile][count][kTileRows].
template <Type KT>
void score_piece_of(const KVHead& head, const float* const* query_rows, int count,
                    const int32_t* list, int begin, int end, int end_row, float* scores,
                    float* scratch) {
  const int padded = round_up(count, 16);
  int32_t* const offsets = reinterpret_cast<int32_t*>(scratch + padded);
  float* const means = scratch + 2 * padded;
  int16_t* const codes = reinterpret_cast<int16_t*>(means + padded);
  const Queries queries{query_rows, codes, scratch, offsets, means};
  queries.quantize<KT>(head, count);
  std::byte* const lines = whole_lines(codes + count * head.size);
  for (int i = begin; i < end; i += kTileBlocks, scores += count * kTileRows) {
    const Tile tile = tile_at<KT, Type::f32>(head, list, i, end, end, end_row);  // keys only
    multiply_keys<KT>(head, tile, queries, count, scores, lines);
  }
}

inline void score_piece(const KVHead& head, const float* const* queries, int count,
                        const int32_t* list, int begin, int end, int end_row, float* scores,
                        float* scratch) {
  for_type(head.key_type, [&]<Type KT>() {
    score_piece_of<KT>(head, queries, count, list, begin, end, end_row, scores, scratch);
  });
}

// The scores that a traversal comes to, which other threads may have computed.
template <Type KT, Type VT>
class ComingScores {
 public:
  ComingScores(Running<KT, VT>& running, const Order& order, int end_row, ScoresAhead& ahead)
      : running_(running), order_(order), end_row_(end_row), ahead_(ahead) {}

  // Moves the scores of a tile, which begins at position `i` of the list, to the running softmax.
  void take(const Tile& tile, int i) {
    const bool whole = tile.blocks == kTileBlocks || i + tile.blocks == order_.count;
    if (i % kTileBlocks == 0 && whole) {
      enter(i / kPieceBlocks);
      if (i % kPieceBlocks / kTileBlocks == scored_) {
        scored_++;
        return running_.score_tile(tile);
      }
    }
    for (int b = 0; b < tile.blocks; b++) {
      const float* const from = at(i + b);
      for (int q = 0; q < running_.count; q++)
        for (int lane = 0; lane < kPanel; lane += W)
          store(running_.row(q) + b * kPanel + lane, load(from + q * kTileRows + lane));
    }
  }

 private:
  // Scores of the block at a position of the list, kTileRows from query row to query row.
  const float* at(int position) {
    enter(position / kPieceBlocks);
    const int tile = position % kPieceBlocks / kTileBlocks;
    float* const scores = scores_ + tile * running_.count * kTileRows;
    if (tile == scored_) {
      score(position / kTileBlocks * kTileBlocks, scores);
      scored_++;
    }
    return scores + position % kTileBlocks * kPanel;
  }

  void score(int position, float* to) {
    running_.score_tile(tile_at<KT, VT>(running_.head, order_.blocks, position, order_.count,
                                        order_.count, end_row_),
                        to);
  }

  // Goes to a piece: it becomes this thread's own, or another thread completes it.
  void enter(int piece) {
    if (piece == piece_) return;
    if (piece_ >= 0) ahead_.leave(piece_);
    piece_ = piece;
    scores_ = ahead_.scores(piece);
    scored_ = 0;
    if (ahead_.take(piece)) return;
    while (!ahead_.ready(piece)) score_another();
    scored_ = kPieceTiles;
  }

  // Scores a later piece meanwhile, if one is left.
  void score_another() {
    const int piece = ahead_.take_next();
    if (piece < 0) return;
    float* to = ahead_.scores(piece);
    const int end = (piece + 1) * kPieceBlocks;
    for (int i = piece * kPieceBlocks; i < end && i < order_.count; i += kTileBlocks) {
      score(i, to);
      to += running_.count * kTileRows;
    }
    ahead_.finish(piece);
  }

  Running<KT, VT>& running_;
  const Order& order_;
  const int end_row_;
  ScoresAhead& ahead_;
  float* scores_ = nullptr;  // of the current piece
  int piece_ = -1;
  int scored_ = 0;  // tiles of it that have scores, kPieceTiles if another thread scored it
};

template <Type KT, Type VT>
struct Walk {
  const Visible& visible;
  const AttentionRule& rule;
  const bool never_stops, tests_output, greatest_of_always, looks_after_more;  // the rule's
  const int count;
  Running<KT, VT> running;
  Seen seen;
  Reads reads;
  const int end_row;                     // one past the last row that may be seen
  const SoftmaxTable* tables = nullptr;  // [count], or null: weights are 2^x
  float* const block_scores;             // [count][kPanel]

  Walk(const KVHead& head, const float* const* query_rows, const Visible& visible, int count,
       const AttentionRule& rule, const Partial& state, float* scratch)
      : visible(visible),
        rule(rule),
        never_stops(rule.never_stops()),
        tests_output(rule.tests_output()),
        greatest_of_always(rule.greatest_of_always()),
        looks_after_more(rule.looks_after_more()),
        count(count),
        running(head, query_rows, count, state, scratch),
        end_row(rows_in_use(&visible, 1)),
        block_scores(scratch + attend_scratch(count, head.size) + count * (2 + head.size)) {
    float* const greatest = scratch + attend_scratch(count, head.size);
    float* const kept = greatest + count;
    int32_t* const streak = reinterpret_cast<int32_t*>(kept + count * head.size);
    for (int q = 0; q < count; q++) {
      greatest[q] = -kInfinity;
      streak[q] = 0;
    }
    std::memset(kept, 0, sizeof(float) * count * head.size);
    seen = {.count = count,
            .size = head.size,
            .length = visible.rows(),
            .greatest = greatest,
            .peak = state.peak,
            .sums = running.sums,
            .output = state.output,
            .rotated = is_four_bits(VT),
            .kept = kept,
            .streak = streak};
  }

  // Takes the scores of a tile's keys, as far as the token may see them.
  void see(ComingScores<KT, VT>& scores, const Tile& tile, int i) {
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

  // Whether every query row may stop. Each test is made: it may keep something.
  bool enough() {
    if (never_stops) return false;
    return std::visit(
        [&](const auto& technique) {
          bool all = true;
          for (int q = 0; q < count; q++) all &= may_stop(technique, seen, q);
          return all;
        },
        rule.technique);
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

  // Whether the rule may be asked once the first `read` entries of the order were read.
  bool looks(const Order& order, int read) const {
    return looks_after_more ? read > order.always : read >= order.always;
  }

  // Scores a block, once for all its rows that are read next to each other.
  Tile scored_block(int block) {
    const Tile tile = tile_at<KT, VT>(running.head, &block, 0, 1, 1, end_row);
    running.score_tile(tile);
    for (int q = 0; q < count; q++)
      std::memcpy(block_scores + q * kPanel, running.row(q), sizeof(float) * kPanel);
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
        running.row(q)[within] = block_scores[q * kPanel + within];
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

  void go(const Order& order, ScoresAhead& ahead, float* masses) {
    if (order.by_rows) return go_by_rows(order, masses);
    tables = order.tables;
    ComingScores<KT, VT> scores(running, order, end_row, ahead);
    const bool plain = !tables && rule.value_share == 0;
    for (int i = 0; i < order.count;) {
      const bool always = i < order.always;
      const int together = tables ? i + 1 : order.always;  // codes depend on the current peak
      const int end = always ? together : next_check(order, i);
      Tile tile = tile_at<KT, VT>(running.head, order.blocks, i, end, order.count, end_row);
      if (!always && rule.value_share > 0)  // the next values to read are not known yet
        for (int b = 0; b < tile.blocks; b++) tile.next_values[b] = tile.values[b];
      see(scores, tile, i);
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

inline Reads traverse(const KVHead& head, const float* const* queries, const Visible& visible,
                      int count, const Order& order, const AttentionRule& rule,
                      const Partial& state, ScoresAhead& ahead, float* masses, float* scratch) {
  return for_type(head.key_type, [&]<Type KT>() {
    return for_type(head.value_type, [&]<Type VT>() {
      Walk<KT, VT> walk(head, queries, visible, count, rule, state, scratch);
      walk.go(order, ahead, masses);
      return walk.reads;
    });
  });
}
