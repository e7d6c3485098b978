// A few rows times weights of few bits.
//
// Preparing the scales of a few units for products takes as long as the products of one row. Where
// they have a form that files often have, the form is known to the compiler, and each scale is made
// where it multiplies. Same bits.

// A panel times B rows. Every (row, output) is summed in the same order whatever B is. Not inlined:
// inside another function, the surrounding code takes registers.
template <class In, int Bits, bool Even, int B>
__attribute__((noinline)) void codes_tile(const Linear& w, int panel, const Inputs& x, int row,
                                          float* y, int y_stride) {
  const std::byte* input = In::of(x) + row * kFours * In::four_bytes;
  const InputStretch* stretch = x.stretches + row;
  const Levels<Bits, Even> levels(w);
  // These loops are unrolled early, so that totals are registers, even where units are prepared.
  vf total[B][kVectors];
#pragma GCC unroll 8
  for (int b = 0; b < B; b++)
    for (int v = 0; v < kVectors; v++) total[b][v] = vf{};
  const auto add = [&](const std::byte* unit, const float* scale) __attribute__((always_inline)) {
    const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, unit);
    add_unit<In, B, kVectors>(w, of_unit, BatchScales(w, scale), stretch, input, total);
    input += static_cast<size_t>(x.count) * kFours * In::four_bytes;
    stretch += x.count;
  };
  for_units<Bits>(w, panel, add);
#pragma GCC unroll 8
  for (int b = 0; b < B; b++)
    store_totals(w, panel, total[b], y + static_cast<size_t>(row + b) * y_stride);
}

// Codes of few bits are looked up by one instruction: not doing so pays only for one row.
template <int Bits, bool Even, int B>
constexpr bool kDirect = Even && (Bits > 4 || B == 1);

// The scales and minima of a span.
template <ScaleForm scale_form, MinimumForm minimum_form, int Group>
struct SpanScales {
  static constexpr bool nested = scale_form == ScaleForm::nested;
  static constexpr int groups = nested ? kNested / Group : 2, units = groups * Group / kUnit;
  static constexpr int header_bytes = CodeLayout{4, Group, scale_form, minimum_form}.header_bytes();
  static constexpr int minima_at = nested ? kLineBytes + groups * kPanel : groups * kPanel * 2;
  const std::byte* header;
  vf outer_scale[kVectors] = {}, outer_minimum[kVectors] = {};

  explicit SUFFICE_INLINE SpanScales(const std::byte* header) : header(header) {
    const auto* outer = reinterpret_cast<const uint16_t*>(header);
    for (int v = 0; nested && v < kVectors; v++) {
      outer_scale[v] = load_f16(outer + v * W);
      outer_minimum[v] = load_f16(outer + kPanel + v * W);
    }
  }

  // Those of a unit, as add_unit takes them.
  struct Unit {
    static constexpr bool halves = Group < kUnit, minima = minimum_form != MinimumForm::none;
    const SpanScales& span;
    const int group;
    SUFFICE_INLINE vf scale(int v, int half) const {
      return scale_of<scale_form>(span.header, group + half, v * W, span.outer_scale[v]);
    }
    SUFFICE_INLINE vf minimum(int v, int half) const {
      return minimum_of<minimum_form>(span.header + minima_at, group + half, v * W,
                                      span.outer_minimum[v], 0);
    }
  };
  SUFFICE_INLINE Unit of(int unit) const { return {*this, unit * kUnit / Group}; }
};

// Fetches what one row's products take a few units later; after the last unit, the first again. A
// panel of a wide matrix and its inputs do not fit the L1 cache together, and an input waits behind
// all loads from memory. Two units' sums are a line.
template <class In>
SUFFICE_INLINE void fetch_inputs(const Linear& w, const Inputs& x, const std::byte* input,
                                 const InputStretch* stretch, bool sums) {
  constexpr int ahead = 4, unit = kFours * In::four_bytes;
  const int units = round_up(w.columns, kUnit) / kUnit;
  const std::byte* const at = input + ahead * unit;
  fetch_near(at < In::of(x) + units * unit ? at : at - units * unit);
  const InputStretch* const later = stretch + ahead;
  if (sums) fetch_near(later < x.stretches + units ? later : later - units);
}

// What is fetched ahead.
enum class Ahead { inputs, weights, both };

// What of one row's products is. With AVX-512 they take less time than reading: some processors'
// own prefetchers then reach the memory's speed, and fetching lines for them is slower; others wait
// for most lines that are not fetched. So do the former if inputs of a wide matrix are in their
// way.
template <int Bits>
Ahead ahead_of_row(const Linear& w) {
  if (SUFFICE_LEVEL < 4 || !on_amd()) return Ahead::weights;
  return Bits > 4 && w.columns > 4096 ? Ahead::both : Ahead::inputs;
}

// A panel times B rows, as codes_tile multiplies them.
template <class In, int Bits, bool Even, class Span, int B, Ahead ahead>
__attribute__((noinline)) void rows_tile(const Linear& w, int panel, const Inputs& x, int row,
                                         float* y, int y_stride) {
  constexpr int bytes = unit_bytes(Bits);
  const std::byte* input = In::of(x) + row * kFours * In::four_bytes;
  const InputStretch* stretch = x.stretches + row;
  const Levels<Bits, Even> levels(w);
  vf total[B][kVectors];
  clear(total);
  const std::byte* next = w.data + panel * w.panel_bytes();
  const auto add_span = [&](int units) __attribute__((always_inline)) {
    const Span span(next);
    if (ahead != Ahead::inputs) fetch_lines(next, Span::header_bytes);
    next += Span::header_bytes;
#pragma GCC unroll 2
    for (int i = 0; i < units; i++) {
      if (ahead != Ahead::inputs) fetch_lines(next, bytes);
      if (ahead != Ahead::weights) fetch_inputs<In>(w, x, input, stretch, i % 2 == 0);
      const UnitLevels<Bits, Levels<Bits, Even>> of_unit(levels, next);
      add_unit<In, B, kVectors>(w, of_unit, span.of(i), stretch, input, total);
      next += bytes;
      input += static_cast<size_t>(x.count) * kFours * In::four_bytes;
      stretch += x.count;
    }
  };
  int left = round_up(w.columns, kUnit) / kUnit;
  for (; left >= Span::units; left -= Span::units) add_span(Span::units);
  if (left > 0) add_span(left);
#pragma GCC unroll 8
  for (int b = 0; b < B; b++)
    store_totals(w, panel, total[b], y + static_cast<size_t>(row + b) * y_stride);
}

// Multiplies a few rows, unless the form of the scales is none of these: those of files, and of
// `4bit` and `int8`. The base set spends its time on products: it prepares all.
template <class In, int Bits, bool Even>
bool rows_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  const Ahead ahead = ahead_of_row<Bits>(w);
  const auto multiply = [&]<ScaleForm scales, MinimumForm minima, int Group>() {
    if (w.layout != CodeLayout{Bits, Group, scales, minima}) return false;
    using Span = SpanScales<scales, minima, Group>;
    for (int panel = first; panel < last; panel++)
      in_units<kDirectRows<In, Bits>>(x.count, [&]<int B>(int row) {
        const auto tile = [&]<Ahead A>() {
          rows_tile<In, Bits, Even, Span, B, A>(w, panel, x, row, y, y_stride);
        };
        if constexpr (SUFFICE_LEVEL == 4 && B == 1) {
          if (ahead == Ahead::inputs) return tile.template operator()<Ahead::inputs>();
          if (ahead == Ahead::both) return tile.template operator()<Ahead::both>();
        }
        tile.template operator()<Ahead::weights>();
      });
    return true;
  };
  bool done = false;
  if constexpr (SUFFICE_LEVEL == 0) return false;
  if constexpr (Even && Bits == 2)  // TQ1_0 and TQ2_0, Q2_K
    done = multiply.template operator()<ScaleForm::f16, MinimumForm::none, kNested>() ||
           multiply.template operator()<ScaleForm::nested, MinimumForm::nested, kUnit / 2>();
  if constexpr (Even ? Bits == 3 || Bits == 5 || Bits == 6 : Bits == 4)  // Q3_K, Q6_K, `4bit`
    done = multiply.template operator()<ScaleForm::nested, MinimumForm::none, kUnit / 2>();
  if constexpr (Even && (Bits == 4 || Bits == 5))  // Q4_K and Q4_1, Q5_K and Q5_1
    done = done || multiply.template operator()<ScaleForm::nested, MinimumForm::nested, kUnit>() ||
           multiply.template operator()<ScaleForm::f16, MinimumForm::f16, kUnit>();
  if constexpr (Even && (Bits == 4 || Bits == 5 || Bits == 8))  // Q4_0, Q5_0, Q8_0, `int8`
    done = done || multiply.template operator()<ScaleForm::f16, MinimumForm::none, kUnit>();
  return done;
}

// Multiplies a few rows with codes of Least to Most bits.
template <int Least, int Most>
void few_rows(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  by_levels<Least, Most>(w, [&]<int Bits, bool Even>() {
    by_inputs<Bits, Even>(w, [&]<class In, int, bool>() {
      if (rows_of_codes<In, Bits, Even>(w, first, last, x, y, y_stride)) return;
      for (int panel = first; panel < last; panel++)
        in_units<kDirectRows<In, Bits>>(x.count, [&]<int B>(int row) {
          codes_tile<In, Bits, kDirect<Bits, Even, B>, B>(w, panel, x, row, y, y_stride);
        });
    });
  });
}
