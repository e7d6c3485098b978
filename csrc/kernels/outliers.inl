// The greatest and the least of some values; mapping of the others to a codebook.

// Values come in groups; the greatest value of each lane of a group is stored.
constexpr int kGroupRows = kOutlierGroup / W;

SUFFICE_INLINE vf group_winners(const float* group) {
  vf best = load(group);
  for (int row = 1; row < kGroupRows; row++) best = max(load(group + row * W), best);
  return best;
}

// Indices of the `count` greatest of values[0, padded), greatest first. Of equal values the lower
// index comes first, or the higher one if `kLast`.
template <bool kLast>
void pop_greatest(float* values, int padded, int count, int32_t* found, float* winners) {
  const int groups = padded / (kGroupRows * W);
  for (int g = 0; g < groups; g++)
    store(winners + g * W, group_winners(values + g * kOutlierGroup));
  for (int i = 0; i < count; i++) {
    vf best = load(winners);
    for (int g = 1; g < groups; g++) best = max(load(winners + g * W), best);
    const vf top = splat(max_of(best));
    int g = kLast ? groups - 1 : 0;
    while (!any(load(winners + g * W) == top)) g += kLast ? -1 : 1;
    float* group = values + g * kOutlierGroup;
    int row = kLast ? kGroupRows - 1 : 0;
    while (!any(load(group + row * W) == top)) row += kLast ? -1 : 1;
    const uint32_t lanes = lane_bits(load(group + row * W) == top);
    const int lane = kLast ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
    found[i] = g * kOutlierGroup + row * W + lane;
    group[row * W + lane] = -__builtin_inff();
    store(winners + g * W, group_winners(group));
  }
}

inline bool select_outliers(const float* values, int size, int count, int32_t* greatest,
                            int32_t* least, float* scratch) {
  const int padded = round_up(size, kOutlierGroup);
  float* winners = scratch + padded;
  for (int end = 0; end < 2; end++) {
    const bool negated = end == 1;
    for (int i = 0; i < size; i++) scratch[i] = negated ? -values[i] : values[i];
    for (int i = size; i < padded; i++) scratch[i] = 0.0f;
    vi wrong = {};
    for (int i = 0; i < padded; i += W)
      wrong |= ~(max(load(scratch + i), -load(scratch + i)) <= splat(3.4028235e38f));
    if (any(wrong)) return false;
    for (int i = size; i < padded; i++) scratch[i] = -__builtin_inff();
    if (negated)
      pop_greatest<true>(scratch, padded, count, least, winners);
    else
      pop_greatest<false>(scratch, padded, count, greatest, winners);
  }
  return true;
}

// Replaces values between the thresholds by the nearest centroid times their greatest magnitude;
// `size` is a multiple of kPanel.
SUFFICE_INLINE void to_levels(float* values, int size, const InputCodebook& by) {
  const vf low = splat(by.low), high = splat(by.high), zero = splat(0.0f);
  vf greatest = zero;
  for (int i = 0; i < size; i += W) {
    const vf value = load(values + i);
    greatest = max(greatest, ((value >= low) & (value <= high)) ? max(value, -value) : zero);
  }
  const float scale = max_of(greatest);
  for (int i = 0; i < size; i += W) {
    const vf value = load(values + i);
    vf nearest = splat(by.levels[0] * scale);
    for (int j = 1; j < by.count; j++) {
      const float border = (by.levels[j - 1] + by.levels[j]) * 0.5f * scale;
      nearest = value > border ? splat(by.levels[j] * scale) : nearest;
    }
    store(values + i, ((value >= low) & (value <= high)) ? nearest : value);
  }
}

inline void replace_by_levels(float* values, int stride, int count, int columns,
                              const InputCodebook& by, int32_t* places, float* scratch) {
  const int size = round_up(columns, kPanel), kept = 2 * by.outliers;
  float* values_kept = scratch + outlier_scratch(columns);
  for (int row = 0; row < count; row++) {
    float* row_values = values + static_cast<size_t>(row) * stride;
    if (!select_outliers(row_values, columns, by.outliers, places, places + by.outliers, scratch))
      continue;
    for (int i = 0; i < kept; i++) {
      values_kept[i] = row_values[places[i]];
      row_values[places[i]] = 0.0f;
    }
    const int group = by.group ? by.group : size;
    for (int i = 0; i < size; i += group)
      to_levels(row_values + i, group < size - i ? group : size - i, by);
    for (int i = columns; i < size; i++) row_values[i] = 0.0f;
    for (int i = 0; i < kept; i++) row_values[places[i]] = values_kept[i];
  }
}
