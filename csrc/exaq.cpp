// Attention by codes of few bits: scores by chunks, like those of exact attention; whoever finishes
// the last chunk of a head weighs its values, which are few.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "audit.h"

namespace suffice {

int ValueSum::extend(const Head& head, int begin, int end) {
  if (begin != begin_ || end < end_) {
    begin_ = end_ = begin;
    total_.clear();
  }
  const int first = end_;
  while (end_ < end) add_row(head, end_);
  return end_ - first;
}

void ValueSum::add_row(const Head& head, int row) {
  add(head, row, 1.0);
  end_++;
}

void ValueSum::replace(const Head& head, int row, int by) {
  if (row < begin_ || row >= end_) return;
  add(head, by, 1.0);
  add(head, row, -1.0);
}

void ValueSum::add(const Head& head, int row, double factor) {
  if (total_.empty()) total_.assign(head.size, 0.0);
  float value[kMostSize];
  kernels().load_rows(head, row, 1, nullptr, value);
  for (int d = 0; d < head.size; d++) total_[d] += factor * value[d];
}

void ValueSum::truncate(int length) {
  if (end_ <= length) return;
  begin_ = end_ = 0;  // what is subtracted would leave its rounding behind
  total_.clear();
}

namespace {

bool has_tail(const std::vector<SoftmaxTable>& levels) {
  return std::any_of(levels.begin(), levels.end(),
                     [](const SoftmaxTable& each) { return each.weights[0] != 0; });
}

// Whether the sum of all values that a token sees is kept. Of tentative rows that have left a small
// window it is not known which they were.
bool summable(const Visible& visible) {
  return visible.first == 0 || visible.first < visible.committed;
}

}  // namespace

Attention::CodedScores Attention::coded_scores(const Traversal& traversal) {
  const size_t index = &traversal - traversals_->data();
  const size_t count = traversal.queries.size();
  float* base = partials_.data() + offsets_[index];
  return {base, base + traversal.chunks * count * kChunkBlocks * kPanel};
}

void Attention::score(const Traversal& traversal, int chunk, Scratch& scratch) {
  const int count = static_cast<int>(traversal.queries.size());
  const int first = traversal.begin / kChunkBlocks * kChunkBlocks;
  const Range blocks = traversal.chunk(chunk);
  const CodedScores to = coded_scores(traversal);
  kernels().score_tiles(traversal.head, traversal.queries.data(), traversal.visible.data(), count,
                        traversal.list, blocks.begin, blocks.end,
                        to.tiles + static_cast<size_t>(blocks.begin - first) * kPanel * count,
                        to.peaks + static_cast<size_t>(chunk) * count,
                        scratch.at_least(attend_scratch(count, traversal.head.size)));
}

void Attention::weigh_codes(const Traversal& traversal, Scratch& scratch) {
  const int rows = traversal.tokens();
  traversal.sums->drafts.assign(rows, {});
  for (int row = 0; row < rows; row++)
    traversal.most_blocks ? weigh_chosen(traversal, row, scratch)
                          : weigh_row(traversal, row, scratch);
}

void Attention::weigh_row(const Traversal& traversal, int row, Scratch& scratch) {
  const int group = traversal.group, at = row * group;
  const int count = static_cast<int>(traversal.queries.size());
  const Visible& visible = traversal.visible[at];
  const Partial state = coded_state(traversal, scratch);
  const CodedScores from = coded_scores(traversal);
  for (int q = 0; q < group; q++) {
    state.peak[q] = from.peaks[at + q];
    for (int i = 1; i < traversal.chunks; i++)
      state.peak[q] = std::max(state.peak[q], from.peaks[i * count + at + q]);
  }
  const size_t skipped = traversal.begin % kChunkBlocks * static_cast<size_t>(kPanel) * count;
  const bool summed = has_tail(traversal.rule->softmax_tables) && summable(visible);
  const ValueReads summing = summed ? sum_values(traversal, row) : ValueReads{};
  const ValueReads read =
      weigh_tiles(traversal, row,
                  {from.tiles + skipped + at * kTileRows, count * kTileRows, traversal.list,
                   traversal.begin, traversal.end, visible.rows(), summed},
                  state, scratch);
  count_reads(traversal, row,
              {traversal.rows_before(traversal.length(row)), summing.rows + read.rows,
               summing.alone + read.alone});
}

// Boxes choose the blocks of the token: of these every key is read.
void Attention::weigh_chosen(const Traversal& traversal, int row, Scratch& scratch) {
  const Head& head = traversal.head;
  const int group = traversal.group, at = row * group;
  const Visible& visible = traversal.visible[at];
  const int held = traversal.length(row), begin = visible.first / kPanel;
  const int end = (held + kPanel - 1) / kPanel;
  const float* const* queries = traversal.queries.data() + at;
  scratch.order.clear();
  const int boxes = scratch.ranking.sort(head, queries, group, traversal.boxed, begin, end,
                                         traversal.most_blocks, scratch.order);
  const int chosen = static_cast<int>(scratch.order.size());
  const Partial state = coded_state(traversal, scratch);
  scratch.scores.resize(static_cast<size_t>(round_up(chosen, kTileBlocks)) * kPanel * group);
  kernels().score_tiles(head, queries, &traversal.visible[at], group, scratch.order.data(), 0,
                        chosen, scratch.scores.data(), state.peak, scratch.floats.data());
  int64_t keys = 0, seen = 0;
  for (const int32_t block : scratch.order)
    for (int i = block * kPanel; i < std::min((block + 1) * kPanel, held); i++) {
      keys++;
      seen += visible.sees(i);
    }
  const bool summed = chosen == end - begin && has_tail(traversal.rule->softmax_tables);
  const ValueReads summing = summed ? sum_values(traversal, row) : ValueReads{};
  const ValueReads read = weigh_tiles(
      traversal, row,
      {scratch.scores.data(), group * kTileRows, scratch.order.data(), 0, chosen, seen, summed},
      state, scratch);
  count_reads(traversal, row,
              {keys, summing.rows + read.rows, summing.alone + read.alone, 0,
               boxes * static_cast<int64_t>(box_bytes(head.size))});
}

// Brings the sum of the values that a token sees up to its row.
ValueReads Attention::sum_values(const Traversal& traversal, int row) {
  const Head& head = traversal.head;
  const Visible& visible = traversal.visible[row * traversal.group];
  ValueSums& sums = *traversal.sums;
  const int parent = parent_of(visible, row);
  int read = parent < 0 ? sums.committed.all.extend(head, 0, visible.committed) : 0;
  SeenValues& own = sums.drafts[row];
  own = parent < 0 ? sums.committed : sums.drafts[parent];
  own.all.add_row(head, visible.committed + row);
  const int sinks = traversal.bounds.sinks;
  read += 1 + own.hidden.extend(head, sinks, std::max(visible.first, sinks));
  return {read, static_cast<int64_t>(read) * traversal.group};
}

// Room for a token's output and, before it, for what the kernels need.
Partial Attention::coded_state(const Traversal& traversal, Scratch& scratch) {
  const int group = traversal.group, size = traversal.head.size;
  const size_t before = std::max(attend_scratch(group, size), coded_scratch(group));
  return partial_at(scratch.at_least(before + partial_floats(group, size)) + before, group, size);
}

// A token's output and what its keys weighed, from their scores and the peaks in `state`.
ValueReads Attention::weigh_tiles(const Traversal& traversal, int row, const CodedTiles& tiles,
                                  const Partial& state, Scratch& scratch) {
  const Head& head = traversal.head;
  const int group = traversal.group, at = row * group;
  const Visible& visible = traversal.visible[at];
  const std::vector<SoftmaxTable>& levels = traversal.rule->softmax_tables;
  const ValueReads read =
      kernels().add_coded(head, visible, levels.data(), group, tiles, state, scratch.floats.data());
  const SeenValues& sum = traversal.sums->drafts[row];
  for (int q = 0; q < group; q++) {
    const double inverse = 1.0 / state.sum[q], lowest = levels[q].weights[0];
    for (int d = 0; d < head.size; d++) {
      const double tail = tiles.summed ? lowest * sum.at(d) : 0.0;
      traversal.outputs[at + q][d] =
          static_cast<float>((tail + state.output[q * head.size + d]) * inverse);
    }
  }
  if (head.masses && traversal.state) {
    std::vector<float>& weights = traversal.state->weights;
    weights.assign(round_up(traversal.rows_end, kPanel), 0.0f);
    kernels().add_coded_masses(head, levels.data(), group, tiles, state, weights.data());
  }
  audit(traversal, row, {}, NAN, scratch);
  return read;
}

}  // namespace suffice
