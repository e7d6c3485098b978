// Rows of keys and values: float32 to storage type and back.

// Rounds a row to int8, times its scale max |x| / 127, which is returned. `size` is a multiple of
// W.
SUFFICE_INLINE float round_to_bytes(const float* row, int size, int8_t* codes) {
  const float scale = max_magnitude(row, size) / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < size; i += W)
    store_narrow(__builtin_convertvector(round_even(load(row + i) * inverse), vi), codes + i);
  return scale;
}

// Element `i` of a row goes to place(i) from `to`: `step` elements apart in runs of `pair`, 1 or 2.
SUFFICE_INLINE void store_elements(Type type, std::byte* to, int pair, int step, const float* from,
                                   int size, float* scale) {
  const auto place = [=](int i) { return static_cast<size_t>(i / pair) * step + i % pair; };
  if (type == Type::f32) {
    for (int i = 0; i < size; i++) reinterpret_cast<float*>(to)[place(i)] = from[i];
  } else if (type == Type::bf16) {
    for (int i = 0; i < size; i++) reinterpret_cast<uint16_t*>(to)[place(i)] = to_bf16(from[i]);
  } else if (type == Type::f16) {
    for (int i = 0; i < size; i++)
      reinterpret_cast<uint16_t*>(to)[place(i)] = float_to_half(from[i]);
  } else {
    int8_t codes[kMaxSize];
    *scale = round_to_bytes(from, size, codes);
    if (pair == 1) std::memcpy(to, codes, size);
    for (int i = 0; i < size && pair == 2; i += 2) std::memcpy(to + i / 2 * step, codes + i, 2);
  }
}

SUFFICE_INLINE void load_elements(Type type, const std::byte* from, int pair, int step, float* to,
                                  int size, const float* scale) {
  const auto place = [=](int i) { return static_cast<size_t>(i / pair) * step + i % pair; };
  if (type == Type::f32) {
    for (int i = 0; i < size; i++) to[i] = reinterpret_cast<const float*>(from)[place(i)];
  } else if (type == Type::bf16) {
    for (int i = 0; i < size; i++)
      to[i] = from_bf16(reinterpret_cast<const uint16_t*>(from)[place(i)]);
  } else if (type == Type::f16) {
    for (int i = 0; i < size; i++)
      to[i] = half_to_float(reinterpret_cast<const uint16_t*>(from)[place(i)]);
  } else {
    for (int i = 0; i < size; i++) to[i] = *scale * reinterpret_cast<const int8_t*>(from)[place(i)];
  }
}

// Offset of the first element of a key row, in bytes from the head's keys.
SUFFICE_INLINE size_t key_offset(const KVHead& head, int row) {
  if (head.joint) return row * elements_bytes(head.key_type, head.size);
  return row / kPanel * kPanel * elements_bytes(head.key_type, head.size) +
         static_cast<size_t>(row % kPanel) * key_run(head.key_type);
}

SUFFICE_INLINE size_t value_offset(const KVHead& head, int row) {
  return row * elements_bytes(head.value_type, head.size);
}

// Fetches the memory that a row will be stored in: of keys lines of a panel, few bytes of each.
inline void fetch_place(const KVHead& head, int row) {
  const size_t panel_bytes = kPanel * elements_bytes(head.key_type, head.size);
  const std::byte* const keys = head.keys + row / kPanel * panel_bytes;
  for (size_t at = 0; at < panel_bytes && !head.joint; at += kLineBytes) fetch_near(keys + at);
  const size_t end = value_offset(head, row + 1);
  for (size_t at = value_offset(head, row); at < end; at += kLineBytes)
    fetch_near(head.values + at);
}

// The parts of a joint row: f(offset, count, its scale in int8).
template <class F>
SUFFICE_INLINE void each_part(const KVHead& head, int row, F f) {
  f(0, head.value_size, head.value_scales ? head.value_scales + row : nullptr);
  f(head.value_size, head.size - head.value_size,
    head.key_scales ? head.key_scales + row : nullptr);
}

inline void store_joint(const KVHead& head, int row, const float* key) {
  std::byte* const to = head.keys + key_offset(head, row);
  each_part(head, row, [&](int at, int count, float* scale) {
    store_elements(head.key_type, to + elements_bytes(head.key_type, at), 1, 1, key + at, count,
                   scale);
  });
}

inline void load_joint(const KVHead& head, int first, int count, float* keys, float* values) {
  for (int row = first; row < first + count; row++) {
    const std::byte* const from = head.keys + key_offset(head, row);
    const size_t start = static_cast<size_t>(row - first) * head.size;
    each_part(head, row, [&](int at, int size, const float* scale) {
      const std::byte* const part = from + elements_bytes(head.key_type, at);
      if (keys) load_elements(head.key_type, part, 1, 1, keys + start + at, size, scale);
      if (values && at == 0)
        load_elements(head.key_type, part, 1, 1, values + start, size, scale);
      else if (values)
        std::memset(values + start + at, 0, size * sizeof(float));
    });
  }
}

inline void load_rows(const KVHead& head, int first, int count, float* keys, float* values) {
  if (head.joint) return load_joint(head, first, count, keys, values);
  const int pair = key_pair(head.key_type);
  for (int row = first; row < first + count; row++) {
    const size_t offset = static_cast<size_t>(row - first) * head.size;
    const std::byte* const key_at = head.keys + key_offset(head, row);
    const std::byte* const value_at = head.values + value_offset(head, row);
    if (keys && head.key_type == Type::kmeans4)
      load_key_codes(head, key_at, head.key_scales + row, keys + offset);
    else if (keys && head.key_type == Type::planes)
      load_key_planes(head, key_at, head.key_rest + key_offset(head, row), head.key_scales + row,
                      keys + offset);
    else if (keys)
      load_elements(head.key_type, key_at, pair, kPanel * pair, keys + offset, head.size,
                    head.key_scales ? head.key_scales + row : nullptr);
    if (values && head.value_type == Type::kmeans4)
      load_value_codes(value_at, head.size, head.value_scales[row], values + offset);
    else if (values && head.value_type == Type::planes)
      load_value_planes(value_at, head.value_rest + value_offset(head, row), head.size,
                        head.value_scales[row], values + offset);
    else if (values)
      load_elements(head.value_type, value_at, 1, 1, values + offset, head.size,
                    head.value_scales ? head.value_scales + row : nullptr);
  }
}

// Stores the base of a key from the row as it is stored, and the length of what it leaves.
inline void store_base_key(const KVHead& head, int row) {
  alignas(64) float key[kMaxSize];
  alignas(64) float turned[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  const KVHead base = base_of(head);
  float* const scale = base.key_scales + row;
  load_rows(head, row, 1, key, nullptr);
  encode_key(base, key, turned, codes, base.keys + key_offset(base, row), scale);
  const float step = key_scale(scale).scale, inverse = step > 0 ? 1.0f / step : 0.0f;
  for (int i = 0; i < head.size; i++)
    turned[i] = turned[i] * inverse - static_cast<float>(kRowCodebook.levels[codes[i]]);
  head.key_errors[row] = length_code(rest_length(turned, head.size, head.rounding));
}

inline void store_base_value(const KVHead& head, int row) {
  alignas(64) float value[kMaxSize];
  alignas(64) float turned[kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  const KVHead base = base_of(head);
  float* const scale = base.value_scales + row;
  load_rows(head, row, 1, nullptr, value);
  encode_value(value, head.size, turned, codes, base.values + value_offset(base, row), scale);
  double lost = 0, whole = 0;
  for (int i = 0; i < head.size; i++) {
    const double left = turned[i] - *scale * kRowCodebook.levels[codes[i]];
    lost += left * left;
    whole += double{turned[i]} * turned[i];
  }
  head.value_errors[row] = value_error(lost, whole);
}

inline void store_row(const KVHead& head, int row, const float* key, const float* value) {
  if (head.joint) return store_joint(head, row, key);
  std::byte* const key_at = head.keys + key_offset(head, row);
  std::byte* const value_at = head.values + value_offset(head, row);
  float* const key_scale = head.key_scales ? head.key_scales + row : nullptr;
  float* const value_scale = head.value_scales ? head.value_scales + row : nullptr;
  const int pair = key_pair(head.key_type);
  if (head.key_type == Type::kmeans4)
    store_key_codes(head, key, key_at, key_scale);
  else if (head.key_type == Type::planes)
    store_key_planes(head, key, key_at, head.key_rest + key_offset(head, row), key_scale,
                     head.key_errors + row);
  else
    store_elements(head.key_type, key_at, pair, kPanel * pair, key, head.size, key_scale);
  if (head.value_type == Type::kmeans4)
    store_value_codes(value, head.size, value_at, value_scale);
  else if (head.value_type == Type::planes)
    store_value_planes(value, head.size, value_at, head.value_rest + value_offset(head, row),
                       value_scale, head.value_errors + row);
  else
    store_elements(head.value_type, value_at, 1, 1, value, head.size, value_scale);
  if (head.base_keys) store_base_key(head, row);
  if (head.base_values) store_base_value(head, row);
}
