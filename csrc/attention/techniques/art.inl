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

// Eqs. 2 and 3 of ART: the probe is units of 16 elements, spread over the output. The last probe
// and the stable checks in a row are kept from check to check.
inline bool may_stop(const Art& rule, const Seen& seen, int q) {
  alignas(64) float space[kMaxSize];
  const float* const output = seen.output_of(q, space);
  float* const before = seen.kept + q * seen.size;
  const vf inverse = splat(1.0f / seen.total(q));
  const int units = seen.size / kPanel;
  const int probes = rule.probe < seen.size ? rule.probe / kPanel : units;
  vf change = {}, dot = {}, now_square = {}, before_square = {};
  for (int p = 0; p < probes; p++) {
    const float* from = output + p * units / probes * kPanel;
    for (int i = 0; i < kPanel; i += W) {
      float* last = before + p * kPanel + i;
      const vf x = load(from + i) * inverse, y = load(last), d = x - y;
      change += d * d;
      dot += x * y;
      now_square += x * x;
      before_square += y * y;
      store(last, x);
    }
  }
  const bool near = sum_of(change) < rule.scale * rule.scale;
  if (!near) {  // as mostly: the direction need not be known
    seen.streak[q] = 0;
    return false;
  }
  const float norms = std::sqrt(sum_of(now_square) * sum_of(before_square));
  const bool stable = sum_of(dot) > (1.0f - rule.direction) * norms;
  seen.streak[q] = stable ? seen.streak[q] + 1 : 0;
  return seen.streak[q] >= rule.patience;
}

#endif
