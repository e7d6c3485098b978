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

// Sixteen values of a row as they are stored: `words` has 4 bytes for each line.
template <Type From, Type To>
SUFFICE_INLINE void convert(const std::byte* from, int count, std::byte* words) {
  if constexpr (From == To) {  // bit by bit
    if (count < kPanel) std::memset(words, 0, kPanel * size_of(To));
    std::memcpy(words, from, static_cast<size_t>(count) * size_of(To));
    return;
  }
  vf values[kVectors];
  load_values<From>(from, count, values);
  if constexpr (To == Type::f32) {
    std::memcpy(words, values, sizeof values);
  } else {
    float plain[kPanel];
    uint16_t halves[kPanel];
    std::memcpy(plain, values, sizeof plain);
    for (int i = 0; i < kPanel; i++) halves[i] = to_bf16(plain[i]);
    std::memcpy(words, halves, sizeof halves);
  }
}

// One panel of up to 16 rows, a few lines at a time so that they stay in the L1 cache.
template <Type From, Type To>
void pack_panel(const std::byte* from, int rows, int columns, std::byte* to) {
  constexpr int pair = weight_pair(To);
  const size_t stride = static_cast<size_t>(columns) * size_of(From);
  for (int k = 0; k < columns; k += kPanel) {
    const int count = columns - k < kPanel ? columns - k : kPanel;
    const int lines = round_up(count, 4) / pair;
    for (int row = 0; row < kPanel; row++) {
      std::byte words[kPanel * size_of(To)] = {};
      if (row < rows)
        convert<From, To>(from + row * stride + static_cast<size_t>(k) * size_of(From), count,
                          words);
      for (int line = 0; line < lines; line++)
        std::memcpy(to + line * kLineBytes + row * 4, words + line * 4, 4);
    }
    to += lines * kLineBytes;
  }
}

// Calls f(rows of a panel, their number, the panel's number) for panels of dense rows.
template <Type From, class F>
void for_panels(const std::byte* from, int rows, int columns, int first, int last, F f) {
  for (int panel = first; panel < last; panel++) {
    const int begin = panel * kPanel;
    f(from + static_cast<size_t>(begin) * columns * size_of(From),
      rows - begin < kPanel ? rows - begin : kPanel, panel);
  }
}

template <Type From>
void pack_from(const std::byte* from, int rows, int columns, int first, int last, Type type,
               std::byte* to) {
  const size_t bytes = static_cast<size_t>(round_up(columns, 4) / weight_pair(type)) * kLineBytes;
  for_panels<From>(from, rows, columns, first, last, [&](const std::byte* own, int count, int i) {
    if (type == Type::f32)
      pack_panel<From, Type::f32>(own, count, columns, to + i * bytes);
    else
      pack_panel<From, Type::bf16>(own, count, columns, to + i * bytes);
  });
}

inline void pack(const std::byte* from, Type from_type, int rows, int columns, int first, int last,
                 Type type, std::byte* to) {
  if (from_type == Type::f32)
    pack_from<Type::f32>(from, rows, columns, first, last, type, to);
  else if (from_type == Type::f16)
    pack_from<Type::f16>(from, rows, columns, first, last, type, to);
  else
    pack_from<Type::bf16>(from, rows, columns, first, last, type, to);
}
