// Many rows times weights of few bits: levels are looked up once for all of them.

// Panels that share inputs: in registers, or with 16 of these in the L1 cache, where kNearRows rows
// go through one panel, then through the next. So do kManyRows and more.
constexpr int kFoundPanels = 2;
constexpr int kTilePanels = SUFFICE_LEVEL == 4 ? kFoundPanels : 1;
constexpr int kNearRows = SUFFICE_LEVEL == 4 ? kPartRows : 24;
constexpr int kManyRows = 16;

// Rows that share the levels of panels in registers.
template <class In>
constexpr int kMostRows = SUFFICE_LEVEL == 4   ? (In::four_bytes == kQuad ? 6 : 4)
                          : SUFFICE_LEVEL == 0 ? 2
                          : SUFFICE_VNNI       ? (In::four_bytes == kQuad ? 6 : 3)
                          : In::kept >= kFours ? 4
                                               : 3;
template <class In>
constexpr int kFoundRows = [] {
  if constexpr (requires { In::rows; }) return In::rows;
  return kMostRows<In>;
}();
// Whether totals of two rows lie together.
template <class In>
constexpr bool kPaired = [] {
  if constexpr (OwnUnits<In>) return In::paired;
  return false;
}();

// Vectors that are kept of a unit's levels for each of a panel, and units that are kept.
template <class In>
constexpr int kFoundVectors = [] {
  if constexpr (OwnUnits<In>) return In::vectors;
  return kFours;
}();
template <class In>
constexpr int kFoundUnits = kCrosses<In> ? kCrossedUnits : kUnitsAtOnce;

// Units of panels whose levels were looked up, and their scales, `step` apart.
struct FoundUnits {
  const vi* levels;  // [count][8 fours][V], or as find_crossed has them
  const float* scale;
  int count, step;
};

// Units of P panels times `count` rows. The rows' inputs of a unit are `apart` rows from those of
// the next. Totals leave the registers once for all units.
template <class In, int V>
__attribute__((noinline)) void add_found(const Linear& w, const FoundUnits& units,
                                         const InputStretch* stretch, const std::byte* input,
                                         int apart, int count, vf (*total)[V]) {
  constexpr int most = kFoundRows<In>, row_bytes = kFours * In::four_bytes;
  constexpr bool in_registers = SUFFICE_LEVEL == 4;  // totals, for all units
  const auto tile = [&]<int B>(int row) __attribute__((always_inline)) {
    vf own[B][V], (*sum)[V] = total + row;
    if constexpr (in_registers) {
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) own[b][v] = sum[b][v];
      sum = own;
    }
    const vi* found = units.levels;
    const float* scale = units.scale;
    const InputStretch* of_rows = stretch + row;
    const std::byte* from = input + row * row_bytes;
    for (int i = 0; i < units.count; i++, found += kFoundVectors<In> * V, scale += units.step) {
      const auto levels = [=](int v, int four) { return found[four * V + v]; };
      if constexpr (OwnUnits<In>)
        In::template add_unit<B, V>(w, found, BatchScales(w, scale), of_rows, from, sum);
      else
        add_unit<In, B, V>(w, levels, BatchScales(w, scale), of_rows, from, sum);
      of_rows += apart;
      from += static_cast<size_t>(apart) * row_bytes;
    }
    if constexpr (in_registers)
      for (int b = 0; b < B; b++)
        for (int v = 0; v < V; v++) total[row + b][v] = own[b][v];
  };
  if constexpr (!in_registers && !kPaired<In>) return in_units<most>(count, tile);
  int row = 0;
  for (; row + most <= count; row += most) tile.template operator()<most>(row);
  if (row < count)
    dispatch<most - 1>(count - row, [&]<int B>() { tile.template operator()<B>(row); });
}

// P panels times the rows of a part of the inputs; same bits as codes_tile.
template <class In, int Bits, bool Even, int P>
void decoded_panels(const Linear& w, int panel, const Inputs& x, int first, float* y,
                    int y_stride) {
  constexpr int T = P < kTilePanels ? P : kTilePanels, passes = P / T, V = T * kVectors;
  constexpr int row_bytes = kFours * In::four_bytes, vectors = kFoundVectors<In> * V;
  const InputPart part(w.columns, x.count, first);
  const int count = part.rows;
  const std::byte* input = In::of(x) + part.first * row_bytes;
  const InputStretch* stretch = x.stretches + part.first;
  const Levels<Bits, Even> levels(w);
  vf total[passes][kPartRows][V];
  for (int pass = 0; pass < passes; pass++)
    for (int row = 0; row < (kPaired<In> ? round_up(count, 2) : count); row++)
      for (int v = 0; v < V; v++) total[pass][row][v] = vf{};
  for_batches_of<P>(w, panel, [&](const UnitBatch* batches, int units, int step) {
    vi found[passes][kFoundUnits<In> * vectors];
    for (int from = 0; from < units; from += kFoundUnits<In>) {
      const int some = units - from < kFoundUnits<In> ? units - from : kFoundUnits<In>;
      for (int pass = 0; pass < passes; pass++)
        for (int i = 0; i < some; i++) {
          vi* const to = found[pass] + i * vectors;
          const UnitBatch* const own = batches + pass * T;
          if constexpr (OwnUnits<In>)
            In::template find<Bits, Even, T>(w, levels, own, from + i, to);
          else
            find_levels<Bits, Even, T>(levels, own, from + i, to);
        }
      for (int row = 0; row < count; row += kNearRows) {
        const int near = count - row < kNearRows ? count - row : kNearRows;
        for (int pass = 0; pass < passes; pass++) {
          const float* const scale = batches[pass * T].scale[0] + from * step;
          add_found<In, V>(w, {found[pass], scale, some, step}, stretch + row,
                           input + row * row_bytes, count, near, total[pass] + row);
        }
      }
      input += some * count * row_bytes;
      stretch += some * count;
    }
  });
  if constexpr (kPaired<In>)
    for (int pass = 0; pass < passes; pass++) In::template part_rows<V>(total[pass], count);
  for (int row = 0; row < count; row++)
    for (int p = 0; p < P; p++)
      store_totals(w, panel + p, total[p / T][row] + p % T * kVectors,
                   y + static_cast<size_t>(first + row) * y_stride);
}

// All rows with levels that are looked up once.
template <class In, int Bits, bool Even>
void found_codes(const Linear& w, int first, int last, const Inputs& x, float* y, int y_stride) {
  // Panels go round for each part of the rows: the inputs of more would leave the L2 cache.
  for (int row = 0; row < x.count; row += kPartRows) {
    int panel = first;
    // A few rows wait for weights, which are read best in one stream.
    if (kTilePanels == kFoundPanels || x.count >= kManyRows)
      for (; panel + kFoundPanels <= last; panel += kFoundPanels)
        decoded_panels<In, Bits, Even, kFoundPanels>(w, panel, x, row, y, y_stride);
    for (; panel < last; panel++) decoded_panels<In, Bits, Even, 1>(w, panel, x, row, y, y_stride);
  }
}

inline void linear_of_codes(const Linear& w, int first, int last, const Inputs& x, float* y,
                            int y_stride) {
  if (!x.crossed && x.count < decode_rows(w)) {
    const auto few = w.layout.bits <= kNarrow ? few_rows_of_narrow_codes : few_rows_of_wide_codes;
    return few(w, first, last, x, y, y_stride);
  }
  by_levels(w, [&]<int Bits, bool Even>() {
    if constexpr (kCrossing != Crossing::never)
      if (x.crossed) return found_codes<CrossedInputs, Bits, Even>(w, first, last, x, y, y_stride);
    by_inputs<Bits, Even>(w, [&]<class In, int, bool>() {
      if constexpr (kCrossing != Crossing::always || In::four_bytes == kQuad)
        found_codes<typename FoundInputs<In>::type, Bits, Even>(w, first, last, x, y, y_stride);
    });
  });
}
