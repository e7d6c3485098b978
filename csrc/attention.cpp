#include "attention.h"

#include <algorithm>
#include <cmath>

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
  return traversal.rule && traversal.rule->stop == Stop::certified && !traversal.rule->exact();
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
bool ranks(const Traversal& traversal) {
  return traversal.most_blocks > 0 || !ranked_blocks(traversal).empty();
}

// How many rows of those before `held` a traversal reads.
int64_t rows_read(const Traversal& traversal, int held) {
  if (!traversal.list)
    return std::min(traversal.end * kPanel, held) - static_cast<int64_t>(traversal.begin) * kPanel;
  int64_t rows = 0;
  for (int i = traversal.begin; i < traversal.end; i++)
    rows += std::clamp(held - traversal.list[i] * kPanel, 0, kPanel);
  return rows;
}

// Appends the blocks of [begin, end) that are not in the list yet: those that no order ranks newest
// first, but what the rule looks at together in the order in which it lies; then the ranked ones.
void list_rest(const Rule& rule, int begin, int end, const std::vector<int32_t>& ranked,
               Scratch& scratch) {
  scratch.taken.assign(end, 0);
  for (const int32_t block : scratch.order) scratch.taken[block] = 1;
  const int unranked = std::max(begin, static_cast<int>(ranked.size()));
  const int unit = rule.never_stops() ? end : rule.look_blocks;
  for (int first = (end - 1) / unit * unit; first + unit > unranked; first -= unit)
    for (int block = std::max(first, unranked); block < std::min(first + unit, end); block++)
      if (!scratch.taken[block]) scratch.order.push_back(block);
  for (const int32_t block : ranked)
    if (block >= begin && block < end && !scratch.taken[block]) scratch.order.push_back(block);
}

}  // namespace

void Attention::plan(std::vector<Traversal>& traversals) {
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
    // Chunks start at multiples of kChunkBlocks of the list, wherever the traversal starts: the
    // split, and so the rounding, depends on the keys alone.
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
  next_.store(0);
  next_look_.store(0);
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
  const int size = traversal.head.size;
  const Partial state = partial(traversal, chunk);
  const int start = (traversal.begin / kChunkBlocks + chunk) * kChunkBlocks;
  const int begin = std::max(start, traversal.begin);
  const int end = std::min(start + kChunkBlocks, traversal.end);
  kernels().attend(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                   traversal.list, begin, end, state, scratch.at_least(attend_scratch(count, size)),
                   scores(traversal));
}

// One token after the other: what a token reads may depend on what those before it found.
void Attention::walk(const Traversal& traversal, Scratch& scratch) {
  const int rows = traversal.tokens();
  if (traversal.rule && traversal.rule->stop == Stop::aet) traversal.state->drafts.resize(rows);
  for (int row = 0; row < rows; row++) walk_row(traversal, row, scratch);
}

void Attention::walk_row(const Traversal& traversal, int row, Scratch& scratch) {
  static const Rule none;
  const Rule& rule = traversal.rule && !traversal.rule->exact() ? *traversal.rule : none;
  const int group = traversal.group, size = traversal.head.size, at = row * group;
  const Visible& visible = traversal.visible[at];
  const int length = visible.committed + row + 1;
  const int begin = visible.first / kPanel;
  const bool learns = rule.stop == Stop::aet;
  scratch.order.clear();
  const int end = (length + kPanel - 1) / kPanel;
  const int sinks = list_sinks(traversal, end, scratch.order);
  if (learns) {
    Known& known = traversal.state->drafts[row];
    const int parent = parent_of(visible, row);
    known = parent < 0 ? traversal.state->committed : traversal.state->drafts[parent];
    known.advance(rule, length);
    if (sinks) known.lose(sinks, begin);
    known.list(rule, std::max(begin, sinks), scratch.order);
  }
  const int always = static_cast<int>(scratch.order.size());
  int boxes = 0;
  if (traversal.most_blocks)
    boxes = scratch.ranking.sort(traversal.head, traversal.queries.data() + at, group,
                                 traversal.boxed, begin, end, traversal.most_blocks, scratch.order);
  else
    list_rest(rule, begin, end, ranked_blocks(traversal), scratch);
  scratch.masses.resize(2 * static_cast<size_t>(always) * group);
  const Partial whole = partial(traversal, 0);
  const Partial state{whole.peak + at, whole.sum + at, whole.output + at * size, nullptr, nullptr};
  const Order order{scratch.order.data(), static_cast<int>(scratch.order.size()), always,
                    ranks(traversal), rule.levels.empty() ? nullptr : rule.levels.data()};
  const Reads reads = kernels().traverse(
      traversal.head, traversal.queries.data() + at, visible, group, order, rule, state,
      learns ? scratch.masses.data() : nullptr, scratch.at_least(traverse_scratch(group, size)));
  for (int q = 0; q < group; q++) {
    const float inverse = state.sum[q] > 0 ? 1.0f / state.sum[q] : 0.0f;
    for (int d = 0; d < size; d++)
      traversal.outputs[at + q][d] = state.output[q * size + d] * inverse;
    for (int i = 0; learns && i < always; i++)
      traversal.state->drafts[row].add_mass(scratch.order[i],
                                            scratch.masses[i * group + q] * inverse);
  }
  add_reads(traversal,
            {reads.key_rows, reads.value_rows, reads.alone_rows, length + traversal.bounds.removed,
             boxes * static_cast<int64_t>(box_bytes(size))});
}

void Attention::add_reads(const Traversal& traversal, const Reads& found) {
  if (!traversal.reads) return;
  Reads& reads = *traversal.reads;
  reads.key_rows += found.key_rows;
  reads.value_rows += found.value_rows;
  reads.alone_rows += found.alone_rows;
  reads.held_rows += found.held_rows;
  reads.sketch_bytes += found.sketch_bytes;
}

// A row counts for every token of the request that it is read for.
void Attention::count_row(const Traversal& traversal, int row, const ValueReads& values) {
  const int held = traversal.visible[row * traversal.group].committed + row + 1;
  add_reads(traversal, {rows_read(traversal, held), values.rows, values.alone,
                        held + traversal.bounds.removed});
}

void Attention::finish(const Traversal& traversal) {
  for (int row = 0; row < traversal.tokens(); row++) {
    const int held = traversal.visible[row * traversal.group].committed + row + 1;
    const int64_t rows = rows_read(traversal, held);
    count_row(traversal, row, {rows, rows * traversal.group});
  }
  const int count = static_cast<int>(traversal.queries.size());
  std::vector<Partial> parts;
  for (int i = 0; i < traversal.chunks; i++) parts.push_back(partial(traversal, i));
  merge(parts, count, traversal.head.size, traversal.outputs.data());
  if (!weighs(traversal)) return;
  for (int q = 0; q < count; q++) weigh(traversal, parts, q);
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
void Attention::look(Scratch& scratch) {
  const int total = static_cast<int>(looks_.size());
  for (int i = next_look_.fetch_add(1); i < total; i = next_look_.fetch_add(1)) {
    Search& search = *looks_[i].search;
    search.look(looks_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    search.choose();
    if (search.visits() == 0) search.finish(scratch);
    const std::lock_guard lock(choosing_);
    for (int index = 0; index < search.visits(); index++) visits_.push_back({&search, index});
  }
}

void Attention::visit(Scratch& scratch) {
  const int total = static_cast<int>(visits_.size());
  for (int i = next_visit_.fetch_add(1); i < total; i = next_visit_.fetch_add(1)) {
    Search& search = *visits_[i].search;
    search.visit(visits_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.finish(scratch);
  }
}

void Attention::work(Scratch& scratch, Team& team) {
  if (searching_ > 0) {
    look(scratch);
    team.barrier();  // now all visits are known
    visit(scratch);
  }
  const int total = static_cast<int>(chunks_.size());
  for (int i = next_.fetch_add(1); i < total; i = next_.fetch_add(1)) {
    const Traversal& traversal = (*traversals_)[chunks_[i].traversal];
    const bool by_codes = coded(traversal);
    if (!whole(traversal)) {
      by_codes ? weigh_codes(traversal, scratch) : walk(traversal, scratch);
      continue;
    }
    by_codes ? score(traversal, chunks_[i].index, scratch)
             : attend(traversal, chunks_[i].index, scratch);
    if (left_[chunks_[i].traversal].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    by_codes ? weigh_codes(traversal, scratch) : finish(traversal);
  }
}

}  // namespace suffice
