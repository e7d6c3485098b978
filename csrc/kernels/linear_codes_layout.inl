// Weights of few bits as they lie in memory (see linear/code_layout.h): the scales and minima of
// their groups, their codes, and the levels that codes stand for.

constexpr int kFours = kUnit / 4;

// Units of a span that are prepared together: where their codes are, and their scales and minima as
// float32; with groups of 16 columns those of a unit's two groups.
constexpr int kUnitsAtOnce = kNested / kUnit;

struct alignas(kLineBytes) UnitBatch {
  const std::byte* units;  // adjacent; of a grid they are `codes`
  float scale[2 * kUnitsAtOnce][kPanel];
  float minimum[2 * kUnitsAtOnce][kPanel];
  alignas(kLineBytes) std::byte codes[kUnitsAtOnce * unit_bytes(4)];
  alignas(kLineBytes) uint16_t narrow[kPermutedBits > 0 ? 1 << kPermutedBits : 1];

  SUFFICE_INLINE bool in_memory() const { return units != codes; }
};
constexpr int kMinimumAt = 2 * kUnitsAtOnce * kPanel;            // from a scale to its minimum
constexpr int kBatchFloats = sizeof(UnitBatch) / sizeof(float);  // to the scale of the next batch

// The scales and minima of a unit of V / kVectors panels, as UnitBatch has them; `first` are those
// of the first panel.
struct BatchScales {
  const bool halves, minima;  // groups of 16 columns; whether there are minima
  const float* first;

  SUFFICE_INLINE BatchScales(const Linear& w, const float* first)
      : halves(w.layout.group < kUnit),
        minima(w.layout.minima != MinimumForm::none),
        first(first) {}
  SUFFICE_INLINE const float* at(int v, int half) const {
    return first + half * kPanel + v / kVectors * kBatchFloats + v % kVectors * W;
  }
  SUFFICE_INLINE vf scale(int v, int half) const { return load(at(v, half)); }
  SUFFICE_INLINE vf minimum(int v, int half) const { return load(at(v, half) + kMinimumAt); }
};

// 2^(e - 128) of bytes e; below 2 these are subnormal.
SUFFICE_INLINE vf power_of(const std::byte* from) {
  const vi e = load_bytes<uint8_t>(from);
  return as_float(e < 2 ? splat_bits(0x200000) << e : (e - 1) << 23);
}

// Halves of unsigned floats of 4 and 3 bits.
SUFFICE_INLINE vf small_float_of(const std::byte* from) {
  const vi bits = load_bytes<uint8_t>(from);
  return bits < 8 ? to_float(bits) * 0x1p-10f : as_float((bits << 20) + (119 << 23));
}

// The scales of W rows, from `row` on, in group `at` of a span; `outer` those of nested ones.
template <ScaleForm form>
SUFFICE_INLINE vf scale_of(const std::byte* header, int at, int row, vf outer) {
  const std::byte* wide = header + (at * kPanel + row) * 2;
  if constexpr (form == ScaleForm::f16) return load_f16(reinterpret_cast<const uint16_t*>(wide));
  if constexpr (form == ScaleForm::bf16) return load_bf16(reinterpret_cast<const uint16_t*>(wide));
  if constexpr (form == ScaleForm::f32)
    return load(reinterpret_cast<const float*>(header) + at * kPanel + row);
  if constexpr (form == ScaleForm::power) return power_of(header + at * kPanel + row);
  if constexpr (form == ScaleForm::e4m3) return small_float_of(header + at * kPanel + row);
  return outer * to_float(load_bytes<int8_t>(header + kLineBytes + at * kPanel + row));
}

// The same of minima; `behind` is where they begin. Of zero points: those less than 0 and not yet
// scaled; `zero` is the level that a zero point of 0 means.
template <MinimumForm form>
SUFFICE_INLINE vf minimum_of(const std::byte* behind, int at, int row, vf outer, int zero) {
  if constexpr (form == MinimumForm::f16)
    return load_f16(reinterpret_cast<const uint16_t*>(behind) + at * kPanel + row);
  const vi bytes = load_bytes<uint8_t>(behind + at * kPanel + row);
  if constexpr (form == MinimumForm::zero) return -to_float(bytes + zero);
  return -outer * to_float(bytes);
}

// Scales and minima of groups [first, first + count) of a span of `in_span` groups, as UnitBatch
// has them. Zero points are scaled, as products take them, unless `plain`.
template <ScaleForm scales, MinimumForm minima>
SUFFICE_INLINE void store_scales(const CodeLayout& layout, const std::byte* header, int in_span,
                                 int first, int count, bool plain, float* to) {
  constexpr bool wide = scales == ScaleForm::nested32;
  constexpr bool nested = scales == ScaleForm::nested || wide;
  constexpr int bytes = nested ? 1 : scales == ScaleForm::f32 ? 4 : 2;
  const std::byte* behind = header + in_span * kPanel * bytes + (nested ? kLineBytes : 0);
  const int zero = layout.bits == 8 ? -kLevelOffset : 0;
  for (int row = 0; row < kPanel; row += W) {
    const auto* outer = reinterpret_cast<const uint16_t*>(header) + row;
    const vf outer_scale = wide     ? load(reinterpret_cast<const float*>(header) + row)
                           : nested ? load_f16(outer)
                                    : vf{};
    const vf outer_minimum = nested ? load_f16(outer + kPanel) : vf{};
#pragma GCC unroll 2
    for (int i = 0; i < count; i++) {
      const vf scale = scale_of<scales>(header, first + i, row, outer_scale);
      float* at = to + i * kPanel + row;
      store(at, scale);
      if constexpr (minima == MinimumForm::none) continue;
      const vf minimum = minimum_of<minima>(behind, first + i, row, outer_minimum, zero);
      const bool scaled = minima == MinimumForm::zero && !plain;
      store(at + kMinimumAt, scaled ? scale * minimum : minimum);
    }
  }
}

// Calls f.operator()<scales, minima>() for the forms of a layout.
template <class F>
SUFFICE_INLINE void by_forms(const CodeLayout& layout, F f) {
  const auto wide = [&]<ScaleForm scales>() __attribute__((always_inline)) {
    if (layout.minima == MinimumForm::none)
      f.template operator()<scales, MinimumForm::none>();
    else if (layout.minima == MinimumForm::f16)
      f.template operator()<scales, MinimumForm::f16>();
    else
      f.template operator()<scales, MinimumForm::zero>();
  };
  if (layout.scales == ScaleForm::f16)
    wide.template operator()<ScaleForm::f16>();
  else if (layout.scales == ScaleForm::bf16)
    wide.template operator()<ScaleForm::bf16>();
  else if (layout.scales == ScaleForm::f32)
    wide.template operator()<ScaleForm::f32>();
  else if (layout.scales == ScaleForm::power)
    f.template operator()<ScaleForm::power, MinimumForm::none>();
  else if (layout.scales == ScaleForm::e4m3)
    f.template operator()<ScaleForm::e4m3, MinimumForm::none>();
  else if (layout.scales == ScaleForm::nested32)
    f.template operator()<ScaleForm::nested32, MinimumForm::none>();
  else if (layout.minima == MinimumForm::none)
    f.template operator()<ScaleForm::nested, MinimumForm::none>();
  else
    f.template operator()<ScaleForm::nested, MinimumForm::nested>();
}

// Goes through the units of a panel.
class PanelUnits {
 public:
  PanelUnits() = default;
  PanelUnits(const Linear& w, int panel, bool plain)
      : layout_(w.layout),
        plain_(plain),
        groups_(layout_.groups_in_span()),
        header_bytes_(layout_.header_bytes()),
        unit_bytes_(static_cast<int>(layout_.stored_unit_bytes())),
        words_(w.entries),
        in_span_(layout_.span() / kUnit),
        in_group_(layout_.group / kUnit),
        next_(w.data + panel * w.panel_bytes()),
        left_(round_up(w.columns, kUnit) / kUnit) {}

  // Prepares the next units, all of one span, and returns their number: memory is read best in its
  // own order, so headers of later spans are left for later. A call for few units must be short: it
  // stands between the products of two batches.
  __attribute__((noinline)) int prepare(UnitBatch& to) {
    if (left_ == 0) return 0;
    if (unit_ == 0) start_span();
    int count = in_span_ - unit_ < kUnitsAtOnce ? in_span_ - unit_ : kUnitsAtOnce;
    count = left_ < count ? left_ : count;
    to.units = next_;
    if (words_) expand(to, count);
    next_ += count * unit_bytes_;
    left_ -= count;
    by_forms(layout_, [&]<ScaleForm scales, MinimumForm minima>() __attribute__((always_inline)) {
      if (in_group_ > 1) return repeat_scales<scales, minima>(to, count);
      const int groups = in_group_ ? 1 : 2;  // of a unit
      store_scales<scales, minima>(layout_, header_, groups_, unit_ * groups, count * groups,
                                   plain_, to.scale[0]);
    });
    unit_ = unit_ + count < in_span_ ? unit_ + count : 0;
    return count;
  }

 private:
  SUFFICE_INLINE void start_span() {
    header_ = next_;
    next_ += header_bytes_;
    fetch_lines(header_, header_bytes_);
  }

  // A span of a grid has as many units as are prepared together.
  void expand(UnitBatch& to, int count) {
    const std::byte* lines = header_ + kLineBytes + groups_ * kPanel;
    to.units = to.codes;
    by_grid(layout_.grid, [&]<Grid grid>() {
      constexpr int bits = shape_of(grid).place_bits;
      const auto expand = [&]<bool permute>() {
        expand_places<grid, permute>(words_, to.narrow, next_, lines, count, to.codes);
      };
      if constexpr (bits <= kPermutedBits)
        if (on_amd()) {
          if (!narrowed_) narrow_entries(words_, 1 << bits, to.narrow);
          narrowed_ = true;
          return expand.template operator()<true>();
        }
      expand.template operator()<false>();
    });
  }

  // Stores for each of some units the scale and the minimum of its group.
  template <ScaleForm scales, MinimumForm minima>
  SUFFICE_INLINE void repeat_scales(UnitBatch& to, int units) const {
    for (int i = 0, group = unit_ / in_group_; i < units; i++) {
      if (i == 0 || (unit_ + i) % in_group_ == 0) {
        store_scales<scales, minima>(layout_, header_, groups_, group++, 1, plain_, to.scale[i]);
      } else {
        std::memcpy(to.scale[i], to.scale[i - 1], sizeof to.scale[i]);
        std::memcpy(to.minimum[i], to.minimum[i - 1], sizeof to.minimum[i]);
      }
    }
  }

  CodeLayout layout_;
  bool plain_ = false;
  int groups_ = 0, header_bytes_ = 0;  // of a span
  int unit_bytes_ = 0;
  const uint32_t* words_ = nullptr;  // of a grid
  bool narrowed_ = false;            // whether the batch has its entries for permutations
  int in_span_ = 0, in_group_ = 0;   // units
  const std::byte *header_ = nullptr, *next_ = nullptr;
  int left_ = 0, unit_ = 0;  // the next unit, in its span
};

// Calls f(batches, count, step) for the next `count` units of P adjacent panels, until none is
// left. Unit i of panel p is the i-th of batches[p].units; its scales, [kPanel] or [2][kPanel],
// are `step` i behind batches[p].scale[0]. `plain`: see store_scales.
template <int P, class F>
SUFFICE_INLINE void for_batches_of(const Linear& w, int panel, F f, bool plain = false) {
  const int step = w.layout.group < kUnit ? 2 * kPanel : kPanel;
  PanelUnits units[P] = {};
  for (int p = 0; p < P; p++) units[p] = PanelUnits(w, panel + p, plain);
  UnitBatch batches[P];
  for (;;) {
    int count = 0;
    for (int p = 0; p < P; p++) count = units[p].prepare(batches[p]);
    if (count == 0) return;
    f(batches, count, step);
  }
}

// Calls f(unit, scale) for each unit of a panel.
template <int Bits, class F>
SUFFICE_INLINE void for_units(const Linear& w, int panel, F f, bool plain = false) {
  constexpr int bytes = unit_bytes(Bits);
  const auto of_batch = [&](const UnitBatch* batch, int count, int step)
                            __attribute__((always_inline)) {
                              const float* scale = batch->scale[0];
                              const std::byte* unit = batch->units;
                              const bool in_memory = batch->in_memory();
                              for (int i = 0; i < count; i++) {
                                if (in_memory) fetch_lines(unit, bytes);
                                f(unit, scale);
                                unit += bytes;
                                scale += step;
                              }
                            };
  for_batches_of<1>(w, panel, of_batch, plain);
}

constexpr int32_t every_byte(int value) { return static_cast<int32_t>(value * 0x01010101u); }

SUFFICE_INLINE vi shifted(vi bits, int left) { return left >= 0 ? bits << left : bits >> -left; }

// The lines of a unit, from W rows of its first line on. With 32 registers they are loaded once and
// in their order, in which memory is read best; with fewer each is loaded where it is used.
template <int Bits>
struct UnitLines {
#if SUFFICE_LEVEL == 4 && !SUFFICE_EMULATE
  vi lines[Bits];

  UnitLines() = default;
  explicit SUFFICE_INLINE UnitLines(const std::byte* unit) {
    for (int i = 0; i < Bits; i++) {
      lines[i] = load_bits(unit + i * kLineBytes);
      asm volatile("" : "+v"(lines[i]));
    }
  }
  SUFFICE_INLINE vi operator[](int i) const { return lines[i]; }
#else
  const std::byte* unit = nullptr;

  UnitLines() = default;
  explicit SUFFICE_INLINE UnitLines(const std::byte* unit) : unit(unit) {}
  SUFFICE_INLINE vi operator[](int i) const { return load_bits(unit + i * kLineBytes); }
#endif
};

// The codes of a unit, from W rows of its first line on: bytes of four columns 0, 2, 1, 3 each.
template <int Bits>
struct UnitCodes {
  static constexpr int low = low_bits(Bits), each = 8 / low, width = Bits - low;
  UnitLines<Bits> lines;
  vi fields[2];  // the codes' further bits, `width` adjacent ones for a four

  UnitCodes() = default;
  explicit SUFFICE_INLINE UnitCodes(const std::byte* unit) : lines(unit) {
    if constexpr (width == 1) fields[0] = lines[low];
    if constexpr (width == 2) {
      const vi even = splat_bits(every_byte(0x55)), odd = ~even;
      fields[0] = (lines[low] & even) | (lines[low + 1] & even) << 1;
      fields[1] = (lines[low] >> 1 & even) | (lines[low + 1] & odd);
    }
  }

  SUFFICE_INLINE vi operator()(int four) const {
    if constexpr (Bits == 8) return lines[four];
    vi codes = lines[four / each] >> four % each * low & splat_bits(every_byte((1 << low) - 1));
    if constexpr (width > 0) {
      const int own = four % width;
      codes |=
          shifted(fields[own], low - four + own) & splat_bits(every_byte((1 << Bits) - (1 << low)));
    }
    return codes;
  }
};

// What levels begin with. Where bytes are multiplied as signed ones, those of a wide range are less
// by 128.
SUFFICE_INLINE int lowest_of(const Linear& w) {
  return w.lowest + (kSignedBytes && w.range > kMaxByte ? 128 : 0);
}

// Levels less `lowest_of`, a byte each, of bytes of codes. Even ones are their codes, unless these
// are of 8 bits and signed.
template <int Bits, bool Even>
struct Levels {
  static constexpr int tables = Bits > 4 ? 1 << (Bits - 4) : 1;  // of 16 levels
  vi table[tables];

  explicit SUFFICE_INLINE Levels(const Linear& w) {
    for (int t = 0; t < tables; t++) {
      uint8_t levels[kLevels] = {};
      for (int i = 0; i < kLevels && i < 1 << Bits; i++)
        levels[i] = static_cast<uint8_t>(w.levels[t * kLevels + i] - kLevelOffset - lowest_of(w));
      table[t] = repeat_levels(levels);
    }
  }

  SUFFICE_INLINE vi operator()(vi codes) const {
#if SUFFICE_NEON
    const auto places = reinterpret_cast<uint8x16_t>(codes);
    const auto of = [&](int t) { return reinterpret_cast<uint8x16_t>(table[t]); };
    if constexpr (tables == 2) return reinterpret_cast<vi>(vqtbl2q_u8({{of(0), of(1)}}, places));
    if constexpr (tables == 4)
      return reinterpret_cast<vi>(vqtbl4q_u8({{of(0), of(1), of(2), of(3)}}, places));
#endif
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
  SUFFICE_INLINE vi operator()(vi codes) const {
    return kSignedBytes && Bits == 8 ? codes ^ splat_bits(every_byte(0x80)) : codes;
  }
};

// The levels of a unit's codes: of W rows and four columns.
template <int Bits, class L>
struct UnitLevels {
  const L& levels;
  UnitCodes<Bits> codes[kVectors];

  SUFFICE_INLINE UnitLevels(const L& levels, const std::byte* unit) : levels(levels) {
    for (int v = 0; v < kVectors; v++) codes[v] = UnitCodes<Bits>(unit + v * kVectorBytes);
  }
  SUFFICE_INLINE vi operator()(int v, int four) const { return levels(codes[v](four)); }
};

// Calls f.operator()<Bits>() for the bits of a layer's codes, which are from Least to Most.
template <int Least = 2, int Most = 8, class F>
SUFFICE_INLINE void by_bits(const Linear& w, F f) {
  if constexpr (Most == 8)
    if (w.layout.bits == 8) return f.template operator()<8>();
  dispatch<(Most < 6 ? Most : 6), Least>(w.layout.bits, f);
}
