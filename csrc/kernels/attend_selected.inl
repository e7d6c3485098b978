// Decode attention of one token's query heads to selected blocks, without the values of least
// weight.

struct SelectedBlocks {
  const Visible& visible;
  const Filter& filter;
  const Partial& state;
  const int count, end_row;
  float* lost;  // [count]
  Running running;
  SelectedReads reads;

  // Bit i: row i of the tile has, in some head, a score of at least the floor. `per_head`: such
  // rows, summed over heads.
  uint64_t above(const Tile& tile, uint64_t rows_there, int64_t& per_head) const {
    uint64_t rows = 0;
    for (int q = 0; q < count; q++) {
      const uint64_t of_head =
          rows_there & tile_bits(running.row(q), tile.blocks, filter.floors[q]);
      per_head += __builtin_popcountll(of_head);
      rows |= of_head;
    }
    return rows;
  }

  // Whether the values of all rows except `rows` can be left out; if so, adds up their weights.
  bool drop(const Tile& tile, uint64_t rows) {
    for (int q = 0; q < count; q++) {
      lost[q] = state.dropped[q] + running.weight_without(tile, rows, q);
      if (lost[q] > filter.share * running.known(q)) return false;
    }
    for (int q = 0; q < count; q++) state.dropped[q] = lost[q];
    return true;
  }

  SelectedReads go(const int32_t* list, int begin, int end) {
    for (int q = 0; q < count; q++) state.greatest[q] = -kInfinity;
    for (int i = begin; i < end;) {
      Tile tile = tile_at(running.head, list, i, end, end, end_row);
      i += tile.blocks;
      if (filter.floors)  // the next values to read are not known yet
        for (int b = 0; b < tile.blocks; b++) tile.next_values[b] = tile.values[b];
      running.score_tile(tile);
      running.add_picked_rows();
      for (int q = 0; q < count; q++) {
        hide(tile, visible, running.row(q));
        const float found = greatest_of(tile, running.row(q));
        state.greatest[q] = found > state.greatest[q] ? found : state.greatest[q];
      }
      const uint64_t all = row_bits(tile, end_row);
      int64_t per_head = 0;
      const uint64_t rows = filter.floors ? above(tile, all, per_head) : all;
      for (int q = 0; q < count; q++) running.soften_row(tile, q);
      reads.key_rows += __builtin_popcountll(all);
      if (rows != all && drop(tile, rows)) {
        reads.value_rows += __builtin_popcountll(rows);
        reads.per_head_rows += per_head;
        running.pick_rows(tile, rows);
      } else {
        reads.value_rows += __builtin_popcountll(all);
        reads.per_head_rows += static_cast<int64_t>(__builtin_popcountll(all)) * count;
        running.add_tile(tile);
      }
    }
    running.finish();
    return reads;
  }
};

inline SelectedReads attend_selected(const KVHead& head, const Queries& queries,
                                     const Visible& visible, int count, const int32_t* list,
                                     int begin, int end, const Filter& filter, const Partial& state,
                                     float* scratch) {
  SelectedBlocks blocks{visible,
                        filter,
                        state,
                        count,
                        rows_in_use(&visible, 1),
                        scratch + attend_scratch(count, head.size),
                        Running(head, queries, count, state, scratch),
                        {}};
  return blocks.go(list, begin, end);
}
