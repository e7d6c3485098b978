// What the stop tests of techniques know of a traversal; attention/techniques has the tests.
//
// may_stop(rule, seen, q) says whether query row q may stop. It is called for every query row at
// each check, also once a row may stop, unless the technique's kKeepsNothing is true: then until a
// row may not. A technique may instead declare all_may_stop(rule, seen), for all rows at once.

// One entry per query row; weights are in units of 2^peak.
struct Seen {
  int count, size;
  int length;       // keys that the token may see
  int known = 0;    // of these, keys that were read
  float* greatest;  // scores in base 2
  const float* peak;
  const float* sums;    // [count][W], the sums of weights in parts
  const float* output;  // [count][size], unnormalised
  bool rotated;         // the output is rotated: values are in codes
  // Memory of the test from check to check, at first zero.
  float* kept;       // [count][kept_floats(size)]; of each row, size + kPanel are set to 0
  int32_t* numbers;  // [kKeptNumbers]

  // Sum of the weights of the keys that were read.
  float total(int q) const { return sum_of(load(sums + q * W)); }

  float* kept_of(int q) const { return kept + q * kept_floats(size); }
};
