#include "attention/scores_ahead.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "runtime/parallel.h"

namespace suffice {

void ScoresAhead::open(const BlocksToScore& what) {
  what_ = what;
  piece_floats_ = static_cast<size_t>(kPieceTiles) * what.count * kTileRows;
  if (scores_.size() < kPiecesAhead * piece_floats_) scores_.resize(kPiecesAhead * piece_floats_);
  for (int i = 0; i < kPiecesAhead; i++) slots_[i].store(kStates * i + kFree);
  pieces_.store((what.blocks + kPieceBlocks - 1) / kPieceBlocks);
}

// A helper registers before it looks whether the list is open, so either it finds it closed or it
// is waited for.
void ScoresAhead::close() {
  pieces_.store(0);
  for (Waiting waiting; helpers_.load() > 0;) waiting.pause();
}

bool ScoresAhead::take(int piece) {
  int expected = kStates * piece + kFree;
  return slots_[piece % kPiecesAhead].compare_exchange_strong(expected, kStates * piece + kTaken);
}

bool ScoresAhead::ready(int piece) const {
  return slots_[piece % kPiecesAhead].load(std::memory_order_acquire) == kStates * piece + kReady;
}

int ScoresAhead::next_free() const {
  int next = pieces_.load(std::memory_order_relaxed);
  const int end = next;
  for (const std::atomic<int>& slot : slots_) {
    const int value = slot.load(std::memory_order_relaxed);
    if (value % kStates == kFree) next = std::min(next, value / kStates);
  }
  return next < end ? next : -1;
}

int ScoresAhead::take_next() {
  const int piece = next_free();
  return piece >= 0 && take(piece) ? piece : -1;
}

void ScoresAhead::finish(int piece) {
  slots_[piece % kPiecesAhead].store(kStates * piece + kReady, std::memory_order_release);
}

void ScoresAhead::leave(int piece) {
  slots_[piece % kPiecesAhead].store(kStates * (piece + kPiecesAhead) + kFree,
                                     std::memory_order_release);
}

float* ScoresAhead::scores(int piece) {
  return scores_.data() + static_cast<size_t>(piece % kPiecesAhead) * piece_floats_;
}

bool ScoresAhead::help(float* scratch) {
  if (next_free() < 0) return false;
  helpers_.fetch_add(1);
  const int piece = pieces_.load() > 0 ? take_next() : -1;
  if (piece >= 0) {
    const int begin = piece * kPieceBlocks, end = std::min(begin + kPieceBlocks, what_.blocks);
    kernels().attention.score_piece(*what_.head, what_.queries, what_.count, what_.list, begin, end,
                                    what_.end_row, scores(piece), scratch);
    finish(piece);
  }
  helpers_.fetch_sub(1);
  return piece >= 0;
}

}  // namespace suffice
