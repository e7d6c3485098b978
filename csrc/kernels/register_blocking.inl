// Splits work into pieces that fit the registers, with sizes known to the compiler.

// Calls f.operator()<value>() for a value from Least to Most.
template <int Most, int Least = 1, class F>
SUFFICE_INLINE void dispatch(int value, F f) {
  if constexpr (Most > Least)
    if (value < Most) return dispatch<Most - 1, Least>(value, f);
  f.template operator()<Most>();
}

// Calls f.operator()<U>(first) for groups of at most Most of `count` units, of nearly equal size.
// None has fewer than Least.
template <int Most, int Least = 1, class F>
SUFFICE_INLINE void in_units(int count, F f) {
  const int groups = (count + Most - 1) / Most;
  for (int i = 0, first = 0; i < groups; i++) {
    const int end = count * (i + 1) / groups;
    dispatch<Most, Least>(end - first, [&]<int U>() { f.template operator()<U>(first); });
    first = end;
  }
}
