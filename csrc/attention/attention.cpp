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

bool is_tree(const Traversal& traversal) {
  return !traversal.outside && traversal.paths.size() > 1;
}

// Whether a traversal takes all paths of a tree at once.
bool takes_all(const Traversal& tree) { return algorithm_of(tree) == Algorithm::exact; }

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
  threads_ = threads;
  rounds_ = 1;
  if (std::any_of(traversals.begin(), traversals.end(), is_tree)) return plan_trees(traversals);
  plan_chunks_of(traversals);
}

void Attention::plan_trees(const std::vector<Traversal>& given) {
  trees_ = &given;
  if (rows_.size() < given.size()) rows_.resize(given.size());
  for (size_t t = 0; t < given.size(); t++) {
    if (!is_tree(given[t])) continue;
    rows_[t].prepare(given[t].head, given[t].visible[0].committed, given[t].step_rows);
    if (!takes_all(given[t])) rounds_ = std::max(rounds_, static_cast<int>(given[t].paths.size()));
  }
  plan_round(0);
}

// In the first round all traversals take part, later the trees with further paths.
void Attention::plan_round(int round) {
  along_paths_.clear();
  for (size_t t = 0; t < trees_->size(); t++) {
    const Traversal& given = (*trees_)[t];
    const int paths = static_cast<int>(given.paths.size());
    const bool tree = is_tree(given), one = tree && !takes_all(given);
    if (one ? round >= paths : round > 0) continue;
    const int first = one ? round : 0, last = one ? round + 1 : paths;
    Traversal& made = along_paths_.emplace_back(tree ? along(given, first, last) : given);
    made.moved = &rows_[t];
    made.first_round = round == 0;
  }
  plan_chunks_of(along_paths_);
}

// Moves the rows of some trees together for the path of the round, or back after the last.
void Attention::arrange(int round, Share mine) {
  for (int t = mine.first; t < mine.last; t++) {
    const Traversal& tree = (*trees_)[t];
    const int paths = static_cast<int>(tree.paths.size());
    if (!is_tree(tree) || takes_all(tree) || round > paths) continue;
    if (round == 1) rows_[t].save();
    if (round == paths)
      rows_[t].restore();
    else
      rows_[t].arrange(tree.paths[round].rows);
  }
}

void Attention::plan_chunks_of(std::vector<Traversal>& traversals) {
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
  queue_.begin(static_cast<int>(chunks_.size()), threads_);
  searches_.begin(threads_);
  tiers_.begin(threads_);
  prompts_.begin(threads_);
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
  work_round(scratch, team, thread);
  for (int round = 1, rounds = rounds_; rounds > 1 && round <= rounds; round++) {
    team.barrier();  // all have attended
    arrange(round, share(static_cast<int>(trees_->size()), thread, team.size()));
    if (round == rounds) return;
    if (thread == 0) plan_round(round);
    team.barrier();
    work_round(scratch, team, thread);
  }
}

void Attention::work_round(Scratch& scratch, Team& team, int thread) {
  scratch.queries.forget();  // those of another layer may have been there
  searches_.work(scratch, team, thread);
  prompts_.work(scratch, team, thread);
  queue_.take(thread, team.size(), [&](int i) { work_on(chunks_[i], scratch); });
  help(scratch, team);
  tiers_.work(scratch, team, thread);
}

}  // namespace suffice
