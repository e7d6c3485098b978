// y = W x for a few rows of x, reading each weight once from memory.

// The columns of a line; `scale` is for 8-bit floats.
template <Type T>
SUFFICE_INLINE void columns_of(const std::byte* line, const vf* scale, vf (*columns)[kVectors]) {
  constexpr int pair = weight_pair(T);
  if constexpr (T == Type::f8) float8_columns(line, columns);
  for (int i = 0; i < pair; i++)
    for (int v = 0; v < kVectors; v++)
      if constexpr (T == Type::f8)
        columns[i][v] *= scale[v];
      else
        columns[i][v] = element<T>(line + v * kVectorBytes, i);
}

// P panels, `apart` panels from one to the next, times B rows. Every (row, output) has one
// accumulator that runs over K in order, so the result does not depend on P or B.
template <Type T, int P, int B>
SUFFICE_INLINE void float_tile(const Linear& w, int panel, int apart, Ahead ahead, const Inputs& x,
                               int row, float* y, int y_stride) {
  constexpr int pair = weight_pair(T);
  const size_t gap = apart * w.panel_bytes();
  const std::byte* line = w.data + panel * w.panel_bytes();
  const float* input = x.values + static_cast<size_t>(row) * x.stride;
  vf total[P][B][kVectors] = {};
  const int steps = w.steps();
  for (int step = 0, end = steps; step < steps;) {
    vf scale[P][kVectors] = {};
    if constexpr (T == Type::f8) {
      end = step + kFloat8Span / pair < steps ? step + kFloat8Span / pair : steps;
      for (int p = 0; p < P; p++)
        for (int v = 0; v < kVectors; v++)
          scale[p][v] = as_float(load_bits(line + p * gap + v * kVectorBytes));
      line += kLineBytes;
      ahead.line += ahead.step;
    }
    for (; step < end; step++, line += kLineBytes, ahead.line += ahead.step)
      for (int p = 0; p < P; p++) {
        fetch_weights<T, B>(ahead.line + p * gap);
        vf weight[pair][kVectors];
        columns_of<T>(line + p * gap, scale[p], weight);
        for (int i = 0; i < pair; i++)
          for (int b = 0; b < B; b++) {
            const auto value = word_of(input[static_cast<size_t>(b) * x.stride + step * pair + i]);
            for (int v = 0; v < kVectors; v++)
              total[p][b][v] = multiply_add(weight[i][v], value, total[p][b][v]);
          }
      }
  }
  for (int p = 0; p < P; p++)
    for (int b = 0; b < B; b++)
      for (int v = 0; v < kVectors; v++) {
        const int n = (panel + p * apart) * kPanel + v * W;
        vf out = total[p][b][v];
        if (w.bias) out += load(w.bias + n);
        store(y + static_cast<size_t>(row + b) * y_stride + n, out);
      }
}

template <int P, int B>
SUFFICE_INLINE void int8_tile(const Linear& w, int panel, int apart, Ahead ahead, const Inputs& x,
                              int row, float* y, int y_stride) {
  const size_t gap = apart * w.panel_bytes();
  const std::byte* line = w.data + panel * w.panel_bytes();
  const int8_t* input = x.codes + row * kQuad;
  const int step_bytes = x.count * kQuad;
  vi total[P][B][kVectors] = {};
  for (int step = 0, steps = w.steps(); step < steps;
       step++, line += kLineBytes, ahead.line += ahead.step, input += step_bytes)
    for (int p = 0; p < P; p++) {
      fetch_weights<Type::i8, B>(ahead.line + p * gap);
      for (int v = 0; v < kVectors; v++) {
        const vi codes = load_bits(line + p * gap + v * kVectorBytes);
        for (int b = 0; b < B; b++)
          total[p][b][v] = dot_quads(total[p][b][v], codes, word<vi>(input + b * kQuad));
      }
    }
  for (int p = 0; p < P; p++)
    for (int b = 0; b < B; b++)
      for (int v = 0; v < kVectors; v++) {
        const int n = (panel + p * apart) * kPanel + v * W;
        const vi sum = total[p][b][v] - kDotOffset * x.code_sums[row + b];
        vf out = to_float(sum) * (load(w.scale + n) * x.scales[row + b]);
        if (w.bias) out += load(w.bias + n);
        store(y + static_cast<size_t>(row + b) * y_stride + n, out);
      }
}

template <Type T, int P, int B>
SUFFICE_INLINE void tile_of(const Linear& w, int panel, int apart, Ahead ahead, const Inputs& x,
                            int row, float* y, int y_stride) {
  if constexpr (T == Type::i8)
    int8_tile<P, B>(w, panel, apart, ahead, x, row, y, y_stride);
  else
    float_tile<T, P, B>(w, panel, apart, ahead, x, row, y, y_stride);
}

// Parallel streams of panels: enough to hide the latency of a multiply-add. With AVX-512, two are
// enough, and memory reads no more well. NEON has twice the registers of AVX2.
constexpr int kStreamSums = SUFFICE_NEON ? 16 : 12;
template <int B>
constexpr int kStreams = SUFFICE_LEVEL == 4               ? 2
                         : kStreamSums / kVectors / B > 1 ? kStreamSums / kVectors / B
                                                          : 1;

// All rows in one tile.
template <Type T, int B>
void rows_at_once(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  in_streams<kStreams<B>>(first, last,
                          [&]<int P>(int panel, int apart) __attribute__((always_inline)) {
                            const Ahead ahead{w.data + panel * w.panel_bytes() + kAhead};
                            tile_of<T, P, B>(w, panel, apart, ahead, x, 0, y, y_stride);
                          });
}

// Splits the rows into tiles of nearly equal size, which process a panel one after the other. Each
// tile prefetches a part of the next panel, so memory is never idle.
template <Type T, int Most>
void rows_in_tiles(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  const int tiles = (x.count + Most - 1) / Most;
  in_streams<kStreams<Most>>(
      first, last, [&]<int P>(int panel, int apart) __attribute__((always_inline)) {
        Ahead ahead{w.data + (panel + 1) * w.panel_bytes(), kLineBytes / tiles};
        in_units<Most>(x.count, [&]<int B>(int row) {
          tile_of<T, P, B>(w, panel, apart, ahead, x, row, y, y_stride);
          ahead.line += w.panel_bytes() / kLineBytes * ahead.step;
        });
      });
}

template <Type T>
void linear_of(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  constexpr int max_rows = SUFFICE_LEVEL == 4 ? 8 : SUFFICE_NEON && T != Type::i8 ? 5 : 6;
  if (x.count > max_rows) return rows_in_tiles<T, max_rows>(w, first, last, x, y, y_stride);
  dispatch<max_rows>(x.count, [&]<int B>() { rows_at_once<T, B>(w, first, last, x, y, y_stride); });
}

inline void linear(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  if (w.type == Type::f32)
    linear_of<Type::f32>(w, first, last, x, y, y_stride);
  else if (kRoundsInputs && w.type == Type::bf16)
    linear_of_rounded(w, first, last, x, y, y_stride);
  else if (w.type == Type::bf16)
    linear_of<Type::bf16>(w, first, last, x, y, y_stride);
  else if (w.type == Type::f8)
    linear_of<Type::f8>(w, first, last, x, y, y_stride);
  else if (w.type == Type::codebook)
    SUFFICE_CODES_OF::codes.linear(w, first, last, x, y, y_stride);
  else
    linear_of<Type::i8>(w, first, last, x, y, y_stride);
}

// Columns [start, end) of a row, as dense float32, scales applied.
template <Type T>
SUFFICE_INLINE void unpack_part(const Linear& w, int row, int start, int end, float* to) {
  constexpr int pair = weight_pair(T);
  // This row's 4 bytes of each line.
  const std::byte* in = w.data + row / kPanel * w.panel_bytes() + row % kPanel * 4;
  for (int k = start; k < end; k++) {
    const std::byte* at = in + (k / pair) * kLineBytes + (k % pair) * size_of(T);
    if constexpr (T == Type::f32)
      to[k] = *reinterpret_cast<const float*>(at);
    else if constexpr (T == Type::bf16)
      to[k] = from_bf16(*reinterpret_cast<const uint16_t*>(at));
    else if constexpr (T == Type::f8)
      to[k] = float8_weight(w, row, k);
    else
      to[k] = w.scale[row] * *reinterpret_cast<const int8_t*>(at);
  }
}

// The dense rows of the panels [first, last), `stride` apart. Works on sixteen columns at a time,
// so that lines read and rows written stay in the L1 cache.
template <Type T>
void unpack_of(const Linear& w, int first, int last, float* to, int stride) {
  for (int panel = first; panel < last; panel++) {
    const int end = (panel + 1) * kPanel < w.rows ? (panel + 1) * kPanel : w.rows;
    for (int start = 0; start < w.columns; start += kPanel)
      for (int row = panel * kPanel; row < end; row++)
        unpack_part<T>(w, row, start, start + kPanel < w.columns ? start + kPanel : w.columns,
                       to + static_cast<size_t>(row - first * kPanel) * stride);
  }
}

inline void unpack_row(const Linear& w, int row, float* to) {
  if (w.type == Type::f32)
    unpack_part<Type::f32>(w, row, 0, w.columns, to);
  else if (w.type == Type::bf16)
    unpack_part<Type::bf16>(w, row, 0, w.columns, to);
  else if (w.type == Type::f8)
    unpack_part<Type::f8>(w, row, 0, w.columns, to);
  else if (w.type == Type::codebook)
    SUFFICE_CODES_OF::codes.unpack_row(w, row, to);
  else
    unpack_part<Type::i8>(w, row, 0, w.columns, to);
}

inline void unpack(const Linear& w, int first, int last, float* to, int stride) {
  if (w.type == Type::f32)
    unpack_of<Type::f32>(w, first, last, to, stride);
  else if (w.type == Type::bf16)
    unpack_of<Type::bf16>(w, first, last, to, stride);
  else if (w.type == Type::f8)
    unpack_of<Type::f8>(w, first, last, to, stride);
  else if (w.type == Type::codebook)
    SUFFICE_CODES_OF::codes.unpack(w, first, last, to, stride);
  else
    unpack_of<Type::i8>(w, first, last, to, stride);
}

// `stride` is a multiple of 16 and values beyond `columns` are 0, so whole vectors are read.
inline void quantize_rows(const float* values, int stride, int first, int last, int count,
                          int columns, int8_t* codes, float* scales, int32_t* code_sums,
                          int8_t* scratch) {
  const int size = round_up(columns, kPanel);
  for (int row = first; row < last; row++) {
    const float* from = values + static_cast<size_t>(row) * stride;
    int8_t* to = count == 1 ? codes : scratch;
    scales[row] = max_magnitude(from, size) / 127.0f;
    const float inverse = scales[row] > 0 ? 1.0f / scales[row] : 0.0f;
    vi total = {};
    for (int i = 0; i < size; i += W) {
      const vi code = nearest(load(from + i), inverse);
      store_narrow(code, to + i);
      total += code;
    }
    code_sums[row] = 0;
    for (int i = 0; i < W; i++) code_sums[row] += total[i];
    if (count > 1) spread_row(to, size, count, codes + row * kQuad);
  }
}
