// Dense values of weights of few bits, and products by counting pairs of codes.

// A product that is rounded before anything is added to it.
SUFFICE_INLINE vf rounded(vf product) {
#if SUFFICE_LEVEL == 3 || (SUFFICE_LEVEL == 4 && !SUFFICE_EMULATE)
  asm("" : "+v"(product));
#elif SUFFICE_NEON
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
}

// A unit's dense weights for a panel's 16 rows, [kUnit][kPanel]: scale * level + minimum, each
// rounded, or scale * (level - zero). `scale` as for_units gives it, plain.
template <int Bits>
SUFFICE_INLINE void unpack_unit(const Linear& w, const Levels<Bits, Bits == 8>& levels,
                                const std::byte* unit, const float* scale, float* to) {
  const bool minima = w.layout.minima != MinimumForm::none;
  const int second = w.layout.group < kUnit ? kPanel : 0;  // from the first 16 columns' scales on
  const bool zero = w.layout.minima == MinimumForm::zero;
  const UnitLevels<Bits, Levels<Bits, Bits == 8>> of_unit(levels, unit);
  for (int four = 0; four < kFours; four++)
    for (int v = 0; v < kVectors; v++) {
      const int at = four / 4 * second + v * W;
      const vi bytes = of_unit(v, four);
      for (int j = 0; j < 4; j++) {
        const vi byte =
            kSignedBytes ? bytes << (24 - 8 * j) >> 24 : bytes >> 8 * j & splat_bits(0xff);
        const vi level = byte + lowest_of(w);
        vf value = to_float(level);
        if (zero) value += load(scale + kMinimumAt + at);
        value *= load(scale + at);
        if (minima && !zero) value = rounded(value) + load(scale + kMinimumAt + at);
        store(to + (four * 4 + kCodeOrder[j]) * kPanel + v * W, value);
      }
    }
}

// The dense rows [begin, end) of a panel, [end - begin][columns].
template <int Bits>
void unpack_panel(const Linear& w, int panel, int begin, int end, float* to, int stride) {
  const Levels<Bits, Bits == 8> levels(w);
  int k = 0;
  const auto unpack = [&](const std::byte* unit, const float* scale) {
    float found[kUnit * kPanel];
    unpack_unit<Bits>(w, levels, unit, scale, found);
    const int columns = w.columns - k < kUnit ? w.columns - k : kUnit;
    for (int row = begin; row < end; row++)
      for (int i = 0; i < columns; i++)
        to[static_cast<size_t>(row - begin) * stride + k + i] = found[i * kPanel + row];
    k += kUnit;
  };
  for_units<Bits>(w, panel, unpack, true);
}

// The dense rows of the panels [first, last), in the order of the codes' columns and for rotated
// inputs if there is a rotation.
inline void unpack_codes(const Linear& w, int first, int last, float* to, int stride) {
  by_bits(w, [&]<int Bits>() {
    for (int panel = first; panel < last; panel++) {
      const int left = w.rows - panel * kPanel;
      unpack_panel<Bits>(w, panel, 0, left < kPanel ? left : kPanel,
                         to + static_cast<size_t>(panel - first) * kPanel * stride, stride);
    }
  });
}

inline void unpack_codes_row(const Linear& w, int row, float* to) {
  by_bits(w, [&]<int Bits>() {
    unpack_panel<Bits>(w, row / kPanel, row % kPanel, row % kPanel + 1, to, 0);
  });
}

// The 4-bit code of row `row` of a panel and a column, in a panel of one group.
SUFFICE_INLINE int code_at(const std::byte* units, int row, int column) {
  // The order is its own inverse: it swaps two columns.
  const std::byte* line = units + column / 8 * kLineBytes;
  return static_cast<int>(line[row * 4 + kCodeOrder[column % 4]]) >> (column % 8 / 4 * 4) & 15;
}

inline void count_pairs(const Linear& w, int first, int last, const uint8_t* x,
                        const float* x_levels, float* y) {
  float terms[kLevels * kLevels];
  for (int i = 0; i < kLevels; i++)
    for (int j = 0; j < kLevels; j++)
      terms[i * kLevels + j] = x_levels[i] * (w.levels[j] - kLevelOffset);
  for (int n = first * kPanel; n < last * kPanel && n < w.rows; n++) {
    const std::byte* panel = w.data + n / kPanel * w.panel_bytes();
    const std::byte* units = panel + w.layout.header_bytes();
    int32_t counts[kLevels * kLevels] = {};
    for (int k = 0; k < w.columns; k++) counts[x[k] << 4 | code_at(units, n % kPanel, k)]++;
    float sum = 0.0f;
    for (int i = 0; i < kLevels * kLevels; i++) sum += static_cast<float>(counts[i]) * terms[i];
    y[n] = sum * half_to_float(reinterpret_cast<const uint16_t*>(panel)[n % kPanel]);
  }
}
