// What the stop tests of techniques know of a traversal; attention/techniques has the tests.
//
// may_stop(rule, seen, q) says whether query row q may stop. It is called for every query row after
// each check, also once a row may stop.

// One entry per query row; weights are in units of 2^peak.
struct Seen {
  int count, size;
  int length;       // keys that the token may see
  int known = 0;    // of these, keys that were read
  float* greatest;  // scores in base 2
  const float* peak;
  const float* sums;    // [count][W]
  const float* output;  // [count][size], unnormalised
  bool rotated;         // the output is rotated: values are in codes
  // Memory of the test from check to check, at first zero.
  float* kept;      // [count][size]
  int32_t* streak;  // [count]

  // Sum of the weights of the keys that were read.
  float total(int q) const { return sum_of(load(sums + q * W)); }

  // The output, unnormalised; in `space` [size] if it has to be rotated back.
  const float* output_of(int q, float* space) const {
    if (!rotated) return output + q * size;
    std::memcpy(space, output + q * size, sizeof(float) * size);
    rotate_row(space, size);
    return space;
  }
};
