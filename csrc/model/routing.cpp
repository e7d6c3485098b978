#include "model/routing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace suffice {
namespace {

void softmax(std::vector<Scored>& scores) {
  float most = scores[0].score;
  for (const Scored& each : scores) most = std::max(most, each.score);
  float sum = 0;
  for (Scored& each : scores) {
    each.score = std::exp(each.score - most);
    sum += each.score;
  }
  for (Scored& each : scores) each.score /= sum;
}

// Integers in the order of the scores. NaN has a place among them, as sorting needs.
int32_t ordered(float score) {
  const auto bits = std::bit_cast<int32_t>(score);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

void keep_greatest(std::vector<Scored>& scores, int count, const float* bias) {
  const auto rank = [bias](const Scored& each) {
    return ordered(bias ? each.score + bias[each.expert] : each.score);
  };
  const auto greater = [rank](const Scored& a, const Scored& b) {
    const int32_t one = rank(a), other = rank(b);
    return one > other || (one == other && a.expert < b.expert);
  };
  std::nth_element(scores.begin(), scores.begin() + (count - 1), scores.end(), greater);
  scores.resize(count);
  std::sort(scores.begin(), scores.end(),
            [](const Scored& a, const Scored& b) { return a.expert < b.expert; });
}

// Whether a score is close to the best one.
bool is_close(float score, float best, float margin) {
  return !((best - score) / std::max(std::abs(score), best) > margin);
}

void keep_in_turn(std::vector<Scored>& scores, int count, float margin) {
  std::vector<Scored> kept;
  for (int turn = 0; turn < count; turn++) {
    auto best = scores.begin();
    for (auto each = scores.begin(); each < scores.end(); each++)
      if (ordered(each->score) > ordered(best->score)) best = each;
    float sum = 0;
    for (const Scored& each : scores)
      if (is_close(each.score, best->score, margin)) sum += std::exp(each.score - best->score);
    kept.push_back({best->expert, 1 / sum});
    scores.erase(best);
  }
  std::sort(kept.begin(), kept.end(),
            [](const Scored& a, const Scored& b) { return a.expert < b.expert; });
  scores = std::move(kept);
}

// A group's rank: the sum of the `count` greatest of its scores.
float rank_of(const Scored* group, int size, int count, const float* bias) {
  float greatest = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; i++) {
    const float score = bias ? group[i].score + bias[group[i].expert] : group[i].score;
    second = std::max(second, std::min(greatest, score));
    greatest = std::max(greatest, score);
  }
  return count == 2 ? greatest + second : greatest;
}

// Leaves the experts of the groups that rank first.
void keep_groups(std::vector<Scored>& scores, const Routing& routing, int count) {
  const int size = static_cast<int>(scores.size()) / routing.groups;
  std::vector<Scored> ranks;  // of groups
  for (int group = 0; group < routing.groups; group++)
    ranks.push_back({group, rank_of(scores.data() + group * size, size, count, routing.bias)});
  keep_greatest(ranks, routing.kept_groups, nullptr);
  auto to = scores.begin();
  for (const Scored& each : ranks) to = std::copy_n(scores.begin() + each.expert * size, size, to);
  scores.erase(to, scores.end());
}

void sigmoid(std::vector<Scored>& scores) {
  for (Scored& each : scores) each.score = 1.0f / (1.0f + std::exp(-each.score));
}

void normalize(std::vector<Scored>& scores) {
  float sum = 0;
  for (const Scored& each : scores) sum += each.score;
  for (Scored& each : scores) each.score /= sum;
}

// Marks the lightest experts, as long as their weights sum up to at most a share of all.
void leave_out(std::vector<Scored>& scores, float share) {
  const auto weight = [](const Scored& each) { return std::abs(each.score); };
  double total = 0, dropped = 0;
  for (const Scored& each : scores) total += weight(each);
  for (size_t left = scores.size(); left > 1; left--) {
    Scored* lightest = nullptr;
    for (Scored& each : scores)
      if (each.expert >= 0 && (!lightest || weight(each) < weight(*lightest))) lightest = &each;
    dropped += weight(*lightest);
    if (!(dropped <= share * total)) return;
    lightest->expert = -1;
  }
}

template <class T>
void grow(std::vector<T>& values, size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

int Routes::logit_stride(const ExpertMlp& block) { return round_up(block.experts, kPanel); }

int Routes::inner_stride(const ExpertMlp& block) {
  return round_up(std::max(block.inner, block.shared.up.rows), kPanel);
}

void Routes::reserve(const ExpertMlp& block, int rows, int width) {
  const size_t count = rows, visited = count * block.visits();
  grow(logits, count * logit_stride(block));
  grow(shared_logits, count * kPanel);
  grow(visits, visited);
  grow(visits_of, visited);
  groups.reserve(block.experts + 1);
  grow(gate, visited * inner_stride(block));
  grow(up, gate.size());
  grow(output, visited * width);
  grow(narrow, block.narrow.data ? count * narrow_stride(block) : 0);
  grow(narrow_sums, narrow.size());
  grow(chosen_, count * block.routing.chosen);
  grow(ends_, block.experts);
}

void Routes::route(const ExpertMlp& block, int row, std::vector<Scored>& scores) {
  const Routing& routing = block.routing;
  const float* from = logits.data() + static_cast<size_t>(row) * logit_stride(block);
  scores.resize(block.experts);
  for (int e = 0; e < block.experts; e++) scores[e] = {e, from[e]};
  for (const int step : routing.steps) {
    if (step == kSoftmax) softmax(scores);
    if (step == kSigmoid) sigmoid(scores);
    if (step == kTop) keep_greatest(scores, routing.chosen, routing.bias);
    if (step == kInTurn) keep_in_turn(scores, routing.chosen, routing.margin);
    if (step == kNormalize) normalize(scores);
    if (step == kBestGroups) keep_groups(scores, routing, 1);
    if (step == kBestPairs) keep_groups(scores, routing, 2);
  }
  if (routing.left_out > 0) leave_out(scores, routing.left_out);
  std::copy(scores.begin(), scores.end(), chosen_.begin() + row * routing.chosen);
}

void Routes::group(const ExpertMlp& block, int rows) {
  const int chosen = block.routing.chosen, routed = rows * chosen;
  std::fill_n(ends_.begin(), block.experts, 0);
  for (int i = 0; i < routed; i++)
    if (chosen_[i].expert >= 0) ends_[chosen_[i].expert]++;
  groups.clear();
  int first = 0;
  for (int e = 0; e < block.experts; e++) {
    const int count = ends_[e];
    if (count) groups.push_back({e, first, count});
    ends_[e] = first;
    first += count;
  }
  const auto read = static_cast<int64_t>(groups.size());
  reads.read += read;
  reads.held += block.experts;
  reads.bytes_read += read * block.expert_bytes();
  reads.bytes_held += block.experts * block.expert_bytes();
  for (int i = 0; i < routed; i++) {
    const int row = i / chosen, expert = chosen_[i].expert;
    const int visit = expert < 0 ? -1 : ends_[expert]++;
    const float* const factors = block.routing.factors;
    const float factor = factors && expert >= 0 ? factors[expert] : 1.0f;
    const float weight = block.routing.scale * chosen_[i].score * factor;
    if (visit >= 0)
      visits[visit] = block.routing.before ? Visit{row, 1, weight} : Visit{row, weight, 1};
    visits_of[row * block.visits() + i % chosen] = visit;
  }
  if (block.routing.left_out > 0) count_left_out(block, rows);
  if (block.shared.up.data) group_shared(block, rows, first);
}

void Routes::count_left_out(const ExpertMlp& block, int rows) {
  const int chosen = block.routing.chosen;
  for (int row = 0; row < rows; row++) {
    double all = 0, dropped = 0;
    for (int i = row * chosen; i < (row + 1) * chosen; i++) {
      const double weight = std::abs(chosen_[i].score);
      all += weight;
      if (chosen_[i].expert >= 0) continue;
      dropped += weight;
      reads.left_out++;
    }
    if (dropped > 0)
      reads.share_left_out = std::max(reads.share_left_out, static_cast<float>(dropped / all));
  }
}

void Routes::group_shared(const ExpertMlp& block, int rows, int routed) {
  const int chosen = block.routing.chosen;
  groups.push_back({-1, routed, rows});
  for (int row = 0; row < rows; row++) {
    const float logit = shared_logits[static_cast<size_t>(row) * kPanel];
    const float weight = block.shared_router.data ? 1 / (1 + std::exp(-logit)) : 1.0f;
    visits[routed + row] = {row, weight, 1};
    visits_of[row * block.visits() + chosen] = routed + row;
  }
}

}  // namespace suffice
