#include "attention/coded_traversal.h"

#include <algorithm>
#include <cmath>

#include "attention/reads.h"

namespace suffice {
namespace {

bool has_tail(const std::vector<SoftmaxTable>& tables) {
  return std::any_of(tables.begin(), tables.end(),
                     [](const SoftmaxTable& table) { return table.weights[0] != 0; });
}

// Whether the sum of all values that a token sees is kept. It cannot be where tentative rows have
// left a small window: which ones left is not stored.
bool summable(const Visible& visible) {
  return visible.first == 0 || visible.first < visible.committed;
}

}  // namespace

size_t CodedTraversal::plan(Traversal& traversal) {
  traversal.chunks = traversal.max_blocks ? 1 : traversal.whole_chunks();
  return traversal.chunks * traversal.queries.size() * (kChunkBlocks * kPanel + 1);
}

CodedTraversal::CodedTraversal(const Traversal& traversal, float* results)
    : traversal_(traversal),
      tables_(traversal.rule->softmax_tables),
      count_(static_cast<int>(traversal.queries.size())),
      tiles_(results),
      peaks_(results + static_cast<size_t>(traversal.chunks) * count_ * kChunkBlocks * kPanel) {}

void CodedTraversal::work(int chunk, Scratch& scratch) {
  if (traversal_.max_blocks) return;
  const int first = traversal_.begin / kChunkBlocks * kChunkBlocks;
  const Range blocks = traversal_.chunk(chunk);
  const Queries& queries = scratch.queries.of(traversal_.head, traversal_.queries.data(), count_);
  kernels().search.score_tiles(traversal_.head, queries, traversal_.visible.data(), count_,
                               traversal_.list, blocks.begin, blocks.end,
                               tiles_ + static_cast<size_t>(blocks.begin - first) * kPanel * count_,
                               peaks_ + static_cast<size_t>(chunk) * count_);
}

void CodedTraversal::finish(Scratch& scratch) {
  const int rows = traversal_.tokens();
  if (traversal_.first_round) traversal_.sums->drafts.assign(traversal_.step_rows, {});
  for (int row = 0; row < rows; row++)
    traversal_.max_blocks ? finish_chosen(row, scratch) : finish_row(row, scratch);
}

void CodedTraversal::finish_row(int row, Scratch& scratch) {
  const int group = traversal_.group, first = row * group;
  const Visible& visible = traversal_.visible[first];
  const Partial state = token_state(scratch);
  for (int q = 0; q < group; q++) {
    state.peak[q] = peaks_[first + q];
    for (int i = 1; i < traversal_.chunks; i++)
      state.peak[q] = std::max(state.peak[q], peaks_[i * count_ + first + q]);
  }
  const size_t skipped = traversal_.begin % kChunkBlocks * static_cast<size_t>(kPanel) * count_;
  const bool summed = has_tail(tables_) && summable(visible);
  const ValueReads summing = summed ? sum_values(row) : ValueReads{};
  const CodedTiles tiles{.scores = tiles_ + skipped + first * kTileRows,
                         .stride = count_ * kTileRows,
                         .list = traversal_.list,
                         .begin = traversal_.begin,
                         .end = traversal_.end,
                         .keys = visible.rows(),
                         .summed = summed};
  const ValueReads read = weigh_tiles(row, tiles, state, scratch);
  count_reads(traversal_, row,
              {traversal_.rows_before(traversal_.length(row)), summing.rows + read.rows,
               summing.per_head + read.per_head});
}

// Attends to the blocks that boxes select for the token; every key of these is read.
void CodedTraversal::finish_chosen(int row, Scratch& scratch) {
  const KVHead& head = traversal_.head;
  const int group = traversal_.group, first = row * group;
  const Visible& visible = traversal_.visible[first];
  const int length = traversal_.length(row), begin = visible.first / kPanel;
  const int end = (length + kPanel - 1) / kPanel;
  const float* const* queries = traversal_.queries.data() + first;
  scratch.order.clear();
  const int boxes = scratch.ranking.sort(head, queries, group, traversal_.boxed, begin, end,
                                         traversal_.max_blocks, scratch.order);
  const int chosen = static_cast<int>(scratch.order.size());
  const Partial state = token_state(scratch);
  scratch.scores.resize(static_cast<size_t>(round_up(chosen, kTileBlocks)) * kPanel * group);
  kernels().search.score_tiles(head, scratch.queries.of(head, queries, group), &visible, group,
                               scratch.order.data(), 0, chosen, scratch.scores.data(), state.peak);
  int64_t keys = 0, seen = 0;
  for (const int32_t block : scratch.order)
    for (int i = block * kPanel; i < std::min((block + 1) * kPanel, length); i++) {
      keys++;
      seen += visible.sees(i);
    }
  const bool summed = chosen == end - begin && has_tail(tables_);
  const ValueReads summing = summed ? sum_values(row) : ValueReads{};
  const CodedTiles tiles{.scores = scratch.scores.data(),
                         .stride = group * kTileRows,
                         .list = scratch.order.data(),
                         .begin = 0,
                         .end = chosen,
                         .keys = seen,
                         .summed = summed};
  const ValueReads read = weigh_tiles(row, tiles, state, scratch);
  count_reads(traversal_, row,
              {keys, summing.rows + read.rows, summing.per_head + read.per_head, 0,
               boxes * static_cast<int64_t>(box_bytes(head.size))});
}

// Extends the sum of the values that a token sees up to its row.
ValueReads CodedTraversal::sum_values(int row) {
  const KVHead& head = traversal_.head;
  const Visible& visible = traversal_.visible[row * traversal_.group];
  ValueSums& sums = *traversal_.sums;
  const int parent = traversal_.parent_of(row);
  int read = parent < 0 ? sums.committed.all.extend(head, 0, visible.committed) : 0;
  SeenValues& seen = sums.drafts[traversal_.row_of(row)];
  seen = parent < 0 ? sums.committed : sums.drafts[parent];
  seen.all.add_row(head, traversal_.own_row(row));
  const int sinks = traversal_.bounds.sinks;
  read += 1 + seen.hidden.extend(head, sinks, std::max(visible.first, sinks));
  return {read, static_cast<int64_t>(read) * traversal_.group};
}

// Space for a token's output, after the scratch that the kernels need.
Partial CodedTraversal::token_state(Scratch& scratch) const {
  const int group = traversal_.group, size = traversal_.head.size;
  const size_t before = std::max(attend_scratch(group, size), coded_scratch(group));
  return partial_at(scratch.at_least(before + partial_floats(group, size)) + before, group, size);
}

// Computes a token's output and its keys' weights from scores and the peaks in `state`.
ValueReads CodedTraversal::weigh_tiles(int row, const CodedTiles& tiles, const Partial& state,
                                       Scratch& scratch) {
  const KVHead& head = traversal_.head;
  const int group = traversal_.group, first = row * group;
  const ValueReads read = kernels().search.add_coded(
      head, traversal_.visible[first], tables_.data(), group, tiles, state, scratch.floats.data());
  const SeenValues& sum = traversal_.sums->drafts[traversal_.row_of(row)];
  for (int q = 0; q < group; q++) {
    const double inverse = 1.0 / state.sum[q], lowest = tables_[q].weights[0];
    for (int d = 0; d < head.size; d++) {
      const double tail = tiles.summed ? lowest * sum.at(d) : 0.0;
      traversal_.outputs[first + q][d] =
          static_cast<float>((tail + state.output[q * head.size + d]) * inverse);
    }
  }
  if (head.masses && traversal_.state) {
    std::vector<float>& weights = traversal_.state->weights;
    weights.assign(round_up(traversal_.rows_end, kPanel), 0.0f);
    kernels().search.add_coded_masses(head, tables_.data(), group, tiles, state, weights.data());
  }
  audit(traversal_, row, {}, NAN, scratch);
  return read;
}

}  // namespace suffice
