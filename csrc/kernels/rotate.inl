// Multiplication by Hadamard matrices, and by Hartley matrices across blocks of them.

// In each lane the sum of two lanes that differ in the bit `step`, or their difference where the
// lane's number has that bit.
template <int step>
SUFFICE_INLINE vf butterfly(vf x) {
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    const vi sign = {(i & step ? INT32_MIN : 0)...};
    return __builtin_shufflevector(x, x, (i ^ step)...) + as_float(as_bits(x) ^ sign);
  }(std::make_integer_sequence<int, W>());
}

// One block of a power of two, at least 16: butterflies of the fast transform, those of whole
// vectors first.
SUFFICE_INLINE void rotate_block(float* row_values, int block) {
  for (int step = block / 2; step >= W; step /= 2)
    for (int start = 0; start < block; start += 2 * step)
      for (int i = start; i < start + step; i += W) {
        const vf a = load(row_values + i), b = load(row_values + i + step);
        store(row_values + i, a + b);
        store(row_values + i + step, a - b);
      }
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(block));
  for (int i = 0; i < block; i += W) {
    vf x = load(row_values + i);
    if constexpr (W > 8) x = butterfly<8>(x);
    if constexpr (W > 4) x = butterfly<4>(x);
    x = butterfly<1>(butterfly<2>(x));
    store(row_values + i, x * scale);
  }
}

// Across parts of `size` elements, in place.
inline void hartley(float* row_values, int size, int parts, const float* wave) {
  vf old[kMaxParts];
  for (int i = 0; i < size; i += W) {
    for (int part = 0; part < parts; part++) old[part] = load(row_values + part * size + i);
    for (int to = 0; to < parts; to++) {
      vf sum = {};
      for (int from = 0, at = 0; from < parts; from++) {
        sum = splat(wave[at]) * old[from] + sum;
        at += to;
        if (at >= parts) at -= parts;
      }
      store(row_values + to * size + i, sum);
    }
  }
}

inline void rotate(float* values, int stride, int count, int columns, const Rotation& by) {
  const int size = hadamard_size(by.block), parts = by.block / size;
  for (int row = 0; row < count; row++) {
    float* row_values = values + static_cast<size_t>(row) * stride;
    for (int first = 0; first < columns; first += size) rotate_block(row_values + first, size);
    if (parts == 1) continue;
    for (int first = 0; first < columns; first += by.block)
      hartley(row_values + first, size, parts, by.wave);
  }
}

// Rotates a row of keys, queries, values or outputs; applied twice it is the identity, up to
// rounding.
inline void rotate_row(float* row, int size) {
  const int block = rotation_of(size);
  for (int first = 0; first < size; first += block) rotate_block(row + first, block);
}
