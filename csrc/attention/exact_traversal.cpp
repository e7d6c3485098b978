#include "attention/exact_traversal.h"

#include "attention/reads.h"

namespace suffice {
namespace {

// Whether the policy sums each row's weights; scores are then kept.
bool keeps_scores(const Traversal& traversal) { return traversal.head.masses && traversal.state; }

}  // namespace

size_t ExactTraversal::plan(Traversal& traversal) {
  traversal.chunks = traversal.whole_chunks();
  const int count = static_cast<int>(traversal.queries.size());
  size_t floats = traversal.chunks * partial_floats(count, traversal.head.size);
  if (keeps_scores(traversal))
    floats += static_cast<size_t>(count) * round_up(traversal.rows_end, kPanel);
  return floats;
}

Partial ExactTraversal::part(int chunk) const {
  const int size = traversal_.head.size;
  return partial_at(results_ + chunk * partial_floats(count_, size), count_, size);
}

// Scores lie behind the parts, if they are kept.
Scores ExactTraversal::scores() const {
  if (!keeps_scores(traversal_)) return {};
  return {part(traversal_.chunks).output, round_up(traversal_.rows_end, kPanel)};
}

// One thread takes all chunks with rows that paths move.
void ExactTraversal::work(int chunk, Scratch& scratch) {
  if (traversal_.paths.size() < 2 || !traversal_.holds_drafts(chunk))
    return attend(chunk, 0, count_, scratch);
  if (chunk == traversal_.chunks - 1) attend_along_paths(scratch);
}

// `count` query rows from row `first` on.
void ExactTraversal::attend(int chunk, int first, int count, Scratch& scratch) const {
  const Range blocks = traversal_.chunk(chunk);
  const KVHead& head = traversal_.head;
  float* const floats = scratch.at_least(attend_scratch(count, head.size));
  const Queries& queries = scratch.queries.of(head, traversal_.queries.data() + first, count);
  Partial to = part(chunk);
  to.output += static_cast<size_t>(first) * head.size;
  for (float** each : {&to.peak, &to.sum, &to.dropped, &to.greatest}) *each += first;
  kernels().attention.attend(head, queries, traversal_.visible.data() + first, count,
                             traversal_.list, blocks.begin, blocks.end, to, floats, scores());
}

void ExactTraversal::attend_along_paths(Scratch& scratch) const {
  int from = 0, first = 0;
  while (!traversal_.holds_drafts(from)) from++;
  traversal_.moved->save();
  for (const DraftPath& path : traversal_.paths) {
    traversal_.moved->arrange(path.rows);
    const int count = static_cast<int>(path.tokens.size()) * traversal_.group;
    for (int chunk = from; chunk < traversal_.chunks; chunk++) attend(chunk, first, count, scratch);
    first += count;
  }
  traversal_.moved->restore();
}

void ExactTraversal::finish(Scratch& scratch) {
  for (int row = 0; row < traversal_.tokens(); row++) {
    const int64_t rows = traversal_.rows_before(traversal_.length(row));
    count_reads(traversal_, row, {rows, rows, rows * traversal_.group});
  }
  scratch.parts.clear();
  for (int i = 0; i < traversal_.chunks; i++) scratch.parts.push_back(part(i));
  merge(scratch.parts, count_, traversal_.head.size, traversal_.outputs.data(), spare());
  if (!keeps_scores(traversal_)) return;
  for (int query = 0; query < count_; query++) add_weights(scratch.parts, query);
}

// Adds one query row's share of each key to the step's weights.
void ExactTraversal::add_weights(const std::vector<Partial>& parts, int query) {
  const Scores kept = scores();
  const auto [peak, sum] = spare().add(total_of(parts, query), query);
  std::vector<float>& weights = traversal_.state->weights;
  if (query == 0) weights.assign(kept.stride, 0.0f);
  for (int i = traversal_.begin; i < traversal_.end; i++) {
    const int row = (traversal_.list ? traversal_.list[i] : i) * kPanel;
    kernels().search.add_masses(kept.rows + static_cast<size_t>(query) * kept.stride + row, peak,
                                sum > 0 ? 1.0f / sum : 0.0f, weights.data() + row);
  }
}

}  // namespace suffice
