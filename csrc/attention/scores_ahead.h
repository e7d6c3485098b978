// Scores of the blocks that a traversal reads next, by threads that have nothing else to do.
//
// One thread, the walker, goes through the list of blocks and may stop anywhere. A score depends on
// its key alone, so others may compute it before the walker arrives, with the same bits. The list
// is cut into pieces; the thread that takes a piece first scores it, and only the next few can be
// taken. What is scored beyond the stop is work of threads that would wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "attention/attention_parts.h"

namespace suffice {

// What is scored: the blocks list[0..blocks) for `count` query rows.
struct BlocksToScore {
  const KVHead* head = nullptr;
  Queries queries{};
  int count = 0;
  const int32_t* list = nullptr;
  int blocks = 0;
  int end_row = 0;  // one past the last row that exists
};

// The walker calls `open`, for each piece in turn `take` and `leave`, and `close`.
class ScoresAhead {
 public:
  void open(const BlocksToScore& what);
  void close();  // returns once no other thread works on the list

  // Whether the walker has to score the piece itself; else another thread has taken it.
  bool take(int piece);
  bool ready(int piece) const;
  // Takes the next piece that nobody has taken, -1 if there is none.
  int take_next();
  void finish(int piece);  // its scores are complete
  void leave(int piece);   // the walker needs them no longer
  // Memory of the piece's scores, [tile][count][kTileRows].
  float* scores(int piece);

  // Called by any other thread, whenever: scores one piece. Returns false if there was none.
  // `scratch` [attend_scratch].
  bool help(float* scratch);

 private:
  enum State : int { kFree, kTaken, kReady, kStates };
  static constexpr int kPiecesAhead = 4;  // that are in memory, the walker's included

  int next_free() const;

  BlocksToScore what_;
  std::vector<float> scores_;
  size_t piece_floats_ = 0;
  alignas(64) std::atomic<int> pieces_{0};     // 0: closed
  std::atomic<int> slots_[kPiecesAhead] = {};  // kStates * piece + state
  alignas(64) std::atomic<int> helpers_{0};    // threads that may be reading `what_`
};

}  // namespace suffice
