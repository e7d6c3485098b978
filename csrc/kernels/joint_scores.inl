// Scores of joint rows: many query rows share each key, so they are the lanes.
//
// A joint row lies as values do, one element after the other. An element of a key, or two of them,
// is broadcast and multiplied with those of W query rows. Each sum goes through the elements in
// their order, whatever is computed next to it.

// Keys whose sums are in registers together, next to those of `groups` of query rows.
constexpr bool kManyRegisters = SUFFICE_LEVEL == 4 || SUFFICE_NEON;
constexpr int kJointGroups = 3;
constexpr int joint_keys(int groups) {
  return (kManyRegisters ? 2 : 1) * (groups == 1 ? kPanel / 2 : kPanel / 4);
}

// Whether a row is multiplied as it is stored.
template <Type T>
constexpr bool kJointAsStored = T == Type::f32 || kBf16Pairs<T>;

// A block of keys in words, `stride` bytes apart.
struct JointBlock {
  const std::byte* words;
  ptrdiff_t stride;
};

template <Type T>
SUFFICE_INLINE JointBlock joint_block(const KVHead& head, const std::byte* keys, std::byte* room) {
  const ptrdiff_t row_bytes = elements_bytes(T, head.size);
  if constexpr (kJointAsStored<T>) {
    return {keys, row_bytes};
  } else {
    const ptrdiff_t stride = static_cast<ptrdiff_t>(head.size) * 4 / kJointElements<T>;
    for (int row = 0; row < kPanel; row++, keys += row_bytes)
      for (int i = 0; i < head.size; i += W) {
        std::byte* const to = room + row * stride + i * 4 / kJointElements<T>;
        if constexpr (T == Type::i8)
          store_narrow(load_bytes<int8_t>(keys + i), reinterpret_cast<int16_t*>(to));
        else
          store(reinterpret_cast<float*>(to), load_stored<T>(keys + i * size_of(T)));
      }
    return {room, stride};
  }
}

// Adds the products of G groups of query rows with K keys in the words [begin, end).
template <Type T, int G, int K, class Sum>
SUFFICE_INLINE void multiply_joint(const std::byte* lanes, size_t group_bytes,
                                   const JointBlock& keys, int begin, int end, Sum (*total)[K]) {
  using Taken = std::conditional_t<kJointElements<T> == 2, vi, vf>;
  const std::byte* four[K / 4];
  for (int i = 0; i < K / 4; i++) four[i] = keys.words + 4 * i * keys.stride + 4 * begin;
  for (int step = begin; step < end; step++) {
    Taken query[G];
    for (int g = 0; g < G; g++)
      std::memcpy(query + g, lanes + g * group_bytes + static_cast<size_t>(step) * kVectorBytes,
                  kVectorBytes);
    for (int k = 0; k < K; k++) {
      const auto key = word<Taken>(four[k / 4] + k % 4 * keys.stride);
      for (int g = 0; g < G; g++)
        if constexpr (kBf16Pairs<T>)
          total[g][k] = dot_bf16(total[g][k], query[g], key);
        else
          total[g][k] = multiply_add(query[g], key, total[g][k]);
    }
    for (const std::byte*& at : four) at += 4;
  }
}

// Scores of G groups of query rows, from row `first` on, for K keys: to [query row][kTileRows]. The
// first key is row `row` of the head.
template <Type T, int G, int K>
SUFFICE_INLINE void score_joint_keys(const KVHead& head, const JointBlock& keys, int row,
                                     const Queries& queries, int first, int count, float* scores) {
  using Sum = std::conditional_t<T == Type::i8, vi, vf>;
  const int steps = head.size / kJointElements<T>;
  const size_t group_bytes = joint_group_bytes(steps);
  const std::byte* const lanes = queries.lanes + first / W * group_bytes;
  alignas(64) float found[G][K][W];
  Sum total[G][K];
  clear(total);
  if constexpr (T == Type::i8) {
    const int own = head.value_size / 2;
    multiply_joint<T, G, K>(lanes, group_bytes, keys, 0, own, total);
    for (int g = 0; g < G; g++)
      for (int k = 0; k < K; k++)
        store(found[g][k], to_float(total[g][k]) * (load(queries.scales + first + g * W) *
                                                    splat(head.value_scales[row + k])));
    clear(total);
    multiply_joint<T, G, K>(lanes, group_bytes, keys, own, steps, total);
    for (int g = 0; g < G; g++)
      for (int k = 0; k < K; k++) {
        const vf rest = to_float(total[g][k]) * (load(queries.rest_scales + first + g * W) *
                                                 splat(head.key_scales[row + k]));
        store(found[g][k], load(found[g][k]) + rest);
      }
  } else {
    multiply_joint<T, G, K>(lanes, group_bytes, keys, 0, steps, total);
    for (int g = 0; g < G; g++)
      for (int k = 0; k < K; k++) store(found[g][k], total[g][k]);
  }
  const int last = first + G * W < count ? first + G * W : count;
  for (int q = first; q < last; q++)
    for (int k = 0; k < K; k++)
      scores[q * kTileRows + k] = found[(q - first) / W][k][(q - first) % W];
}

template <Type T>
void score_joint(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                 float* scores) {
  alignas(64) std::byte room[kJointAsStored<T> ? 1 : kPanel * kMaxSize * 4 / kJointElements<T>];
  const int row_bytes = static_cast<int>(elements_bytes(T, head.size));
  const int groups = round_up(count, W) / W;
  for (int block = 0; block < tile.blocks; block++) {
    fetch_row(tile.next_keys[block], kPanel * row_bytes);
    const JointBlock all = joint_block<T>(head, tile.keys[block], room);
    in_units<kJointGroups>(groups, [&]<int G>(int group) {
      constexpr int K = joint_keys(G);
      for (int key = 0; key < kPanel; key += K)
        score_joint_keys<T, G, K>(head, {all.words + key * all.stride, all.stride},
                                  tile.row[block] + key, queries, group * W, count,
                                  scores + block * kPanel + key);
    });
  }
}
