#include "search.h"

#include <algorithm>
#include <cmath>

#include "audit.h"
#include "sketch_order.h"

namespace suffice {
namespace {

constexpr int kLookChunks = 16;  // sketched chunks that one thread looks at at a time
// Sums in float32 of thousands of masses, relative to the whole.
constexpr double kSumError = 1e-5;
}  // namespace

void Search::begin(const Traversal& traversal, int row) {
  traversal_ = &traversal;
  rule_ = traversal.rule->certified();
  value_share_ = traversal.rule->value_share;
  count_ = traversal.group;
  at_ = row * count_;
  queries_ = traversal.queries.data() + at_;
  visible_ = traversal.visible[at_];
  row_ = row;
  length_ = traversal.length(row);
  estimates_.count = count_;
  set_chunks(visible_, length_, estimates_);
  looks_ = 1 + (estimates_.chunks + kLookChunks - 1) / kLookChunks;
  visits_ = 0;
  left.store(looks_);
  list_newest();
  size_buffers();
}

// Blocks that no complete chunk holds: the sinks, the oldest of a window, and the newest.
void Search::list_newest() {
  const int sinks = round_up(visible_.sinks, kPanel) / kPanel;
  const int begin = std::max(visible_.first / kPanel, sinks);
  const int end = (length_ + kPanel - 1) / kPanel;
  newest_.clear();
  for (int block = 0; block < sinks; block++) newest_.push_back(block);
  const int first = estimates_.first * kSketchBlocks;
  const int last = first + estimates_.chunks * kSketchBlocks;
  const bool none = estimates_.chunks == 0;
  for (int block = begin; block < end; block++)
    if (none || block < first || block >= last) newest_.push_back(block);
}

void Search::size_buffers() {
  const bool bounded = rule_->bounded;
  const size_t floats = count_ * estimates_.blocks();
  // What lies beyond the chunks must weigh nothing, so it is all zero.
  estimated_.assign(floats * (bounded ? 3 : 2), 0.0f);
  estimates_.masses = estimated_.data();
  estimates_.peaks = estimates_.masses + floats;
  estimates_.bounds = bounded ? estimates_.peaks + floats : nullptr;
  for (auto* each : {&peaks_, &totals_, &floors_}) each->resize(count_);
  known_.resize(count_);
  found_.assign(static_cast<size_t>(looks_) * count_, -INFINITY);
  shares_.resize(estimates_.blocks());
  rest_.assign(count_, 0.0);
  // The newest, and two rounds of chosen ones.
  const size_t parts = 3 + estimates_.chunks * kSketchBlocks / kVisitBlocks + 1;
  const size_t result = partial_floats(count_, traversal_->head.size);
  results_.resize(parts * result);
  visited_.assign(parts, Visited{});
  parts_.clear();
  for (size_t i = 0; i < parts; i++)
    parts_.push_back(partial_at(results_.data() + i * result, count_, traversal_->head.size));
}

void Search::read(int part, const int32_t* list, int begin, int end, const Filter& filter,
                  Scratch& scratch) {
  float* const floats = scratch.at_least(traverse_scratch(count_, traversal_->head.size));
  visited_[part] = kernels().visit(traversal_->head, queries_, visible_, count_, list, begin, end,
                                   filter, parts_[part], floats);
}

void Search::look(int item, Scratch& scratch) {
  if (item == 0)
    return read(0, newest_.data(), 0, static_cast<int>(newest_.size()), Filter{}, scratch);
  const int begin = (item - 1) * kLookChunks;
  kernels().estimate(traversal_->head, queries_, begin,
                     std::min(begin + kLookChunks, estimates_.chunks), estimates_,
                     &found_[static_cast<size_t>(item) * count_]);
}

// A weight of 1 at this peak in units of the estimates.
double Search::in_units(float peak, int q) const { return std::exp2(double{peak} - peaks_[q]); }

void Search::choose() {
  if (estimates_.chunks == 0) return;
  for (int q = 0; q < count_; q++) {
    peaks_[q] = -INFINITY;
    for (int i = 1; i < looks_; i++) peaks_[q] = std::max(peaks_[q], found_[i * count_ + q]);
    if (value_share_ > 0)
      floors_[q] = std::max(peaks_[q], parts_[0].greatest[q]) + std::log2(value_share_);
  }
  kernels().combine(estimates_, peaks_.data(), totals_.data(), shares_.data());
  sort_by_share(shares_.data(), estimates_.chunks * kSketchBlocks, buckets_, sorted_);
  next_ = 0;
  for (int q = 0; q < count_; q++) {
    known_[q] = parts_[0].sum[q] * in_units(parts_[0].peak[q], q);
    const float* all =
        (estimates_.bounds ? estimates_.bounds : estimates_.masses) + q * estimates_.blocks();
    for (const int32_t block : sorted_) rest_[q] += all[block];
    rest_[q] += kSumError * (rest_[q] + known_[q]);
  }
  choose_until_enough(true);
  list_chosen(0);
  visits_ = static_cast<int>(chosen_.size() + kVisitBlocks - 1) / kVisitBlocks;
  left.store(visits_);
}

// `grows`: what is known grows by what is chosen, as estimated.
void Search::choose_until_enough(bool grows) {
  const double share = value_share_ > 0 ? rule_->missing / 2 : rule_->missing;
  for (; next_ < sorted_.size(); next_++) {
    bool enough = true;
    for (int q = 0; q < count_; q++) enough &= rest_[q] <= share * (known_[q] + rest_[q]);
    if (enough) return;
    const int32_t block = sorted_[next_];
    for (int q = 0; q < count_; q++) {
      const size_t at = q * estimates_.blocks() + block;
      rest_[q] -= estimates_.bounds ? estimates_.bounds[at] : estimates_.masses[at];
      if (grows) known_[q] += estimates_.masses[at];
    }
  }
  std::fill(rest_.begin(), rest_.end(), 0.0);
}

// The blocks that were chosen from position `from` on, in the order of their keys.
void Search::list_chosen(size_t from) {
  taken_.assign(static_cast<size_t>(estimates_.chunks) * kSketchBlocks, 0);
  for (size_t i = from; i < next_; i++) taken_[sorted_[i]] = 1;
  chosen_.clear();
  for (size_t i = 0; i < taken_.size(); i++)
    if (taken_[i]) chosen_.push_back(estimates_.first * kSketchBlocks + static_cast<int32_t>(i));
}

void Search::visit(int item, Scratch& scratch) { read_chosen(1 + item, item, scratch); }

void Search::read_chosen(int part, int item, Scratch& scratch) {
  const Filter filter{value_share_ > 0 ? floors_.data() : nullptr, rule_->missing / 2};
  const int begin = item * kVisitBlocks;
  const int end = std::min(begin + kVisitBlocks, static_cast<int>(chosen_.size()));
  read(part, chosen_.data(), begin, end, filter, scratch);
}

// Sums the weights of the first `parts` parts; returns the largest share of a head's that they
// lack, as bounded.
double Search::sum_parts(int parts) {
  double most = 0;
  for (int q = 0; q < count_; q++) {
    double dropped = 0;
    known_[q] = 0;
    for (int i = 0; i < parts; i++) {
      const double unit = in_units(parts_[i].peak[q], q);
      known_[q] += parts_[i].sum[q] * unit;
      dropped += parts_[i].dropped[q] * unit;
    }
    most = std::max(most, (rest_[q] + dropped) / (known_[q] + rest_[q]));
  }
  return most;
}

void Search::finish(Scratch& scratch) {
  const int size = traversal_->head.size;
  int parts = 1 + visits_;
  double lacking = 0;
  if (estimates_.chunks > 0) {
    lacking = sum_parts(parts);
    if (lacking > rule_->missing) {  // the estimates promised more
      const size_t from = next_;
      choose_until_enough(false);
      list_chosen(from);
      for (int i = 0; i * kVisitBlocks < static_cast<int>(chosen_.size()); i++)
        read_chosen(parts++, i, scratch);
      lacking = sum_parts(parts);
    }
  }
  parts_.resize(parts);
  merge(parts_, count_, size, traversal_->outputs.data() + at_);
  Reads reads;
  for (int i = 0; i < parts; i++) {
    reads.key_rows += visited_[i].key_rows;
    reads.value_rows += visited_[i].value_rows;
    reads.alone_rows += visited_[i].alone_rows;
  }
  reads.sketch_bytes = estimates_.chunks * static_cast<int64_t>(sketch_bytes(size));
  reads.missing = static_cast<float>(lacking);
  count_reads(*traversal_, row_, reads);
  audit(*traversal_, row_, parts_, rule_->bounded ? reads.missing : NAN, scratch);
}

}  // namespace suffice
