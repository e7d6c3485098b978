// Keys and values in planes: kmeans4 and what it leaves of a row, in 4 bits; see cache/kv_head.h.

// What rows lack of a multiple of the scale, as second planes have it.
SUFFICE_INLINE vf nearest_rest(vf left) {
  constexpr float most = kGreatestRest;
  return max(min(round_even(left), splat(most)), splat(-most - 1));
}

SUFFICE_INLINE float nearest_rest(float left) {
  constexpr float most = kGreatestRest;
  const float rest = std::nearbyint(left);
  return rest < most ? (rest > -most - 1 ? rest : -most - 1) : most;
}

// Adds the error of element i to the targets of those after it, `pending`. What it leaves in those
// before it has no meaning.
SUFFICE_INLINE void pass_error(const KeyRounding& by, int i, int size, float error,
                               float* pending) {
  const float* const passed = by.passed + static_cast<size_t>(i) * size;
  for (int j = (i + 1) / W * W; j < size; j += W)
    store(pending + j, load(pending + j) + load(passed + j) * splat(error));
}

// What the levels of `codes` leave of a rotated row, in steps of the scale. The target of an
// element is its value less the errors passed on from those before it; without `by`, its value.
inline void find_rest(const float* row, int size, const KeyRounding* by, float scale,
                      const int8_t* codes, float* rest) {
  alignas(64) float left[kMaxSize];
  alignas(64) float pending[kMaxSize] = {};
  for (int i = 0; i < size; i++) left[i] = kRowCodebook.levels[codes[i]];
  const vf inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
  for (int i = 0; i < size; i += W) {
    const vf own = load(row + i) * inverse - load(left + i);
    store(left + i, own);
    store(rest + i, nearest_rest(own));
  }
  for (int i = 0; by && i < size; i++) {
    rest[i] = nearest_rest(left[i] - pending[i]);
    pass_error(*by, i, size, rest[i] - left[i], pending);
  }
}

template <CodeLayout L>
SUFFICE_INLINE void store_rest(const float* rest, int size, std::byte* to) {
  alignas(64) int8_t codes[kMaxSize];
  for (int i = 0; i < size; i += W)
    store_narrow(__builtin_convertvector(load(rest + i), vi) + kLevels / 2, codes + i);
  store_codes<L>(codes, size, to);
}

template <CodeLayout L>
SUFFICE_INLINE void load_planes(const std::byte* base, const std::byte* rest, int size, float scale,
                                float* to) {
  for (int i = 0; i < size; i++) {
    const auto half = [&](const std::byte* plane) {
      return static_cast<int>(plane[L.byte(i)]) >> L.shift(i) & 15;
    };
    to[i] = scale * static_cast<float>(kWholeCodebook.levels[half(base)] + half(rest));
  }
}

// The length of what the levels of a key leave, in steps of its scale: the root of the mean squared
// change of scores that it makes, over queries like those that the rounding was fitted to.
inline float rest_length(const float* rest, int size, const KeyRounding* by) {
  alignas(64) float sums[kMaxSize] = {};
  double square = 0;
  for (int i = 0; i < size; i++) {
    const float own = rest[i];
    const double sum = sums[i] + own;
    square += (by ? by->weights[i] : 1.0f) * sum * sum;
    if (by) pass_error(*by, i, size, own, sums);
  }
  return static_cast<float>(std::sqrt(square));
}

// The least stored length that is not below `length`, with room for the rounding of its sum.
inline uint8_t length_code(float length) {
  const float most = length * 1.0001f;
  if (most <= kLeastLength) return 0;
  const int32_t above = std::bit_cast<int32_t>(most) - std::bit_cast<int32_t>(kLeastLength);
  const int32_t code = (above + (1 << kLengthShift) - 1) >> kLengthShift;
  return static_cast<uint8_t>(code < 255 ? code : 255);
}

SUFFICE_INLINE vf load_lengths(const uint8_t* codes) {
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  Bytes narrow;
  std::memcpy(&narrow, codes, sizeof narrow);
  const vi bits = __builtin_convertvector(narrow, vi) << kLengthShift;
  return as_float(bits + splat_bits(std::bit_cast<int32_t>(kLeastLength)));
}

inline void store_key_planes(const KVHead& head, const float* from, std::byte* base,
                             std::byte* rest, float* scale, uint8_t* error) {
  alignas(64) float row[kMaxSize];
  alignas(64) float left[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  encode_key(head, from, row, codes, base, scale);
  find_rest(row, head.size, head.rounding, key_scale(scale).scale, codes, left);
  store_rest<kKeyCodes>(left, head.size, rest);
  *error = length_code(rest_length(left, head.size, head.rounding));
}

// The error of a value's base from sums of squares: of what it lacks, and of the value.
inline uint8_t value_error(double lost, double whole) {
  return length_code(whole > 0 ? kErrorUnit * static_cast<float>(std::sqrt(lost / whole)) : 0);
}

inline void store_value_planes(const float* from, int size, std::byte* base, std::byte* rest,
                               float* scale, uint8_t* error) {
  alignas(64) float row[kMaxSize];
  alignas(64) float left[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  encode_value(from, size, row, codes, base, scale);
  find_rest(row, size, nullptr, *scale, codes, left);
  store_rest<kValueCodes>(left, size, rest);
  vf lost = {}, whole = {};
  for (int i = 0; i < size; i += W) {
    const vf rests = load(left + i);
    lost += rests * rests;
  }
  for (int i = 0; i < size; i++) left[i] += kRowCodebook.levels[codes[i]];
  for (int i = 0; i < size; i += W) whole += load(left + i) * load(left + i);
  *error = value_error(sum_of(lost), sum_of(whole));
}

inline void load_key_planes(const KVHead& head, const std::byte* base, const std::byte* rest,
                            const float* scale, float* to) {
  const KeyScale found = key_scale(scale);
  load_planes<kKeyCodes>(base, rest, head.size, found.scale, to);
  turn_back(head, found.share, to);
}

inline void load_value_planes(const std::byte* base, const std::byte* rest, int size, float scale,
                              float* to) {
  load_planes<kValueCodes>(base, rest, size, scale, to);
  rotate_row(to, size);
}

// AVX-512 multiplies rows in planes as bytes. Queries of 16 bits are split into two bytes, with a
// sum of each; weights of values are bytes. Other sets widen the rows: scores are the same
// integers.
constexpr bool kSplitsPlanes = SUFFICE_LEVEL == 4;
template <Type T>
constexpr bool kSplit = kSplitsPlanes && T == Type::planes;

// Types whose values are multiplied by weights of bytes.
constexpr bool byte_weights(Type type) {
  return type == Type::kmeans4 || (kSplitsPlanes && type == Type::planes);
}

// The levels of `base` codes and the codes of second planes, byte by byte.
SUFFICE_INLINE vi add_rest(vi levels, vi base, vi rest) {
  const vi half = splat_bits(0x0f0f0f0f);
  return add_bytes(look_up(levels, base & half), rest & half);
}

// The int8 codes of W keys, 8 elements of each, as pairs of int16: (0, 2), (1, 3), (4, 6), (5, 7).
SUFFICE_INLINE void load_plane_pairs(const std::byte* base, ptrdiff_t rest, vi* pairs) {
  const vi levels = load_bits(kWholeCodebook.levels);
  const vi high = load_bits(base), low = load_bits(base + rest);
  const vh first = reinterpret_cast<vh>(add_rest(levels, high, low));
  const vh second = reinterpret_cast<vh>(add_rest(levels, high >> 4, low >> 4));
  pairs[0] = reinterpret_cast<vi>(first << 8 >> 8);
  pairs[1] = reinterpret_cast<vi>(first >> 8);
  pairs[2] = reinterpret_cast<vi>(second << 8 >> 8);
  pairs[3] = reinterpret_cast<vi>(second >> 8);
}

// Codes of keys as they are multiplied by signed bytes: unsigned.
constexpr int kByteOffset = 128;
constexpr Codebook byte_codebook() {
  Codebook book = kWholeCodebook;
  for (int8_t& level : book.levels)
    level = static_cast<int8_t>(static_cast<uint8_t>(level + kByteOffset));
  return book;
}
constexpr Codebook kByteCodebook = byte_codebook();

// These of W keys, 8 elements of each: 0 to 3, and 4 to 7.
SUFFICE_INLINE void load_plane_bytes(const std::byte* base, ptrdiff_t rest, vi* to) {
  const vi levels = load_bits(kByteCodebook.levels);
  const vi high = load_bits(base), low = load_bits(base + rest);
  to[0] = add_rest(levels, high, low);
  to[1] = add_rest(levels, high >> 4, low >> 4);
}

// The int8 codes of 16 elements of two rows of values as int16: the pairs (a[i], b[i]).
SUFFICE_INLINE void zip_planes(const std::byte* a, const std::byte* b, ptrdiff_t rest, vi* to) {
#if SUFFICE_LEVEL >= 3
  const auto both = [&](ptrdiff_t plane) __attribute__((always_inline)) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + plane)),
                             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b + plane)));
  };
  const __m128i high = both(0), low = both(rest), half = _mm_set1_epi8(15);
  const __m128i levels = _mm_load_si128(reinterpret_cast<const __m128i*>(kWholeCodebook.levels));
  const auto whole = [&](__m128i base, __m128i more) __attribute__((always_inline)) {
    return _mm_add_epi8(_mm_shuffle_epi8(levels, _mm_and_si128(base, half)),
                        _mm_and_si128(more, half));
  };
  const __m128i first = whole(high, low);
  const __m128i second = whole(_mm_srli_epi16(high, 4), _mm_srli_epi16(low, 4));
#if SUFFICE_LEVEL == 4
  to[0] = reinterpret_cast<vi>(_mm512_cvtepi8_epi16(_mm256_set_m128i(second, first)));
#else
  to[0] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(first));
  to[1] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(second));
#endif
#elif SUFFICE_NEON
  const auto both = [&](ptrdiff_t plane) __attribute__((always_inline)) {
    const uint8x8_t x = vld1_u8(reinterpret_cast<const uint8_t*>(a + plane));
    const uint8x8_t y = vld1_u8(reinterpret_cast<const uint8_t*>(b + plane));
    return reinterpret_cast<vi>(vcombine_u8(vzip1_u8(x, y), vzip2_u8(x, y)));
  };
  const vi high = both(0), low = both(rest), levels = load_bits(kWholeCodebook.levels);
  for (int i = 0; i < 2; i++) {
    const auto codes = reinterpret_cast<int8x16_t>(add_rest(levels, high >> 4 * i, low >> 4 * i));
    to[2 * i] = reinterpret_cast<vi>(vmovl_s8(vget_low_s8(codes)));
    to[2 * i + 1] = reinterpret_cast<vi>(vmovl_high_s8(codes));
  }
#else
  for (int v = 0; v < kVectors; v++) {
    vh part;
    for (int j = 0; j < W; j++) {
      const int i = v * W + j;
      const auto code = [&](const std::byte* row) {
        const auto at = [&](const std::byte* plane) {
          return static_cast<int>(plane[kValueCodes.byte(i)]) >> kValueCodes.shift(i) & 15;
        };
        return static_cast<int16_t>(kWholeCodebook.levels[at(row)] + at(row + rest));
      };
      part[2 * j] = code(a);
      part[2 * j + 1] = code(b);
    }
    to[v] = reinterpret_cast<vi>(part);
  }
#endif
}

#if SUFFICE_LEVEL == 4
// The int8 codes of 16 `Units` elements of four rows of values, four bytes for each element. Those
// of 32 are in the order of `zip_codes`.
template <int Units>
SUFFICE_INLINE void zip_four_planes(const std::byte* const* rows, ptrdiff_t rest, vi* to) {
  const std::byte* rests[4];
  for (int i = 0; i < 4; i++) rests[i] = rows[i] + rest;
  const vi levels = load_bits(kWholeCodebook.levels);
  const vi high = zip_codes<Units>(rows), low = zip_codes<Units>(rests);
  to[0] = add_rest(levels, high, low);
  vi last = add_rest(levels, high >> 4, low >> 4);
  if constexpr (Units == 2)
    to[1] = last;
  else
    exchange_halves(to[0], last);
}

// The same of 64, in the order of `zip_many_codes`.
SUFFICE_INLINE void zip_many_planes(const std::byte* const* rows, ptrdiff_t rest, vi* to) {
  const std::byte* rests[4];
  for (int i = 0; i < 4; i++) rests[i] = rows[i] + rest;
  const vi levels = load_bits(kWholeCodebook.levels);
  vi high[2], low[2];
  zip_many_codes(rows, high);
  zip_many_codes(rests, low);
  for (int i = 0; i < 2; i++) {
    to[2 * i] = add_rest(levels, high[i], low[i]);
    to[2 * i + 1] = add_rest(levels, high[i] >> 4, low[i] >> 4);
  }
}

#endif
