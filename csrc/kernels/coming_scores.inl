// Scores of the keys that a traversal comes to: see attention/scores_ahead.h.

// Scores of the blocks list[begin..end) for query rows, [tile][count][kTileRows].
inline void score_piece(const KVHead& head, const Queries& queries, int count, const int32_t* list,
                        int begin, int end, int end_row, float* scores, float* scratch) {
  std::byte* const lines = whole_lines(scratch);
  for (int i = begin; i < end; i += kTileBlocks, scores += count * kTileRows) {
    const Tile tile = tile_at(head, list, i, end, end, end_row);
    multiply_keys(head, tile, queries, count, scores, lines);
  }
}

// The scores that a traversal comes to, which other threads may have computed.
class ComingScores {
 public:
  ComingScores(Running& running, const Order& order, int end_row, ScoresAhead& ahead)
      : running_(running), order_(order), end_row_(end_row), ahead_(ahead) {}

  // Moves the scores of a tile, which begins at position `i` of the list, to the running softmax.
  // `again`: they may be taken another time, if the tile ends before the next kTileBlocks begin.
  void take(const Tile& tile, int i, bool again = false) {
    const bool whole = tile.blocks == kTileBlocks || i + tile.blocks == order_.count;
    if (i % kTileBlocks == 0 && whole && !again) {
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
    running_.score_tile(
        tile_at(running_.head, order_.blocks, position, order_.count, order_.count, end_row_), to);
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

  Running& running_;
  const Order& order_;
  const int end_row_;
  ScoresAhead& ahead_;
  float* scores_ = nullptr;  // of the current piece
  int piece_ = -1;
  int scored_ = 0;  // tiles of it that have scores, kPieceTiles if another thread scored it
};
