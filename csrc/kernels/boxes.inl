// Data that policies keep of keys and scores: boxes around blocks of keys, attention masses of
// rows.

inline void add_masses(const float* scores, float peak, float factor, float* masses) {
  for (int i = 0; i < kPanel; i += W)
    store(masses + i, load(masses + i) + exp2(load(scores + i) - splat(peak)) * factor);
}

inline void encode_box(const KVHead& head, int block, float* box) {
  const int size = head.size;
  alignas(64) float key[kMaxSize];
  for (int row = 0; row < kPanel; row++) {
    rows.load_rows(head, block * kPanel + row, 1, key, nullptr);
    for (int d = 0; d < size; d += W) {
      const vf value = load(key + d);
      store(box + d, row == 0 ? value : -max(-value, -load(box + d)));
      store(box + size + d, row == 0 ? value : max(value, load(box + size + d)));
    }
  }
}

inline float bound(const float* box, const float* const* queries, int count, int size) {
  float greatest = -kInfinity;
  for (int q = 0; q < count; q++) {
    vf total = {};
    for (int d = 0; d < size; d += W) {
      const vf query = load(queries[q] + d);
      total += max(query * load(box + d), query * load(box + size + d));
    }
    const float found = sum_of(total);
    greatest = found > greatest ? found : greatest;
  }
  return greatest;
}
