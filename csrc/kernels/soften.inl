// A tile's scores become weights: the running softmax of one query row.

constexpr float kRescale = 8.0f;
constexpr float kLowest = -1e30f;  // the peak of no keys: finite, so that hidden keys weigh nothing

// Raises the peak of one row to the largest of its scores if that is much larger; rescales the
// output and, in every lane, the partial sum of weights.
SUFFICE_INLINE void follow(vf largest, int size, float* peak, vf& total, float* output) {
  if (!any(largest > splat(*peak + kRescale))) return;
  const float top = max_of(largest);
  const vf factor = exp2(splat(*peak - top));
  for (int i = 0; i < size; i += W) store(output + i, load(output + i) * factor);
  total *= factor;
  *peak = top;
}

// Turns the scores of one row into weights exp2(score - peak), each given to keep(place, weight);
// updates the peak, the output and, in every lane, the partial sum of weights.
template <class Keep>
SUFFICE_INLINE void soften_each(int blocks, const float* scores, int size, float* peak, float* sums,
                                float* output, Keep keep) {
  vf largest = load(scores), total = load(sums);
  for (int i = W; i < blocks * kPanel; i += W) largest = max(largest, load(scores + i));
  follow(largest, size, peak, total, output);
  const vf base = splat(*peak);
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf weight = exp2(load(scores + i) - base);
    keep(i, weight);
    total += weight;
  }
  store(sums, total);
}

// The same: of whole tiles, the compiler knows the size and overlaps the exponentials.
template <class Keep>
SUFFICE_INLINE void soften(int blocks, const float* scores, int size, float* peak, float* sums,
                           float* output, Keep keep) {
  if (blocks == kTileBlocks)
    soften_each(kTileBlocks, scores, size, peak, sums, output, keep);
  else
    soften_each(blocks, scores, size, peak, sums, output, keep);
}

// The same; weights take the place of the scores.
inline void soften(int blocks, float* scores, int size, float* peak, float* sums, float* output) {
  soften(blocks, scores, size, peak, sums, output,
         [=](int i, vf weight) { store(scores + i, weight); });
}

// Rounds the weights of `size` keys to bfloat16.
SUFFICE_INLINE void round_weights(const Weights& weights, int q, int size) {
  for (int i = 0; i < size; i += W)
    store_bf16(load(weights.values + q * kTileRows + i), weights.codes + q * kTileRows + i);
}

// Rounds weights times scales to the integers that values of `type` take: `vectors` vectors,
// folded(i) one of them, `greatest` their largest element.
template <class Folded>
SUFFICE_INLINE void quantize(Type type, const Weights& weights, int q, Folded folded, int vectors,
                             float greatest) {
  int16_t* row = weights.codes + q * kTileRows;
  if (byte_weights(type))
    weights.units[q] = quantize_weights(folded, vectors, greatest, reinterpret_cast<uint8_t*>(row));
  else
    weights.units[q] = quantize_to_int16(folded, vectors, greatest, row);
}

inline void quantize_row(Type type, const Weights& weights, int q, const float* folded, int size) {
  const auto vector = [=](int i) { return load(folded + i * W); };
  quantize(type, weights, q, vector, size / W, max_magnitude(folded, size));
}

// Folds the values' scales into the weights of one query row.
inline void fold_value_scales(const KVHead& head, const Tile& tile, const Weights& weights,
                              int row) {
  float folded[kTileRows];
  for (int i = 0; i < tile.blocks * kPanel; i += W) {
    const vf scale = load(head.value_scales + tile.row[i / kPanel] + i % kPanel);
    store(folded + i, load(weights.values + row * kTileRows + i) * scale);
  }
  quantize_row(head.value_type, weights, row, folded, tile.blocks * kPanel);
}

// As `soften` for a whole tile, but folds the values' `scales` into the weights, which leave the
// registers only as integers.
inline void soften_and_fold(Type type, const float* scores, const vf* scales, int size, float* peak,
                            float* sums, float* output, const Weights& weights, int row) {
  constexpr int vectors = kTileRows / W;
  vf folded[vectors], largest = load(scores), total = load(sums), greatest = {};
  for (int i = 0; i < vectors; i++) largest = max(largest, folded[i] = load(scores + i * W));
  follow(largest, size, peak, total, output);
  const vf base = splat(*peak);
  for (int i = 0; i < vectors; i++) {
    const vf weight = exp2(folded[i] - base);
    total += weight;
    folded[i] = weight * scales[i];
    greatest = max(greatest, folded[i]);
  }
  store(sums, total);
  quantize(type, weights, row, [&](int i) { return folded[i]; }, vectors, max_of(greatest));
}

// Replaces 2^(x - peak), less `base`; a hidden key has weight 0.
SUFFICE_INLINE vf weight_of(const SoftmaxTable& table, float peak, float base, vf x) {
  const vf none = {};
  vf weight = x > splat(kLowest) ? splat(table.weights[0] - base) : none;
  for (int b = 0; b + 1 < table.codes; b++)
    weight = x >= splat(peak + table.borders[b]) ? splat(table.weights[b + 1] - base) : weight;
  return weight;
}

// Turns the scores of one row into weights as `soften` does. Codes are relative to the largest
// score so far, so the peak follows it at once.
inline void soften_by_codes(const SoftmaxTable& table, int blocks, float* scores, int size,
                            float* peak, float* sums, float* output) {
  vf largest = load(scores);
  for (int i = W; i < blocks * kPanel; i += W) largest = max(largest, load(scores + i));
  const float top = max_of(largest);
  if (top > *peak) {
    const vf factor = exp2(splat(*peak - top));
    for (int i = 0; i < size; i += W) store(output + i, load(output + i) * factor);
    store(sums, load(sums) * factor);
    *peak = top;
  }
  vf total = load(sums);
  for (int i = 0; i < blocks * kPanel; i += W) {
    const vf weight = weight_of(table, *peak, 0, load(scores + i));
    store(scores + i, weight);
    total += weight;
  }
  store(sums, total);
}
