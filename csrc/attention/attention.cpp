#include "attention/attention.h"

#include "attention/coded_traversal.h"
#include "attention/exact_traversal.h"
#include "attention/sequential_traversal.h"

namespace suffice {
namespace {

enum class Algorithm { exact, sequential, coded, certified, tiers, prompt, outside };

// Chunks are independent only where all keys are read. Otherwise the blocks to read depend on the
// token or on what was read before.
Algorithm algorithm_of(const Traversal& traversal) {
  if (traversal.outside) return Algorithm::outside;
  if (traversal.unread > 0 && traversal.end - traversal.begin > kWholeBlocks)
    return Algorithm::prompt;
  const AttentionRule* rule = traversal.rule;
  if (rule && std::holds_alternative<Certified>(rule->technique) && !rule->exact())
    return Algorithm::certified;
  if (rule && std::holds_alternative<Tiers>(rule->technique) && !rule->exact())
    return Algorithm::tiers;
  if (rule && rule->coded()) return Algorithm::coded;
  const bool everything = !rule || rule->exact();
  return everything && !traversal.max_blocks ? Algorithm::exact : Algorithm::sequential;
}

// The chunks of a traversal in tiers. After the last one, its tokens choose what to attend to.
struct Tiered {
  TierEstimates estimates;
  TierSearches& searches;
  int first;

  void work(int chunk, Scratch& scratch) const { estimates.work(chunk, scratch); }
  void finish(Scratch&) const { searches.choose(estimates, first); }
};

}  // namespace

// Sets the traversal's chunks; returns the number of floats that their results take.
size_t Attention::plan_chunks(Traversal& traversal, int index) {
  switch (algorithm_of(traversal)) {
    case Algorithm::exact: return ExactTraversal::plan(traversal);
    case Algorithm::sequential: return SequentialTraversal::plan(traversal);
    case Algorithm::coded: return CodedTraversal::plan(traversal);
    case Algorithm::tiers:
      firsts_[index] = tiers_.plan(traversal);
      return TierEstimates::plan(traversal);
    case Algorithm::prompt: prompts_.plan(traversal); break;
    case Algorithm::certified: searches_.plan(traversal); break;
    case Algorithm::outside: break;
  }
  traversal.chunks = 0;
  return 0;
}

void Attention::plan(std::vector<Traversal>& traversals, int threads) {
  traversals_ = &traversals;
  chunks_.clear();
  offsets_.clear();
  firsts_.assign(traversals.size(), 0);
  searches_.clear();
  walks_.clear();
  tiers_.clear();
  prompts_.clear();
  size_t floats = 0;
  for (int t = 0; t < static_cast<int>(traversals.size()); t++) {
    offsets_.push_back(floats);
    floats += plan_chunks(traversals[t], t);
    for (int i = 0; i < traversals[t].chunks; i++) chunks_.push_back({t, i});
    if (algorithm_of(traversals[t]) == Algorithm::sequential) walks_.push_back(t);
  }
  if (results_.size() < floats) results_.resize(floats);
  if (!walks_.empty() && ahead_.size() < traversals.size()) ahead_.resize(traversals.size());
  for (const int t : walks_)
    if (!ahead_[t]) ahead_[t] = std::make_unique<ScoresAhead>();
  if (left_size_ < traversals.size()) {
    left_size_ = traversals.size();
    left_ = std::make_unique<std::atomic<int>[]>(left_size_);
  }
  for (size_t t = 0; t < traversals.size(); t++) left_[t].store(traversals[t].chunks + 1);
  queue_.begin(static_cast<int>(chunks_.size()), threads);
  searches_.begin(threads);
  tiers_.begin(threads);
  prompts_.begin(threads);
}

// The thread that finishes the last chunk of a traversal also merges its results.
void Attention::work_on(const Chunk& chunk, Scratch& scratch) {
  const Traversal& traversal = (*traversals_)[chunk.traversal];
  float* const results = results_.data() + offsets_[chunk.traversal];
  const auto run = [&](auto algorithm) {
    algorithm.work(chunk.index, scratch);
    if (left_[chunk.traversal].fetch_sub(1, std::memory_order_acq_rel) > 2) return;
    algorithm.finish(scratch);
    left_[chunk.traversal].store(0, std::memory_order_release);
  };
  switch (algorithm_of(traversal)) {
    case Algorithm::exact: return run(ExactTraversal(traversal, results));
    case Algorithm::coded: return run(CodedTraversal(traversal, results));
    case Algorithm::tiers:
      return run(Tiered{{traversal, results}, tiers_, firsts_[chunk.traversal]});
    case Algorithm::sequential:
      return run(SequentialTraversal(traversal, results, *ahead_[chunk.traversal]));
    case Algorithm::certified:
    case Algorithm::outside:
    case Algorithm::prompt: return;  // have no chunks
  }
}

// Scores keys for the traversals of other threads until all have ended.
void Attention::help(Scratch& scratch, const Team& team) {
  Waiting waiting;
  for (bool busy = true; busy && !team.failed();) {
    bool helped = busy = false;
    for (const int t : walks_) {
      if (left_[t].load(std::memory_order_acquire) == 0) continue;
      const Traversal& traversal = (*traversals_)[t];
      busy = true;
      helped |=
          ahead_[t]->help(scratch.at_least(attend_scratch(traversal.group, traversal.head.size)));
    }
    if (busy && !helped) waiting.pause();
  }
}

void Attention::work(Scratch& scratch, Team& team, int thread) {
  scratch.queries.forget();  // those of another layer may have been there
  searches_.work(scratch, team, thread);
  prompts_.work(scratch, team, thread);
  queue_.take(thread, team.size(), [&](int i) { work_on(chunks_[i], scratch); });
  help(scratch, team);
  tiers_.work(scratch, team, thread);
}

}  // namespace suffice
