// The traversal of one step's attention, split into chunks of keys that threads take in turn.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "parallel.h"
#include "search.h"
#include "traversal.h"

namespace suffice {

// Work shared by the team, chunk by chunk; whoever finishes the last chunk of a traversal merges
// its partial results, in the order of the chunks.
class Attention {
 public:
  // Prepares for traversals that are complete but for their chunks; keeps its buffers.
  void plan(std::vector<Traversal>& traversals, int threads);
  // Called by every thread of the team; returns when nothing is left to take.
  void work(Scratch& scratch, Team& team, int thread);

 private:
  struct Chunk {
    int traversal;
    int index;
  };
  void attend(const Traversal& traversal, int chunk, Scratch& scratch);
  void walk(const Traversal& traversal, Scratch& scratch);
  void walk_row(const Traversal& traversal, int row, Scratch& scratch);
  void finish(const Traversal& traversal, Scratch& scratch);
  void weigh(const Traversal& traversal, const std::vector<Partial>& parts, int query);
  // Of a traversal by codes: the scores of all its chunks, tile by tile, and each chunk's peaks.
  struct CodedScores {
    float* tiles;
    float* peaks;  // [chunks][query rows]
  };
  CodedScores coded_scores(const Traversal& traversal);
  void score(const Traversal& traversal, int chunk, Scratch& scratch);
  void weigh_codes(const Traversal& traversal, Scratch& scratch);
  void weigh_row(const Traversal& traversal, int row, Scratch& scratch);
  void weigh_chosen(const Traversal& traversal, int row, Scratch& scratch);
  static ValueReads sum_values(const Traversal& traversal, int row);
  static Partial coded_state(const Traversal& traversal, Scratch& scratch);
  static ValueReads weigh_tiles(const Traversal& traversal, int row, const CodedTiles& tiles,
                                const Partial& state, Scratch& scratch);
  Partial partial(const Traversal& traversal, int chunk);
  Scores scores(const Traversal& traversal);
  void plan_searches(const Traversal& traversal);
  void look(Scratch& scratch, int thread, int threads);
  void visit(Scratch& scratch);

  struct Item {  // of a search
    Search* search;
    int index;
  };
  std::deque<Search> searches_;  // keep their buffers
  size_t searching_ = 0;         // so many are in use
  std::vector<Item> looks_, visits_;
  std::mutex choosing_;
  Turns look_turns_;
  std::atomic<int> next_visit_{0};

  std::vector<Traversal>* traversals_ = nullptr;
  std::vector<Chunk> chunks_;
  std::vector<size_t> offsets_;  // of each traversal's partial results
  std::vector<float> partials_;
  std::unique_ptr<std::atomic<int>[]> left_;
  size_t left_size_ = 0;
  Turns turns_;
};

}  // namespace suffice
