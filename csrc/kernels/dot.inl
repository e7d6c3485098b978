// Dot products of vectors, added to sums lane by lane; inputs broadcast to every lane.

// Each lane: the sum of the products of its two int16 values.
SUFFICE_INLINE vi dot_pairs(vi a, vi b) {
#if SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif SUFFICE_NEON
  const auto x = reinterpret_cast<int16x8_t>(a), y = reinterpret_cast<int16x8_t>(b);
  return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const vi low = (a << 16 >> 16) * (b << 16 >> 16);
  return low + (a >> 16) * (b >> 16);
#endif
}

// total + a * b in float32, or with pairs of int16 in int32.
SUFFICE_INLINE vf multiply_add(vf a, vf b, vf total) { return a * b + total; }
SUFFICE_INLINE vi multiply_add(vi a, vi b, vi total) {
#if SUFFICE_LEVEL == 4
  return reinterpret_cast<vi>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(a),
                                                  reinterpret_cast<__m512i>(b)));
#elif SUFFICE_VNNI && !SUFFICE_NEON
  return reinterpret_cast<vi>(_mm256_dpwssd_avx_epi32(reinterpret_cast<__m256i>(total),
                                                      reinterpret_cast<__m256i>(a),
                                                      reinterpret_cast<__m256i>(b)));
#else
  total += dot_pairs(a, b);  // GCC makes better code of it than of a returned sum
  return total;
#endif
}

// Types that are multiplied as pairs of bfloat16, with what multiplies them rounded to bfloat16.
constexpr bool bf16_pairs(Type type) { return SUFFICE_BF16 && type == Type::bf16; }
template <Type T>
constexpr bool kBf16Pairs = bf16_pairs(T);

// total + both products of each lane's pairs of bfloat16.
SUFFICE_INLINE vf dot_bf16(vf total, vi a, vi b) {
#if SUFFICE_NEON && SUFFICE_BF16
  return vbfdotq_f32(total, reinterpret_cast<bfloat16x8_t>(a), reinterpret_cast<bfloat16x8_t>(b));
#elif SUFFICE_BF16
  return _mm512_dpbf16_ps(total, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  return second_bf16(a) * second_bf16(b) + (first_bf16(a) * first_bf16(b) + total);
#endif
}

// The float32, or the pair of 16 bits, at `from`, in every lane.
template <class V>
SUFFICE_INLINE V broadcast(const void* from) {
  std::conditional_t<std::is_same_v<V, vf>, float, int32_t> value;
  std::memcpy(&value, from, sizeof value);
  return value - V{};
}

// Four bytes of inputs at `from` that multiply each lane. With NEON a product takes one lane of a
// vector: filling all of them would cost an instruction more.
#if SUFFICE_NEON
struct Word {
  vi bits;  // in its first lane
};
template <class V>
SUFFICE_INLINE Word word(const void* from) {
  vi bits;
  // Else GCC loads some words together, and takes them apart in other registers.
  asm("ldr %s0, %1" : "=w"(bits) : "m"(*static_cast<const int32_t*>(from)));
  return {bits};
}
SUFFICE_INLINE Word word_of(const float& value) { return word<vf>(&value); }
#else
SUFFICE_INLINE vf word_of(float value) { return splat(value); }
template <class V>
SUFFICE_INLINE V word(const void* from) {
  return broadcast<V>(from);
}
#endif

// Adds to each lane the sum of the products of its four int8 values, codes in [-127, 127]. With
// VNNI the first factor is unsigned, w + 128: subtract 128 sum(x) at the end.
constexpr int kDotOffset = SUFFICE_VNNI && !SUFFICE_NEON ? 128 : 0;

// Whether bytes of levels are signed ones for products.
constexpr bool kSignedBytes = SUFFICE_NEON && SUFFICE_VNNI && !SUFFICE_BF16;

#if SUFFICE_VNNI
// Adds to each lane the sum of the products of its four bytes and four signed bytes; both are
// signed if kSignedBytes.
SUFFICE_INLINE vi dot_bytes(vi total, vi bytes, vi signed_bytes) {
#if SUFFICE_NEON && SUFFICE_BF16
  return vusdotq_s32(total, reinterpret_cast<uint8x16_t>(bytes),
                     reinterpret_cast<int8x16_t>(signed_bytes));
#elif SUFFICE_NEON
  return vdotq_s32(total, reinterpret_cast<int8x16_t>(bytes),
                   reinterpret_cast<int8x16_t>(signed_bytes));
#elif SUFFICE_LEVEL == 4
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total),
                                                  reinterpret_cast<__m512i>(bytes),
                                                  reinterpret_cast<__m512i>(signed_bytes)));
#else
  return reinterpret_cast<vi>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(total),
                                                      reinterpret_cast<__m256i>(bytes),
                                                      reinterpret_cast<__m256i>(signed_bytes)));
#endif
}
#endif

SUFFICE_INLINE vi dot_quads(vi total, vi w, vi x) {
#if SUFFICE_NEON
  const auto weights = reinterpret_cast<int8x16_t>(w), inputs = reinterpret_cast<int8x16_t>(x);
#if SUFFICE_VNNI
  return vdotq_s32(total, weights, inputs);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(inputs));
  return vpadalq_s16(total, vpaddq_s16(low, vmull_high_s8(weights, inputs)));
#endif
#elif SUFFICE_VNNI
  return dot_bytes(total, w ^ splat_bits(static_cast<int32_t>(0x80808080)), x);
#elif SUFFICE_LEVEL == 3
  const __m256i weights = reinterpret_cast<__m256i>(w);
  const __m256i products = _mm256_maddubs_epi16(
      _mm256_abs_epi8(weights), _mm256_sign_epi8(reinterpret_cast<__m256i>(x), weights));
  return total + reinterpret_cast<vi>(_mm256_madd_epi16(products, _mm256_set1_epi16(1)));
#else
  for (int shift = 0; shift < 32; shift += 8)
    total += (w << (24 - shift) >> 24) * (x << (24 - shift) >> 24);
  return total;
#endif
}

#if SUFFICE_NEON  // the same with a word
SUFFICE_INLINE vi in_all_lanes(Word word) { return vdupq_laneq_s32(word.bits, 0); }

SUFFICE_INLINE vf multiply_add(vf a, Word b, vf total) {
  return vfmaq_laneq_f32(total, a, as_float(b.bits), 0);
}
SUFFICE_INLINE vi multiply_add(vi a, Word b, vi total) {
  return multiply_add(a, in_all_lanes(b), total);
}

SUFFICE_INLINE vf dot_bf16(vf total, vi a, Word b) {
#if SUFFICE_BF16
  return vbfdotq_laneq_f32(total, reinterpret_cast<bfloat16x8_t>(a),
                           reinterpret_cast<bfloat16x8_t>(b.bits), 0);
#else
  return dot_bf16(total, a, in_all_lanes(b));
#endif
}
SUFFICE_INLINE vf dot_bf16(vf total, Word a, vi b) { return dot_bf16(total, b, a); }

SUFFICE_INLINE vi dot_quads(vi total, vi w, Word x) {
#if SUFFICE_VNNI
  return vdotq_laneq_s32(total, reinterpret_cast<int8x16_t>(w), reinterpret_cast<int8x16_t>(x.bits),
                         0);
#else
  return dot_quads(total, w, in_all_lanes(x));
#endif
}

#if SUFFICE_VNNI
SUFFICE_INLINE vi dot_bytes(vi total, vi bytes, Word x) {
#if SUFFICE_BF16
  return vusdotq_laneq_s32(total, reinterpret_cast<uint8x16_t>(bytes),
                           reinterpret_cast<int8x16_t>(x.bits), 0);
#else
  return dot_quads(total, bytes, x);
#endif
}
#endif
#endif

// Stores one row of a matmul's inputs, interleaved with those of `count` rows; `to`: its first
// place.
template <class In>
SUFFICE_INLINE void spread_row(const In* row, int size, int count, In* to) {
  constexpr int run = kQuad / sizeof(In);
  for (int i = 0; i < size; i += run)
    std::memcpy(to + static_cast<size_t>(i) * count, row + i, kQuad);
}

// Calls f.operator()<P>(panel, apart) for panels in `Streams` parallel streams, then for the
// remaining panels.
template <int Streams, class F>
SUFFICE_INLINE void in_streams(int first, int last, F f) {
  const int each = (last - first) / Streams;
  for (int panel = first; panel < first + each; panel++)
    f.template operator()<Streams>(panel, each);
  for (int panel = first + Streams * each; panel < last; panel++)
    f.template operator()<1>(panel, 0);
}
