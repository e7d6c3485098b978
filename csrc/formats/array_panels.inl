// Panels from plain arrays of codes, scales and minima.

inline void write_unit_of(int bits, const uint8_t* codes, size_t stride, uint8_t* to) {
  switch (bits) {
    case 2: return write_unit<2>(codes, stride, to);
    case 3: return write_unit<3>(codes, stride, to);
    case 4: return write_unit<4>(codes, stride, to);
    case 5: return write_unit<5>(codes, stride, to);
    case 6: return write_unit<6>(codes, stride, to);
    default: return write_unit<8>(codes, stride, to);
  }
}

// Writes the numbers of group `group` of the span, which is number `at` of those of all rows;
// returns whether they are finite.
inline bool write_group(const CodeArrays& from, const Header& header, int group, int row,
                        int64_t at) {
  const auto scale = [&]<class Number>(Number bits) {
    std::memcpy(&bits, from.scales + sizeof bits * at, sizeof bits);
    header.scale(group, row, bits);
    return bits;
  };
  const auto minimum = [&]<class Number>(Number bits) {
    std::memcpy(&bits, from.minima + sizeof bits * at, sizeof bits);
    header.minimum(group, row, bits);
    return bits;
  };
  bool finite = true;
  switch (from.layout.scales) {
    case ScaleForm::f16: finite = (scale(uint16_t{}) & 0x7fff) < kInfiniteF16; break;
    case ScaleForm::bf16: finite = (scale(uint16_t{}) & 0x7fff) < kInfiniteBF16; break;
    case ScaleForm::f32: finite = (scale(uint32_t{}) & 0x7fffffff) < kInfiniteF32; break;
    case ScaleForm::power: finite = scale(uint8_t{}) < kGreatPower; break;
    case ScaleForm::e4m3:
    case ScaleForm::nested32:  // of blocks only
    case ScaleForm::nested: scale(uint8_t{});
  }
  if (from.layout.minima == MinimumForm::f16)
    return finite && (minimum(uint16_t{}) & 0x7fff) < kInfiniteF16;
  if (from.layout.minima != MinimumForm::none) minimum(uint8_t{});
  return finite;
}

// The numbers of `count` rows from row `first` on.
inline bool write_header(const CodeArrays& from, int64_t first, int count, int64_t span,
                         uint8_t* to) {
  const Header header{from.layout, to};
  const int in_span = from.layout.groups_in_span();
  const int64_t groups = from.groups();
  bool finite = true;
  std::memset(to, 0, from.layout.header_bytes());
  for (int row = 0; row < count; row++) {
    for (int64_t group = span * in_span; group < std::min((span + 1) * in_span, groups); group++)
      finite &= write_group(from, header, static_cast<int>(group - span * in_span), row,
                            (first + row) * groups + group);
    if (from.layout.scales != ScaleForm::nested) continue;
    const uint8_t* outer = from.outer + 4 * ((first + row) * from.spans() + span);
    header.outer(row, bits16(outer), bits16(outer + 2));
    finite &= words_finite(outer, 2, kInfiniteF16);
  }
  return finite;
}

inline Fault panel_of_arrays(const CodeArrays& from, int64_t panel, uint8_t* to) {
  const int64_t first = panel * kPanel, columns = from.columns, span = from.layout.span();
  const int count = static_cast<int>(std::min<int64_t>(kPanel, from.rows - first));
  bool finite = true;
  uint8_t seen = 0;
  for (int64_t column = 0; column < columns; column += kUnit) {
    if (column % span == 0) {
      finite &= write_header(from, first, count, column / span, to);
      to += from.layout.header_bytes();
    }
    alignas(kLineBytes) uint8_t codes[kPanel][kUnit] = {};
    const size_t now = std::min<int64_t>(kUnit, columns - column);
    for (int row = 0; row < count; row++)
      std::memcpy(codes[row], from.codes + (first + row) * columns + column, now);
    for (const auto& row : codes)
      for (const uint8_t code : row) seen |= code;
    write_unit_of(from.layout.bits, codes[0], kUnit, to);
    to += unit_bytes(from.layout.bits);
  }
  if (seen >> from.layout.bits != 0) return Fault::large_code;
  return finite ? Fault::none : Fault::not_finite;
}
