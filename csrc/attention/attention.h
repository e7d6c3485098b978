// Attention of one step in one layer. Each traversal runs the algorithm that its rule asks for;
// threads share the chunks.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention/certified_search.h"
#include "attention/draft_paths.h"
#include "attention/prompt_search.h"
#include "attention/scores_ahead.h"
#include "attention/tier_search.h"
#include "attention/traversal.h"
#include "runtime/parallel.h"

namespace suffice {

class Attention {
 public:
  // Prepares the step. Traversals are complete except for their chunks. Buffers are kept between
  // calls.
  void plan(std::vector<Traversal>& traversals, int threads);
  // Called by every thread of the team, once keys and values are stored; returns when no chunk is
  // left. Others may read the tentative rows of trees when all threads have returned.
  void work(Scratch& scratch, Team& team, int thread);

 private:
  struct Chunk {
    int traversal;
    int index;
  };
  void plan_trees(const std::vector<Traversal>& given);
  void plan_round(int round);
  void arrange(int round, Share mine);
  void work_round(Scratch& scratch, Team& team, int thread);
  void plan_chunks_of(std::vector<Traversal>& traversals);
  size_t plan_chunks(Traversal& traversal, int index);
  void work_on(const Chunk& chunk, Scratch& scratch);
  void help(Scratch& scratch, const Team& team);

  CertifiedSearches searches_;
  TierSearches tiers_;
  PromptSearches prompts_;
  std::vector<Traversal>* traversals_ = nullptr;
  int threads_ = 1;
  // Of trees of drafts: exact traversals take all paths, others one in each round.
  int rounds_ = 1;
  const std::vector<Traversal>* trees_ = nullptr;  // the traversals as they were given
  std::vector<Traversal> along_paths_;             // those of the round
  std::vector<DraftRows> rows_;                    // of each traversal
  std::vector<Chunk> chunks_;
  std::vector<size_t> offsets_;  // where each traversal's results begin
  std::vector<int> firsts_;      // the first of each traversal's searches in tiers, if it has any
  std::vector<float> results_;
  // Of each traversal: unfinished chunks, and 1 until what follows the last of them is done.
  std::unique_ptr<std::atomic<int>[]> left_;
  size_t left_size_ = 0;
  std::vector<std::unique_ptr<ScoresAhead>> ahead_;  // of each traversal that goes block by block
  std::vector<int> walks_;                           // these traversals
  WorkQueue queue_;
};

}  // namespace suffice
