#include "model/state_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cache/cache.h"
#include "model/model.h"

namespace suffice {

std::vector<StateRows> rows_of_states(const Step& step) {
  std::vector<StateRows> found;
  for (const StepRequest& request : step.requests) {
    LayerStates* const states = request.cache->layer_states();
    if (found.empty() || found.back().states != states)
      found.push_back({states, request.first_row, 0, request.settled, {}});
    StateRows& rows = found.back();
    for (int i = 0; i < request.count; i++) {
      const uint32_t before = step.visible[request.first_row + i] & ((uint32_t{1} << i) - 1);
      const int parent = request.settled ? i - 1 : static_cast<int>(std::bit_width(before)) - 1;
      rows.parents.push_back(rows.count + parent);
    }
    rows.count += request.count;
  }
  for (const StateRows& rows : found) rows.states->begin(rows.count, rows.settled);
  return found;
}

std::vector<const float*> past_inputs(const StateRows& rows, int layer) {
  const StateShape& shape = rows.states->shapes()[layer];
  const StateLog log = rows.states->before(layer);
  const std::vector<int>& committed = rows.states->committed();
  const int past = shape.past(), count = static_cast<int>(committed.size());
  std::vector<const float*> found;
  for (int i = count; i < count + past; i++) {
    const int row = i < past ? i : past + committed[i - past];
    found.push_back(log.inputs + static_cast<size_t>(row) * shape.channels);
  }
  return found;
}

void inputs_of(const StateRows& rows, int row, const std::vector<const float*>& past,
               const float* mixed, int stride, std::vector<const float*>& to) {
  const int taps = static_cast<int>(past.size()) + 1;
  to.resize(taps);
  int left = taps;
  for (; row >= 0 && left > 0; row = rows.parents[row])
    to[--left] = mixed + static_cast<size_t>(rows.first_row + row) * stride;
  // `left` inputs are missing: the newest of those before the step.
  for (int i = 0; i < left; i++) to[i] = past[past.size() - left + i];
}

void log_inputs(const StateRows& rows, int layer, const std::vector<const float*>& past,
                const float* mixed, int stride, int first, int last) {
  const StateShape& shape = rows.states->shapes()[layer];
  const StateLog log = rows.states->after(layer);
  std::vector<const float*> all = past;
  for (int row = 0; row < rows.count; row++)
    all.push_back(mixed + static_cast<size_t>(rows.first_row + row) * stride);
  if (rows.settled) all.erase(all.begin(), all.end() - shape.past());
  for (size_t i = 0; i < all.size(); i++)
    std::memcpy(log.inputs + i * shape.channels + first, all[i] + first,
                (last - first) * sizeof(float));
}

}  // namespace suffice
