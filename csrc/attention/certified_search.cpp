#include "attention/certified_search.h"

#include <algorithm>
#include <cmath>

#include "attention/reads.h"
#include "attention/sketch_order.h"

namespace suffice {
namespace {

// Relative error of float32 sums of thousands of masses.
constexpr double kSumError = 1e-5;

}  // namespace

void CertifiedSearch::plan(const Traversal& traversal, int row) {
  traversal_ = &traversal;
  rule_ = &std::get<Certified>(traversal.rule->technique);
  value_share_ = traversal.rule->value_share;
  count_ = traversal.group;
  first_ = row * count_;
  queries_ = traversal.queries.data() + first_;
  visible_ = traversal.visible[first_];
  row_ = row;
  length_ = traversal.length(row);
  masses_ = SketchMasses(visible_, length_, count_, nullptr, rule_->bounded);
  selections_ = 0;
  left.store(estimates());
  list_unsketched();
  size_buffers();
}

// Lists the blocks outside complete chunks: the sinks, the oldest of a window, and the newest.
void CertifiedSearch::list_unsketched() {
  const int sinks = round_up(visible_.sinks, kPanel) / kPanel;
  const int begin = std::max(visible_.first / kPanel, sinks);
  const int end = (length_ + kPanel - 1) / kPanel;
  unsketched_.clear();
  for (int block = 0; block < sinks; block++) unsketched_.push_back(block);
  const int first = masses_.first(), last = first + masses_.chunks() * kSketchBlocks;
  const bool none = masses_.chunks() == 0;
  for (int block = begin; block < end; block++)
    if (none || block < first || block >= last) unsketched_.push_back(block);
}

void CertifiedSearch::size_buffers() {
  estimated_.resize(masses_.floats());
  masses_.use(estimated_.data());
  estimates_ = masses_.estimates();
  floors_.resize(count_);
  known_.resize(count_);
  rest_.assign(count_, 0.0);
  // Parts: the blocks without a sketch, and two rounds of selections.
  const size_t parts = 3 + masses_.chunks() * kSketchBlocks / kSelectedBlocks + 1;
  const size_t result = partial_floats(count_, traversal_->head.size);
  results_.resize(parts * result);
  reads_.assign(parts, SelectedReads{});
  parts_.clear();
  for (size_t i = 0; i < parts; i++)
    parts_.push_back(partial_at(results_.data() + i * result, count_, traversal_->head.size));
}

void CertifiedSearch::read(int part, const int32_t* list, int begin, int end, const Filter& filter,
                           Scratch& scratch) {
  const Queries& queries = scratch.queries.of(traversal_->head, queries_, count_);
  float* const floats = scratch.at_least(traverse_scratch(count_, traversal_->head.size));
  reads_[part] = kernels().search.attend_selected(traversal_->head, queries, visible_, count_, list,
                                                  begin, end, filter, parts_[part], floats);
}

void CertifiedSearch::estimate(int item, Scratch& scratch) {
  if (item == 0)
    return read(0, unsketched_.data(), 0, static_cast<int>(unsketched_.size()), Filter{}, scratch);
  masses_.estimate(traversal_->head, queries_, item - 1);
}

// A weight of 1 at this peak, in units of the estimates.
double CertifiedSearch::in_units(float peak, int q) const {
  return std::exp2(double{peak} - order_.peaks[q]);
}

float CertifiedSearch::most(int q, int32_t block) const {
  const float* const of_blocks = estimates_.bounds ? estimates_.bounds : estimates_.masses;
  return of_blocks[q * estimates_.blocks() + block - masses_.first()];
}

void CertifiedSearch::choose() {
  if (masses_.chunks() == 0) return;
  order_.sort(masses_);
  next_ = 0;
  for (int q = 0; q < count_; q++) {
    if (value_share_ > 0)
      floors_[q] = std::max(order_.peaks[q], parts_[0].greatest[q]) + std::log2(value_share_);
    known_[q] = parts_[0].sum[q] * in_units(parts_[0].peak[q], q);
    for (const int32_t block : order_.blocks) rest_[q] += most(q, block);
    rest_[q] += kSumError * (rest_[q] + known_[q]);
  }
  choose_until_enough(true);
  list_chosen(0);
  selections_ = static_cast<int>(chosen_.size() + kSelectedBlocks - 1) / kSelectedBlocks;
  left.store(selections_);
}

// `grows`: each selected block adds its estimated mass to the known sum.
void CertifiedSearch::choose_until_enough(bool grows) {
  const double share = value_share_ > 0 ? rule_->missing / 2 : rule_->missing;
  for (; next_ < order_.blocks.size(); next_++) {
    bool enough = true;
    for (int q = 0; q < count_; q++) enough &= rest_[q] <= share * (known_[q] + rest_[q]);
    if (enough) return;
    const int32_t block = order_.blocks[next_];
    for (int q = 0; q < count_; q++) {
      rest_[q] -= most(q, block);
      if (grows) known_[q] += estimates_.masses[q * estimates_.blocks() + block - masses_.first()];
    }
  }
  std::fill(rest_.begin(), rest_.end(), 0.0);
}

// Lists the blocks selected from position `from` on, in the order of their keys.
void CertifiedSearch::list_chosen(size_t from) {
  is_chosen_.assign(static_cast<size_t>(masses_.chunks()) * kSketchBlocks, 0);
  for (size_t i = from; i < next_; i++) is_chosen_[order_.blocks[i] - masses_.first()] = 1;
  chosen_.clear();
  for (size_t i = 0; i < is_chosen_.size(); i++)
    if (is_chosen_[i]) chosen_.push_back(masses_.first() + static_cast<int32_t>(i));
}

void CertifiedSearch::attend_selected(int item, Scratch& scratch) {
  read_chosen(1 + item, item, scratch);
}

void CertifiedSearch::read_chosen(int part, int item, Scratch& scratch) {
  const Filter filter{value_share_ > 0 ? floors_.data() : nullptr, rule_->missing / 2};
  const int begin = item * kSelectedBlocks;
  const int end = std::min(begin + kSelectedBlocks, static_cast<int>(chosen_.size()));
  read(part, chosen_.data(), begin, end, filter, scratch);
}

// Sums the weights of the first `parts` parts. Returns a bound on the largest share that they leave
// out of any head's sum.
double CertifiedSearch::sum_parts(int parts) {
  double largest = 0;
  for (int q = 0; q < count_; q++) {
    double dropped = 0;
    known_[q] = 0;
    for (int i = 0; i < parts; i++) {
      const double unit = in_units(parts_[i].peak[q], q);
      known_[q] += parts_[i].sum[q] * unit;
      dropped += parts_[i].dropped[q] * unit;
    }
    largest = std::max(largest, (rest_[q] + dropped) / (known_[q] + rest_[q]));
  }
  return largest;
}

void CertifiedSearch::finish(Scratch& scratch) {
  const int size = traversal_->head.size;
  int parts = 1 + selections_;
  double lacking = 0;
  if (masses_.chunks() > 0) {
    lacking = sum_parts(parts);
    if (lacking > rule_->missing) {  // the estimates were too optimistic
      const size_t from = next_;
      choose_until_enough(false);
      list_chosen(from);
      for (int i = 0; i * kSelectedBlocks < static_cast<int>(chosen_.size()); i++)
        read_chosen(parts++, i, scratch);
      lacking = sum_parts(parts);
    }
  }
  parts_.resize(parts);
  merge(parts_, count_, size, traversal_->outputs.data() + first_);
  Reads reads;
  for (int i = 0; i < parts; i++) {
    reads.key_rows += reads_[i].key_rows;
    reads.value_rows += reads_[i].value_rows;
    reads.per_head_rows += reads_[i].per_head_rows;
  }
  reads.sketch_bytes = masses_.chunks() * static_cast<int64_t>(sketch_bytes(size));
  reads.missing = static_cast<float>(lacking);
  count_reads(*traversal_, row_, reads);
  audit(*traversal_, row_, parts_, rule_->bounded ? reads.missing : NAN, scratch);
}

void CertifiedSearches::clear() {
  used_ = 0;
  estimates_.clear();
  selections_.clear();
}

void CertifiedSearches::plan(const Traversal& traversal) {
  for (int row = 0; row < traversal.tokens(); row++) {
    if (used_ == searches_.size()) searches_.emplace_back();
    CertifiedSearch& search = searches_[used_++];
    search.plan(traversal, row);
    for (int i = 0; i < search.estimates(); i++) estimates_.push_back({&search, i});
  }
}

void CertifiedSearches::begin(int threads) {
  estimate_queue_.begin(static_cast<int>(estimates_.size()), threads);
  next_selection_.store(0);
}

void CertifiedSearches::work(Scratch& scratch, Team& team, int thread) {
  if (used_ == 0) return;
  estimate(scratch, thread, team.size());
  team.barrier();  // now all selections are complete
  attend_selected(scratch);
}

// The thread that finishes a search's last estimate also selects the blocks to attend to.
void CertifiedSearches::estimate(Scratch& scratch, int thread, int threads) {
  estimate_queue_.take(thread, threads, [&](int i) {
    CertifiedSearch& search = *estimates_[i].search;
    search.estimate(estimates_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    search.choose();
    if (search.selections() == 0) search.finish(scratch);
    const std::lock_guard lock(choosing_);
    for (int index = 0; index < search.selections(); index++)
      selections_.push_back({&search, index});
  });
}

void CertifiedSearches::attend_selected(Scratch& scratch) {
  const int total = static_cast<int>(selections_.size());
  for (int i = next_selection_.fetch_add(1); i < total; i = next_selection_.fetch_add(1)) {
    CertifiedSearch& search = *selections_[i].search;
    search.attend_selected(selections_[i].index, scratch);
    if (search.left.fetch_sub(1, std::memory_order_acq_rel) == 1) search.finish(scratch);
  }
}

}  // namespace suffice
