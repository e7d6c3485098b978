// Every key is read.
#ifndef SUFFICE_LEVEL

struct ReadAll : TechniqueDefaults {
  static constexpr const char* kName = "read_all";

  template <class F>
  void parameters(F) {}
  bool never_stops() const { return true; }
};

#else

inline bool may_stop(const ReadAll&, const Seen&, int) { return false; }

#endif
