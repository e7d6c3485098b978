// y = W x for bfloat16 weights where the processor multiplies pairs of bfloat16: inputs are rounded
// to bfloat16 as well.
#if SUFFICE_BF16
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

// Values beyond `columns` up to a multiple of 4 are 0, and whole vectors may be read.
inline void round_rows(const float* values, int stride, int first, int last, int count, int columns,
                       uint32_t* rounded) {
  const int steps = round_up(columns, 4) / 2;
  for (int row = first; row < last; row++) {
    const int start = row / kRoundedRows * kRoundedRows;
    const int rows = count - start < kRoundedRows ? count - start : kRoundedRows;
    const float* from = values + static_cast<size_t>(row) * stride;
    uint32_t* to = rounded + static_cast<size_t>(start) * steps + (row - start);
    for (int step = 0; step < steps; step += kPanel / 2, from += kPanel) {
      uint32_t pairs[kPanel / 2];
      store_bf16(load(from), pairs);
      const int left = steps - step < kPanel / 2 ? steps - step : kPanel / 2;
      for (int i = 0; i < left; i++, to += rows) *to = pairs[i];
    }
  }
}
#else
constexpr bool kRoundsInputs = false;

inline void linear_of_rounded(const Linear&, int, int, const Inputs&, float*, int) {}
inline void round_rows(const float*, int, int, int, int, int, uint32_t*) {}
#endif
