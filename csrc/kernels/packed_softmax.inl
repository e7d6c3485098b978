// A softmax of 2 bits with packed codes: EXAQ's Algorithm 2 as it is printed, to compare with the
// counts of coded_attention.inl, by which attention goes.

// The entry of each code of a table of four.
SUFFICE_INLINE vf look_up_four(vf table, vi codes) {
#if defined(__clang__)  // which makes it one instruction
  vf found;
  for (int i = 0; i < W; i++) found[i] = table[codes[i] & (W - 1)];
  return found;
#else
  return __builtin_shuffle(table, codes);
#endif
}

// Four codes of a byte each, in every lane, as one byte: the first in its lowest bits.
SUFFICE_INLINE vi pack_four(vi codes) {
  return (codes | codes >> 6 | codes >> 12 | codes >> 18) & 0xff;
}

// Sum of the weights of one query row, which take the place of its scores, `stride` floats from
// tile to tile. `byte_sums` [256]: the sum of the weights of a byte's four codes.
inline float soften_packed_row(float* scores, int tiles, int stride, const SoftmaxTable& table,
                               const float* byte_sums) {
  const float peak = greatest_in_tiles(scores, stride, tiles * kTileBlocks);
  const float clip = std::log2(table.weights[0] / table.weights[3]);
  const float steps = 3.0f / -clip;  // of codes in a unit of the score
  vf weights;
  for (int i = 0; i < W; i++) weights[i] = table.weights[i % 4];
  float sum = 0;
  for (int tile = 0; tile < tiles; tile++, scores += stride) {
    alignas(kLineBytes) int8_t codes[kTileRows];
    for (int i = 0; i < kTileRows; i += W) {
      const vi code =
          nearest(max(load(scores + i) - splat(peak), splat(clip)) - splat(clip), steps);
      store(scores + i, look_up_four(weights, code));
      store_narrow(code, codes + i);
    }
    alignas(kLineBytes) int32_t bytes[kTileRows / 4];
    for (int i = 0; i < kTileRows / 4; i += W) {
      const vi packed = pack_four(load_bits(codes + 4 * i));
      std::memcpy(bytes + i, &packed, sizeof packed);
    }
    for (const int32_t byte : bytes) sum += byte_sums[byte];
  }
  return sum;
}

inline void soften_packed(float* scores, int tiles, int count, const SoftmaxTable* tables,
                          const float* byte_sums, float* sums) {
  for (int q = 0; q < count; q++)
    sums[q] = soften_packed_row(scores + q * kTileRows, tiles, count * kTileRows, tables[q],
                                byte_sums + q * 256);
}
