// The attention of one step in one layer: every traversal goes to the algorithm that its rule asks
// for, and threads take their chunks in turn.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention/certified_search.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

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
  size_t plan_chunks(Traversal& traversal);
  void work_on(const Chunk& chunk, Scratch& scratch);

  CertifiedSearches searches_;
  std::vector<Traversal>* traversals_ = nullptr;
  std::vector<Chunk> chunks_;
  std::vector<size_t> offsets_;  // of each traversal's results
  std::vector<float> results_;
  std::unique_ptr<std::atomic<int>[]> left_;  // chunks of each traversal that are not done yet
  size_t left_size_ = 0;
  WorkQueue queue_;
};

}  // namespace suffice
