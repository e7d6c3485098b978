// Keys and values in planes: rotated, in int8, the halves of codes apart; see cache/kv_head.h.

// Rounds a rotated row to int8 and stores the halves of the codes.
template <class Place>
SUFFICE_INLINE void store_planes(const float* row, int size, float scale, std::byte* base,
                                 std::byte* rest, Place place) {
  alignas(64) int8_t codes[kMaxSize], half[kMaxSize];
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < size; i += W) store_narrow(nearest(load(row + i), inverse), codes + i);
  for (int i = 0; i < size; i++) half[i] = codes[i] >> 4 & 15;
  store_codes(half, size, base, place);
  for (int i = 0; i < size; i++) half[i] = codes[i] & 15;
  store_codes(half, size, rest, place);
}

template <class Place>
SUFFICE_INLINE void load_planes(const std::byte* base, const std::byte* rest, int size, float scale,
                                float* to, Place place) {
  for (int i = 0; i < size; i++) {
    const Nibble nibble = place(i);
    const auto half = [&](const std::byte* plane) {
      return static_cast<int>(plane[nibble.byte]) >> nibble.shift & 15;
    };
    to[i] = scale * static_cast<int8_t>(half(base) << 4 | half(rest));
  }
}

// The nearest bfloat16 to a key's scale: still no code is beyond 127.
inline void store_key_planes(const KVHead& head, const float* from, std::byte* base,
                             std::byte* rest, float* scale) {
  alignas(64) float row[kMaxSize];
  const uint32_t share = turn_key(head, from, row);
  const uint16_t unit = to_bf16(max_magnitude(row, head.size) / 127.0f);
  store_planes(row, head.size, from_bf16(unit), base, rest, key_nibble);
  const uint32_t pair = share << 16 | unit;
  std::memcpy(scale, &pair, sizeof pair);
}

inline void store_value_planes(const float* from, int size, std::byte* base, std::byte* rest,
                               float* scale) {
  alignas(64) float row[kMaxSize];
  std::memcpy(row, from, sizeof(float) * size);
  rotate_row(row, size);
  *scale = max_magnitude(row, size) / 127.0f;
  store_planes(row, size, *scale, base, rest, value_nibble);
}

inline void load_key_planes(const KVHead& head, const std::byte* base, const std::byte* rest,
                            const float* scale, float* to) {
  const KeyScale found = key_scale(scale);
  load_planes(base, rest, head.size, found.scale, to, key_nibble);
  turn_back(head, found.share, to);
}

inline void load_value_planes(const std::byte* base, const std::byte* rest, int size, float scale,
                              float* to) {
  load_planes(base, rest, size, scale, to, value_nibble);
  rotate_row(to, size);
}

// The int8 codes of W keys, 8 elements of each, as pairs of int16: (0, 2), (1, 3), (4, 6), (5, 7).
SUFFICE_INLINE void load_plane_pairs(const std::byte* base, ptrdiff_t rest, vi* pairs) {
  const vi half = splat_bits(0x0f0f0f0f);
  const vi high = load_bits(base), low = load_bits(base + rest);
  const vh first = reinterpret_cast<vh>((high & half) << 4 | (low & half));
  const vh second = reinterpret_cast<vh>((high & ~half) | ((low >> 4) & half));
  pairs[0] = reinterpret_cast<vi>(first << 8 >> 8);
  pairs[1] = reinterpret_cast<vi>(first >> 8);
  pairs[2] = reinterpret_cast<vi>(second << 8 >> 8);
  pairs[3] = reinterpret_cast<vi>(second >> 8);
}

// The int8 codes of 16 elements of two rows of values as int16: the pairs (a[i], b[i]).
SUFFICE_INLINE void zip_planes(const std::byte* a, const std::byte* b, ptrdiff_t rest, vi* to) {
#if SUFFICE_LEVEL >= 3
  const auto both = [&](ptrdiff_t plane) __attribute__((always_inline)) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a + plane)),
                             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b + plane)));
  };
  const __m128i high = both(0), low = both(rest), half = _mm_set1_epi8(15);
  const __m128i first =
      _mm_or_si128(_mm_slli_epi16(_mm_and_si128(high, half), 4), _mm_and_si128(low, half));
  const __m128i second =
      _mm_or_si128(_mm_andnot_si128(half, high), _mm_and_si128(_mm_srli_epi16(low, 4), half));
#if SUFFICE_LEVEL == 4
  to[0] = reinterpret_cast<vi>(_mm512_cvtepi8_epi16(_mm256_set_m128i(second, first)));
#else
  to[0] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(first));
  to[1] = reinterpret_cast<vi>(_mm256_cvtepi8_epi16(second));
#endif
#else
  for (int v = 0; v < kVectors; v++) {
    vh part;
    for (int j = 0; j < W; j++) {
      const Nibble nibble = value_nibble(v * W + j);
      const auto code = [&](const std::byte* row) {
        const auto at = [&](const std::byte* plane) {
          return static_cast<int>(plane[nibble.byte]) >> nibble.shift & 15;
        };
        return static_cast<int8_t>(at(row) << 4 | at(row + rest));
      };
      part[2 * j] = code(a);
      part[2 * j + 1] = code(b);
    }
    to[v] = reinterpret_cast<vi>(part);
  }
#endif
}
