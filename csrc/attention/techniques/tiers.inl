// Scores by bases; exact ones of the heaviest blocks, until at most the share `estimated` of
// the sum of weights is estimated. Rows below the share `lightest` of it, in every head, are not
// read. `bounded`: until the softmax is within the total variation distance `estimated`. It has a
// traversal of its own, tier_search.h.
#ifndef SUFFICE_LEVEL

struct Tiers : TechniqueDefaults {
  static constexpr const char* kName = "tiers";
  float estimated = 0, lightest = 0;
  bool bounded = false;

  template <class F>
  void parameters(F f) {
    f("estimated", estimated);
    f("lightest", lightest);
    f("bounded", bounded);
  }
  const char* fault() const {
    const bool shares = estimated >= 0 && estimated <= 1 && lightest >= 0 && lightest <= 1;
    return shares ? nullptr : "estimated and lightest must be in [0, 1]";
  }
};

#else

inline bool may_stop(const Tiers&, const Seen&, int) { return false; }  // is never asked

#endif
