#include "attention.h"

#include <algorithm>
#include <cmath>

#include "audit.h"

namespace suffice {

namespace {

bool coded(const Traversal& traversal) { return traversal.rule && traversal.rule->coded(); }

// Whether all keys are read: then chunks are independent, else what is read depends on what was, or
// on the token.
bool whole(const Traversal& traversal) {
  const bool all = !traversal.rule || traversal.rule->exact() || coded(traversal);
  return all && !traversal.most_blocks;
}

bool searched(const Traversal& traversal) {
  return traversal.rule && traversal.rule->certified() && !traversal.rule->exact();
}

// Whether the policy wants to know what each row weighs.
bool weighs(const Traversal& traversal) {
  return traversal.head.masses && traversal.state && whole(traversal);
}

// Appends the blocks of the sinks, which come first whatever is seen; returns their number.
int list_sinks(const Traversal& traversal, int end, std::vector<int32_t>& order) {
  const int sinks = std::min(round_up(traversal.bounds.sinks, kPanel) / kPanel, end);
  for (int block = 0; block < sinks; block++) order.push_back(block);
  return sinks;
}

const std::vector<int32_t>& ranked_blocks(const Traversal& traversal) {
  static const std::vector<int32_t> none;
  return traversal.state ? traversal.state->order : none;
}

// Whether blocks come in another order than newest first.
bool ranks(const Traversal& traversal, const AttentionRule& rule) {
  return traversal.most_blocks > 0 || rule.needs_sketch() || !ranked_blocks(traversal).empty();
}

// Appends the blocks of [begin, end) that are not in the list yet: those that no order ranks newest
// first, but what the rule looks at together in the order in which it lies; then the ranked ones.
void list_rest(const AttentionRule& rule, int begin, int end, const std::vector<int32_t>& ranked,
               Scratch& scratch) {
  enum : uint8_t { kUnranked, kRanked, kListed };
  scratch.place.assign(end, kUnranked);
  for (const int32_t block : ranked)
    if (block < end) scratch.place[block] = kRanked;
  for (const int32_t block : scratch.order) scratch.place[block] = kListed;
  const int unit = rule.never_stops() ? end : rule.check_blocks;
  for (int first = (end - 1) / unit * unit; first + unit > begin; first -= unit)
    for (int block = std::max(first, begin); block < std::min(first + unit, end); block++)
      if (scratch.place[block] == kUnranked) scratch.order.push_back(block);
  for (const int32_t block : ranked)
    if (block >= begin && block < end && scratch.place[block] == kRanked)
      scratch.order.push_back(block);
}

// Appends the blocks of [begin, end) that a token reads if it comes to them; returns the bytes that
// were read to find their order.
size_t list_others(const Traversal& traversal, int row, const AttentionRule& rule, int begin,
                   int end, Scratch& scratch) {
  const float* const* queries =
      traversal.queries.data() + static_cast<size_t>(row) * traversal.group;
  if (traversal.most_blocks) {
    const int boxes =
        scratch.ranking.sort(traversal.head, queries, traversal.group, traversal.boxed, begin, end,
                             traversal.most_blocks, scratch.order);
    return boxes * box_bytes(traversal.head.size);
  }
  if (rule.needs_sketch()) {
    const Visible& visible = traversal.visible[static_cast<size_t>(row) * traversal.group];
    const int chunks = scratch.by_sketch.sort(traversal.head, queries, traversal.group, visible,
                                              traversal.length(row));
    list_rest(rule, begin, end, scratch.by_sketch.blocks, scratch);
    return chunks * sketch_bytes(traversal.head.size);
  }
  list_rest(rule, begin, end, ranked_blocks(traversal), scratch);
  return 0;
}

}  // namespace

void Attention::plan(std::vector<Traversal>& traversals, int threads) {
  traversals_ = &traversals;
  chunks_.clear();
  offsets_.clear();
  searching_ = 0;
  looks_.clear();
  visits_.clear();
  size_t floats = 0;
  for (int t = 0; t < static_cast<int>(traversals.size()); t++) {
    Traversal& traversal = traversals[t];
    if (searched(traversal)) plan_searches(traversal);
    const int first = traversal.begin / kChunkBlocks;
    const int last = (traversal.end + kChunkBlocks - 1) / kChunkBlocks;
    traversal.chunks = whole(traversal) ? std::max(last - first, 1) : searched(traversal) ? 0 : 1;
    for (int i = 0; i < traversal.chunks; i++) chunks_.push_back({t, i});
    offsets_.push_back(floats);
    const int count = static_cast<int>(traversal.queries.size());
    const size_t floats_of_chunk = coded(traversal)
                                       ? static_cast<size_t>(count) * (kChunkBlocks * kPanel + 1)
                                       : partial_floats(count, traversal.head.size);
    floats += traversal.chunks * floats_of_chunk;
    if (weighs(traversal) && !coded(traversal))
      floats += static_cast<size_t>(count) * round_up(traversal.rows_end, kPanel);
  }
  if (partials_.size() < floats) partials_.resize(floats);
  if (left_size_ < traversals.size()) {
    left_size_ = traversals.size();
    left_ = std::make_unique<std::atomic<int>[]>(left_size_);
  }
  for (size_t t = 0; t < traversals.size(); t++) left_[t].store(traversals[t].chunks);
  turns_.begin(static_cast<int>(chunks_.size()), threads);
  look_turns_.begin(static_cast<int>(looks_.size()), threads);
  next_visit_.store(0);
}

void Attention::plan_searches(const Traversal& traversal) {
  for (int row = 0; row < traversal.tokens(); row++) {
    if (searching_ == searches_.size()) searches_.emplace_back();
    Search& search = searches_[searching_++];
    search.begin(traversal, row);
    for (int i = 0; i < search.looks(); i++) looks_.push_back({&search, i});
  }
}

Partial Attention::partial(const Traversal& traversal, int chunk) {
  const size_t index = &traversal - traversals_->data();
  const int count = static_cast<int>(traversal.queries.size()), size = traversal.head.size;
  float* const base = partials_.data() + offsets_[index] + chunk * partial_floats(count, size);
  return partial_at(base, count, size);
}

// Behind the partial results, if they are wanted.
Scores Attention::scores(const Traversal& traversal) {
  if (!weighs(traversal)) return {};
  return {partial(traversal, traversal.chunks).output, round_up(traversal.rows_end, kPanel)};
}

void Attention::attend(const Traversal& traversal, int chunk, Scratch& scratch) {
  const int count = static_cast<int>(traversal.queries.size());
  const Range blocks = traversal.chunk(chunk);
  float* const floats = scratch.at_least(attend_scratch(count, traversal.head.size));
  kernels().attend(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                   traversal.list, blocks.begin, blocks.end, partial(traversal, chunk), floats,
                   scores(traversal));
}

// One token after the other: what a token reads may depend on what those before it found.
void Attention::walk(const Traversal& traversal, Scratch& scratch) {
  const int rows = traversal.tokens();
  if (traversal.rule && traversal.rule->aet()) traversal.state->drafts.resize(rows);
  for (int row = 0; row < rows; row++) walk_row(traversal, row, scratch);
}

void Attention::walk_row(const Traversal& traversal, int row, Scratch& scratch) {
  static const AttentionRule none;
  const AttentionRule& rule = traversal.rule && !traversal.rule->exact() ? *traversal.rule : none;
  const int group = traversal.group, size = traversal.head.size, at = row * group;
  const Visible& visible = traversal.visible[at];
  const int length = traversal.length(row);
  const int begin = visible.first / kPanel;
  const Aet* const aet = rule.aet();
  scratch.order.clear();
  const int end = (length + kPanel - 1) / kPanel;
  const int sinks = list_sinks(traversal, end, scratch.order);
  if (aet) {
    Known& known = traversal.state->drafts[row];
    const int parent = parent_of(visible, row);
    known = parent < 0 ? traversal.state->committed : traversal.state->drafts[parent];
    known.advance(*aet, length);
    if (sinks) known.lose(sinks, begin);
    known.list(*aet, std::max(begin, sinks), scratch.order);
  }
  const int always = static_cast<int>(scratch.order.size());
  const size_t metadata = list_others(traversal, row, rule, begin, end, scratch);
  scratch.masses.resize(2 * static_cast<size_t>(always) * group);
  const Partial whole = partial(traversal, 0);
  float* const dropped = traversal.audit.missing ? whole.dropped + at : nullptr;
  const Partial state{whole.peak + at, whole.sum + at, whole.output + at * size, dropped, nullptr};
  const Order order{scratch.order.data(), static_cast<int>(scratch.order.size()), always,
                    ranks(traversal, rule),
                    rule.softmax_tables.empty() ? nullptr : rule.softmax_tables.data()};
  Reads reads = kernels().traverse(traversal.head, traversal.queries.data() + at, visible, group,
                                   order, rule, state, aet ? scratch.masses.data() : nullptr,
                                   scratch.at_least(traverse_scratch(group, size)));
  for (int q = 0; q < group; q++) {
    const float inverse = state.sum[q] > 0 ? 1.0f / state.sum[q] : 0.0f;
    for (int d = 0; d < size; d++)
      traversal.outputs[at + q][d] = state.output[q * size + d] * inverse;
    for (int i = 0; aet && i < always; i++)
      traversal.state->drafts[row].add_mass(scratch.order[i],
                                            scratch.masses[i * group + q] * inverse);
  }
  reads.sketch_bytes = static_cast<int64_t>(metadata);
  count_reads(traversal, row, reads);
  scratch.parts.clear();
  if (rule.softmax_tables.empty()) scratch.parts.push_back(state);
  audit(traversal, row, scratch.parts, NAN, scratch);
}

void Attention::finish(const Traversal& traversal, Scratch& scratch) {
  for (int row = 0; row < traversal.tokens(); row++) {
    const int64_t rows = traversal.rows_before(traversal.length(row));
    count_reads(traversal, row, {rows, rows, rows * traversal.group});
  }
  const int count = static_cast<int>(traversal.queries.size());
  scratch.parts.clear();
  for (int i = 0; i < traversal.chunks; i++) scratch.parts.push_back(partial(traversal, i));
  merge(scratch.parts, count, traversal.head.size, traversal.outputs.data());
  if (!weighs(traversal)) return;
  for (int q = 0; q < count; q++) weigh(traversal, scratch.parts, q);
}

// Adds one query row's share of each key to what its step weighed.
void Attention::weigh(const Traversal& traversal, const std::vector<Partial>& parts, int query) {
  const Scores kept = scores(traversal);
  const auto [peak, sum] = total_of(parts, query);
  std::vector<float>& weights = traversal.state->weights;
  if (query == 0) weights.assign(kept.stride, 0.0f);
  for (int i = traversal.begin; i < traversal.end; i++) {
    const int row = (traversal.list ? traversal.list[i] : i) * kPanel;
    kernels().add_masses(kept.rows + static_cast<size_t>(query) * kept.stride + row, peak,
                         sum > 0 ? 1.0f / sum : 0.0f, weights.data() + row);
  }
}

// Whoever ends the last look of a search chooses what it visits.
void Attention::look(Scratch& scratch, int thread, int threads) {
  look_turns_.take(thread, threads, [&](int i) {
    Search& search = *looks_[i].search;
    search.look(looks_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    search.choose();
    if (search.visits() == 0) search.finish(scratch);
    const std::lock_guard lock(choosing_);
    for (int index = 0; index < search.visits(); index++) visits_.push_back({&search, index});
  });
}

void Attention::visit(Scratch& scratch) {
  const int total = static_cast<int>(visits_.size());
  for (int i = next_visit_.fetch_add(1); i < total; i = next_visit_.fetch_add(1)) {
    Search& search = *visits_[i].search;
    search.visit(visits_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.finish(scratch);
  }
}

void Attention::work(Scratch& scratch, Team& team, int thread) {
  if (searching_ > 0) {
    look(scratch, thread, team.size());
    team.barrier();  // now all visits are known
    visit(scratch);
  }
  turns_.take(thread, team.size(), [&](int i) {
    const Traversal& traversal = (*traversals_)[chunks_[i].traversal];
    const bool by_codes = coded(traversal);
    if (!whole(traversal)) {
      by_codes ? weigh_codes(traversal, scratch) : walk(traversal, scratch);
      return;
    }
    by_codes ? score(traversal, chunks_[i].index, scratch)
             : attend(traversal, chunks_[i].index, scratch);
    if (left_[chunks_[i].traversal].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    by_codes ? weigh_codes(traversal, scratch) : finish(traversal, scratch);
  });
}

}  // namespace suffice
