// Scores by bases; exact ones of the heaviest blocks, until at most the share `estimated` of
// the sum of weights is estimated. Rows below the share `lightest` of it, in every head, are not
// read. `bounded`: until the softmax is within the total variation distance `estimated`. It has a
// traversal of its own, tier_search.h.
#ifndef SUFFICE_LEVEL

struct Tiers : TechniqueDefaults {
  static constexpr const char* kName = "tiers";
  float estimated = 0, lightest = 0;
  bool bounded = false;
  int sample = 0;  // blocks whose exact scores bound the distance at the confidence 1 - delta
  float delta = 0.01f;

  template <class F>
  void parameters(F f) {
    f("estimated", estimated);
    f("lightest", lightest);
    f("bounded", bounded);
    f("sample", sample);
    f("delta", delta);
  }
  const char* fault() const {
    const bool shares = estimated >= 0 && estimated <= 1 && lightest >= 0 && lightest <= 1;
    if (!shares) return "estimated and lightest must be in [0, 1]";
    if (sample < 0 || !(delta > 0 && delta < 1)) return "sample from 0 on, delta between 0 and 1";
    return sample > 0 && bounded ? "a certain bound takes no sample" : nullptr;
  }
  bool bounds() const { return bounded || sample > 0; }
};

#else

inline bool may_stop(const Tiers&, const Seen&, int) { return false; }  // is never asked

#endif
