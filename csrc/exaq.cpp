// Attention by codes of few bits to every key: scores by chunks, like those of exact attention;
// whoever finishes the last chunk of a head weighs its values, which are few.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "audit.h"

namespace suffice {

int ValueSum::extend(const Head& head, int end) {
  if (rows_ > end) truncate(0);
  const int first = rows_;
  while (rows_ < end) add_row(head, rows_);
  return end - first;
}

void ValueSum::add_row(const Head& head, int row) {
  if (total_.empty()) total_.assign(head.size, 0.0);
  std::vector<float> value(head.size);
  kernels().load_rows(head, row, 1, nullptr, value.data());
  for (int d = 0; d < head.size; d++) total_[d] += value[d];
  rows_++;
}

void ValueSum::truncate(int length) {
  if (rows_ <= length) return;
  rows_ = 0;  // what is subtracted would leave its rounding behind
  total_.clear();
}

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
                        blocks.begin, blocks.end,
                        to.tiles + static_cast<size_t>(blocks.begin - first) * kPanel * count,
                        to.peaks + static_cast<size_t>(chunk) * count,
                        scratch.at_least(attend_scratch(count, traversal.head.size)));
}

void Attention::weigh_codes(const Traversal& traversal, Scratch& scratch) {
  const int rows = traversal.tokens();
  traversal.sums->drafts.resize(rows);
  for (int row = 0; row < rows; row++) weigh_row(traversal, row, scratch);
}

void Attention::weigh_row(const Traversal& traversal, int row, Scratch& scratch) {
  const Head& head = traversal.head;
  const int group = traversal.group, size = head.size, at = row * group;
  const int count = static_cast<int>(traversal.queries.size());
  const Visible& visible = traversal.visible[at];
  const std::vector<Levels>& levels = traversal.rule->levels;
  int64_t read = 0;
  bool summed = false;
  if (visible.first == 0)
    for (const Levels& each : levels) summed |= each.weights[0] != 0;
  ValueSum& sum = traversal.sums->drafts[row];
  if (summed) {
    const int parent = parent_of(visible, row);
    if (parent < 0) read += traversal.sums->committed.extend(head, visible.committed);
    sum = parent < 0 ? traversal.sums->committed : traversal.sums->drafts[parent];
    sum.add_row(head, visible.committed + row);
    read++;
  }
  float* const floats = scratch.at_least(coded_scratch(group) + partial_floats(group, size));
  const Partial state = partial_at(floats + coded_scratch(group), group, size);
  const CodedScores from = coded_scores(traversal);
  for (int q = 0; q < group; q++) {
    state.peak[q] = from.peaks[at + q];
    for (int i = 1; i < traversal.chunks; i++)
      state.peak[q] = std::max(state.peak[q], from.peaks[i * count + at + q]);
  }
  const size_t skipped = traversal.begin % kChunkBlocks * static_cast<size_t>(kPanel) * count;
  read += kernels().add_coded(head, visible, levels.data(), group, traversal.begin, traversal.end,
                              from.tiles + skipped + at * kTileRows, count * kTileRows, summed,
                              state, floats);
  for (int q = 0; q < group; q++) {
    const double inverse = 1.0 / state.sum[q], lowest = levels[q].weights[0];
    for (int d = 0; d < size; d++) {
      const double tail = summed ? lowest * sum.total()[d] : 0.0;
      traversal.outputs[at + q][d] =
          static_cast<float>((tail + state.output[q * size + d]) * inverse);
    }
  }
  const int64_t keys = traversal.rows_before(traversal.length(row));
  count_reads(traversal, row, {.key_rows = keys, .value_rows = read});
  audit(traversal, row, {}, NAN, scratch);
}

}  // namespace suffice
