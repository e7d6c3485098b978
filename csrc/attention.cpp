#include "attention.h"

#include <algorithm>
#include <cmath>

namespace suffice {

namespace {

bool coded(const Traversal& traversal) { return traversal.rule && traversal.rule->coded(); }

// Whether all keys are read: then chunks are independent, else what is read depends on what was.
bool whole(const Traversal& traversal) {
  return !traversal.rule || traversal.rule->exact() || coded(traversal);
}

// Appends the blocks of [begin, end) that are not in the list yet, newest first.
void list_rest(int begin, int end, Scratch& scratch) {
  scratch.taken.assign(end, 0);
  for (const int32_t block : scratch.order) scratch.taken[block] = 1;
  for (int block = end - 1; block >= begin; block--)
    if (!scratch.taken[block]) scratch.order.push_back(block);
}

// Appends the blocks of [begin, end), newest first.
void list_newest(int begin, int end, std::vector<int32_t>& order) {
  for (int block = end - 1; block >= begin; block--) order.push_back(block);
}

}  // namespace

void Attention::plan(std::vector<Traversal>& traversals) {
  traversals_ = &traversals;
  chunks_.clear();
  offsets_.clear();
  size_t floats = 0;
  for (int t = 0; t < static_cast<int>(traversals.size()); t++) {
    Traversal& traversal = traversals[t];
    // Chunks start at multiples of kChunkBlocks of the list, wherever the traversal starts: the
    // split, and so the rounding, depends on the keys alone.
    const int first = traversal.begin / kChunkBlocks;
    const int last = (traversal.end + kChunkBlocks - 1) / kChunkBlocks;
    traversal.chunks = whole(traversal) ? std::max(last - first, 1) : 1;
    for (int i = 0; i < traversal.chunks; i++) chunks_.push_back({t, i});
    offsets_.push_back(floats);
    const size_t count = traversal.queries.size();
    const int kept = coded(traversal) ? kChunkBlocks * kPanel + 1 : traversal.head.size + 2;
    floats += traversal.chunks * count * kept;
  }
  if (partials_.size() < floats) partials_.resize(floats);
  if (left_size_ < traversals.size()) {
    left_size_ = traversals.size();
    left_ = std::make_unique<std::atomic<int>[]>(left_size_);
  }
  for (size_t t = 0; t < traversals.size(); t++) left_[t].store(traversals[t].chunks);
  next_.store(0);
}

Partial Attention::partial(const Traversal& traversal, int chunk) {
  const size_t index = &traversal - traversals_->data();
  const size_t count = traversal.queries.size();
  float* base = partials_.data() + offsets_[index] + chunk * count * (traversal.head.size + 2);
  return {base + count * traversal.head.size, base + count * (traversal.head.size + 1), base};
}

void Attention::attend(const Traversal& traversal, int chunk, Scratch& scratch) {
  const int count = static_cast<int>(traversal.queries.size());
  const int size = traversal.head.size;
  const Partial state = partial(traversal, chunk);
  const int start = (traversal.begin / kChunkBlocks + chunk) * kChunkBlocks;
  const int begin = std::max(start, traversal.begin);
  const int end = std::min(start + kChunkBlocks, traversal.end);
  const size_t needed = attend_scratch(count, size);
  if (scratch.floats.size() < needed) scratch.floats.resize(needed);
  kernels().attend(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                   traversal.list, begin, end, state, scratch.floats.data());
}

// One token after the other: what a token reads may depend on what those before it found.
void Attention::walk(const Traversal& traversal, Scratch& scratch) {
  const int rows = static_cast<int>(traversal.queries.size()) / traversal.group;
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
  const bool sketched = rule.stop == Stop::certified;
  const int first_chunk = (visible.first + kSketchRows - 1) / kSketchRows;
  const int chunks = std::max(sketched ? sketched_chunks(length) - first_chunk : 0, 0);
  if (chunks > 0) {
    list_newest((first_chunk + chunks) * kSketchBlocks, end, scratch.order);
    list_newest(begin, first_chunk * kSketchBlocks, scratch.order);
  }
  const int always = sketched && !chunks ? end - begin : static_cast<int>(scratch.order.size());
  if (chunks > 0)
    scratch.estimates.sort(traversal.head, traversal.queries.data() + at, group, first_chunk,
                           first_chunk + chunks, rule.bounded, scratch.order);
  else
    list_rest(begin, end, scratch);
  scratch.floats.resize(std::max(scratch.floats.size(), traverse_scratch(group, size)));
  scratch.masses.resize(2 * static_cast<size_t>(always) * group);
  const Partial whole = partial(traversal, 0);
  const Partial state{whole.peak + at, whole.sum + at, whole.output + at * size};
  Order order{scratch.order.data(), static_cast<int>(scratch.order.size()), always};
  if (!rule.levels.empty()) order.levels = rule.levels.data();
  if (chunks > 0) {
    order.rest = scratch.estimates.rest();
    order.peaks = scratch.estimates.peaks();
  }
  const Reads reads =
      kernels().traverse(traversal.head, traversal.queries.data() + at, visible, group, order, rule,
                         state, learns ? scratch.masses.data() : nullptr, scratch.floats.data());
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
    traversal.reads->sketch_bytes += chunks * static_cast<int64_t>(sketch_bytes(size));
    traversal.reads->missing = std::max(traversal.reads->missing, reads.missing);
  }
}

// A row counts for every token of the request that it is read for.
void Attention::count_row(const Traversal& traversal, int row, int64_t values) {
  if (!traversal.reads) return;
  const int64_t held = traversal.visible[row * traversal.group].committed + row + 1;
  traversal.reads->key_rows +=
      std::min<int64_t>(traversal.end * kPanel, held) - traversal.begin * kPanel;
  traversal.reads->value_rows += values;
  traversal.reads->held_rows += held;
}

void Attention::merge(const Traversal& traversal) {
  const int tokens = static_cast<int>(traversal.queries.size()) / traversal.group;
  for (int row = 0; row < tokens; row++) {
    const int64_t held = traversal.visible[row * traversal.group].committed + row + 1;
    count_row(traversal, row,
              std::min<int64_t>(traversal.end * kPanel, held) - traversal.begin * kPanel);
  }
  const int count = static_cast<int>(traversal.queries.size());
  const int size = traversal.head.size;
  for (int q = 0; q < count; q++) {
    float peak = -INFINITY;
    for (int i = 0; i < traversal.chunks; i++) peak = std::max(peak, partial(traversal, i).peak[q]);
    float* output = traversal.outputs[q];
    std::fill_n(output, size, 0.0f);
    float sum = 0;
    for (int i = 0; i < traversal.chunks; i++) {
      const Partial part = partial(traversal, i);
      if (part.sum[q] == 0) continue;
      const float factor = part.peak[q] == peak ? 1.0f : std::exp2(part.peak[q] - peak);
      sum += part.sum[q] * factor;
      for (int d = 0; d < size; d++) output[d] += part.output[q * size + d] * factor;
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    for (int d = 0; d < size; d++) output[d] *= inverse;
  }
}

void Attention::work(Scratch& scratch) {
  const int total = static_cast<int>(chunks_.size());
  for (int i = next_.fetch_add(1); i < total; i = next_.fetch_add(1)) {
    const Traversal& traversal = (*traversals_)[chunks_[i].traversal];
    if (!whole(traversal)) {
      walk(traversal, scratch);
      continue;
    }
    const bool by_codes = coded(traversal);
    by_codes ? score(traversal, chunks_[i].index, scratch)
             : attend(traversal, chunks_[i].index, scratch);
    if (left_[chunks_[i].traversal].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    by_codes ? weigh(traversal, scratch) : merge(traversal);
  }
}

}  // namespace suffice
