// Decode attention of one key/value head: one traversal, for all query rows that share the head.
//
// For each tile of up to four blocks of 16 keys: scores of all rows, one check of the running
// maximum (the output is rescaled only when it grows by more than 2^8), exponentials, values.
// Scores are in base 2. A query row's operations have the same order whatever the other rows are,
// and a key that a row may not see adds exactly zero to it: in a batch of drafts, each row gets the
// bits that it gets when decoded alone.

inline void attend(const KVHead& head, const Queries& queries, const Visible* visible, int count,
                   const int32_t* list, int begin, int end, const Partial& state, float* scratch,
                   const Scores& kept) {
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
