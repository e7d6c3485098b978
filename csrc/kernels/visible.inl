// The keys of a tile that query rows may see.

constexpr float kInfinity = __builtin_inff();

// Bit i: row `row` + i of a block is in [begin, end).
inline uint32_t range_bits(int row, int begin, int end) {
  const auto below = [=](int border) {
    const int count = border - row;
    return count <= 0 ? 0u : count >= kPanel ? 0xffffu : (1u << count) - 1;
  };
  return below(end) & ~below(begin);
}

// Bit i: the query row may see row `row` + i of the block.
inline uint32_t visible_bits(const Visible& visible, int row) {
  const int draft = row - visible.committed;
  const uint32_t drafts = draft >= 32       ? 0
                          : draft >= 0      ? visible.tentative >> draft
                          : draft > -kPanel ? visible.tentative << -draft
                                            : 0;
  return range_bits(row, visible.first, visible.committed) | range_bits(row, 0, visible.sinks) |
         (drafts & 0xffff);
}

// Scores of the keys that `visible` hides become -infinity.
inline void hide(const Tile& tile, const Visible& visible, float* scores) {
  for (int block = 0; block < tile.blocks; block++) {
    const int row = tile.row[block];
    if (visible.sees_block(row)) continue;
    const uint32_t bits = visible_bits(visible, row);
    for (int i = 0; i < kPanel; i += W) {
      float* const to = scores + block * kPanel + i;
      store(to, select_lanes(load(to), splat(-kInfinity), bits >> i));
    }
  }
}

// Copies the scores of one query row to the positions of their keys' rows.
inline void keep_scores(const Tile& tile, const float* scores, float* to) {
  for (int block = 0; block < tile.blocks; block++)
    for (int i = 0; i < kPanel; i += W)
      store(to + tile.row[block] + i, load(scores + block * kPanel + i));
}

// The largest of a query row's scores.
inline float greatest_of(const Tile& tile, const float* scores) {
  vf top = load(scores);
  for (int i = W; i < tile.blocks * kPanel; i += W) top = max(top, load(scores + i));
  return max_of(top);
}

// Bit i: row i of the tile exists. `end_row`: one past the last existing row.
inline uint64_t row_bits(const Tile& tile, int end_row) {
  uint64_t rows = 0;
  for (int b = 0; b < tile.blocks; b++) {
    const int left = end_row - tile.row[b];
    rows |= (left < kPanel ? (uint64_t{1} << left) - 1 : 0xffff) << (b * kPanel);
  }
  return rows;
}

inline int rows_of(const Tile& tile, int end_row) {
  return __builtin_popcountll(row_bits(tile, end_row));
}

// One past the last row that any query row may see.
inline int rows_in_use(const Visible* visible, int count) {
  int end_row = 0;
  for (int q = 0; q < count; q++) {
    const int drafts = visible[q].tentative ? 32 - __builtin_clz(visible[q].tentative) : 0;
    end_row = visible[q].committed + drafts > end_row ? visible[q].committed + drafts : end_row;
  }
  return end_row;
}

// The keys that all of some query rows certainly see.
inline Visible seen_by_all(const Visible* visible, int count) {
  Visible all = {visible[0].first, visible[0].committed, 0, visible[0].sinks};
  for (int q = 1; q < count; q++) {
    all.first = visible[q].first > all.first ? visible[q].first : all.first;
    all.committed = visible[q].committed < all.committed ? visible[q].committed : all.committed;
    all.sinks = visible[q].sinks < all.sinks ? visible[q].sinks : all.sinks;
  }
  return all;
}

inline bool sees_tile(const Visible& visible, const Tile& tile) {
  for (int block = 0; block < tile.blocks; block++)
    if (!visible.sees_block(tile.row[block])) return false;
  return true;
}
