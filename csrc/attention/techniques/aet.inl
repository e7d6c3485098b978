// Early termination (Scrooge). Stops once the known sum of weights is at least the share
// `key_share` of the estimated total; 2 never stops. Always reads the first `sinks` units, the
// `globals` units of the largest mass so far and the newest `locals` rows: see aet_state.h. A unit
// is a block, or with `by_rows` a row.
#ifndef SUFFICE_LEVEL

struct Aet : TechniqueDefaults {
  static constexpr const char* kName = "aet";
  static constexpr bool kGreatestOfAlways = true;
  static constexpr bool kKeepsNothing = true;  // but what saves time
  static constexpr bool kLooksAfterMore = true;
  float key_share = 2;
  int sinks = 1, globals = 4, locals = 8;
  bool by_rows = false;

  template <class F>
  void parameters(F f) {
    f("key_share", key_share);
    f("sinks", sinks);
    f("globals", globals);
    f("locals", locals);
    f("by_rows", by_rows);
  }
  const char* fault() const {
    const bool whole = sinks >= 0 && globals >= 0 && locals >= 0;
    return whole ? nullptr : "sinks, globals, locals cannot be negative";
  }
  int unit() const { return by_rows ? 1 : kPanel; }
  bool never_stops() const { return key_share >= 2; }
};

#else

// Algorithm 1 of Scrooge, lines 11 to 14.
inline bool may_stop(const Aet& rule, const Seen& seen, int q) {
  const float known = seen.total(q);
  // Neither changes often, so the exponential is kept next to its argument, unless it is 0.
  float* const kept = seen.kept_of(q);
  const float share = seen.greatest[q] - seen.peak[q];
  if (kept[1] == 0 || kept[0] != share) {
    kept[0] = share;
    kept[1] = std::exp2(share);
  }
  const float heaviest = kept[1];
  const float average = (known - heaviest) / static_cast<float>(seen.known - 1);
  const float unknown = average * static_cast<float>(seen.length - seen.known);
  return (known + unknown) * rule.key_share <= known;
}

#endif
