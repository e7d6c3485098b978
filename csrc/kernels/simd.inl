// A thin vector type: `vf` is W floats, `vi` the same lanes as int32, arithmetic by operators.
// Only operations that the plain language cannot express have a body per instruction set.
#if SUFFICE_LEVEL == 4
constexpr int kVectorBytes = 64;
#elif SUFFICE_LEVEL == 3
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

constexpr int W = kVectorBytes / 4;
constexpr int kVectors = kPanel / W;  // vectors that hold one value of 16 rows

typedef float vf __attribute__((vector_size(kVectorBytes)));
typedef int32_t vi __attribute__((vector_size(kVectorBytes)));
typedef int16_t vh __attribute__((vector_size(kVectorBytes)));
typedef uint16_t vu __attribute__((vector_size(kVectorBytes)));

#define SUFFICE_INLINE inline __attribute__((always_inline))

SUFFICE_INLINE vf load(const float* from) {
  vf to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

SUFFICE_INLINE vi load_bits(const void* from) {
  vi to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

SUFFICE_INLINE void fetch(const void* from) { __builtin_prefetch(from, 0, 2); }       // into L2
SUFFICE_INLINE void fetch_near(const void* from) { __builtin_prefetch(from, 0, 3); }  // into L1

SUFFICE_INLINE void fetch_row(const void* from, int bytes) {
  for (int line = 0; line < bytes; line += kLineBytes)
    fetch(static_cast<const std::byte*>(from) + line);
}

SUFFICE_INLINE void store(float* to, vf value) { std::memcpy(to, &value, sizeof value); }

SUFFICE_INLINE vf splat(float value) { return value - vf{}; }
SUFFICE_INLINE vi splat_bits(int32_t value) { return value - vi{}; }
SUFFICE_INLINE vf as_float(vi bits) { return reinterpret_cast<vf>(bits); }
SUFFICE_INLINE vi as_bits(vf value) { return reinterpret_cast<vi>(value); }
SUFFICE_INLINE vf to_float(vi value) { return __builtin_convertvector(value, vf); }
SUFFICE_INLINE vf max(vf a, vf b) { return a > b ? a : b; }
SUFFICE_INLINE vf min(vf a, vf b) { return a < b ? a : b; }

// From a pair of bfloat16 in each 32-bit lane, the first and the second as float32.
SUFFICE_INLINE vf first_bf16(vi pair) { return as_float(pair << 16); }
SUFFICE_INLINE vf second_bf16(vi pair) { return as_float(pair & splat_bits(~0xffff)); }

// Element i of the pair (bfloat16) or the only element (float32, i = 0) of each 32-bit lane.
template <Type T>
SUFFICE_INLINE vf element(const void* from, int i) {
  const vi bits = load_bits(from);
  if constexpr (T == Type::bf16) return i == 0 ? first_bf16(bits) : second_bf16(bits);
  return as_float(bits);
}

// Folds the lanes by halves, which is a short chain.
template <class F>
SUFFICE_INLINE float fold_lanes(vf value, F f) {
#if SUFFICE_LEVEL >= 3  // in registers; the compiler would go through memory
#if SUFFICE_LEVEL == 4
  const __m256 all = f(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
#else
  const __m256 all = value;
#endif
  const __m128 half = f(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  const __m128 quarter = f(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(f(quarter, _mm_movehdup_ps(quarter)));
#elif SUFFICE_NEON
  const vf half = f(value, vf(vextq_f32(value, value, 2)));
  return f(half, vf(vrev64q_f32(half)))[0];
#else
  float lane[W];
  std::memcpy(lane, &value, sizeof lane);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = f(lane[i], lane[i + half]);
  return lane[0];
#endif
}

SUFFICE_INLINE float sum_of(vf value) {
  return fold_lanes(value, [](auto a, auto b) { return a + b; });
}

// to[i] = the sum of the lanes of of[i].
SUFFICE_INLINE void sum_four(const vf* of, float* to) {
#if SUFFICE_LEVEL == 4
  const auto fold = [&](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  };
  const auto first = reinterpret_cast<__m512d>(fold(of[0], of[1]));
  const auto second = reinterpret_cast<__m512d>(fold(of[2], of[3]));
  const __m512 all = reinterpret_cast<__m512>(_mm512_unpacklo_pd(first, second)) +
                     reinterpret_cast<__m512>(_mm512_unpackhi_pd(first, second));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif SUFFICE_LEVEL == 3
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(of[0], of[1]), _mm256_hadd_ps(of[2], of[3]));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#elif SUFFICE_NEON
  vst1q_f32(to, vpaddq_f32(vpaddq_f32(of[0], of[1]), vpaddq_f32(of[2], of[3])));
#else
  for (int i = 0; i < 4; i++) to[i] = sum_of(of[i]);
#endif
}

SUFFICE_INLINE int32_t sum_of_lanes(vi value) {
  int32_t sum = 0;
  for (int i = 0; i < W; i++) sum += value[i];
  return sum;
}

SUFFICE_INLINE float max_of(vf value) {
  return fold_lanes(value, [](auto a, auto b) { return a > b ? a : b; });
}

// The greatest magnitude of `size` values, a multiple of W.
SUFFICE_INLINE float max_magnitude(const float* values, int size) {
  vf greatest = {};
  for (int i = 0; i < size; i += W)
    greatest = max(greatest, max(load(values + i), -load(values + i)));
  return max_of(greatest);
}

SUFFICE_INLINE bool any(vi mask) {  // is any lane not zero?
#if SUFFICE_LEVEL == 4
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask));
#elif SUFFICE_LEVEL == 3
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask));
#elif SUFFICE_NEON
  return vmaxvq_u32(vreinterpretq_u32_s32(mask)) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < W; i++) all |= mask[i];
  return all != 0;
#endif
}

// Bit i: lane i is not zero; lanes of the mask are all ones or all zeros.
SUFFICE_INLINE uint32_t lane_bits(vi mask) {
#if SUFFICE_LEVEL == 4
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif SUFFICE_LEVEL == 3
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif SUFFICE_NEON
  return static_cast<uint32_t>(vaddvq_s32(mask & vi{1, 2, 4, 8}));
#else
  uint32_t bits = 0;
  for (int i = 0; i < W; i++) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  return bits;
#endif
}

// All ones in the lanes with their bit set, zero elsewhere.
SUFFICE_INLINE vi lane_mask(uint32_t bits) {
  vi lane;
  for (int i = 0; i < W; i++) lane[i] = 1 << i;
  return (splat_bits(static_cast<int32_t>(bits)) & lane) != 0;
}

// The lanes with their bit set; zero elsewhere.
SUFFICE_INLINE vf keep_lanes(vf value, uint32_t bits) {
  return as_float(as_bits(value) & lane_mask(bits));
}

// Lanes of `set` where their bit is set, else of `clear`.
SUFFICE_INLINE vf select_lanes(vf set, vf clear, uint32_t bits) {
  return lane_mask(bits) ? set : clear;
}

// Rounds half to even. The base set adds and subtracts 1.5 * 2^23, which requires |x| < 2^22.
SUFFICE_INLINE vf round_even(vf x) {
#if SUFFICE_LEVEL == 4
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif SUFFICE_LEVEL == 3
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif SUFFICE_NEON
  return vrndnq_f32(x);
#else
  const vf magic = splat(12582912.0f);
  return (x + magic) - magic;
#endif
}

// The integer nearest to x * factor, half to even, below 2^22: the low bits of a sum whose unit is
// 1. Product and sum are rounded together where the processor can.
SUFFICE_INLINE vi nearest(vf x, float factor) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23
  return as_bits(x * factor + magic) - as_bits(magic);
}

// 2^x, x < 128, to about 2 units in the last place. Below the normal numbers the result is 0; NaN
// stays NaN.
SUFFICE_INLINE vf exp2(vf x) {
#if SUFFICE_LEVEL < 4
  x = max(splat(-127.0f), x);  // 2^-127 gets the bits of 0
#endif
  const vf whole = round_even(x);
  const vf t = x - whole;
  // (2^t - 1) / t on [-1/2, 1/2] through Chebyshev points: 5e-9 of relative error, below rounding.
  vf y = splat(1.5461447e-4f);
  y = y * t + splat(1.3390867e-3f);
  y = y * t + splat(9.6180567e-3f);
  y = y * t + splat(5.5503571e-2f);
  y = y * t + splat(2.4022651e-1f);
  y = y * t + splat(6.9314719e-1f);
  y = y * t + splat(1.0f);
#if SUFFICE_LEVEL == 4
  const __mmask16 normal = _mm512_cmp_ps_mask(whole, splat(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, y, whole);
#else
  const vi power = (__builtin_convertvector(whole, vi) + 127) << 23;
  return y * as_float(power);
#endif
}

SUFFICE_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  float value;
  if (magnitude >= 0x7c00) {
    const uint32_t bits = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  const uint32_t bits = magnitude << 13;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;  // moves the exponent, and normalises subnormals
  return sign ? -value : value;
}

SUFFICE_INLINE uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) {  // subnormal: let the adder round
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return sign | static_cast<uint16_t>(bits - 0x3f000000);
  }
  return sign | static_cast<uint16_t>((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

// W bfloat16 values as float32.
SUFFICE_INLINE vf load_bf16(const uint16_t* from) {
#if SUFFICE_LEVEL == 4
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return as_float(reinterpret_cast<vi>(wide) << 16);
#elif SUFFICE_LEVEL == 3
  const __m256i wide =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return as_float(reinterpret_cast<vi>(wide) << 16);
#elif SUFFICE_NEON
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
#else
  vi to;
  for (int i = 0; i < W; i++) to[i] = from[i];
  return as_float(to << 16);
#endif
}

// Stores W values rounded to bfloat16, halves to even.
SUFFICE_INLINE void store_bf16(vf value, void* to) {
#if SUFFICE_NEON && SUFFICE_BF16
  const bfloat16x4_t halves = vcvt_bf16_f32(value);
#elif SUFFICE_BF16
  const __m256bh halves = _mm512_cvtneps_pbh(value);
#elif SUFFICE_NEON
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
  const uint16x4_t halves = vshrn_n_u32(vbslq_u32(vceqq_f32(value, value), rounded, quiet), 16);
#else
  uint16_t halves[W];
  for (int i = 0; i < W; i++) halves[i] = to_bf16(value[i]);
#endif
  std::memcpy(to, &halves, sizeof halves);
}

// W float16 values as float32.
SUFFICE_INLINE vf load_f16(const uint16_t* from) {
#if SUFFICE_LEVEL == 4
  return reinterpret_cast<vf>(
      _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif SUFFICE_LEVEL == 3
  return reinterpret_cast<vf>(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif SUFFICE_NEON
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  vf to;
  for (int i = 0; i < W; i++) to[i] = half_to_float(from[i]);
  return to;
#endif
}

// W bytes, or signed bytes, as int32.
template <class T>
SUFFICE_INLINE vi load_bytes(const std::byte* from) {
#if SUFFICE_LEVEL == 4
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<vi>(std::is_signed_v<T> ? _mm512_cvtepi8_epi32(bytes)
                                                  : _mm512_cvtepu8_epi32(bytes));
#elif SUFFICE_LEVEL == 3
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<vi>(std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes)
                                                  : _mm256_cvtepu8_epi32(bytes));
#elif SUFFICE_NEON
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  const uint8x8_t bytes = vcreate_u8(word);
  if constexpr (std::is_signed_v<T>)
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes))));
  return reinterpret_cast<vi>(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
#else
  vi to;
  for (int i = 0; i < W; i++) to[i] = static_cast<T>(from[i]);
  return to;
#endif
}

// W stored float values as float32.
template <Type T>
SUFFICE_INLINE vf load_stored(const std::byte* from) {
  if constexpr (T == Type::bf16) return load_bf16(reinterpret_cast<const uint16_t*>(from));
  if constexpr (T == Type::f16) return load_f16(reinterpret_cast<const uint16_t*>(from));
  return load(reinterpret_cast<const float*>(from));
}

// Interleaves: a's lanes go to the even places of the pair (a, b), b's to the odd ones.
SUFFICE_INLINE void interleave(vf& a, vf& b) {
#if SUFFICE_LEVEL == 3
  const vf low = _mm256_unpacklo_ps(a, b);
  const vf high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
#elif SUFFICE_NEON
  const vf low = vzip1q_f32(a, b);
  b = vzip2q_f32(a, b);
  a = low;
#else
  vf low, high;
  for (int i = 0; i < W / 2; i++) {
    low[2 * i] = a[i];
    low[2 * i + 1] = b[i];
    high[2 * i] = a[W / 2 + i];
    high[2 * i + 1] = b[W / 2 + i];
  }
  a = low;
  b = high;
#endif
}

// Sixteen stored float values as kVectors vectors. Vectors shorter than 16 hold bfloat16 split into
// even and odd places, which takes no shuffle; `arrange` restores the order. Where products take
// pairs of it, all is in order.
template <Type T>
constexpr bool kEvenOdd = T == Type::bf16 && kVectors > 1 && !SUFFICE_BF16;

template <Type T>
SUFFICE_INLINE void load_sixteen(const std::byte* from, vf* to) {
  if constexpr (kEvenOdd<T>) {
    for (int i = 0; i < kVectors; i += 2) {
      const vi pairs = load_bits(from + i * W * 2);
      to[i] = first_bf16(pairs);
      to[i + 1] = second_bf16(pairs);
    }
  } else {
    for (int i = 0; i < kVectors; i++) to[i] = load_stored<T>(from + i * W * size_of(T));
  }
}

template <Type T>
SUFFICE_INLINE void arrange(vf* sixteen) {
  if constexpr (kEvenOdd<T>)
    for (int i = 0; i < kVectors; i += 2) interleave(sixteen[i], sixteen[i + 1]);
}

template <Type T>
SUFFICE_INLINE void arrange_row(float* row, int size) {
  if constexpr (kEvenOdd<T>)
    for (int i = 0; i < size; i += 2 * W) {
      vf a = load(row + i);
      vf b = load(row + i + W);
      interleave(a, b);
      store(row + i, a);
      store(row + i + W, b);
    }
}
