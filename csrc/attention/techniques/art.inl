// Run-time termination (ART). Stops once the output is stable in `patience` consecutive checks. It
// is stable if a probe of `probe` elements changed by less than `scale` in norm and by less than
// `direction` in direction (1 - cosine). A scale of 0 never stops.
#ifndef SUFFICE_LEVEL

struct Art : TechniqueDefaults {
  static constexpr const char* kName = "art";
  static constexpr bool kTestsOutput = true;
  static constexpr int kEndless = 1 << 20;  // patience: more checks than any context has
  float scale = 0, direction = 0;
  int patience = 1, probe = 32;

  template <class F>
  void parameters(F f) {
    f("scale", scale);
    f("direction", direction);
    f("patience", patience);
    f("probe", probe);
  }
  const char* fault() const {
    if (probe <= 0 || probe % kPanel != 0) return "the probe must be a multiple of 16";
    return patience >= 1 ? nullptr : "patience must be at least 1";
  }
  bool never_stops() const { return scale == 0 || patience >= kEndless; }
};

#else

// Memory: at each check the outputs and sums of weights of all rows are kept, for the next checks
// to compare with. Place 0 is of the time before the first check.
inline float* kept_at(const Seen& seen, int q, int check) {
  return seen.kept_of(q) + (check + 1) % kKeptOutputs * (seen.size + kPanel);
}

inline void keep_outputs(const Seen& seen, int check) {
  for (int q = 0; q < seen.count; q++) {
    float* const to = kept_at(seen, q, check);
    for (int i = 0; i < seen.size; i += W) store(to + i, load(seen.output + q * seen.size + i));
    store(to + seen.size, load(seen.sums + q * W));
  }
}

// The output kept at a check; in `space` [size] if it has to be rotated back.
inline const float* kept_output(const Seen& seen, int q, int check, float* space) {
  const float* const kept = kept_at(seen, q, check);
  if (!seen.rotated) return kept;
  std::memcpy(space, kept, sizeof(float) * seen.size);
  rotate_row(space, seen.size);
  return space;
}

// One over the sum of weights at a check; at first there is no output, so any number does.
inline vf kept_inverse(const Seen& seen, int q, int check) {
  return splat(check < 0 ? 1.0f : 1.0f / sum_of(load(kept_at(seen, q, check) + seen.size)));
}

// Eqs. 2 and 3 of ART for a query row: the probe is units of 16 elements, spread over the output.
inline bool is_stable(const Art& rule, const Seen& seen, int q, int check) {
  alignas(64) float now_space[kMaxSize], before_space[kMaxSize];
  const float* const now = kept_output(seen, q, check, now_space);
  const float* const before = kept_output(seen, q, check - 1, before_space);
  const vf inverse = kept_inverse(seen, q, check),
           inverse_before = kept_inverse(seen, q, check - 1);
  const int units = seen.size / kPanel;
  const int probes = rule.probe < seen.size ? rule.probe / kPanel : units;
  vf change = {}, dot = {}, now_square = {}, before_square = {};
  for (int p = 0; p < probes; p++) {
    const int from = p * units / probes * kPanel;
    for (int i = from; i < from + kPanel; i += W) {
      const vf x = load(now + i) * inverse, y = load(before + i) * inverse_before, d = x - y;
      change += d * d;
      dot += x * y;
      now_square += x * x;
      before_square += y * y;
    }
  }
  if (!(sum_of(change) < rule.scale * rule.scale)) return false;
  const float norms = std::sqrt(sum_of(now_square) * sum_of(before_square));
  return sum_of(dot) > (1.0f - rule.direction) * norms;
}

// Whether all rows are stable at a check; `first`, at last the row that was not, is asked first.
inline bool all_stable(const Art& rule, const Seen& seen, int check, int32_t& first) {
  if (!is_stable(rule, seen, first, check)) return false;
  for (int q = 0; q < seen.count; q++)
    if (q != first && !is_stable(rule, seen, q, check)) {
      first = q;
      return false;
    }
  return true;
}

// A stop needs `patience` stable checks in a row, and one of them is a multiple of `stride`. So the
// others are computed only if that one is stable: those before it from what was kept.
inline bool all_may_stop(const Art& rule, const Seen& seen) {
  int32_t& checks = seen.numbers[0];  // so far
  int32_t& streak = seen.numbers[1];  // of stable ones, if it is known to matter
  const int check = checks++;
  keep_outputs(seen, check);
  constexpr int most = kKeptOutputs - 1;
  const int stride = rule.patience < most ? rule.patience : most;
  if (streak == 0 && checks % stride != 0) return false;
  if (!all_stable(rule, seen, check, seen.numbers[2])) {
    streak = 0;
    return false;
  }
  if (streak++ == 0)
    for (int i = check - 1; i > check - stride && i >= 0; i--) {
      if (!all_stable(rule, seen, i, seen.numbers[2])) break;
      streak++;
    }
  return streak >= rule.patience;
}

#endif
