// Dense weights as int8 codes with a float16 scale for 32 columns, in kInt8's layout.

// Up to 32 columns of W rows; only `rows` of them exist.
template <Type From>
SUFFICE_INLINE void load_unit(const std::byte* from, size_t stride, int rows, int count,
                              GroupValues& to) {
  float values[W][kUnit] = {};
  for (int row = 0; row < rows; row++)
    for (int k = 0; k < count; k += kPanel) {
      vf part[kVectors];
      load_values<From>(from + row * stride + static_cast<size_t>(k) * size_of(From),
                        std::min(kPanel, count - k), part);
      std::memcpy(values[row] + k, part, sizeof part);
    }
  to.count = count;
  for (int k = 0; k < count; k++) {
    float lanes[W];
    for (int row = 0; row < W; row++) lanes[row] = values[row][k];
    to.x[k] = load(lanes);
    to.weight[k] = splat(1.0f);
  }
}

// Stores the scales of W rows as float16, at `scales`, and their codes in a unit of 8 bits. Returns
// whether float16 holds all scales.
SUFFICE_INLINE bool round_unit(const Rounding& by, const GroupValues& of, int rows,
                               std::byte* scales, std::byte* unit) {
  constexpr float most = 65504.0f;
  const GroupScale found = signed_scale(by, nullptr, of);
  float inverses[W] = {};
  bool finite = true;
  for (int row = 0; row < rows; row++) {
    const uint16_t half = float_to_half(found.scale[row]);
    const float scale = half_to_float(half);
    const uint16_t stored = scale != 0.0f ? half : 0;  // without a sign
    std::memcpy(scales + row * sizeof stored, &stored, sizeof stored);
    if (scale != 0.0f) inverses[row] = 1.0f / scale;
    finite &= std::abs(scale) <= most;
  }
  const vf inverse = load(inverses), limit = splat(most * by.highest);
  for (int k = 0; k < of.count; k++) {
    finite &= !any(max(of.x[k], -of.x[k]) > limit);
    const vf level = rounded_value(by, nullptr, of.x[k] * inverse).level;
    for (int row = 0; row < rows; row++)
      unit[k / 4 * kLineBytes + row * 4 + kCodeOrder[k % 4]] =
          static_cast<std::byte>(static_cast<int>(level[row]) + kLevelOffset);
  }
  return finite;
}

template <Type From>
bool round_panel(const Rounding& by, const std::byte* from, int rows, int columns, std::byte* to) {
  const size_t stride = static_cast<size_t>(columns) * size_of(From);
  bool finite = true;
  std::memset(to, 0, kInt8.panel_bytes(columns));
  for (int k = 0; k < columns; k += kInt8.span()) {
    std::byte* unit = to + kInt8.header_bytes();
    const int in_span = std::min(columns - k, kInt8.span());
    for (int at = 0; at < in_span; at += kUnit, unit += unit_bytes(kInt8.bits))
      for (int row = 0; row < rows; row += W) {
        GroupValues of;
        const int own = std::min(W, rows - row);
        load_unit<From>(from + row * stride + static_cast<size_t>(k + at) * size_of(From), stride,
                        own, std::min(kUnit, in_span - at), of);
        finite &= round_unit(by, of, own, to + (at / kUnit * kPanel + row) * sizeof(uint16_t),
                             unit + row * 4);
      }
    to = unit;
  }
  return finite;
}

template <Type From>
bool round_from(const Rounding& by, const std::byte* from, int rows, int columns, int first,
                int last, std::byte* to) {
  const size_t bytes = kInt8.panel_bytes(columns);
  bool finite = true;
  for_panels<From>(from, rows, columns, first, last, [&](const std::byte* own, int count, int i) {
    finite &= round_panel<From>(by, own, count, columns, to + i * bytes);
  });
  return finite;
}

inline bool round_int8(const std::byte* from, Type from_type, int rows, int columns, int first,
                       int last, const float* shares, int tried, std::byte* to) {
  Rounding by;
  by.group = kInt8.group;
  by.even = true;
  by.lowest = -127.0f;
  by.highest = 127.0f;
  by.shares = shares;
  by.tried = tried;
  if (from_type == Type::f32)
    return round_from<Type::f32>(by, from, rows, columns, first, last, to);
  if (from_type == Type::f16)
    return round_from<Type::f16>(by, from, rows, columns, first, last, to);
  return round_from<Type::bf16>(by, from, rows, columns, first, last, to);
}
