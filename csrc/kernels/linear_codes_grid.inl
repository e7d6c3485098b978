// Places in a grid become units of codes, both as linear/code_layout.h draws them.
//
// An entry is a word with four bits in each byte: the low bits of the codes of two fours, or the
// codes of one. The words of a grid, at most 8 KB, stay in the first cache.

// Prefetch distance in bytes, into the L1 cache. With AVX2, arithmetic takes about as long as
// reading and must not wait for it.
constexpr int kAheadCodes = 8192;

// Fetches lines by one instruction that goes from each to the next: cores find their own streams by
// the instruction, and unrolled, each of its copies leaves lines out.
SUFFICE_INLINE void fetch_lines(const std::byte* from, int bytes) {
#pragma GCC unroll 1
  for (int at = 0; at < bytes; at += kLineBytes) {
    fetch_near(from + at + kAheadCodes);
    asm volatile("");  // keeps it a loop
  }
}

SUFFICE_INLINE vi words_at(const uint32_t* words, vi places) {
#if SUFFICE_LEVEL == 4 && !SUFFICE_EMULATE
  return reinterpret_cast<vi>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(places), words, 4));
#elif SUFFICE_LEVEL == 3
  return reinterpret_cast<vi>(_mm256_i32gather_epi32(reinterpret_cast<const int*>(words),
                                                     reinterpret_cast<__m256i>(places), 4));
#else
  vi found;
  for (int i = 0; i < W; i++) found[i] = static_cast<int32_t>(words[places[i]]);
  return found;
#endif
}

// Places in a grid of at most these bits are looked up by permutations where gathers are slow
// (`on_amd`): its entries, four times four bits each, are up to 16 vectors then.
constexpr int kPermutedBits = SUFFICE_LEVEL == 4 && !SUFFICE_EMULATE ? 9 : 0;

// Entries as permutations take them: four bits of the bytes 0, 2, 1 and 3.
SUFFICE_INLINE void narrow_entries(const uint32_t* words, int count, uint16_t* to) {
  for (int i = 0; i < count; i++) to[i] = static_cast<uint16_t>(words[i] | words[i] >> 12);
}

#if SUFFICE_LEVEL == 4 && !SUFFICE_EMULATE
// The narrow entries at 32 places of 16 bits.
template <int Bits>
SUFFICE_INLINE __m512i entries_at(const uint16_t* entries, __m512i places) {
  constexpr int pairs = 1 << (Bits - 6);
  const auto* from = reinterpret_cast<const __m512i*>(entries);
  __m512i found[pairs];
  for (int i = 0; i < pairs; i++)
    found[i] = _mm512_permutex2var_epi16(from[2 * i], places, from[2 * i + 1]);
  for (int bit = 6; bit < Bits; bit++) {
    const __mmask32 upper = _mm512_test_epi16_mask(places, _mm512_set1_epi16(1 << bit));
    for (int i = 0; i < pairs >> (bit - 5); i++)
      found[i] = _mm512_mask_blend_epi16(upper, found[2 * i], found[2 * i + 1]);
  }
  return found[0];
}

// Entries 2 line and 2 line + 1 of a unit, the second in the upper four bits of each byte; `bytes`
// are the low ones of places 4 (line / 2) on, `further` the others' bits.
template <int Bits>
SUFFICE_INLINE vi two_entries(const uint16_t* entries, vi bytes, vi further, int line) {
  const vi low = line % 2 ? (bytes >> 16 & splat_bits(0xff)) | (bytes >> 8 & splat_bits(0xff0000))
                          : (bytes & splat_bits(0xff)) | (bytes << 8 & splat_bits(0xff0000));
  vi places = low;
  if constexpr (Bits == 9)
    places |= (further >> 2 * line & splat_bits(1)) << 8 |
              (further >> (2 * line + 1) & splat_bits(1)) << 24;
  const vi found =
      reinterpret_cast<vi>(entries_at<Bits>(entries, reinterpret_cast<__m512i>(places)));
  const vi even = found & splat_bits(0x0f0f0f0f), odd = found >> 4 & splat_bits(0x0f0f0f0f);
  return ((even | even >> 12) & splat_bits(0xffff)) | (odd | odd >> 12) << 16;
}
#endif

// A plane of the signs of four entries of two fours: bits 3, 7, 11 and 15.
SUFFICE_INLINE vi plane_of_entries(vi signs) {
  const vi pairs = (signs >> 3 & splat_bits(0x0101)) | (signs >> 5 & splat_bits(0x0404));
  vi plane = (pairs & splat_bits(0x05)) | (pairs >> 4 & splat_bits(0x50));
  plane |= plane << 1;
  plane |= plane << 8;
  return plane | plane << 16;
}

// Units of a span, from its first on; `lines` are those of the grid in its header. `narrow` are the
// entries as permutations take them.
template <Grid grid, bool permute>
__attribute__((noinline)) void expand_places(const uint32_t* words,
                                             [[maybe_unused]] const uint16_t* narrow,
                                             const std::byte* stored, const std::byte* lines,
                                             int count, std::byte* to) {
  constexpr GridShape shape = shape_of(grid);
  constexpr int each = shape.further_bits(), in_unit = each * shape.entries();
  constexpr int in_line = in_unit > 0 ? 32 / in_unit : 1;  // units
  constexpr int bytes = shape.unit_lines() * kLineBytes;
  for (int i = 0; i < count; i++, stored += bytes) {
    fetch_lines(stored, bytes);
    for (int v = 0; v < kVectors; v++) {
      const std::byte* const from = stored + v * kVectorBytes;
      const vi further = in_unit > 0
                             ? load_bits(lines + i / in_line * kLineBytes + v * kVectorBytes) >>
                                   i % in_line * in_unit
                             : vi{};
      const auto entry = [&](int e) __attribute__((always_inline)) {
        vi place = load_bits(from + e / 4 * kLineBytes) >> e % 4 * 8 & splat_bits(0xff);
        if constexpr (shape.place_bits > 8)
          place |= (further >> e * each & splat_bits((1 << (shape.place_bits - 8)) - 1)) << 8;
        return words_at(words, place);
      };
      const auto store_line = [&](int line, vi bits) __attribute__((always_inline)) {
        std::memcpy(to + line * kLineBytes + v * kVectorBytes, &bits, sizeof bits);
      };
      const vi plane = shape.signs ? load_bits(from + shape.entries() / 4 * kLineBytes)
                                   : plane_of_entries(further);
#pragma GCC unroll 4
      for (int line = 0; line < shape.entries() / 2; line++) {
        vi bits;
        if constexpr (permute)
          bits = two_entries<shape.place_bits>(narrow, load_bits(from + line / 2 * kLineBytes),
                                               further, line);
        else
          bits = entry(2 * line) | entry(2 * line + 1) << 4;
        if constexpr (shape.columns == 4)
          bits |= (plane >> 2 * line & splat_bits(0x01010101)) << 3 |
                  (plane >> (2 * line + 1) & splat_bits(0x01010101)) << 7;
        store_line(line, bits);
      }
      if constexpr (shape.columns == 8) store_line(2, plane);
    }
    to += unit_bytes(shape.columns == 4 ? 4 : 3);
  }
}

// Calls f.operator()<grid>() for the grid of a layout.
template <class F>
SUFFICE_INLINE void by_grid(Grid grid, F f) {
  switch (grid) {
    case Grid::none: return;
    case Grid::iq2_xxs: return f.template operator()<Grid::iq2_xxs>();
    case Grid::iq2_xs: return f.template operator()<Grid::iq2_xs>();
    case Grid::iq2_s: return f.template operator()<Grid::iq2_s>();
    case Grid::iq1: return f.template operator()<Grid::iq1>();
    case Grid::iq3_xxs: return f.template operator()<Grid::iq3_xxs>();
    case Grid::iq3_s: return f.template operator()<Grid::iq3_s>();
  }
}
