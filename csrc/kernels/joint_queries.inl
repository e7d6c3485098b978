// Query rows in the form in which joint rows are multiplied by them: W of them are the lanes of a
// vector.
//
//     group of W query rows:  | row 0: word 0 | row 1: word 0 | ... | row 0: word 1 | ...
//
// A word is 4 bytes: a float32, two bfloat16 for keys that are multiplied in such pairs, or two
// int16 for int8 keys. The two parts of int8 keys have queries with scales of their own, since
// rotated entries are often ten times as large as the others.

template <Type T>
constexpr int kJointElements = T == Type::i8 || kBf16Pairs<T> ? 2 : 1;  // of a word

SUFFICE_INLINE size_t joint_group_bytes(int steps) {
  return static_cast<size_t>(steps) * kVectorBytes;
}

// Rounds `size` elements of a query to int16; returns the scale.
SUFFICE_INLINE float quantize_part(const float* values, int size, int16_t* codes) {
  return quantize_to_int16([&](int i) { return load(values + i * W); }, size / W,
                           max_magnitude(values, size), codes);
}

// Sets the lanes of `count` query rows, and the scales of those for int8 keys.
template <Type T>
void prepare_joint(const KVHead& head, const Queries& queries, int count) {
  const int size = head.size, steps = size / kJointElements<T>;
  alignas(64) int16_t halves[kMaxSize];
  for (int q = 0; q < round_up(count, W); q++) {
    const float* const values = q < count ? queries.values[q] : nullptr;
    const void* words = values;
    if constexpr (kJointElements<T> == 2) {
      words = values ? halves : nullptr;
      if constexpr (T == Type::i8) {
        const int own = head.value_size;
        queries.scales[q] = values ? quantize_part(values, own, halves) : 0;
        queries.rest_scales[q] = values ? quantize_part(values + own, size - own, halves + own) : 0;
      } else if (values) {
        for (int i = 0; i < size; i += W) store_bf16(load(values + i), halves + i);
      }
    }
    std::byte* const to = queries.lanes + q / W * joint_group_bytes(steps) + q % W * 4;
    const auto* const from = static_cast<const std::byte*>(words);
    for (int step = 0; step < steps; step++)
      if (from)
        std::memcpy(to + step * kVectorBytes, from + step * 4, 4);
      else
        std::memset(to + step * kVectorBytes, 0, 4);
  }
}
