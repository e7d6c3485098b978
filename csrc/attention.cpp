#include "attention.h"

#include <algorithm>
#include <cmath>

namespace suffice {

namespace {

// Whether everything is read: then chunks are independent, else what is read depends on what was.
bool whole(const Traversal& traversal) { return !traversal.rule || traversal.rule->exact(); }

bool searched(const Traversal& traversal) {
  return !whole(traversal) && traversal.rule->stop == Stop::certified;
}

// Appends the blocks of [begin, end) that are not in the list yet: newest first those that the rule
// looks at together, which are read in the order in which they lie.
void list_rest(const Rule& rule, int begin, int end, Scratch& scratch) {
  scratch.taken.assign(end, 0);
  for (const int32_t block : scratch.order) scratch.taken[block] = 1;
  const int unit = rule.never_stops() ? end : rule.look_blocks;
  for (int first = (end - 1) / unit * unit; first + unit > begin; first -= unit)
    for (int block = std::max(first, begin); block < std::min(first + unit, end); block++)
      if (!scratch.taken[block]) scratch.order.push_back(block);
}

// The last of a tentative row's ancestors, -1 for none.
int parent_of(const Visible& visible, int row) {
  const uint32_t before = visible.tentative & ((uint32_t{1} << row) - 1);
  return before ? 31 - __builtin_clz(before) : -1;
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
    floats += traversal.chunks * partial_floats(count, traversal.head.size);
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

void Attention::attend(const Traversal& traversal, int chunk, Scratch& scratch) {
  const int count = static_cast<int>(traversal.queries.size());
  const int size = traversal.head.size;
  const Partial state = partial(traversal, chunk);
  const int start = (traversal.begin / kChunkBlocks + chunk) * kChunkBlocks;
  const int begin = std::max(start, traversal.begin);
  const int end = std::min(start + kChunkBlocks, traversal.end);
  kernels().attend(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                   traversal.list, begin, end, state,
                   scratch.at_least(attend_scratch(count, size)));
}

// One token after the other: what a token reads may depend on what those before it found.
void Attention::walk(const Traversal& traversal, Scratch& scratch) {
  const int rows = traversal.tokens();
  if (traversal.rule->stop == Stop::aet) traversal.state->drafts.resize(rows);
  for (int row = 0; row < rows; row++) walk_row(traversal, row, scratch);
}

void Attention::walk_row(const Traversal& traversal, int row, Scratch& scratch) {
  const Rule& rule = *traversal.rule;
  const int group = traversal.group, size = traversal.head.size, at = row * group;
  const Visible& visible = traversal.visible[at];
  const int length = visible.committed + row + 1;
  const int begin = visible.first / kPanel;
  const bool learns = rule.stop == Stop::aet;
  scratch.order.clear();
  if (learns) {
    Known& known = traversal.state->drafts[row];
    const int parent = parent_of(visible, row);
    known = parent < 0 ? traversal.state->committed : traversal.state->drafts[parent];
    known.advance(rule, length);
    known.list(rule, begin, scratch.order);
  }
  const int end = (length + kPanel - 1) / kPanel;
  const int always = static_cast<int>(scratch.order.size());
  list_rest(rule, begin, end, scratch);
  scratch.masses.resize(2 * static_cast<size_t>(always) * group);
  const Partial whole = partial(traversal, 0);
  const Partial state{whole.peak + at, whole.sum + at, whole.output + at * size, nullptr, nullptr};
  const Order order{scratch.order.data(), static_cast<int>(scratch.order.size()), always};
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
  if (traversal.reads) {
    traversal.reads->key_rows += reads.key_rows;
    traversal.reads->value_rows += reads.value_rows;
    traversal.reads->held_rows += length;
  }
}

void Attention::finish(const Traversal& traversal) {
  // A row counts for every token of the request that it is read for.
  for (int row = 0; traversal.reads && row < traversal.tokens(); row++) {
    const int64_t held = traversal.visible[row * traversal.group].committed + row + 1;
    const int64_t read = std::min<int64_t>(traversal.end * kPanel, held) - traversal.begin * kPanel;
    traversal.reads->key_rows += read;
    traversal.reads->value_rows += read;
    traversal.reads->held_rows += held;
  }
  std::vector<Partial> parts;
  for (int i = 0; i < traversal.chunks; i++) parts.push_back(partial(traversal, i));
  merge(parts, static_cast<int>(traversal.queries.size()), traversal.head.size,
        traversal.outputs.data());
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
    if (!whole(traversal)) {
      walk(traversal, scratch);
      continue;
    }
    attend(traversal, chunks_[i].index, scratch);
    if (left_[chunks_[i].traversal].fetch_sub(1, std::memory_order_acq_rel) == 1) finish(traversal);
  }
}

}  // namespace suffice
