// y = W x for bfloat16 weights where NEON multiplies matrices of bfloat16, 2 x 4 by 4 x 2. Inputs
// are rounded to bfloat16 as well.
//
// A product of matrices adds the products of the first two columns, then those of the last two,
// with the roundings of two products of pairs: one row, which is multiplied in pairs, has the same
// bits.
#if SUFFICE_NEON && SUFFICE_BF16
constexpr bool kRoundsInputs = true;

// Rows lie in blocks [columns / 4][pairs of rows][2 rows][4 columns]; the last may lack a row.
constexpr int kRowPairs = 3;  // with 16 outputs 24 sums
constexpr int kBlockRows = 2 * kRowPairs;
constexpr int kPartBlocks = 16;             // whose totals stay in the first cache
constexpr int kZippedSteps = 64;            // of four columns; the weights of a panel, 8 KB
constexpr int kMatrices = 2 * kVectors;     // of two outputs in a panel
constexpr int kFourLines = 2 * kLineBytes;  // four columns of a panel

SUFFICE_INLINE vf add_matrix(vf total, vi weights, vi inputs) {
  return vbfmmlaq_f32(total, reinterpret_cast<bfloat16x8_t>(weights),
                      reinterpret_cast<bfloat16x8_t>(inputs));
}

// Four columns of a panel as matrices.
SUFFICE_INLINE void zip_lines(const std::byte* lines, vi* to) {
  for (int v = 0; v < kVectors; v++) {
    const vi first = load_bits(lines + v * kVectorBytes);
    const vi last = load_bits(lines + kLineBytes + v * kVectorBytes);
    to[2 * v] = vzip1q_s32(first, last);
    to[2 * v + 1] = vzip2q_s32(first, last);
  }
}

// Adds the products of some steps of four columns; weights(step, v) are matrices.
template <int R, class F>
SUFFICE_INLINE void add_steps(F weights, int steps, const std::byte* input,
                              vf (*total)[kMatrices]) {
  for (int step = 0; step < steps; step++, input += R * kVectorBytes) {
    vi own[kMatrices], inputs[R];
    weights(step, own);
    for (int r = 0; r < R; r++) inputs[r] = load_bits(input + r * kVectorBytes);
    for (int i = 0; i < kMatrices; i++)
      for (int r = 0; r < R; r++) total[r][i] = add_matrix(total[r][i], own[i], inputs[r]);
  }
}

// Stores the outputs of a panel for the rows of a block.
SUFFICE_INLINE void store_block(const Linear& w, int panel, const vf (*total)[kMatrices], int rows,
                                float* y, int y_stride) {
  for (int row = 0; row < rows; row++) {
    vf own[kVectors];
    for (int v = 0; v < kVectors; v++) {
      const float32x4_t first = total[row / 2][2 * v], last = total[row / 2][2 * v + 1];
      own[v] = row % 2 ? vuzp2q_f32(first, last) : vuzp1q_f32(first, last);
      if (w.bias) own[v] += load(w.bias + panel * kPanel + v * W);
      store(y + static_cast<size_t>(row) * y_stride + panel * kPanel + v * W, own[v]);
    }
  }
}

// One row, P panels `apart` panels from each other: products of pairs.
template <int P>
SUFFICE_INLINE void rounded_row(const Linear& w, int panel, int apart, const std::byte* input,
                                float* y) {
  const size_t gap = apart * w.panel_bytes();
  const std::byte* lines = w.data + panel * w.panel_bytes();
  vf total[P][kVectors] = {};
  for (int step = 0, steps = w.steps() / 2; step < steps;
       step++, lines += kFourLines, input += kVectorBytes)
    for (int p = 0; p < P; p++)
      for (int i = 0; i < 2; i++)
        for (int v = 0; v < kVectors; v++) {
          const vi pairs = load_bits(lines + p * gap + i * kLineBytes + v * kVectorBytes);
          total[p][v] = dot_bf16(total[p][v], pairs, word<vi>(input + i * kQuad));
        }
  for (int p = 0; p < P; p++)
    for (int v = 0; v < kVectors; v++) {
      const int n = (panel + p * apart) * kPanel + v * W;
      store(y + n, w.bias ? total[p][v] + load(w.bias + n) : total[p][v]);
    }
}

// A panel times the rows of one block.
template <int R>
SUFFICE_INLINE void rounded_rows(const Linear& w, int panel, const std::byte* input, int rows,
                                 float* y, int y_stride) {
  const std::byte* const lines = w.data + panel * w.panel_bytes();
  vf total[R][kMatrices] = {};
  const auto weights = [=](int step, vi* to) __attribute__((always_inline)) {
    fetch(lines + step * kFourLines + kAhead);
    fetch(lines + step * kFourLines + kLineBytes + kAhead);
    zip_lines(lines + step * kFourLines, to);
  };
  add_steps<R>(weights, w.steps() / 2, input, total);
  store_block(w, panel, total, rows, y, y_stride);
}

// A panel times the rows of several blocks: weights become matrices once for all of them.
inline void rounded_part(const Linear& w, int panel, const Inputs& x, int first, int count,
                         float* y, int y_stride) {
  const std::byte* const lines = w.data + panel * w.panel_bytes();
  const int steps = w.steps() / 2, blocks = (count + kBlockRows - 1) / kBlockRows;
  const auto* const inputs =
      reinterpret_cast<const std::byte*>(x.rounded + static_cast<size_t>(first) * w.steps());
  const size_t block_bytes = static_cast<size_t>(kBlockRows) * w.steps() * sizeof *x.rounded;
  vf total[kPartBlocks][kRowPairs][kMatrices];
  std::memset(total, 0, sizeof total[0] * blocks);
  for (int begin = 0; begin < steps; begin += kZippedSteps) {
    const int some = steps - begin < kZippedSteps ? steps - begin : kZippedSteps;
    vi zipped[kZippedSteps * kMatrices];
    for (int i = 0; i < some; i++) {
      const std::byte* const from = lines + (begin + i) * kFourLines;
      fetch(from + kZippedSteps * kFourLines);
      fetch(from + kZippedSteps * kFourLines + kLineBytes);
      zip_lines(from, zipped + i * kMatrices);
    }
    const auto weights = [&](int step, vi* to) __attribute__((always_inline)) {
      for (int i = 0; i < kMatrices; i++) to[i] = zipped[step * kMatrices + i];
    };
    for (int b = 0; b < blocks; b++) {
      const int left = count - b * kBlockRows;
      dispatch<kRowPairs>((left < kBlockRows ? left + 1 : kBlockRows) / 2, [&]<int R>() {
        vf own[R][kMatrices];
        std::memcpy(own, total[b], sizeof own);
        add_steps<R>(weights, some, inputs + b * block_bytes + begin * R * kVectorBytes, own);
        std::memcpy(total[b], own, sizeof own);
      });
    }
  }
  for (int b = 0; b < blocks; b++) {
    const int row = b * kBlockRows, rows = count - row < kBlockRows ? count - row : kBlockRows;
    store_block(w, panel, total[b], rows, y + static_cast<size_t>(first + row) * y_stride,
                y_stride);
  }
}

inline void linear_of_rounded(const Linear& w, int first, int last, const Inputs& x, float* y,
                              int y_stride) {
  const auto* const input = reinterpret_cast<const std::byte*>(x.rounded);
  if (x.count == 1)
    return in_streams<4>(first, last, [&]<int P>(int panel, int apart) {
      rounded_row<P>(w, panel, apart, input, y);
    });
  for (int panel = first; panel < last; panel++) {
    if (x.count <= kBlockRows) {
      dispatch<kRowPairs>((x.count + 1) / 2,
                          [&]<int R>() { rounded_rows<R>(w, panel, input, x.count, y, y_stride); });
      continue;
    }
    constexpr int most = kPartBlocks * kBlockRows;
    for (int row = 0; row < x.count; row += most)
      rounded_part(w, panel, x, row, x.count - row < most ? x.count - row : most, y, y_stride);
  }
}

// Values beyond `columns` up to a multiple of 4 are 0.
inline void round_rows(const float* values, int stride, int first, int last, int count, int columns,
                       uint32_t* rounded) {
  const int steps = round_up(columns, 4) / 4;
  for (int row = first; row < last; row++) {
    const int start = row / kBlockRows * kBlockRows, within = row - start;
    const int rows = count - start < kBlockRows ? count - start : kBlockRows;
    const int step_bytes = (rows + 1) / 2 * kVectorBytes;
    auto* to = reinterpret_cast<std::byte*>(rounded + static_cast<size_t>(start) * 2 * steps) +
               within * (kVectorBytes / 2);
    const float* from = values + static_cast<size_t>(row) * stride;
    for (int step = 0; step < steps; step++)
      store_bf16(load(from + 4 * step), to + step * step_bytes);
  }
}
#endif
