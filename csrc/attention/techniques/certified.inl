// Reads the heaviest blocks, as estimated from sketches of the keys, until at most the share
// `missing` of the sum of weights is unread: by bounds, or else by estimates. It has a traversal of
// its own, certified_search.h.
#ifndef SUFFICE_LEVEL

struct Certified : TechniqueDefaults {
  static constexpr const char* kName = "certified";
  float missing = 0;
  bool bounded = true;

  template <class F>
  void parameters(F f) {
    f("missing", missing);
    f("bounded", bounded);
  }
  const char* fault() const {
    return missing >= 0 && missing < 1 ? nullptr : "missing must be in [0, 1)";
  }
};

#else

inline bool may_stop(const Certified&, const Seen&, int) { return false; }  // is never asked

#endif
