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

// The codes of up to 32 values of row `row` in a unit of 8 bits; returns the bits of their scale.
template <Type From>
SUFFICE_INLINE uint16_t round_unit(const std::byte* from, int count, int row, std::byte* unit) {
  constexpr int parts = kUnit / kPanel;
  vf values[parts * kVectors], greatest = {};
  for (int part = 0; part < parts; part++) {
    const int left = count - part * kPanel;
    load_values<From>(from + static_cast<size_t>(part) * kPanel * size_of(From),
                      left < 0        ? 0
                      : left < kPanel ? left
                                      : kPanel,
                      values + part * kVectors);
  }
  for (const vf value : values) greatest = max(greatest, max(value, -value));
  const uint16_t stored = float_to_half(max_of(greatest) / 127.0f) & 0x7fff;  // zero: no sign
  const float scale = half_to_float(stored);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  float codes[kUnit];
  for (int v = 0; v < parts * kVectors; v++) {
    const vf code = round_even(values[v] * inverse);
    store(codes + v * W, max(splat(-127.0f), -max(splat(-127.0f), -code)));
  }
  for (int i = 0; i < count; i++)
    unit[i / 4 * kLineBytes + row * 4 + kCodeOrder[i % 4]] =
        static_cast<std::byte>(static_cast<int>(codes[i]) + kLevelOffset);
  return stored;
}

// One panel in kInt8's layout; returns whether all scales are finite.
template <Type From>
bool round_panel(const std::byte* from, int rows, int columns, std::byte* to) {
  const size_t stride = static_cast<size_t>(columns) * size_of(From);
  bool finite = true;
  std::memset(to, 0, kInt8.panel_bytes(columns));
  for (int k = 0; k < columns; k += kInt8.span()) {
    const int in_span = columns - k < kInt8.span() ? columns - k : kInt8.span();
    std::byte* unit = to + kInt8.header_bytes();
    for (int at = 0; at < in_span; at += kUnit, unit += unit_bytes(kInt8.bits))
      for (int row = 0; row < rows; row++) {
        const uint16_t scale =
            round_unit<From>(from + row * stride + static_cast<size_t>(k + at) * size_of(From),
                             in_span - at < kUnit ? in_span - at : kUnit, row, unit);
        finite &= (scale & 0x7fff) < 0x7c00;
        std::memcpy(to + (at / kUnit * kPanel + row) * sizeof scale, &scale, sizeof scale);
      }
    to = unit;
  }
  return finite;
}

template <Type From>
bool round_from(const std::byte* from, int rows, int columns, int first, int last, std::byte* to) {
  const size_t bytes = kInt8.panel_bytes(columns);
  bool finite = true;
  for_panels<From>(from, rows, columns, first, last, [&](const std::byte* own, int count, int i) {
    finite &= round_panel<From>(own, count, columns, to + i * bytes);
  });
  return finite;
}

inline bool round_int8(const std::byte* from, Type from_type, int rows, int columns, int first,
                       int last, std::byte* to) {
  if (from_type == Type::f32) return round_from<Type::f32>(from, rows, columns, first, last, to);
  if (from_type == Type::f16) return round_from<Type::f16>(from, rows, columns, first, last, to);
  return round_from<Type::bf16>(from, rows, columns, first, last, to);
}
