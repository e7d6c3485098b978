// Inputs of codebook matmuls, in the order that the kernels read.

template <class In>
SUFFICE_INLINE void find_starts(const Linear& w, const In* codes, int32_t* starts) {
  for (Stretch at(w); !at.done(); at.next()) {
    int32_t sum = 0;
    for (int i = at.begin; i < at.end; i++) sum += codes[i];
    starts[at.index] = -kOffset<In> * sum;
  }
}

// Reorders columns to match the centroids from `decode`: the middle two of four are swapped.
SUFFICE_INLINE void reorder(int8_t* codes, int size) {
  for (int i = 0; i < size; i += 4) {
    uint32_t four;
    std::memcpy(&four, codes + i, 4);
    four = (four & 0xff0000ff) | (four >> 8 & 0xff00) | (four & 0xff00) << 8;
    std::memcpy(codes + i, &four, 4);
  }
}

// Encodes a row of `size` values, interleaved with those of `count` rows; returns its scale.
template <class In>
SUFFICE_INLINE float quantize_row(const Linear& w, const float* from, int size, int count,
                                  In* scratch, In* to, int32_t* starts) {
  const float scale = max_magnitude(from, size) / static_cast<float>(w.max_code);
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  In* const row = count == 1 ? to : scratch;
  for (int i = 0; i < size; i += W) store_narrow(nearest(load(from + i), inverse), row + i);
  const int whole = w.whole_columns();
  if (whole > size) std::memset(row + size, 0, (whole - size) * sizeof(In));
  find_starts(w, row, starts);
  if constexpr (sizeof(In) == 1) reorder(row, whole);
  if (count > 1) spread_row(row, whole, count, to);
  return scale;
}

// `stride` is a multiple of 16 and values beyond `columns` are 0, so whole vectors are read. Units
// of columns may end beyond that: their last inputs are 0.
inline void quantize_for_codes(const float* values, int stride, int count, const Linear& w,
                               int8_t* narrow, int16_t* wide, float* scales, int32_t* starts,
                               int16_t* scratch) {
  const int size = round_up(w.columns, kPanel);
  for (int row = 0; row < count; row++, values += stride, starts += stride / 8)
    if (w.narrow)
      scales[row] = quantize_row(w, values, size, count, reinterpret_cast<int8_t*>(scratch),
                                 narrow + row * kRun<int8_t>, starts);
    else
      scales[row] =
          quantize_row(w, values, size, count, scratch, wide + row * kRun<int16_t>, starts);
}
