// Query rows in the form in which joint rows are multiplied by them: the lanes of a vector are two
// words of each of W / 2 query rows.
//
//     group of W/2 query rows:  | row 0: words 0, 1 | row 1: words 0, 1 | ... | row 0: words 2, 3 |
//     ...
//
// A word is 4 bytes: a float32, two bfloat16 for keys that are multiplied in such pairs, or two
// int16 for int8 keys. Two words of a key fill a vector by one load, which serves several groups.
// The two parts of int8 keys have queries with scales of their own, since rotated entries are often
// ten times as large as the others.

constexpr int kJointRows = W / 2;  // query rows of a group

template <Type T>
constexpr int kJointElements = T == Type::i8 || kBf16Pairs<T> ? 2 : 1;  // of a word

// Bytes of a group; a step takes two words of each row.
SUFFICE_INLINE size_t joint_group_bytes(int steps) {
  return static_cast<size_t>(steps) * kVectorBytes;
}

// Query rows from row `first` on, the first one of a group.
inline Queries queries_from(const KVHead& head, Queries queries, int first) {
  for_type(head.key_type, [&]<Type T>() {
    queries.lanes += first / kJointRows * joint_group_bytes(head.size / kJointElements<T> / 2);
  });
  queries.values += first;
  queries.scales += first;
  queries.rest_scales += first;
  return queries;
}

// Rounds `size` elements of a query to int16; returns the scale.
SUFFICE_INLINE float quantize_part(const float* values, int size, int16_t* codes) {
  return quantize_to_int16([&](int i) { return load(values + i * W); }, size / W,
                           max_magnitude(values, size), codes);
}

// Sets the lanes of `count` query rows, and the scales of those for int8 keys.
template <Type T>
void prepare_joint(const KVHead& head, const Queries& queries, int count) {
  const int size = head.size, steps = size / kJointElements<T> / 2;
  alignas(64) int16_t halves[kMaxSize];
  for (int q = 0; q < round_up(count, kJointRows); q++) {
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
    std::byte* const to =
        queries.lanes + q / kJointRows * joint_group_bytes(steps) + q % kJointRows * 8;
    const auto* const from = static_cast<const std::byte*>(words);
    for (int step = 0; step < steps; step++)
      if (from)
        std::memcpy(to + step * kVectorBytes, from + step * 8, 8);
      else
        std::memset(to + step * kVectorBytes, 0, 8);
  }
}
