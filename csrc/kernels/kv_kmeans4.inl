// Keys and values in kmeans4: 4-bit codes, laid out as cache/kv_head.h shows.

// The codes of a row: bytes of `run` elements and the `run` after them, one such run after the
// other, `stride` bytes apart.
struct CodeLayout {
  int run;
  size_t stride;

  // Position of element i: its byte, and its first bit there.
  SUFFICE_INLINE size_t byte(int i) const { return i / (2 * run) * stride + i % run; }
  SUFFICE_INLINE int shift(int i) const { return i / run % 2 * 4; }
};
constexpr CodeLayout kKeyCodes{4, kLineBytes}, kValueCodes{8, 8};

constexpr int kTriedVectors = kTried > W ? kTried / W : 1;
constexpr int kTriedLanes = kTriedVectors * W;  // one lane for each tried scale

// Codes of the centroids nearest to x, in units of levels, and these centroids.
SUFFICE_INLINE vi nearest_code(vf x, vf* level) {
  const vi negative = x < vf{};
  const vf size = max(x, -x);
  vi place = {}, found = splat_bits(kUpperLevels[0]);
  for (int i = 0; i + 1 < kLevels / 2; i++) {
    const int below = kUpperLevels[i], above = kUpperLevels[i + 1];
    const vi reaches = size > splat(0.5f * static_cast<float>(below + above));
    place -= reaches;  // true lanes are -1
    found += reaches & (above - below);
  }
  *level = to_float((found ^ negative) - negative);
  return (place ^ negative) + kLevels / 2;
}

// Least squares of aim - scale * sum: rates the codes of each scale.
struct Fit {
  vf products[kTriedVectors] = {};
  vf squares[kTriedVectors] = {};

  SUFFICE_INLINE void add(int v, float weight, float aim, vf sum) {
    products[v] += splat(weight * aim) * sum;
    squares[v] += splat(weight) * sum * sum;
  }

  // The lane with the least error, and the best scale for its codes.
  SUFFICE_INLINE int best(float* scale) const {
    int lane = 0;
    float greatest = 0;
    *scale = 0;
    for (int i = 0; i < kTried; i++) {
      const float product = products[i / W][i % W], square = squares[i / W][i % W];
      if (!(product * product > greatest * square)) continue;
      greatest = product * product / square;
      *scale = product / square;
      lane = i;
    }
    return lane;
  }
};

// Targets of the elements' codes: the elements with all errors passed on, as if nothing were
// rounded.
inline void find_aims(const float* row, int size, const KeyRounding* by, float* aims) {
  std::memcpy(aims, row, sizeof(float) * size);
  for (int j = 0; by && j < size; j++) {
    const float* passed = by->passed + static_cast<size_t>(j) * size;
    for (int i = j + 1; i < size; i++) aims[i] += passed[i] * row[j];
  }
}

// Adds the contributions of Count centroids to the elements from `first` to `last`; `passed` has
// the rows of the centroids' elements.
template <int Count>
SUFFICE_INLINE void pass_on(const float* passed, int size, const vf (*levels)[kTriedVectors],
                            int first, int last, float (*pending)[kTriedLanes]) {
  for (int i = first; i < last; i++)
    for (int v = 0; v < kTriedVectors; v++) {
      vf sum = load(pending[i] + v * W);
      for (int k = 0; k < Count; k++) sum += splat(passed[k * size + i]) * levels[k][v];
      store(pending[i] + v * W, sum);
    }
}

// Encodes a row with the best of the tried scales, and returns that scale. The target of an element
// is its value plus the errors passed on from those before it; without `by`, its value alone. (GPTQ
// passes on errors of weights in this way.)
inline float encode_row(const float* row, int size, const KeyRounding* by, int8_t* codes) {
  constexpr int together = 4;                        // elements that pass on their errors in one go
  alignas(64) float pending[kMaxSize][kTriedLanes];  // in units of levels
  alignas(64) int8_t tried[kMaxSize][kTriedLanes];
  alignas(64) float aims[kMaxSize];
  vf square = {};
  for (int i = 0; i < size; i += W) square += load(row + i) * load(row + i);
  const float usual = std::sqrt(sum_of(square) / static_cast<float>(size)) / kLevelUnit;
  vf inverse[kTriedVectors];
  for (int i = 0; i < kTriedLanes; i++)
    inverse[i / W][i % W] = usual > 0 ? 1.0f / (usual * kTriedFactors[i % kTried]) : 0.0f;

  std::memset(pending, 0, sizeof(pending[0]) * size);
  find_aims(row, size, by, aims);
  Fit fit;
  for (int start = 0; start < size; start += together) {
    const float* passed = by ? by->passed + static_cast<size_t>(start) * size : nullptr;
    vf levels[together][kTriedVectors];
    for (int k = 0; k < together; k++) {
      const int i = start + k;
      for (int v = 0; v < kTriedVectors; v++) {
        const vf before = load(pending[i] + v * W);
        store_narrow(nearest_code(splat(aims[i]) * inverse[v] - before, levels[k] + v),
                     tried[i] + v * W);
        fit.add(v, by ? by->weights[i] : 1.0f, aims[i], levels[k][v] + before);
      }
      if (by) pass_on<1>(passed + k * size, size, levels + k, i + 1, start + together, pending);
    }
    if (by) pass_on<together>(passed, size, levels, start + together, size, pending);
  }
  float scale;
  const int lane = fit.best(&scale);
  for (int i = 0; i < size; i++) codes[i] = tried[i][lane];
  return scale;
}

template <CodeLayout L>
SUFFICE_INLINE void store_codes(const int8_t* codes, int size, std::byte* to) {
  for (int i = 0; i < size; i += 2 * L.run, to += L.stride)
    for (int j = 0; j < L.run; j++)
      to[j] = static_cast<std::byte>(codes[i + j] | codes[i + L.run + j] << 4);
}

// A key's 4 bytes, as float32: its scale, and its multiple of the mean key.
struct KeyScale {
  float scale, share;
};

SUFFICE_INLINE KeyScale key_scale(const float* stored) {
  uint32_t pair;
  std::memcpy(&pair, stored, sizeof pair);
  return {from_bf16(static_cast<uint16_t>(pair)), from_bf16(static_cast<uint16_t>(pair >> 16))};
}

// Removes from a rotated key its component along the mean, up to rounding; returns the multiple of
// the mean, as bfloat16.
SUFFICE_INLINE uint16_t take_mean(const float* mean, float* row, int size) {
  vf product = {}, square = {};
  for (int i = 0; i < size; i += W) {
    product += load(row + i) * load(mean + i);
    square += load(mean + i) * load(mean + i);
  }
  const float all = sum_of(square);
  const uint16_t share = to_bf16(all > 0 ? sum_of(product) / all : 0.0f);
  for (int i = 0; i < size; i += W)
    store(row + i, load(row + i) - load(mean + i) * splat(from_bf16(share)));
  return share;
}

// Multiplies by a head's channel scales or their inverses; null: by one.
SUFFICE_INLINE void multiply(const float* row, const float* by, int size, float* to) {
  for (int i = 0; i < size; i += W)
    store(to + i, by ? load(row + i) * load(by + i) : load(row + i));
}

// A key as it is rounded: its channels scaled, rotated, without its component along the mean.
// Returns the multiple of the mean, as bfloat16.
SUFFICE_INLINE uint32_t turn_key(const KVHead& head, const float* from, float* row) {
  multiply(from, head.rounding ? head.rounding->scales : nullptr, head.size, row);
  rotate_row(row, head.size);
  return head.rounding ? take_mean(head.rounding->mean, row, head.size) : 0;
}

// The key of what `turn_key` made.
SUFFICE_INLINE void turn_back(const KVHead& head, float share, float* row) {
  for (int i = 0; head.rounding && i < head.size; i++) row[i] += share * head.rounding->mean[i];
  rotate_row(row, head.size);
  if (head.rounding) multiply(row, head.rounding->inverses, head.size, row);
}

// Stores a key's codes and scale; leaves the key as it is rounded in `row` and the codes in
// `codes`.
inline void encode_key(const KVHead& head, const float* from, float* row, int8_t* codes,
                       std::byte* to, float* scale) {
  const uint32_t share = turn_key(head, from, row);
  const uint32_t pair = share << 16 | to_bf16(encode_row(row, head.size, head.rounding, codes));
  std::memcpy(scale, &pair, sizeof pair);
  store_codes<kKeyCodes>(codes, head.size, to);
}

// The same for a value.
inline void encode_value(const float* from, int size, float* row, int8_t* codes, std::byte* to,
                         float* scale) {
  std::memcpy(row, from, sizeof(float) * size);
  rotate_row(row, size);
  *scale = encode_row(row, size, nullptr, codes);
  store_codes<kValueCodes>(codes, size, to);
}

inline void store_key_codes(const KVHead& head, const float* from, std::byte* to, float* scale) {
  alignas(64) float row[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  encode_key(head, from, row, codes, to, scale);
}

inline void store_value_codes(const float* from, int size, std::byte* to, float* scale) {
  alignas(64) float row[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  encode_value(from, size, row, codes, to, scale);
}

template <CodeLayout L>
SUFFICE_INLINE void load_codes(const std::byte* from, int size, float scale, float* to) {
  for (int i = 0; i < size; i++) {
    const int code = static_cast<int>(from[L.byte(i)]) >> L.shift(i) & 15;
    to[i] = scale * kRowCodebook.levels[code];
  }
}

inline void load_key_codes(const KVHead& head, const std::byte* from, const float* scale,
                           float* to) {
  const KeyScale found = key_scale(scale);
  load_codes<kKeyCodes>(from, head.size, found.scale, to);
  turn_back(head, found.share, to);
}

inline void load_value_codes(const std::byte* from, int size, float scale, float* to) {
  load_codes<kValueCodes>(from, size, scale, to);
  rotate_row(to, size);
}

// A query as it is multiplied with such keys: its channels scaled, and rotated.
SUFFICE_INLINE void turn_query(const KVHead& head, const float* query, float* to) {
  multiply(query, head.rounding ? head.rounding->inverses : nullptr, head.size, to);
  rotate_row(to, head.size);
}

// A query for keys in codes: rotated like the keys and rounded to int8. Rounding changes a score a
// fifteenth as much as the keys' codes do. Returns the scale; `sum`: of the codes.
inline float quantize_to_int8(const KVHead& head, const float* query, int8_t* codes, int32_t* sum) {
  alignas(64) float rotated[kMaxSize];
  const int size = head.size;
  turn_query(head, query, rotated);
  const float scale = max_magnitude(rotated, size) / 127.0f;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  vi lanes = {};
  for (int i = 0; i < size; i += W) {
    const vi code = nearest(load(rotated + i), inverse);
    store_narrow(code, codes + i);
    lanes += code;
  }
  *sum = sum_of_lanes(lanes);
  return scale;
}

// The query that its int8 codes represent.
inline void round_query(const KVHead& head, const float* query, float* to) {
  alignas(64) int8_t codes[kMaxSize];
  int32_t unused;
  const float scale = quantize_to_int8(head, query, codes, &unused);
  for (int i = 0; i < head.size; i++) to[i] = scale * codes[i];
  rotate_row(to, head.size);
  if (head.rounding) multiply(to, head.rounding->scales, head.size, to);
}

// Stores W lanes with values below 256 as bytes.
SUFFICE_INLINE void store_bytes(vi value, uint8_t* to) {
#if SUFFICE_LEVEL == 3
  const __m256i all = reinterpret_cast<__m256i>(value);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  store_narrow(value, reinterpret_cast<int8_t*>(to));  // does not saturate
#endif
}

// Rounds the weights of rows to integers below 256; returns the unit. Rounding each small weight
// alone would lose them all, so a row's rounding error goes on to the row that comes W later. Lanes
// start with evenly spread remainders.
template <class Values>
SUFFICE_INLINE float quantize_weights(Values values, int vectors, float greatest, uint8_t* codes) {
  const float inverse = greatest > 0 ? 254.0f / greatest : 0.0f;
  vf sum, before = {};
  for (int i = 0; i < W; i++) sum[i] = (static_cast<float>(i) + 0.5f) / W - 0.5f;
  for (int i = 0; i < vectors; i++) {
    sum += values(i) * inverse;
    const vf rounded = round_even(sum);
    store_bytes(__builtin_convertvector(rounded - before, vi), codes + i * W);
    before = rounded;
  }
  return greatest / 254.0f;
}
