// y = W x for bfloat16 weights where the processor multiplies pairs of bfloat16: inputs are rounded
// to bfloat16 as well.
#if SUFFICE_BF16 && !SUFFICE_NEON  // for that, see linear_bf16_neon.inl
constexpr bool kRoundsInputs = true;

// P panels, `apart` panels from one to the next, times the B rows of a block of inputs. Every (row,
// output) has one accumulator that runs over K in order, so the result does not depend on P or B.
template <int P, int B>
SUFFICE_INLINE void rounded_tile(const Linear& w, int panel, int apart, Ahead ahead,
                                 const uint32_t* input, float* y, int y_stride) {
  const size_t gap = apart * w.panel_bytes();
  const std::byte* line = w.data + panel * w.panel_bytes();
  vf total[P][B] = {};
  for (int step = 0, steps = w.steps(); step < steps;
       step++, line += kLineBytes, ahead.line += ahead.step, input += B)
    for (int p = 0; p < P; p++) {
      fetch_weights<Type::bf16, B>(ahead.line + p * gap);
      const vi pairs = load_bits(line + p * gap);
      for (int b = 0; b < B; b++)
        total[p][b] = dot_bf16(total[p][b], pairs, broadcast<vi>(input + b));
    }
  for (int p = 0; p < P; p++)
    for (int b = 0; b < B; b++) {
      const int n = (panel + p * apart) * kPanel;
      store(y + static_cast<size_t>(b) * y_stride + n,
            w.bias ? total[p][b] + load(w.bias + n) : total[p][b]);
    }
}

// The blocks of rows finish a panel one after the other, and each prefetches a part of the next;
// one block alone prefetches ahead in its own panel.
inline void linear_of_rounded(const Linear& w, int first, int last, const Inputs& x, float* y,
                              int y_stride) {
  const int blocks = (x.count + kRoundedRows - 1) / kRoundedRows;
  const size_t panel_bytes = w.panel_bytes();
  in_streams<2>(first, last, [&]<int P>(int panel, int apart) __attribute__((always_inline)) {
    const std::byte* const own = w.data + panel * panel_bytes;
    Ahead ahead{own + (blocks > 1 ? panel_bytes : kAhead), kLineBytes / blocks};
    for (int row = 0; row < x.count; row += kRoundedRows) {
      const int rows = x.count - row < kRoundedRows ? x.count - row : kRoundedRows;
      const uint32_t* const input = x.rounded + static_cast<size_t>(row) * w.steps();
      dispatch<kRoundedRows>(rows, [&]<int B>() {
        rounded_tile<P, B>(w, panel, apart, ahead, input, y + static_cast<size_t>(row) * y_stride,
                           y_stride);
      });
      ahead.line += panel_bytes / kLineBytes * ahead.step;
    }
  });
}

// Sixteen columns of a block of 8 rows: the pairs of all rows for a step, then for the next.
SUFFICE_INLINE void round_block(const float* from, int stride, uint32_t* to) {
  // Of two vectors with the pairs of two rows each: four steps of four rows.
  alignas(64) static constexpr int32_t of_rows[2][16] = {
      {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27},
      {4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31}};
  // Of four steps of the first four rows, and of the others: two steps of eight rows.
  alignas(64) static constexpr int32_t of_steps[2][16] = {
      {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23},
      {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
  __m512i rows[kRoundedRows / 2];  // pairs of two rows
  for (int i = 0; i < kRoundedRows / 2; i++) {
    uint32_t pairs[kPanel];
    for (int j = 0; j < 2; j++)
      store_bf16(load(from + static_cast<size_t>(2 * i + j) * stride), pairs + j * kPanel / 2);
    std::memcpy(&rows[i], pairs, sizeof pairs);
  }
  for (int i = 0; i < 2; i++) {
    const __m512i order = _mm512_load_si512(of_rows[i]);
    const __m512i first = _mm512_permutex2var_epi32(rows[0], order, rows[1]);
    const __m512i last = _mm512_permutex2var_epi32(rows[2], order, rows[3]);
    for (int j = 0; j < 2; j++) {
      const __m512i two = _mm512_permutex2var_epi32(first, _mm512_load_si512(of_steps[j]), last);
      std::memcpy(to + (4 * i + 2 * j) * kRoundedRows, &two, sizeof two);
    }
  }
}

// Values beyond `columns` up to a multiple of 4 are 0, and whole vectors may be read.
inline void round_rows(const float* values, int stride, int first, int last, int count, int columns,
                       uint32_t* rounded) {
  const int steps = round_up(columns, 4) / 2;
  for (int row = first; row < last;) {
    const int start = row / kRoundedRows * kRoundedRows;
    const int rows = count - start < kRoundedRows ? count - start : kRoundedRows;
    const float* from = values + static_cast<size_t>(row) * stride;
    uint32_t* to = rounded + static_cast<size_t>(start) * steps + (row - start);
    if (row == start && last - row >= kRoundedRows && steps % (kPanel / 2) == 0) {
      for (int step = 0; step < steps; step += kPanel / 2)
        round_block(from + 2 * step, stride, to + step * kRoundedRows);
      row += kRoundedRows;
      continue;
    }
    for (int step = 0; step < steps; step += kPanel / 2, from += kPanel) {
      uint32_t pairs[kPanel / 2];
      store_bf16(load(from), pairs);
      const int left = steps - step < kPanel / 2 ? steps - step : kPanel / 2;
      for (int i = 0; i < left; i++, to += rows) *to = pairs[i];
    }
    row++;
  }
}
#elif !SUFFICE_BF16
constexpr bool kRoundsInputs = false;

inline void linear_of_rounded(const Linear&, int, int, const Inputs&, float*, int) {}
inline void round_rows(const float*, int, int, int, int, int, uint32_t*) {}
#endif
