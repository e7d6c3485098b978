// A tile of the traversal, and the split of its work into what registers hold.

// Tiles by which a list of blocks is prefetched: its order is unpredictable for the processor.
constexpr int kTilesAhead = 2;

// The same without a list. Tiles in codes are small and soon done: memory takes longer than one.
constexpr int next_tiles(Type type) { return is_four_bits(type) ? 4 : 1; }

// The tile of the blocks from position `i` of the list to `end`, at most kTileBlocks; the list goes
// on to `last`. `end_row` is one past the last row in use.
inline Tile tile_at(const KVHead& head, const int32_t* list, int i, int end, int last,
                    int end_row) {
  Tile tile;
  const ptrdiff_t key_bytes = elements_bytes(head.key_type, head.size);
  const ptrdiff_t value_bytes = elements_bytes(head.value_type, head.size);
  const int next_key = next_tiles(head.key_type) * kTileRows;
  const int next_value = next_tiles(head.value_type) * kTileRows;
  tile.blocks = end - i < kTileBlocks ? end - i : kTileBlocks;
  if (head.key_type == Type::planes) tile.key_rest = head.key_rest - head.keys;
  if (head.value_type == Type::planes) tile.value_rest = head.value_rest - head.values;
  for (int b = 0; b < tile.blocks; b++, i++) {
    const int row = (list ? list[i] : i) * kPanel;
    const int ahead = i + kTilesAhead * tile.blocks;
    const int listed = list && ahead < last ? list[ahead] * kPanel : row;
    tile.row[b] = row;
    tile.keys[b] = head.keys + row * key_bytes;
    tile.values[b] = head.values + row * value_bytes;
    tile.next_keys[b] = head.keys + (list ? listed : row + next_key) * key_bytes;
    tile.next_values[b] = head.values + (list ? listed : row + next_value) * value_bytes;
    tile.rows = b * kPanel + (end_row - row < kPanel ? end_row - row : kPanel);
  }
  return tile;
}

// Bit i: row i of a tile has a value of at least `least`.
SUFFICE_INLINE uint64_t tile_bits(const float* values, int blocks, float least) {
  const vf border = splat(least);
  uint64_t bits = 0;
#if SUFFICE_LEVEL == 3  // 32 bits in one instruction, once the lanes are bytes and in order
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < kTileRows; i += 2 * kPanel) {
    __m256i half[2];
    for (int h = 0; h < 2; h++) {
      const float* from = values + i + h * kPanel;
      half[h] = _mm256_packs_epi32(reinterpret_cast<__m256i>(load(from) >= border),
                                   reinterpret_cast<__m256i>(load(from + W) >= border));
    }
    const __m256i bytes = _mm256_packs_epi16(half[0], half[1]);
    const int mask = _mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(mask)) << i;
  }
#elif SUFFICE_LEVEL == 4  // masks are joined before they leave the mask registers
  __mmask16 of[kTileBlocks];
  for (int b = 0; b < kTileBlocks; b++)
    of[b] = _mm512_cmp_ps_mask(load(values + b * kPanel), border, _CMP_GE_OQ);
  const __mmask32 low = _mm512_kunpackw(of[1], of[0]), high = _mm512_kunpackw(of[3], of[2]);
  bits = _cvtmask64_u64(_mm512_kunpackd(high, low));
#elif SUFFICE_NEON        // lanes become bytes, one bit of each is kept, and bytes are added up
  const auto words = [&](const float* from) __attribute__((always_inline)) {
    const auto reaches = [&](const float* at) { return vi(load(at) >= border); };
    return vcombine_s16(vmovn_s32(reaches(from)), vmovn_s32(reaches(from + W)));
  };
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t of[kTileBlocks];
  for (int b = 0; b < kTileBlocks; b++) {
    const float* from = values + b * kPanel;
    const int8x16_t lanes = vcombine_s8(vmovn_s16(words(from)), vmovn_s16(words(from + 2 * W)));
    of[b] = vandq_u8(vreinterpretq_u8_s8(lanes), bit);
  }
  const uint8x16_t all = vpaddq_u8(vpaddq_u8(of[0], of[1]), vpaddq_u8(of[2], of[3]));
  bits = vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
#else
  for (int i = 0; i < kTileRows; i += W)
    bits |= static_cast<uint64_t>(lane_bits(load(values + i) >= border)) << i;
#endif
  return bits & ~uint64_t{0} >> (kTileRows - blocks * kPanel);
}

// Query rows handled together: their sums, for 16 keys or 16 elements of a value, fit in registers.
constexpr int kQueries = SUFFICE_LEVEL >= 3 ? 6 : SUFFICE_NEON ? 5 : 3;

// The same for one type as it is stored. AVX2 splits bfloat16 by a mask, which takes a register.
template <Type T>
constexpr int kQueriesOf = SUFFICE_LEVEL == 3 && T == Type::bf16 ? 5 : kQueries;

// Groups of 16 handled together: enough independent sums to hide the latency of one, and data
// loaded for a query row serves as many sums as registers hold.
constexpr int units_for(int queries) {
  const int units = (SUFFICE_LEVEL == 4 ? 24 : SUFFICE_NEON ? 20 : 10) / (queries * kVectors);
  return units < 1 ? 1 : units < kTileBlocks ? units : kTileBlocks;
}

// The same for keys of a type; split products have two sums.
template <Type T>
constexpr int units_of(int queries) {
  return !kSplit<T> ? units_for(queries) : queries > 3 ? 2 : 4;
}

// codes = round(values / unit), unit = greatest / 32767, which is returned; values(i) is one of the
// `vectors` vectors.
template <class Values>
SUFFICE_INLINE float quantize_to_int16(Values values, int vectors, float greatest, int16_t* codes) {
  const float inverse = greatest > 0 ? 32767.0f / greatest : 0.0f;
  for (int i = 0; i < vectors; i++) store_narrow(nearest(values(i), inverse), codes + i * W);
  return greatest / 32767.0f;
}

// The first whole line from `from` on.
inline std::byte* whole_lines(void* from) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  return reinterpret_cast<std::byte*>((at + kLineBytes - 1) / kLineBytes * kLineBytes);
}
