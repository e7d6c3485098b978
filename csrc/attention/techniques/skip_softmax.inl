// BLASST, also called skip softmax. Leaves out a tile if its largest weight is below `factor` over
// the number of keys, in units of the largest weight so far, in every head. `split`: rows after
// which "so far" begins again; 0: never.
#ifndef SUFFICE_LEVEL

struct SkipSoftmax : TechniqueDefaults {
  static constexpr const char* kName = "skip_softmax";
  static constexpr bool kOldestFirst = true;
  float factor = 0;
  int split = 0;

  template <class F>
  void parameters(F f) {
    f("factor", factor);
    f("split", split);
  }
  const char* fault() const {
    if (!(factor >= 0)) return "factor must be at least 0";
    return split >= 0 && split % kPanel == 0 ? nullptr : "split must be a multiple of 16";
  }
  bool never_stops() const { return factor == 0; }
};

#else

inline bool may_stop(const SkipSoftmax&, const Seen&, int) { return false; }  // all keys are read

// Algorithm 1 of BLASST, for the tile at `row`. `largest(q)` is the tile's largest score.
template <class Largest>
bool leaves_out(const SkipSoftmax& rule, const Seen& seen, int row, Largest largest) {
  int32_t& splits = seen.numbers[0];  // one more than the split of the tile before; at first 0
  if (rule.split > 0 && splits <= row / rule.split) {
    splits = row / rule.split + 1;
    for (int q = 0; q < seen.count; q++) seen.greatest[q] = -kInfinity;
  }
  // Of a text of fewer keys than `factor` nothing is left out.
  const float share = rule.factor / static_cast<float>(seen.length);
  const float least = share <= 1 ? std::log2(share) : -kInfinity;
  bool light = true;
  for (int q = 0; q < seen.count; q++) {
    const float found = largest(q);
    seen.greatest[q] = found > seen.greatest[q] ? found : seen.greatest[q];
    light &= found - seen.greatest[q] < least;
  }
  return light;
}

#endif
