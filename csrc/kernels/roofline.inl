// The limits of a machine: reading memory, and products of inputs from the L1 cache.

// Reads `Streams` equal parts in parallel, four lines of each in turn, and adds up the values read.
template <int Streams>
int32_t read_streams(const std::byte* from, size_t bytes) {
  constexpr int kRun = 4 * kLineBytes / kVectorBytes;
  const size_t part = bytes / Streams / (4 * kLineBytes) * (4 * kLineBytes);
  vi total[4] = {};
  for (size_t at = 0; at < part; at += 4 * kLineBytes)
    for (int stream = 0; stream < Streams; stream++)
      for (int i = 0; i < kRun; i++)
        total[i % 4] ^= load_bits(from + stream * part + at + i * kVectorBytes);
  const vi all = total[0] ^ total[1] ^ total[2] ^ total[3];
  int32_t sum = 0;
  for (int i = 0; i < W; i++) sum ^= all[i];
  return sum;
}

inline int32_t read_memory(const std::byte* from, size_t bytes, int streams) {
  if (streams == 1) return read_streams<1>(from, bytes);
  return streams == 2 ? read_streams<2>(from, bytes) : read_streams<4>(from, bytes);
}

// Independent sums that hide the latency of a product; as many as registers hold.
constexpr int kProductChains = SUFFICE_LEVEL == 4 ? 20 : 10;

// Adds the products of a vector and the 4 bytes at `input`, in every lane, to `total`.
template <Products of, class Sum>
SUFFICE_INLINE Sum add_products(Sum total, vi part, const std::byte* input) {
  const vi taken = broadcast<vi>(input);
  if constexpr (of == Products::i8)
    return add_quads(total, part, taken);
  else if constexpr (of == Products::i16)
    return multiply_add(part, taken, total);
  else if constexpr (of == Products::bf16)
    return dot_bf16(total, part, taken);
  else
    return multiply_add(as_float(part), as_float(taken), total);
}

// Multiplies a vector with each 4 bytes of inputs, broadcast to every lane; mixes the products into
// `sum` and returns their number.
template <Products of>
size_t multiply_all(const std::byte* inputs, size_t bytes, int32_t* sum) {
  constexpr size_t step = kProductChains * kQuad;
  constexpr int each = of == Products::i8 ? 4 : of == Products::f32 ? 1 : 2;  // of a lane
  constexpr bool integers = of == Products::i8 || of == Products::i16;
  const vi part = load_bits(inputs);
  std::conditional_t<integers, vi, vf> total[kProductChains] = {};
  size_t at = 0;
  for (; at + step <= bytes; at += step)
#pragma GCC unroll 20
    for (int i = 0; i < kProductChains; i++)
      total[i] = add_products<of>(total[i], part, inputs + at + i * kQuad);
  for (int i = 0; i < kProductChains; i++)
    for (int lane = 0; lane < W; lane++) {
      int32_t bits;
      const auto value = total[i][lane];
      std::memcpy(&bits, &value, sizeof bits);
      *sum ^= bits;
    }
  return at / kQuad * W * each;
}

inline size_t multiply_cached(const std::byte* inputs, size_t bytes, Products of, int32_t* sum) {
  switch (of) {
    case Products::f32: return multiply_all<Products::f32>(inputs, bytes, sum);
    case Products::bf16: return multiply_all<Products::bf16>(inputs, bytes, sum);
    case Products::i16: return multiply_all<Products::i16>(inputs, bytes, sum);
    case Products::i8: return multiply_all<Products::i8>(inputs, bytes, sum);
  }
  return 0;
}
