// Linear recurrences and short convolutions; see kernels/recurrence.h.

// Panels that are changed together: their vectors, with those of the outputs, fit into registers.
constexpr int kTogether = SUFFICE_LEVEL == 4 ? 4 : SUFFICE_LEVEL == 3 ? 2 : 1;
static_assert(kTogether <= kStatePanels);

// sum + a b with one rounding, where the set has that. The compiler may not choose: a row that is
// applied again leaves the same bits as it did at first.
SUFFICE_INLINE vf add_product(vf sum, vf a, vf b) {
#if SUFFICE_LEVEL == 4
  return _mm512_fmadd_ps(a, b, sum);
#elif SUFFICE_LEVEL == 3
  return _mm256_fmadd_ps(a, b, sum);
#elif SUFFICE_NEON
  return vf(vfmaq_f32(sum, a, b));
#else
  return sum + a * b;
#endif
}

// Sums over a key's entries run in two chains, of even and of odd ones: one would wait for itself.
template <int P>
SUFFICE_INLINE void correct(const StateRow& row, const float* faded, int size, const float* matrix,
                            int first, vf* change) {
  constexpr int vectors = P * kVectors;
  vf sums[2][vectors] = {};
  for (int i = 0; i < size; i += 2)
    for (int odd = 0; odd < 2; odd++) {
      const vf k = splat(faded[i + odd]);
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++)
          sums[odd][p * kVectors + v] = add_product(
              sums[odd][p * kVectors + v], k,
              load(matrix + (static_cast<size_t>(p) * size + i + odd) * kPanel + v * W));
    }
  for (int j = 0; j < vectors; j++)
    change[j] =
        row.strength * (load(row.value + first * kPanel + j * W) - (sums[0][j] + sums[1][j]));
}

// Applies a row to P panels, from the panel `first` of a head on.
template <int P, bool ByEntry, bool Again>
SUFFICE_INLINE void apply_row(const StatePart& part, const StateRow& row, int first,
                              float* matrix) {
  constexpr int vectors = P * kVectors;
  const int size = part.key_size;
  vf change[vectors];
  if (!Again && part.corrects) {
    float faded[kMostKeySize];
    for (int i = 0; i < size; i++) faded[i] = row.key[i] * row.decays[ByEntry ? i : 0];
    correct<P>(row, faded, size, matrix, first, change);
  } else {
    for (int j = 0; j < vectors; j++) change[j] = load(row.value + first * kPanel + j * W);
  }
  if (!Again && row.change)
    for (int j = 0; j < vectors; j++) store(row.change + first * kPanel + j * W, change[j]);
  vf output[vectors] = {};
  vf decay = splat(row.decays[0]);
  for (int i = 0; i < size; i++) {
    if (ByEntry) decay = splat(row.decays[i]);
    const vf k = splat(row.key[i]), q = splat(Again ? 0.0f : row.query[i]);
    for (int p = 0; p < P; p++)
      for (int v = 0; v < kVectors; v++) {
        float* const at = matrix + (static_cast<size_t>(p) * size + i) * kPanel + v * W;
        const vf kept = decay * load(at);
        const vf next = add_product(kept, k, change[p * kVectors + v]);
        store(at, next);
        if (!Again) output[p * kVectors + v] = add_product(output[p * kVectors + v], q, next);
      }
  }
  if (!Again)
    for (int j = 0; j < vectors; j++) store(row.output + first * kPanel + j * W, output[j]);
}

// Applies the rows between what came before all and `row` again, oldest first.
template <int P, bool ByEntry>
inline void return_to(const StatePart& part, int row, int first, float* matrix) {
  int path[32], steps = 0;
  for (; row >= 0; row = part.rows[row].parent) path[steps++] = row;
  while (steps-- > 0) {
    StateRow again = part.rows[path[steps]];
    again.value = again.change;
    apply_row<P, ByEntry, true>(part, again, first, matrix);
  }
}

template <int P, bool ByEntry>
inline void advance_panels(const StatePart& part, int first) {
  const size_t start = static_cast<size_t>(first) * part.key_size * kPanel;
  const size_t size = static_cast<size_t>(P) * part.key_size * kPanel;
  float* const matrix = part.to ? part.to + start : part.scratch;
  std::memcpy(matrix, part.from + start, size * sizeof(float));
  for (int i = 0; i < part.agains; i++)
    apply_row<P, ByEntry, true>(part, part.again[i], first, matrix);
  if (part.back) std::memcpy(part.back + start, matrix, size * sizeof(float));
  for (int i = 0; i < part.count; i++) {
    if (part.rows[i].parent != i - 1) {  // a branch: only matrices that were left are before all
      std::memcpy(matrix, (part.back ? part.back : part.from) + start, size * sizeof(float));
      return_to<P, ByEntry>(part, part.rows[i].parent, first, matrix);
    }
    apply_row<P, ByEntry, false>(part, part.rows[i], first, matrix);
  }
}

template <bool ByEntry>
inline void advance_by(const StatePart& part) {
  int panel = part.first;
  for (; panel + kTogether <= part.last; panel += kTogether)
    advance_panels<kTogether, ByEntry>(part, panel);
  for (; panel < part.last; panel++) advance_panels<1, ByEntry>(part, panel);
}

inline void advance(const StatePart& part) {
  part.by_entry ? advance_by<true>(part) : advance_by<false>(part);
}

// See `PointwiseKernels::convolve`.
inline void convolve(const float* const* inputs, int taps, const float* weights, const float* bias,
                     int channels, int first, int last, int activation, float* to) {
  int i = first;
  const auto sum = [&](auto at) __attribute__((always_inline)) {
    auto total = bias ? at(bias, i) : at(inputs[0], i) * 0.0f;
    for (int t = 0; t < taps; t++)
      total += at(weights + static_cast<size_t>(t) * channels, i) * at(inputs[t], i);
    return total;
  };
  for (; i + W <= last; i += W) {
    const vf total = sum([](const float* from, int at) { return load(from + at); });
    store(to + i, activation < 0 ? total : activation_of(activation, total));
  }
  for (; i < last; i++) {
    const vf total = sum([](const float* from, int at) { return splat(from[at]); });
    to[i] = activation < 0 ? total[0] : activation_of(activation, total)[0];
  }
}
