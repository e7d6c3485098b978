// Linear recurrences and short convolutions; see kernels/recurrence.h.

// Panels that are changed together: their vectors, with those of what they make, fit into
// registers, and a part of a prompt finds the matrices in the first cache again (16 KiB with 128
// entries).
template <bool Corrects>
constexpr int kTogether = SUFFICE_LEVEL == 4 || (SUFFICE_LEVEL == 3 && !Corrects) ? 2 : 1;
static_assert(kTogether<false> <= kStatePanels);

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

// A row's key after its decay.
template <bool ByEntry>
SUFFICE_INLINE void fade(const StateRow& row, int size, float* faded) {
  for (int i = 0; i < size; i++) faded[i] = row.key[i] * row.decays[ByEntry ? i : 0];
}

// Products of P panels with a key. Sums over its entries run in two chains, of even and of odd
// ones: one would wait for itself.
template <int P>
struct KeyProducts {
  static constexpr int vectors = P * kVectors;
  vf sums[2][vectors] = {};

  SUFFICE_INLINE void add(int odd, int j, vf key, vf entries) {
    sums[odd][j] = add_product(sums[odd][j], key, entries);
  }

  // What a row of panels from `first` on adds by the delta rule.
  SUFFICE_INLINE void correct(const StateRow& row, int first, vf* change) const {
    for (int j = 0; j < vectors; j++)
      change[j] =
          row.strength * (load(row.value + first * kPanel + j * W) - (sums[0][j] + sums[1][j]));
  }
};

template <int P>
SUFFICE_INLINE void correct(const StateRow& row, const float* faded, int size, const float* matrix,
                            int first, vf* change) {
  KeyProducts<P> products;
  for (int i = 0; i < size; i += 2)
    for (int odd = 0; odd < 2; odd++) {
      const vf k = splat(faded[i + odd]);
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++)
          products.add(odd, p * kVectors + v, k,
                       load(matrix + (static_cast<size_t>(p) * size + i + odd) * kPanel + v * W));
    }
  products.correct(row, first, change);
}

// Adds what a row changes to P panels, and makes its output unless it is applied again. With
// `next`, a row that continues it by the delta rule, `change` is that row's after it: a matrix is
// read once for both, with the same sums.
template <int P, bool ByEntry, bool Again, bool Next>
SUFFICE_INLINE void apply_row(const StatePart& part, const StateRow& row, const StateRow* next,
                              int first, float* matrix, vf* change) {
  constexpr int vectors = P * kVectors;
  const int size = part.key_size;
  float faded[kMostKeySize];
  if constexpr (Next) fade<ByEntry>(*next, size, faded);
  KeyProducts<P> products;
  vf output[vectors] = {};
  vf decay = splat(row.decays[0]);
  for (int i = 0; i < size; i += 2)
    for (int odd = 0; odd < 2; odd++) {
      if (ByEntry) decay = splat(row.decays[i + odd]);
      const vf k = splat(row.key[i + odd]), q = splat(Again ? 0.0f : row.query[i + odd]);
      const vf of_next = splat(Next ? faded[i + odd] : 0.0f);
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++) {
          const int j = p * kVectors + v;
          float* const at = matrix + (static_cast<size_t>(p) * size + i + odd) * kPanel + v * W;
          const vf kept = decay * load(at);
          const vf changed = add_product(kept, k, change[j]);
          store(at, changed);
          if constexpr (!Again) output[j] = add_product(output[j], q, changed);
          if constexpr (Next) products.add(odd, j, of_next, changed);
        }
    }
  if constexpr (!Again)
    for (int j = 0; j < vectors; j++) store(row.output + first * kPanel + j * W, output[j]);
  if constexpr (Next) products.correct(*next, first, change);
}

template <int P>
SUFFICE_INLINE void load_values(const float* values, int first, vf* to) {
  for (int j = 0; j < P * kVectors; j++) to[j] = load(values + first * kPanel + j * W);
}

// Applies a row whose change is known again.
template <int P, bool ByEntry>
SUFFICE_INLINE void apply_again(const StatePart& part, const StateRow& row, const float* changes,
                                int first, float* matrix) {
  vf change[P * kVectors];
  load_values<P>(changes, first, change);
  apply_row<P, ByEntry, true, false>(part, row, nullptr, first, matrix, change);
}

// Applies the rows between what came before all and `row` again, oldest first.
template <int P, bool ByEntry>
inline void return_to(const StatePart& part, int row, int first, float* matrix) {
  int path[32], steps = 0;
  for (; row >= 0; row = part.rows[row].parent) path[steps++] = row;
  while (steps-- > 0) {
    const StateRow& again = part.rows[path[steps]];
    apply_again<P, ByEntry>(part, again, again.change, first, matrix);
  }
}

template <int P, bool ByEntry, bool Corrects>
inline void advance_panels(const StatePart& part, int first) {
  const size_t start = static_cast<size_t>(first) * part.key_size * kPanel;
  const size_t size = static_cast<size_t>(P) * part.key_size * kPanel;
  float* const matrix = part.to ? part.to + start : part.scratch;
  std::memcpy(matrix, part.from + start, size * sizeof(float));
  for (int i = 0; i < part.agains; i++)
    apply_again<P, ByEntry>(part, part.again[i], part.again[i].value, first, matrix);
  if (part.back) std::memcpy(part.back + start, matrix, size * sizeof(float));
  vf change[P * kVectors];
  bool known = false;  // the change of the row that follows
  for (int i = 0; i < part.count; i++) {
    const StateRow& row = part.rows[i];
    if (row.parent != i - 1) {  // a branch: only matrices that were left are before all
      std::memcpy(matrix, (part.back ? part.back : part.from) + start, size * sizeof(float));
      return_to<P, ByEntry>(part, row.parent, first, matrix);
    }
    if (!Corrects) {
      load_values<P>(row.value, first, change);
    } else if (!known) {
      float faded[kMostKeySize];
      fade<ByEntry>(row, part.key_size, faded);
      correct<P>(row, faded, part.key_size, matrix, first, change);
    }
    if (row.change)
      for (int j = 0; j < P * kVectors; j++) store(row.change + first * kPanel + j * W, change[j]);
    known = Corrects && i + 1 < part.count && part.rows[i + 1].parent == i;
    if (known)
      apply_row<P, ByEntry, false, Corrects>(part, row, &row + 1, first, matrix, change);
    else
      apply_row<P, ByEntry, false, false>(part, row, nullptr, first, matrix, change);
  }
}

template <bool ByEntry, bool Corrects>
inline void advance_by(const StatePart& part) {
  constexpr int together = kTogether<Corrects>;
  int panel = part.first;
  for (; panel + together <= part.last; panel += together)
    advance_panels<together, ByEntry, Corrects>(part, panel);
  for (; panel < part.last; panel++) advance_panels<1, ByEntry, Corrects>(part, panel);
}

template <bool ByEntry>
inline void advance_by(const StatePart& part) {
  part.corrects ? advance_by<ByEntry, true>(part) : advance_by<ByEntry, false>(part);
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
