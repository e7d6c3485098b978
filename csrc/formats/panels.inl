// Panels of codes, from blocks and from arrays; linear/code_layout.h draws them.

// The places of numbers in a header of `groups` groups.
struct Header {
  CodeLayout layout;
  uint8_t* at;

  template <class Number>
  void number(int offset, int group, int row, Number bits) const {
    std::memcpy(at + offset + sizeof bits * (kPanel * group + row), &bits, sizeof bits);
  }
  int all_groups(int bytes) const { return bytes * kPanel * layout.groups_in_span(); }

  void outer(int row, uint16_t scale, uint16_t minimum) const {
    number(0, 0, row, scale);
    number(0, 1, row, minimum);
  }
  template <class Number>
  void scale(int group, int row, Number bits) const {
    number(layout.nested() ? kLineBytes : 0, group, row, bits);
  }
  template <class Number>
  void minimum(int group, int row, Number bits) const {
    const int before = layout.scales == ScaleForm::nested ? kLineBytes + all_groups(1)
                       : layout.scales == ScaleForm::f32  ? all_groups(4)
                                                          : all_groups(2);
    number(before, group, row, bits);
  }
};

constexpr int kHalf = kPanel / 2;
using Half = uint32_t __attribute__((vector_size(4 * kHalf)));  // four columns of 8 rows

// Bytes 0, 2, 1, 3 of each four.
inline void store_in_order(uint8_t* to, const Half& fours) {
  static_assert(kCodeOrder[1] == 2 && kCodeOrder[2] == 1);
  const Half ordered =
      (fours & 0xff0000ffu) | (fours & 0x0000ff00u) << 8 | (fours & 0x00ff0000u) >> 8;
  std::memcpy(to, &ordered, sizeof ordered);
}

// The codes of 32 columns of 8 rows, `stride` bytes apart, to their half of each line: more rows
// would not fit in registers.
template <int Bits>
void write_half(const uint8_t* __restrict codes, size_t stride, uint8_t* __restrict to) {
  constexpr int low = low_bits(Bits), each = 8 / low, kFours = kUnit / 4;
  uint32_t fours[kFours][kHalf];
  for (int row = 0; row < kHalf; row++)
    for (int i = 0; i < kFours; i++) std::memcpy(&fours[i][row], codes + row * stride + 4 * i, 4);
  Half from[kFours];
  std::memcpy(from, fours, sizeof from);
  for (int line = 0; line < low; line++) {
    Half bytes{};
    for (int i = 0; i < each; i++)
      bytes |= (from[line * each + i] & 0x01010101u * ((1 << low) - 1)) << low * i;
    store_in_order(to + line * kLineBytes, bytes);
  }
  for (int bit = low; bit < Bits; bit++) {
    Half plane{};
    for (int i = 0; i < kFours; i++) plane |= (from[i] >> bit & 0x01010101u) << i;
    store_in_order(to + bit * kLineBytes, plane);
  }
}

// The codes of 32 columns of 16 rows.
template <int Bits>
void write_unit(const uint8_t* codes, size_t stride, uint8_t* to) {
  write_half<Bits>(codes, stride, to);
  write_half<Bits>(codes + kHalf * stride, stride, to + kLineBytes / 2);
}

// Writes the numbers of block `at` of a span; returns whether they are finite.
template <class Type>
bool write_numbers(const uint8_t* block, const Header& header, int at, int row) {
  constexpr CodeLayout layout = Type::type.layout;
  constexpr int groups = Type::type.values / layout.group;
  Numbers of;
  Type::numbers(block, of);
  if constexpr (layout.in_bytes()) {
    for (int g = 0; g < groups; g++) header.scale(at * groups + g, row, of.scales[g]);
    return layout.scales == ScaleForm::e4m3 || of.scales[0] < kGreatPower;
  } else {
    if constexpr (layout.minima == MinimumForm::none) of.minimum = 0;
    if constexpr (layout.scales == ScaleForm::nested) {
      header.outer(row, of.scale, of.minimum);
      for (int g = 0; g < groups; g++) header.scale(g, row, of.scales[g]);
      if constexpr (layout.minima == MinimumForm::nested)
        for (int g = 0; g < groups; g++) header.minimum(g, row, of.minima[g]);
    } else {
      header.scale(at, row, of.scale);
      if constexpr (layout.minima == MinimumForm::f16) header.minimum(at, row, of.minimum);
    }
    return std::max(of.scale & 0x7fff, of.minimum & 0x7fff) < kInfiniteF16;
  }
}

template <class Type>
bool panel_of_blocks(const uint8_t* const* rows, int64_t blocks, uint8_t* to) {
  constexpr CodeLayout layout = Type::type.layout;
  constexpr int values = Type::type.values, in_span = layout.span() / values;
  alignas(kLineBytes) uint8_t codes[kPanel][values] = {};
  bool finite = true;
  for (int64_t first = 0; first < blocks; first += in_span) {
    const int now = static_cast<int>(std::min<int64_t>(in_span, blocks - first));
    const Header header{layout, to};
    std::memset(to, 0, layout.header_bytes());
    to += layout.header_bytes();
    for (int row = 0; row < kPanel; row++)
      for (int i = 0; rows[row] != nullptr && i < now; i++)
        finite &= write_numbers<Type>(rows[row] + (first + i) * Type::type.bytes, header, i, row);
    for (int i = 0; i < now; i++) {
      for (int row = 0; row < kPanel; row++)
        if (rows[row] != nullptr)
          Type::codes(rows[row] + (first + i) * Type::type.bytes, codes[row]);
      for (int column = 0; column < values; column += kUnit, to += unit_bytes(layout.bits))
        write_unit<layout.bits>(codes[0] + column, values, to);
    }
  }
  return finite;
}
