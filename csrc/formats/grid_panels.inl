// Panels of places in a grid; linear/code_layout.h draws them.

// The signs of the columns of a unit that are byte `byte` of their fours: bit i belongs to four i.
inline uint8_t plane_byte(uint32_t signs, int byte) {
  uint32_t bits = signs >> kCodeOrder[byte] & 0x11111111u;
  bits = (bits | bits >> 3) & 0x03030303u;
  bits = (bits | bits >> 6) & 0x000f000fu;
  return static_cast<uint8_t>(bits | bits >> 12);
}

// A row of a span of places. `lines` are those of the header, `units` follow it.
template <Grid grid>
void write_places(const Places& from, int row, uint8_t* __restrict lines,
                  uint8_t* __restrict units) {
  constexpr GridShape shape = shape_of(grid);
  constexpr int each = shape.further_bits(), entries = shape.entries();
  for (int unit = 0; unit < kNested / kUnit; unit++, units += shape.unit_lines() * kLineBytes) {
    for (int i = 0; i < entries; i++) {
      const uint32_t place = from.entries[unit * entries + i];
      units[i / 4 * kLineBytes + row * 4 + i % 4] = static_cast<uint8_t>(place);
      if constexpr (each > 0) {
        const int bit = (unit * entries + i) * each;
        lines[bit / 32 * kLineBytes + row * 4 + bit % 32 / 8] |=
            static_cast<uint8_t>(place >> 8 << bit % 8);
      }
    }
    if constexpr (shape.signs)
      for (int byte = 0; byte < 4; byte++)
        units[entries / 4 * kLineBytes + row * 4 + byte] =
            plane_byte(bits32(from.signs + 4 * unit), byte);
  }
}

template <class Type>
bool panel_of_places(const uint8_t* const* rows, int64_t blocks, uint8_t* to) {
  constexpr CodeLayout layout = Type::type.layout;
  constexpr int groups = kNested / layout.group;
  constexpr size_t span = layout.panel_bytes(kNested);
  bool finite = true;
  for (int64_t block = 0; block < blocks; block++, to += span) {
    std::memset(to, 0, span);
    const Header header{layout, to};
    for (int row = 0; row < kPanel; row++) {
      if (rows[row] == nullptr) continue;
      const uint8_t* from = rows[row] + block * Type::type.bytes;
      Numbers numbers;
      Type::numbers(from, numbers);
      finite &= (numbers.scale & 0x7fff) < kInfiniteF16;
      header.number(0, 0, row, to_bits(half(numbers.scale) * Type::factor));
      for (int g = 0; g < groups; g++) header.scale(g, row, numbers.scales[g]);
      Places places;
      Type::places(from, places);
      write_places<layout.grid>(places, row, to + kLineBytes + groups * kPanel,
                                to + layout.header_bytes());
    }
  }
  return finite;
}
