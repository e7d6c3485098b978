// Products with Hadamard matrices: the butterflies of the fast transform, those of whole vectors
// first.

// In each lane the sum or, where the lane's number has the bit `step`, the difference of the two
// lanes that differ in that bit.
template <int step>
SUFFICE_INLINE vf butterfly(vf x) {
  vi other, sign;
  for (int i = 0; i < W; i++) {
    other[i] = i ^ step;
    sign[i] = i & step ? INT32_MIN : 0;
  }
  return __builtin_shuffle(x, other) + as_float(as_bits(x) ^ sign);
}

// One block of a power of two, at least 16.
SUFFICE_INLINE void rotate_block(float* own, int block) {
  for (int step = block / 2; step >= W; step /= 2)
    for (int start = 0; start < block; start += 2 * step)
      for (int i = start; i < start + step; i += W) {
        const vf a = load(own + i), b = load(own + i + step);
        store(own + i, a + b);
        store(own + i + step, a - b);
      }
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(block));
  for (int i = 0; i < block; i += W) {
    vf x = load(own + i);
    if constexpr (W > 8) x = butterfly<8>(x);
    if constexpr (W > 4) x = butterfly<4>(x);
    x = butterfly<1>(butterfly<2>(x));
    store(own + i, x * scale);
  }
}

inline void hadamard(float* values, int stride, int count, int columns, int block) {
  for (int row = 0; row < count; row++)
    for (int first = 0; first < columns; first += block)
      rotate_block(values + static_cast<size_t>(row) * stride + first, block);
}

// A row of keys, queries, values or outputs; twice is as good as not at all.
inline void rotate_row(float* row, int size) { hadamard(row, size, 1, size, rotation_of(size)); }
