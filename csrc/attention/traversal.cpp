#include "attention/traversal.h"

#include <algorithm>
#include <cstdlib>

namespace suffice {
namespace {

Visible visible_of(const Bounds& bounds, int committed, int row, int count, const int* positions,
                   uint32_t tentative) {
  Visible visible{0, committed, tentative};
  if (bounds.window == 0) return visible;
  const int position = positions[row];
  visible.first = std::clamp(position - bounds.removed - bounds.window + 1, 0, committed);
  visible.sinks = std::min(bounds.sinks, visible.first);
  for (int j = 0; j < count; j++)
    if (std::abs(position - positions[j]) >= bounds.window)
      visible.tentative &= ~(uint32_t{1} << j);
  return visible;
}

}  // namespace

Bounds bounds_of(const KVCache& cache, int layer, int window, int sinks) {
  const Eligible& eligible = cache.eligible(layer);
  const int recent = eligible.recent;
  return {window && recent ? std::min(window, recent) : window + recent, cache.removed(layer),
          std::max(eligible.sinks, sinks)};
}

int Traversal::parent_of(int token) const {
  if (!places.empty()) return places[token].parent;
  const uint32_t tentative = visible[static_cast<size_t>(token) * group].tentative;
  const uint32_t before = tentative & ((uint32_t{1} << token) - 1);
  return before ? 31 - __builtin_clz(before) : -1;
}

bool Traversal::holds_drafts(int chunk) const {
  const int last = this->chunk(chunk).end - 1;
  return last >= begin && (list ? list[last] + 1 : last + 1) * kPanel > visible[0].committed;
}

int Traversal::whole_chunks() const {
  const int first = begin / kChunkBlocks, last = (end + kChunkBlocks - 1) / kChunkBlocks;
  return std::max(last - first, 1);
}

Range Traversal::chunk(int index) const {
  const int start = (begin / kChunkBlocks + index) * kChunkBlocks;
  return {std::max(start, begin), std::min(start + kChunkBlocks, end)};
}

int64_t Traversal::rows_before(int end_row) const {
  if (!list) return std::min(end * kPanel, end_row) - static_cast<int64_t>(begin) * kPanel;
  int64_t rows = 0;
  for (int i = begin; i < end; i++) rows += std::clamp(end_row - list[i] * kPanel, 0, kPanel);
  return rows;
}

void set_visibility(Traversal& traversal, const Bounds& bounds, int length, int count,
                    const int* positions, const uint32_t* visible) {
  const int committed = length - bounds.removed;
  traversal.bounds = bounds;
  traversal.rows_end = committed + count;
  traversal.step_rows = count;
  const uint32_t all = (uint32_t{2} << (count - 1)) - 1;
  traversal.paths = bounds.mutual ? std::vector<DraftPath>() : draft_paths(visible, count);
  traversal.positions.assign(positions, positions + count);
  traversal.visible.clear();
  int first = committed;
  for (int row = 0; row < count; row++) {
    const uint32_t mask = bounds.mutual ? all : visible[row];
    const Visible sees = visible_of(bounds, committed, row, count, positions, mask);
    first = std::min(first, sees.first);
    traversal.visible.insert(traversal.visible.end(), traversal.group, sees);
  }
  const int sinks = round_up(bounds.sinks, kPanel) / kPanel;
  traversal.begin = sinks ? 0 : first / kTileRows * kTileBlocks;
  traversal.end = (traversal.rows_end + kPanel - 1) / kPanel;
  traversal.list = nullptr;
  if (sinks == 0 || first / kPanel <= sinks) return;
  traversal.blocks.clear();
  for (int block = 0; block < sinks; block++) traversal.blocks.push_back(block);
  for (int block = first / kPanel; block < traversal.end; block++)
    traversal.blocks.push_back(block);
  traversal.list = traversal.blocks.data();
  traversal.end = static_cast<int>(traversal.blocks.size());
}

Traversal along(const Traversal& tree, size_t first, size_t last) {
  Traversal found = tree;
  found.paths.assign(tree.paths.begin() + first, tree.paths.begin() + last);
  found.queries.clear();
  found.outputs.clear();
  found.visible.clear();
  found.positions.clear();
  const size_t group = tree.group;
  const int committed = tree.visible[0].committed;
  size_t rows = 0;
  for (const DraftPath& path : found.paths) {
    rows = std::max(rows, path.rows.size());
    for (const int row : path.tokens) {
      const size_t at = row * group;
      const auto next = std::upper_bound(path.rows.begin(), path.rows.end(), row);
      const int place = static_cast<int>(next - path.rows.begin()) - 1;
      found.places.push_back({row, place, place > 0 ? path.rows[place - 1] : -1});
      found.positions.push_back(tree.positions[row]);
      Visible visible = tree.visible[at];
      visible.tentative = path.places(visible.tentative);
      found.visible.insert(found.visible.end(), group, visible);
      for (size_t i = at; i < at + group; i++) {
        found.queries.push_back(tree.queries[i]);
        found.outputs.push_back(tree.outputs[i]);
      }
    }
  }
  found.rows_end = committed + static_cast<int>(rows);
  const int blocks = (found.rows_end + kPanel - 1) / kPanel;
  if (!found.list) found.end = blocks;
  while (found.list && found.end > found.begin + 1 && found.list[found.end - 1] >= blocks)
    found.end--;
  return found;
}

const Queries& PreparedQueries::of(const KVHead& head, const float* const* queries, int count) {
  if (queries == queries_.values && count == count_ && head.key_type == type_) return queries_;
  const size_t padded = round_up(count, kPanel);
  const size_t codes = head.joint ? padded * head.size : static_cast<size_t>(count) * head.size / 2;
  const size_t needed = kPanel + 4 * padded + codes;
  if (memory_.size() < needed) memory_.resize(needed);
  const size_t past = reinterpret_cast<uintptr_t>(memory_.data()) % kLineBytes;
  float* const scales = memory_.data() + (past ? kLineBytes - past : 0) / sizeof(float);
  queries_ = {.values = queries,
              .codes = reinterpret_cast<int16_t*>(scales + 4 * padded),
              .scales = scales,
              .offsets = reinterpret_cast<int32_t*>(scales + padded),
              .means = scales + 2 * padded,
              .lanes = reinterpret_cast<std::byte*>(scales + 4 * padded),
              .rest_scales = scales + 3 * padded};
  count_ = count;
  type_ = head.key_type;
  kernels().attention.prepare_queries(head, queries_, count);
  return queries_;
}

}  // namespace suffice
