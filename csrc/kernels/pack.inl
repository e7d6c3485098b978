// Packing of dense weights into panels (see linear/linear.h).

// Sixteen values of a row as float32; those from `count` on are 0.
template <Type From>
SUFFICE_INLINE void load_values(const std::byte* from, int count, vf* to) {
  std::byte whole[kPanel * size_of(From)] = {};
  if (count < kPanel) {
    std::memcpy(whole, from, static_cast<size_t>(count) * size_of(From));
    from = whole;
  }
  for (int v = 0; v < kVectors; v++) to[v] = load_stored<From>(from + v * W * size_of(From));
}

template <Type From>
SUFFICE_INLINE float greatest_magnitude(const std::byte* row, int columns) {
  vf greatest = {};
  for (int k = 0; k < columns; k += kPanel) {
    vf values[kVectors];
    load_values<From>(row + static_cast<size_t>(k) * size_of(From),
                      columns - k < kPanel ? columns - k : kPanel, values);
    for (int v = 0; v < kVectors; v++) greatest = max(greatest, max(values[v], -values[v]));
  }
  return max_of(greatest);
}

// Sixteen values of a row as they are stored: `words` has 4 bytes for each line.
template <Type From, Type To>
SUFFICE_INLINE void convert(const std::byte* from, int count, float inverse, std::byte* words) {
  if constexpr (From == To) {  // bit by bit
    if (count < kPanel) std::memset(words, 0, kPanel * size_of(To));
    std::memcpy(words, from, static_cast<size_t>(count) * size_of(To));
    return;
  }
  vf values[kVectors];
  load_values<From>(from, count, values);
  if constexpr (To == Type::f32) {
    std::memcpy(words, values, sizeof values);
  } else if constexpr (To == Type::bf16) {
    float plain[kPanel];
    uint16_t halves[kPanel];
    std::memcpy(plain, values, sizeof plain);
    for (int i = 0; i < kPanel; i++) halves[i] = to_bf16(plain[i]);
    std::memcpy(words, halves, sizeof halves);
  } else {
    for (int v = 0; v < kVectors; v++) {
      const vf code = round_even(values[v] * inverse);
      store_narrow(__builtin_convertvector(code, vi), reinterpret_cast<int8_t*>(words) + v * W);
    }
  }
}

// One panel of up to 16 rows, a few lines at a time so that they stay in the L1 cache.
template <Type From, Type To>
void pack_panel(const std::byte* from, int rows, int columns, std::byte* to, float* scale) {
  constexpr int pair = weight_pair(To);
  const size_t stride = static_cast<size_t>(columns) * size_of(From);
  float inverse[kPanel] = {};
  if constexpr (To == Type::i8)
    for (int row = 0; row < rows; row++) {
      scale[row] = greatest_magnitude<From>(from + row * stride, columns) / 127.0f;
      inverse[row] = scale[row] >= 0x1p-126f ? 1.0f / scale[row] : 0.0f;
    }
  for (int k = 0; k < columns; k += kPanel) {
    const int count = columns - k < kPanel ? columns - k : kPanel;
    const int lines = round_up(count, 4) / pair;
    for (int row = 0; row < kPanel; row++) {
      std::byte words[kPanel * size_of(To)] = {};
      if (row < rows)
        convert<From, To>(from + row * stride + static_cast<size_t>(k) * size_of(From), count,
                          inverse[row], words);
      for (int line = 0; line < lines; line++)
        std::memcpy(to + line * kLineBytes + row * 4, words + line * 4, 4);
    }
    to += lines * kLineBytes;
  }
}

template <Type From, Type To>
void pack_of(const std::byte* from, int rows, int columns, int first, int last, std::byte* to,
             float* scale) {
  const size_t bytes = static_cast<size_t>(round_up(columns, 4) / weight_pair(To)) * kLineBytes;
  for (int panel = first; panel < last; panel++) {
    const int begin = panel * kPanel;
    pack_panel<From, To>(from + static_cast<size_t>(begin) * columns * size_of(From),
                         rows - begin < kPanel ? rows - begin : kPanel, columns, to + panel * bytes,
                         scale ? scale + begin : nullptr);
  }
}

template <Type From>
void pack_from(const std::byte* from, int rows, int columns, int first, int last, Type type,
               std::byte* to, float* scale) {
  if (type == Type::f32)
    pack_of<From, Type::f32>(from, rows, columns, first, last, to, scale);
  else if (type == Type::bf16)
    pack_of<From, Type::bf16>(from, rows, columns, first, last, to, scale);
  else
    pack_of<From, Type::i8>(from, rows, columns, first, last, to, scale);
}

inline void pack(const std::byte* from, Type from_type, int rows, int columns, int first, int last,
                 Type type, std::byte* to, float* scale) {
  if (from_type == Type::f32)
    pack_from<Type::f32>(from, rows, columns, first, last, type, to, scale);
  else if (from_type == Type::f16)
    pack_from<Type::f16>(from, rows, columns, first, last, type, to, scale);
  else
    pack_from<Type::bf16>(from, rows, columns, first, last, type, to, scale);
}
