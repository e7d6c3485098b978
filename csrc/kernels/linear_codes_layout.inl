// Weights of few bits as they lie in memory (see linear/code_layout.h): the scales and minima of
// their groups, their codes, and the levels that codes stand for.

// Groups whose scales are brought to float32 together: those of 256 columns, in whole spans.
constexpr int kMostGroups = kNested / 16;

struct GroupScales {
  float scale[kMostGroups][kPanel];
  float minimum[kMostGroups][kPanel];
};

// 2^(e - 128) of bytes e; below 2 these are subnormal.
SUFFICE_INLINE vf power_of(const std::byte* from) {
  const vi e = load_bytes<uint8_t>(from);
  return as_float(e < 2 ? splat_bits(0x200000) << e : (e - 1) << 23);
}

// The scales of W rows in group `at` of a span; `header` is that of the first of these rows if a
// row had one byte.
SUFFICE_INLINE vf scale_of(const CodeLayout& layout, const std::byte* header, int at, int row) {
  const std::byte* of_group = header + at * kPanel * 2 + row * 2;
  switch (layout.scales) {
    case ScaleForm::f16: return load_f16(reinterpret_cast<const uint16_t*>(of_group));
    case ScaleForm::bf16: return load_bf16(reinterpret_cast<const uint16_t*>(of_group));
    case ScaleForm::power: return power_of(header + at * kPanel + row);
    case ScaleForm::f32: return load(reinterpret_cast<const float*>(header) + at * kPanel + row);
    default:
      return load_f16(reinterpret_cast<const uint16_t*>(header) + row) *
             to_float(load_bytes<int8_t>(header + kLineBytes + at * kPanel + row));
  }
}

// The same of the minima, if there are any; of zero points, those less than 0 and not yet scaled.
SUFFICE_INLINE vf minimum_of(const CodeLayout& layout, const std::byte* header, int at, int row) {
  const int groups = layout.groups_in_span();
  if (layout.minima == MinimumForm::nested) {
    const std::byte* bytes = header + kLineBytes + (groups + at) * kPanel + row;
    return -load_f16(reinterpret_cast<const uint16_t*>(header) + kPanel + row) *
           to_float(load_bytes<uint8_t>(bytes));
  }
  const std::byte* behind = header + groups * kPanel * (layout.scales == ScaleForm::f32 ? 4 : 2);
  if (layout.minima == MinimumForm::f16)
    return load_f16(reinterpret_cast<const uint16_t*>(behind) + at * kPanel + row);
  const vi zero = load_bytes<uint8_t>(behind + at * kPanel + row);
  return -to_float(layout.bits == 8 ? zero - kLevelOffset : zero);
}

// Scales and minima of `count` groups from the beginning of a span on, spans `step` bytes apart.
// Zero points are scaled, as products take them, unless `plain`.
__attribute__((noinline)) void load_scales(const CodeLayout& layout, const std::byte* header,
                                           size_t step, int count, bool plain, GroupScales& to) {
  const int in_span = layout.groups_in_span();
  const bool scaled = layout.minima == MinimumForm::zero && !plain;
  for (int first = 0; first < count; first += in_span, header += step)
    for (int at = 0; at < in_span && first + at < count; at++)
      for (int row = 0; row < kPanel; row += W) {
        const vf scale = scale_of(layout, header, at, row);
        store(to.scale[first + at] + row, scale);
        if (layout.minima == MinimumForm::none) continue;
        const vf minimum = minimum_of(layout, header, at, row);
        store(to.minimum[first + at] + row, scaled ? scale * minimum : minimum);
      }
}

// Prefetch distance in bytes, into the L1 cache. With AVX2, arithmetic takes about as long as
// reading and must not wait for it.
constexpr int kAheadCodes = 8192;

SUFFICE_INLINE void fetch_lines(const std::byte* from, int bytes) {
#pragma GCC unroll 8
  for (int at = 0; at < bytes; at += kLineBytes) fetch_near(from + at + kAheadCodes);
}

// Calls f(unit, scale, minimum) for each unit of a panel. scale and minimum [kPanel] are those of
// its group, with groups of 16 columns [2][kPanel]; without minima `minimum` is null. `plain`: see
// load_scales.
template <int Bits, class F>
SUFFICE_INLINE void for_units(const Linear& w, int panel, F f, bool plain = false) {
  const CodeLayout& layout = w.layout;
  const int in_span = layout.groups_in_span(), header = layout.header_bytes();
  const int units = round_up(w.columns, kUnit) / kUnit;
  const int step = layout.group < kUnit ? kUnit / layout.group : 1;  // groups that a unit ends
  const int in_group = step == 1 ? layout.group / kUnit : 1;         // units of a group
  const int together = kNested > layout.span() ? kNested / layout.group : in_span;
  const size_t span_bytes = header + layout.span() / kUnit * unit_bytes(Bits);
  const std::byte* from = w.data + panel * w.panel_bytes();
  GroupScales scales;
  for (int left = units; left > 0;) {
    const int groups = step == 1 ? (left + in_group - 1) / in_group : left * step;
    const int count = groups < together ? groups : together;
    load_scales(layout, from, span_bytes, count, plain, scales);
    for (int g = 0; g < count; g += step) {
      if (g % in_span == 0) {
        fetch_lines(from, header);
        from += header;
      }
      const float* minimum = layout.minima == MinimumForm::none ? nullptr : scales.minimum[g];
      for (int i = 0; i < in_group && left > 0; i++, left--, from += unit_bytes(Bits)) {
        fetch_lines(from, static_cast<int>(unit_bytes(Bits)));
        f(from, scales.scale[g], minimum);
      }
    }
  }
}

constexpr int32_t every_byte(int value) { return static_cast<int32_t>(value * 0x01010101u); }

SUFFICE_INLINE vi shifted(vi bits, int left) { return left >= 0 ? bits << left : bits >> -left; }

// The codes of a unit, from W rows of its first line on: bytes of four columns 0, 2, 1, 3 each.
template <int Bits>
struct UnitCodes {
  static constexpr int low = low_bits(Bits), each = 8 / low, width = Bits - low;
  const std::byte* unit;
  vi fields[2];  // the codes' further bits, `width` adjacent ones for a four

  explicit SUFFICE_INLINE UnitCodes(const std::byte* unit) : unit(unit) {
    if constexpr (width == 1) fields[0] = plane(low);
    if constexpr (width == 2) {
      const vi even = splat_bits(every_byte(0x55)), odd = ~even;
      fields[0] = (plane(low) & even) | (plane(low + 1) & even) << 1;
      fields[1] = (plane(low) >> 1 & even) | (plane(low + 1) & odd);
    }
  }

  SUFFICE_INLINE vi plane(int bit) const { return load_bits(unit + bit * kLineBytes); }

  SUFFICE_INLINE vi operator()(int four) const {
    const vi line = load_bits(unit + four / each * kLineBytes);
    if constexpr (Bits == 8) return line;
    vi codes = line >> four % each * low & splat_bits(every_byte((1 << low) - 1));
    if constexpr (width > 0) {
      const int own = four % width;
      codes |=
          shifted(fields[own], low - four + own) & splat_bits(every_byte((1 << Bits) - (1 << low)));
    }
    return codes;
  }
};

// Levels less the lowest one, a byte each, of bytes of codes. Even ones are their codes.
template <int Bits, bool Even>
struct Levels {
  static constexpr int tables = Bits > 4 ? 1 << (Bits - 4) : 1;  // of 16 levels
  vi table[tables];

  explicit SUFFICE_INLINE Levels(const Linear& w) {
    for (int t = 0; t < tables; t++) {
      uint8_t levels[kLevels] = {};
      for (int i = 0; i < kLevels && i < 1 << Bits; i++)
        levels[i] = static_cast<uint8_t>(w.levels[t * kLevels + i] - kLevelOffset - w.lowest);
      table[t] = repeat_levels(levels);
    }
  }

  SUFFICE_INLINE vi operator()(vi codes) const {
    vi found[tables];
    for (int t = 0; t < tables; t++) found[t] = look_up(table[t], codes);
    for (int bit = Bits - 1; bit >= 4; bit--)
      for (int t = 0; t < 1 << (bit - 4); t++)
        found[t] = choose(codes, bit, found[t], found[t + (1 << (bit - 4))]);
    return found[0];
  }
};

template <int Bits>
struct Levels<Bits, true> {
  explicit SUFFICE_INLINE Levels(const Linear&) {}
  SUFFICE_INLINE vi operator()(vi codes) const { return codes; }
};

// Calls f.operator()<Bits>() for the bits of a layer's codes.
template <class F>
SUFFICE_INLINE void by_bits(const Linear& w, F f) {
  if (w.layout.bits == 8) return f.template operator()<8>();
  dispatch<6, 2>(w.layout.bits, f);
}
