// What AVX-512 and VNNI add to AVX2, for tests on machines that lack them: the same bits, slowly.
//
// Only builds with SUFFICE_EMULATE have this. The functions are named as the compiler's own, which
// need another target than AVX2; kernels find these first, since they are in the same namespace.
// Only what the kernels use is here.

#define SUFFICE_EMULATED inline __attribute__((always_inline))

typedef int16_t Words __attribute__((vector_size(64)));  // those of a __m512i
typedef int32_t Ints __attribute__((vector_size(64)));

struct Halves {
  __m256i half[2];
};

SUFFICE_EMULATED Halves halves_of(__m512i all) {
  Halves to;
  std::memcpy(&to, &all, sizeof to);
  return to;
}

SUFFICE_EMULATED __m512i whole(__m256i low, __m256i high) {
  const Halves from{{low, high}};
  __m512i to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// f of each half of some vectors.
template <class F, class... More>
SUFFICE_EMULATED __m512i by_halves(F f, More... all) {
  return whole(f(halves_of(all).half[0]...), f(halves_of(all).half[1]...));
}

// Moves between registers.

SUFFICE_EMULATED __m128i quarter_of(__m512i all, int place) {
  const __m256i half = halves_of(all).half[place / 2];
  return place % 2 ? _mm256_extracti128_si256(half, 1) : _mm256_castsi256_si128(half);
}

SUFFICE_EMULATED __m512i of_quarters(__m128i a, __m128i b, __m128i c, __m128i d) {
  return whole(_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
}

SUFFICE_EMULATED __m512i _mm512_load_si512(const void* from) {
  __m512i to;
  std::memcpy(&to, from, sizeof to);
  return to;
}
SUFFICE_EMULATED __m512i _mm512_castsi128_si512(__m128i low) {
  return whole(_mm256_set_m128i(_mm_setzero_si128(), low), _mm256_setzero_si256());
}
SUFFICE_EMULATED __m512i _mm512_castsi256_si512(__m256i low) {
  return whole(low, _mm256_setzero_si256());
}
SUFFICE_EMULATED __m256i _mm512_castsi512_si256(__m512i all) { return halves_of(all).half[0]; }
SUFFICE_EMULATED __m256 _mm512_castps512_ps256(__m512 all) {
  return _mm256_castsi256_ps(halves_of(reinterpret_cast<__m512i>(all)).half[0]);
}
SUFFICE_EMULATED __m256 _mm512_extractf32x8_ps(__m512 all, int place) {
  return _mm256_castsi256_ps(halves_of(reinterpret_cast<__m512i>(all)).half[place]);
}
SUFFICE_EMULATED __m256i _mm512_extracti64x4_epi64(__m512i all, int place) {
  return halves_of(all).half[place];
}
SUFFICE_EMULATED __m512i _mm512_inserti64x4(__m512i all, __m256i half, int place) {
  const Halves from = halves_of(all);
  return place ? whole(from.half[0], half) : whole(half, from.half[1]);
}
SUFFICE_EMULATED __m512i _mm512_inserti32x4(__m512i all, __m128i part, int place) {
  __m128i quarters[4];
  for (int i = 0; i < 4; i++) quarters[i] = i == place ? part : quarter_of(all, i);
  return of_quarters(quarters[0], quarters[1], quarters[2], quarters[3]);
}
SUFFICE_EMULATED __m512i _mm512_broadcast_i32x4(__m128i part) {
  return of_quarters(part, part, part, part);
}
SUFFICE_EMULATED __m512 _mm512_maskz_compress_ps(uint16_t lanes, __m512 from) {
  __m512 to = {};
  for (int i = 0, place = 0; i < 16; i++)
    if (lanes >> i & 1) to[place++] = from[i];
  return to;
}
SUFFICE_EMULATED void _mm512_mask_storeu_ps(void* to, uint16_t lanes, __m512 from) {
  for (int i = 0; i < 16; i++)
    if (lanes >> i & 1) {
      const float lane = from[i];
      std::memcpy(static_cast<float*>(to) + i, &lane, sizeof lane);
    }
}
SUFFICE_EMULATED __m512i _mm512_set1_epi8(char value) {
  return whole(_mm256_set1_epi8(value), _mm256_set1_epi8(value));
}
#undef _mm512_setr_epi32  // a macro of the library
template <class... Lane>
SUFFICE_EMULATED __m512i _mm512_setr_epi32(Lane... lanes) {
  return reinterpret_cast<__m512i>(Ints{lanes...});
}
SUFFICE_EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int places) {
  return of_quarters(quarter_of(a, places & 3), quarter_of(a, places >> 2 & 3),
                     quarter_of(b, places >> 4 & 3), quarter_of(b, places >> 6 & 3));
}
SUFFICE_EMULATED __m512i _mm512_shuffle_i64x2(__m512i a, __m512i b, int places) {
  return of_quarters(quarter_of(a, places & 3), quarter_of(a, places >> 2 & 3),
                     quarter_of(b, places >> 4 & 3), quarter_of(b, places >> 6 & 3));
}
SUFFICE_EMULATED __m512i _mm512_shuffle_epi8(__m512i table, __m512i places) {
  return by_halves([](__m256i a, __m256i b) { return _mm256_shuffle_epi8(a, b); }, table, places);
}
SUFFICE_EMULATED __m512i _mm512_permutexvar_epi32(__m512i places, __m512i from) {
  const Ints place = reinterpret_cast<Ints>(places), lanes = reinterpret_cast<Ints>(from);
  Ints to;
  for (int i = 0; i < 16; i++) to[i] = lanes[place[i] & 15];
  return reinterpret_cast<__m512i>(to);
}
SUFFICE_EMULATED __m512i _mm512_permutex2var_epi16(__m512i a, __m512i places, __m512i b) {
  const Words place = reinterpret_cast<Words>(places);
  const Words x = reinterpret_cast<Words>(a), y = reinterpret_cast<Words>(b);
  Words to;
  for (int i = 0; i < 32; i++) to[i] = (place[i] & 32 ? y : x)[place[i] & 31];
  return reinterpret_cast<__m512i>(to);
}
SUFFICE_EMULATED __m512i _mm512_permutex2var_epi32(__m512i a, __m512i places, __m512i b) {
  const Ints place = reinterpret_cast<Ints>(places);
  const Ints x = reinterpret_cast<Ints>(a), y = reinterpret_cast<Ints>(b);
  Ints to;
  for (int i = 0; i < 16; i++) to[i] = (place[i] & 16 ? y : x)[place[i] & 15];
  return reinterpret_cast<__m512i>(to);
}

// The same of vectors of floats, by f of their bits.
template <class Vector, class F>
SUFFICE_EMULATED Vector bits_by_halves(F f, Vector a, Vector b) {
  return reinterpret_cast<Vector>(
      by_halves(f, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}

SUFFICE_EMULATED __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return bits_by_halves([](__m256i x, __m256i y) { return _mm256_unpacklo_epi32(x, y); }, a, b);
}
SUFFICE_EMULATED __m512d _mm512_unpacklo_pd(__m512d a, __m512d b) {
  return bits_by_halves([](__m256i x, __m256i y) { return _mm256_unpacklo_epi64(x, y); }, a, b);
}
SUFFICE_EMULATED __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return bits_by_halves([](__m256i x, __m256i y) { return _mm256_unpackhi_epi32(x, y); }, a, b);
}
SUFFICE_EMULATED __m512d _mm512_unpackhi_pd(__m512d a, __m512d b) {
  return bits_by_halves([](__m256i x, __m256i y) { return _mm256_unpackhi_epi64(x, y); }, a, b);
}

// Bits and masks.

SUFFICE_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
SUFFICE_EMULATED __m512i _mm512_srli_epi16(__m512i all, int by) {
  return by_halves([=](__m256i a) { return _mm256_srli_epi16(a, by); }, all);
}
SUFFICE_EMULATED __mmask16 _mm512_movepi32_mask(__m512i all) {
  const Halves from = halves_of(all);
  const int low = _mm256_movemask_ps(_mm256_castsi256_ps(from.half[0]));
  const int high = _mm256_movemask_ps(_mm256_castsi256_ps(from.half[1]));
  return static_cast<__mmask16>(low | high << 8);
}
SUFFICE_EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(reinterpret_cast<Ints>(a & b) != 0));
}
SUFFICE_EMULATED __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b) {
  const auto zeros = [](__m256i part) {
    const __m256i equal = _mm256_cmpeq_epi8(part, _mm256_setzero_si256());
    return static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(equal)));
  };
  const Halves both = halves_of(a & b);
  return ~(zeros(both.half[0]) | zeros(both.half[1]) << 32);
}
SUFFICE_EMULATED __m512i _mm512_mask_blend_epi8(__mmask64 chosen, __m512i clear, __m512i set) {
  typedef int8_t Bytes __attribute__((vector_size(64)));
  Bytes to = reinterpret_cast<Bytes>(clear);
  for (int i = 0; i < 64; i++)
    if (chosen >> i & 1) to[i] = reinterpret_cast<Bytes>(set)[i];
  return reinterpret_cast<__m512i>(to);
}
SUFFICE_EMULATED __mmask32 _mm512_kunpackw(__mmask32 high, __mmask32 low) {
  return high << 16 | (low & 0xffff);
}
SUFFICE_EMULATED __mmask64 _mm512_kunpackd(__mmask64 high, __mmask64 low) {
  return high << 32 | (low & 0xffffffff);
}
SUFFICE_EMULATED uint64_t _cvtmask64_u64(__mmask64 mask) { return mask; }
// Only for the comparisons "at least", false of NaN, and "not less", true of it.
SUFFICE_EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int comparison) {
  if (comparison == _CMP_GE_OQ) return _mm512_movepi32_mask(reinterpret_cast<__m512i>(a >= b));
  if (comparison != _CMP_NLT_UQ) __builtin_trap();
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(~(a < b)));
}

// Conversions.

SUFFICE_EMULATED __m512i _mm512_cvtepu8_epi32(__m128i from) {
  return whole(_mm256_cvtepu8_epi32(from), _mm256_cvtepu8_epi32(_mm_srli_si128(from, 8)));
}
SUFFICE_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i from) {
  return whole(_mm256_cvtepi8_epi32(from), _mm256_cvtepi8_epi32(_mm_srli_si128(from, 8)));
}
SUFFICE_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i from) {
  return whole(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(from)),
               _mm256_cvtepu16_epi32(_mm256_extracti128_si256(from, 1)));
}
SUFFICE_EMULATED __m512i _mm512_cvtepi8_epi16(__m256i from) {
  return whole(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(from)),
               _mm256_cvtepi8_epi16(_mm256_extracti128_si256(from, 1)));
}
SUFFICE_EMULATED __m256i _mm512_cvtepi32_epi16(__m512i from) {
  typedef int16_t Narrow __attribute__((vector_size(32)));
  return reinterpret_cast<__m256i>(__builtin_convertvector(reinterpret_cast<Ints>(from), Narrow));
}
SUFFICE_EMULATED __m128i _mm512_cvtepi32_epi8(__m512i from) {
  typedef int8_t Narrow __attribute__((vector_size(16)));
  return reinterpret_cast<__m128i>(__builtin_convertvector(reinterpret_cast<Ints>(from), Narrow));
}
SUFFICE_EMULATED __m512 _mm512_cvtph_ps(__m256i from) {
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(from));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(from, 1));
  return reinterpret_cast<__m512>(whole(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

// Arithmetic.

SUFFICE_EMULATED __m512 _mm512_roundscale_ps(__m512 x, int mode) {
  if (mode != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
  return reinterpret_cast<__m512>(by_halves(
      [](__m256i part) {
        return _mm256_castps_si256(_mm256_round_ps(_mm256_castsi256_ps(part),
                                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
      },
      reinterpret_cast<__m512i>(x)));
}

// x times 2^power where the mask is set, elsewhere zero; powers are whole, or NaN where x is. Below
// the normal numbers it may round twice.
SUFFICE_EMULATED __m512 _mm512_maskz_scalef_ps(__mmask16 mask, __m512 x, __m512 power) {
  const auto clamped = [](float value) {
    return static_cast<int32_t>(value < -126.0f ? -126.0f : value > 127.0f ? 127.0f : value);
  };
  const auto power_of_two = [](int32_t exponent) {
    const int32_t bits = (exponent + 127) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  __m512 to;
  for (int i = 0; i < 16; i++) {
    const bool number = power[i] == power[i];
    const int32_t first = number ? clamped(power[i]) : 0;
    const int32_t second = number ? clamped(power[i] - static_cast<float>(first)) : 0;
    to[i] = mask >> i & 1 ? x[i] * power_of_two(first) * power_of_two(second) : 0.0f;
  }
  return to;
}

// Numbers below the normal ones become zero.
SUFFICE_EMULATED __m512 flushed(__m512 x) {
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints kept = ((bits & 0x7f800000) != 0) | static_cast<int32_t>(0x80000000);
  return reinterpret_cast<__m512>(bits & kept);
}

// x * y + total, rounded once.
SUFFICE_EMULATED __m512 fused(__m512 x, __m512 y, __m512 total) {
  const auto half = [](__m256i a, __m256i b, __m256i c) {
    return _mm256_castps_si256(
        _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(c)));
  };
  return reinterpret_cast<__m512>(by_halves(half, reinterpret_cast<__m512i>(x),
                                            reinterpret_cast<__m512i>(y),
                                            reinterpret_cast<__m512i>(total)));
}

// The second products are added first, then the first ones; each sum is rounded to nearest even.
SUFFICE_EMULATED __m512 _mm512_dpbf16_ps(__m512 total, __m512bh a, __m512bh b) {
  const Ints x = reinterpret_cast<Ints>(a), y = reinterpret_cast<Ints>(b);
  const auto number = [](Ints bits) { return flushed(reinterpret_cast<__m512>(bits)); };
  const Ints high = Ints{} + static_cast<int32_t>(0xffff0000);
  total = flushed(fused(number(x & high), number(y & high), flushed(total)));
  return flushed(fused(number(x << 16), number(y << 16), total));
}

// Halves go to even; numbers below the normal ones become zero, NaN stays.
SUFFICE_EMULATED __m256bh _mm512_cvtneps_pbh(__m512 value) {
  typedef uint32_t Bits __attribute__((vector_size(64)));
  typedef uint16_t Narrow __attribute__((vector_size(32)));
  const Bits bits = reinterpret_cast<Bits>(flushed(value));
  const Bits rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Bits quiet = bits >> 16 | 0x40;
  const Bits nan = reinterpret_cast<Bits>(value != value);
  return reinterpret_cast<__m256bh>(
      __builtin_convertvector((nan & quiet) | (~nan & rounded), Narrow));
}

SUFFICE_EMULATED __m256i _mm256_dpwssd_avx_epi32(__m256i total, __m256i a, __m256i b) {
  return _mm256_add_epi32(total, _mm256_madd_epi16(a, b));
}

// Pairs of bytes become 16-bit numbers: the even bytes first, then the odd ones.
SUFFICE_EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i total, __m256i bytes, __m256i with_sign) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(with_sign, 8), 8));
  const __m256i odd =
      _mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), _mm256_srai_epi16(with_sign, 8));
  return _mm256_add_epi32(total, _mm256_add_epi32(even, odd));
}

SUFFICE_EMULATED __m512i _mm512_dpwssd_epi32(__m512i total, __m512i a, __m512i b) {
  return by_halves([](auto... part) { return _mm256_dpwssd_avx_epi32(part...); }, total, a, b);
}

SUFFICE_EMULATED __m512i _mm512_dpbusd_epi32(__m512i total, __m512i bytes, __m512i with_sign) {
  return by_halves([](auto... part) { return _mm256_dpbusd_avx_epi32(part...); }, total, bytes,
                   with_sign);
}
