// Decode attention of one key/value head: one traversal, for all query rows that share the head.
//
// For each tile of up to four blocks of 16 keys: scores of all rows, one check of the running
// maximum (the output is rescaled only when it grows by more than 2^8), exponentials, values.
// Scores are in base 2. A query row's operations have the same order whatever the other rows are,
// and a key that a row may not see adds exactly zero to it: in a batch of drafts, each row gets the
// bits that it gets when decoded alone.

inline void attend_together(const KVHead& head, const Queries& queries, const Visible* visible,
                            int count, const int32_t* list, int begin, int end,
                            const Partial& state, float* scratch, const Scores& kept) {
  Running running(head, queries, count, state, scratch);
  const int end_row = rows_in_use(visible, count);
  const Visible all = seen_by_all(visible, count);
  for (int i = begin; i < end;) {
    const Tile tile = tile_at(head, list, i, end, end, end_row);
    i += tile.blocks;
    running.score_tile(tile);
    const bool whole = sees_tile(all, tile);
    for (int q = 0; !whole && q < count; q++) hide(tile, visible[q], running.row(q));
    for (int q = 0; kept.rows && q < count; q++)
      keep_scores(tile, running.row(q), kept.rows + static_cast<size_t>(q) * kept.stride);
    running.soften_and_add_tile(tile);
  }
  running.finish();
}

// Query rows of joint rows that are attended for together: these, their outputs and a tile of keys
// stay in the second cache.
constexpr int kJointTogether = 64;

// The results of query rows from row `first` on.
inline Partial results_from(Partial state, int first, int size) {
  state.output += static_cast<size_t>(first) * size;
  for (float** each : {&state.peak, &state.sum, &state.dropped, &state.greatest})
    if (*each) *each += first;
  return state;
}

inline void attend(const KVHead& head, const Queries& queries, const Visible* visible, int count,
                   const int32_t* list, int begin, int end, const Partial& state, float* scratch,
                   const Scores& kept) {
  if (!head.joint)
    return attend_together(head, queries, visible, count, list, begin, end, state, scratch, kept);
  for (int first = 0; first < count; first += kJointTogether) {
    const int rows = count - first < kJointTogether ? count - first : kJointTogether;
    Scores scores = kept;
    if (kept.rows) scores.rows += static_cast<size_t>(first) * kept.stride;
    attend_together(head, queries_from(head, queries, first), visible + first, rows, list, begin,
                    end, results_from(state, first, head.size), scratch, scores);
  }
}
