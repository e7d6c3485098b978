// Scores of joint rows: many query rows share each key, so they are the lanes.
//
// A joint row lies as values do, one element after the other. Two words of a key at a time fill a
// vector and are multiplied with those of W / 2 query rows. So each sum has two halves, of the even
// and of the odd words in their order, whatever is computed next to it.

// Groups of query rows whose sums are in registers together, next to those of `joint_keys` keys.
constexpr bool kManyRegisters = SUFFICE_LEVEL == 4 || SUFFICE_NEON;
constexpr int kJointGroups = kManyRegisters ? 6 : 2;
constexpr int joint_keys(int groups) {
  return (kManyRegisters && groups <= 2) || groups == 1 ? kPanel / 2 : kPanel / 4;
}

// Steps of two words that are taken together: each part of a row has whole ones, 16 elements.
constexpr int kJointSteps = 4;

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

// Two words at `from`, over and over.
template <class V>
SUFFICE_INLINE V two_words(const std::byte* from) {
  typedef int64_t Twos __attribute__((vector_size(kVectorBytes)));
  int64_t both;
  std::memcpy(&both, from, sizeof both);
  return reinterpret_cast<V>(both - Twos{});
}

// Adds the products of G groups of query rows with K keys in the steps [begin, end).
template <Type T, int G, int K, class Sum>
SUFFICE_INLINE void multiply_joint(const std::byte* lanes, size_t group_bytes,
                                   const JointBlock& keys, int begin, int end, Sum (*total)[K]) {
  using Taken = std::conditional_t<kJointElements<T> == 2, vi, vf>;
  const std::byte* four[K / 4];
  for (int i = 0; i < K / 4; i++) four[i] = keys.words + 4 * i * keys.stride + 8 * begin;
  lanes += static_cast<size_t>(begin) * kVectorBytes;
  for (int step = begin; step < end; step += kJointSteps) {
#pragma GCC unroll 4
    for (int s = 0; s < kJointSteps; s++) {
      Taken query[G];
      for (int g = 0; g < G; g++)
        std::memcpy(query + g, lanes + g * group_bytes + s * kVectorBytes, kVectorBytes);
      for (int k = 0; k < K; k++) {
        const Taken key = two_words<Taken>(four[k / 4] + k % 4 * keys.stride + 8 * s);
        for (int g = 0; g < G; g++)
          if constexpr (kBf16Pairs<T>)
            total[g][k] = dot_bf16(total[g][k], query[g], key);
          else
            total[g][k] = multiply_add(query[g], key, total[g][k]);
      }
    }
    for (const std::byte*& at : four) at += 8 * kJointSteps;
    lanes += kJointSteps * kVectorBytes;
  }
}

// Adds sums of products with int8 keys times the scales of query rows and keys. `scales` are those
// of the first group's rows.
template <int G, int K>
SUFFICE_INLINE void scale_joint(const vi (*total)[K], const float* scales, const float* key_scales,
                                vf (*to)[K]) {
  for (int g = 0; g < G; g++) {
    alignas(64) float twice[W];  // a scale for each half
    for (int i = 0; i < W; i++) twice[i] = scales[g * kJointRows + i / 2];
    for (int k = 0; k < K; k++)
      to[g][k] = multiply_add(to_float(total[g][k]), load(twice) * splat(key_scales[k]), to[g][k]);
  }
}

// The sums of the halves of K keys' sums: to [query row of the group][K].
template <int K>
SUFFICE_INLINE void add_halves(const vf* total, float (*to)[K]) {
  alignas(64) float found[K][W];
  for (int k = 0; k < K; k++) store(found[k], total[k]);
  for (int q = 0; q < kJointRows; q++)
    for (int k = 0; k < K; k++) to[q][k] = found[k][2 * q] + found[k][2 * q + 1];
}

// Scores of G groups of query rows, from row `first` on, for K keys: to [query row][kTileRows]. The
// first key is row `row` of the head.
template <Type T, int G, int K>
SUFFICE_INLINE void score_joint_keys(const KVHead& head, const JointBlock& keys, int row,
                                     const Queries& queries, int first, int count, float* scores) {
  using Sum = std::conditional_t<T == Type::i8, vi, vf>;
  const int steps = head.size / kJointElements<T> / 2;
  const size_t group_bytes = joint_group_bytes(steps);
  const std::byte* const lanes = queries.lanes + first / kJointRows * group_bytes;
  Sum total[G][K];
  clear(total);
  vf scaled[G][K];
  if constexpr (T == Type::i8) {
    const int own = head.value_size / 4;
    clear(scaled);
    multiply_joint<T, G, K>(lanes, group_bytes, keys, 0, own, total);
    scale_joint<G, K>(total, queries.scales + first, head.value_scales + row, scaled);
    clear(total);
    multiply_joint<T, G, K>(lanes, group_bytes, keys, own, steps, total);
    scale_joint<G, K>(total, queries.rest_scales + first, head.key_scales + row, scaled);
  } else {
    multiply_joint<T, G, K>(lanes, group_bytes, keys, 0, steps, total);
    for (int g = 0; g < G; g++)
      for (int k = 0; k < K; k++) scaled[g][k] = total[g][k];
  }
  for (int g = 0; g < G; g++) {
    alignas(64) float found[kJointRows][K];
    add_halves<K>(scaled[g], found);
    const int left = count - first - g * kJointRows;
    float* const to = scores + (first + g * kJointRows) * kTileRows;
    for (int q = 0; q < kJointRows && q < left; q++)
      std::memcpy(to + q * kTileRows, found[q], sizeof found[q]);
  }
}

template <Type T>
void score_joint(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                 float* scores) {
  alignas(64) std::byte room[kJointAsStored<T> ? 1 : kPanel * kMaxSize * 4 / kJointElements<T>];
  const int row_bytes = static_cast<int>(elements_bytes(T, head.size));
  const int rest_bytes = row_bytes - static_cast<int>(elements_bytes(T, head.value_size));
  const int groups = round_up(count, kJointRows) / kJointRows;
  for (int block = 0; block < tile.blocks; block++) {
    for (int row = 0; row < kPanel; row++)  // the values fetch the others
      fetch_row(tile.next_keys[block] + row * row_bytes + row_bytes - rest_bytes, rest_bytes);
    const JointBlock all = joint_block<T>(head, tile.keys[block], room);
    in_units<kJointGroups>(groups, [&]<int G>(int group) {
      constexpr int K = joint_keys(G);
      for (int key = 0; key < kPanel; key += K)
        score_joint_keys<T, G, K>(head, {all.words + key * all.stride, all.stride},
                                  tile.row[block] + key, queries, group * kJointRows, count,
                                  scores + block * kPanel + key);
    });
  }
}
