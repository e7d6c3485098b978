#include "attention/sequential_traversal.h"

#include <algorithm>
#include <cmath>

#include "attention/reads.h"

namespace suffice {
namespace {

const AttentionRule& rule_of(const Traversal& traversal) {
  static const AttentionRule everything;
  return traversal.rule && !traversal.rule->exact() ? *traversal.rule : everything;
}

bool orders_by_sketch(const Traversal& traversal) {
  return traversal.max_blocks == 0 && rule_of(traversal).needs_sketch();
}

// The estimates of a token, in `memory`.
SketchMasses masses_in(const Traversal& traversal, int row, float* memory) {
  const Visible& visible = traversal.visible[static_cast<size_t>(row) * traversal.group];
  return {visible, traversal.length(row), traversal.group, memory};
}

}  // namespace

size_t SequentialTraversal::plan(Traversal& traversal) {
  size_t floats = partial_floats(static_cast<int>(traversal.queries.size()), traversal.head.size);
  traversal.chunks = 0;
  for (int row = 0; orders_by_sketch(traversal) && row < traversal.tokens(); row++) {
    const SketchMasses masses = masses_in(traversal, row, nullptr);
    traversal.chunks += masses.pieces();
    floats += masses.floats();
  }
  if (traversal.chunks == 0) traversal.chunks = 1;  // with nothing to estimate
  return floats;
}

SequentialTraversal::SequentialTraversal(const Traversal& traversal, float* results,
                                         ScoresAhead& ahead)
    : traversal_(traversal),
      ahead_(ahead),
      rule_(rule_of(traversal)),
      aet_(std::get_if<Aet>(&rule_.technique)),
      by_rows_(aet_ && aet_->by_rows),
      results_(
          partial_at(results, static_cast<int>(traversal.queries.size()), traversal.head.size)) {}

// Estimates lie behind the partial results, token after token.
float* SequentialTraversal::estimates() const {
  const int count = static_cast<int>(traversal_.queries.size());
  return results_.output + partial_floats(count, traversal_.head.size);
}

SketchMasses SequentialTraversal::masses_of(int row) const {
  float* memory = estimates();
  for (int before = 0; before < row; before++)
    memory += masses_in(traversal_, before, nullptr).floats();
  return masses_in(traversal_, row, memory);
}

void SequentialTraversal::work(int chunk, Scratch&) const {
  if (!orders_by_sketch(traversal_)) return;
  float* memory = estimates();
  for (int row = 0; row < traversal_.tokens(); row++) {
    const SketchMasses masses = masses_in(traversal_, row, memory);
    if (chunk < masses.pieces())
      return masses.estimate(traversal_.head, traversal_.queries.data() + row * traversal_.group,
                             chunk);
    chunk -= masses.pieces();
    memory += masses.floats();
  }
}

void SequentialTraversal::finish(Scratch& scratch) {
  const int rows = traversal_.tokens();
  if (traversal_.rule && std::holds_alternative<Aet>(traversal_.rule->technique))
    traversal_.state->drafts.resize(traversal_.step_rows);
  for (int row = 0; row < rows; row++) attend_row(row, scratch);
}

const std::vector<int32_t>& SequentialTraversal::ranked_blocks() const {
  static const std::vector<int32_t> none;
  return traversal_.state ? traversal_.state->order : none;
}

// Whether blocks come in another order than newest first.
bool SequentialTraversal::ranks() const {
  if (rule_.oldest_first()) return false;
  return traversal_.max_blocks > 0 || rule_.needs_sketch() || !ranked_blocks().empty();
}

// Lists the blocks, or rows, that a token always reads; returns their number.
int SequentialTraversal::list_always(int row, int begin, int end, std::vector<int32_t>& to) {
  const Visible& visible = traversal_.visible[row * traversal_.group];
  const int unit = by_rows_ ? 1 : kPanel;
  const int sinks =
      by_rows_ ? visible.sinks : std::min(round_up(traversal_.bounds.sinks, kPanel), end * kPanel);
  to.clear();
  for (int at = 0; at * unit < sinks; at++) to.push_back(at);
  if (aet_) {
    HeadState& head = *traversal_.state;
    const int parent = traversal_.parent_of(row);
    AetState& state = head.drafts[traversal_.row_of(row)];
    state = parent < 0 ? head.committed : head.drafts[parent];
    if (parent < 0) state.truncate(visible.committed);  // less drafts that were not committed
    state.advance(*aet_, traversal_.length(row));
    if (sinks) state.lose(sinks, begin);
    state.list(*aet_, std::max(begin, sinks), to);
  }
  if (by_rows_) std::erase_if(to, [&](int32_t at) { return !visible.sees(at); });  // other drafts
  return static_cast<int>(to.size());
}

// Appends the blocks of [begin, end) that are not in the list yet. Unranked ones come first, newest
// first, except that blocks checked together stay in the order of memory; then the ranked ones.
void SequentialTraversal::list_rest(int begin, int end, const std::vector<int32_t>& ranked,
                                    Scratch& scratch) {
  enum : uint8_t { kUnranked, kRanked, kListed };
  scratch.block_state.assign(end, kUnranked);
  for (const int32_t block : ranked)
    if (block < end) scratch.block_state[block] = kRanked;
  for (const int32_t block : scratch.order) scratch.block_state[block] = kListed;
  const int unit = rule_.never_stops() || rule_.oldest_first() ? end : rule_.check_blocks;
  for (int first = (end - 1) / unit * unit; first + unit > begin; first -= unit)
    for (int block = std::max(first, begin); block < std::min(first + unit, end); block++)
      if (scratch.block_state[block] == kUnranked) scratch.order.push_back(block);
  for (const int32_t block : ranked)
    if (block >= begin && block < end && scratch.block_state[block] == kRanked)
      scratch.order.push_back(block);
}

// Appends the blocks of [begin, end) that a token reads unless it stops earlier; returns the bytes
// read to find their order.
size_t SequentialTraversal::list_others(int row, int begin, int end, Scratch& scratch) {
  const int group = traversal_.group;
  const float* const* queries = traversal_.queries.data() + static_cast<size_t>(row) * group;
  if (traversal_.max_blocks) {
    const int boxes = scratch.ranking.sort(traversal_.head, queries, group, traversal_.boxed, begin,
                                           end, traversal_.max_blocks, scratch.order);
    return boxes * box_bytes(traversal_.head.size);
  }
  if (orders_by_sketch(traversal_)) {
    const SketchMasses masses = masses_of(row);
    scratch.by_sketch.sort(masses);
    list_rest(begin, end, scratch.by_sketch.blocks, scratch);
    return masses.chunks() * sketch_bytes(traversal_.head.size);
  }
  list_rest(begin, end, ranked_blocks(), scratch);
  return 0;
}

// Turns the blocks of the order into the rows that the token sees, each block's newest first, after
// the rows that it always reads.
void SequentialTraversal::list_rows(const Visible& visible, int length, Scratch& scratch) {
  std::vector<int32_t>& rows = scratch.rows;
  scratch.block_state.assign(length, 0);
  for (const int32_t row : rows) scratch.block_state[row] = 1;
  for (const int32_t block : scratch.order)
    for (int row = std::min((block + 1) * kPanel, length) - 1; row >= block * kPanel; row--)
      if (visible.sees(row) && !scratch.block_state[row]) rows.push_back(row);
  std::swap(scratch.order, rows);
}

// Sets the order of a token's blocks, or rows; returns how many are always read. `metadata`: the
// bytes read to find the order.
int SequentialTraversal::list(int row, size_t& metadata, Scratch& scratch) {
  const Visible& visible = traversal_.visible[row * traversal_.group];
  const int length = traversal_.length(row), end = (length + kPanel - 1) / kPanel;
  const int begin = visible.first / kPanel;
  scratch.order.clear();
  const int always = by_rows_ ? list_always(row, visible.first, end, scratch.rows)
                              : list_always(row, begin * kPanel, end, scratch.order);
  metadata = list_others(row, begin, end, scratch);
  if (by_rows_) list_rows(visible, length, scratch);
  if (!rule_.oldest_first()) return always;
  std::vector<int32_t>& order = scratch.order;
  if (!std::is_sorted(order.begin(), order.end())) std::sort(order.begin(), order.end());
  return 0;
}

void SequentialTraversal::attend_row(int row, Scratch& scratch) {
  const int group = traversal_.group, size = traversal_.head.size, first = row * group;
  const Visible& visible = traversal_.visible[first];
  size_t metadata = 0;
  const int always = list(row, metadata, scratch);
  scratch.masses.resize(2 * static_cast<size_t>(always) * group);
  float* const dropped = traversal_.audit.missing ? results_.dropped + first : nullptr;
  const Partial state{results_.peak + first, results_.sum + first, results_.output + first * size,
                      dropped, nullptr};
  const Order order{.blocks = scratch.order.data(),
                    .count = static_cast<int>(scratch.order.size()),
                    .always = always,
                    .ranked = ranks(),
                    .by_rows = by_rows_,
                    .tables = rule_.softmax_tables.empty() ? nullptr : rule_.softmax_tables.data()};
  const Queries& queries =
      scratch.queries.of(traversal_.head, traversal_.queries.data() + first, group);
  float* const floats = scratch.at_least(traverse_scratch(group, size));
  if (!by_rows_)
    ahead_.open({.head = &traversal_.head,
                 .queries = queries,
                 .count = group,
                 .list = order.blocks,
                 .blocks = order.count,
                 .end_row = traversal_.length(row)});
  Reads reads =
      kernels().attention.traverse(traversal_.head, queries, visible, group, order, rule_, state,
                                   ahead_, aet_ ? scratch.masses.data() : nullptr, floats);
  ahead_.close();
  finish_row(row, state, always, scratch);
  reads.sketch_bytes = static_cast<int64_t>(metadata);
  count_reads(traversal_, row, reads);
  scratch.parts.clear();
  if (rule_.softmax_tables.empty()) scratch.parts.push_back(state);
  audit(traversal_, row, scratch.parts, NAN, scratch);
}

// Writes the token's outputs and the masses of the first `always` blocks or rows.
void SequentialTraversal::finish_row(int row, const Partial& state, int always, Scratch& scratch) {
  const int group = traversal_.group, size = traversal_.head.size, first = row * group;
  for (int q = 0; q < group; q++) {
    const float inverse = state.sum[q] > 0 ? 1.0f / state.sum[q] : 0.0f;
    for (int d = 0; d < size; d++)
      traversal_.outputs[first + q][d] = state.output[q * size + d] * inverse;
    for (int i = 0; aet_ && i < always; i++)
      traversal_.state->drafts[traversal_.row_of(row)].add_mass(
          scratch.order[i], scratch.masses[i * group + q] * inverse);
  }
}

}  // namespace suffice
