// Splits work into pieces that fit the registers, with sizes known to the compiler.

// Zeros sums one by one: an initializer of them all would go through memory.
template <class Sum>
SUFFICE_INLINE void clear(Sum& sum) {
  sum = Sum{};
}

template <class Sum, size_t Count>
SUFFICE_INLINE void clear(Sum (&sums)[Count]) {
#pragma GCC unroll 32
  for (size_t i = 0; i < Count; i++) clear(sums[i]);
}

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
