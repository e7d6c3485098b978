// What bounds the errors of scores by bases, and of the weights that they give; see
// docs/techniques/tiers_bound.md.

constexpr int kMeasured = 8;  // queries that are measured together
typedef double DualSums __attribute__((vector_size(8 * kMeasured)));

// The lengths of rotated queries [count][kMaxSize] in the measure dual to that of `rest_length`:
// such a product bounds what a base lacks of a score, in units of the key's scale. A lane for each
// query.
inline void dual_lengths(const float (*queries)[kMaxSize], int count, int size,
                         const KeyRounding* by, float* to) {
  DualSums sums[kMaxSize] = {};
  DualSums square = {};
  for (int i = size - 1; i >= 0; i--) {
    DualSums left[4] = {};  // chains of sums
    for (int q = 0; q < count; q++) left[0][q] = queries[q][i];
    const float* const passed = by ? by->passed + static_cast<size_t>(i) * size : nullptr;
    for (int j = (i + 1) / 4 * 4; by && j < size; j += 4)  // sums up to that of i are still 0
      for (int chain = 0; chain < 4; chain++)
        left[chain] -= static_cast<double>(passed[j + chain]) * sums[j + chain];
    sums[i] = (left[0] + left[1]) + (left[2] + left[3]);
    square += sums[i] * sums[i] / (by ? static_cast<double>(by->weights[i]) : 1.0);
  }
  for (int q = 0; q < count; q++) to[q] = static_cast<float>(std::sqrt(square[q]));
}

// Room for the rounding of float32 sums, and of exact attention's queries to int16.
constexpr float kErrorSlack = 1.001f;
constexpr float kInt16Step = 0.5f / kGreatestPlaneCode;
constexpr float kMostError = 100;  // in base 2: more would exceed float32, and bound no better

// A query as products with exact keys take it; for those in planes, up to half a step of int16.
inline void load_multiplied(Type type, const float* query, int size, float* to) {
  std::memcpy(to, query, sizeof(float) * size);
  if (type == Type::i8) {
    alignas(64) int16_t codes[kMaxSize];
    const float unit = quantize_to_int16([&](int i) { return load(query + i * W); }, size / W,
                                         max_magnitude(query, size), codes);
    for (int i = 0; i < size; i++) to[i] = unit * codes[i];
  } else if (type == Type::bf16 && kBf16Pairs<Type::bf16>) {
    for (int i = 0; i < size; i++) to[i] = from_bf16(to_bf16(query[i]));
  }
}

inline void measure_queries(const KVHead& head, const float* const* queries, int count,
                            ErrorUnits* to) {
  alignas(64) float query[kMaxSize];
  alignas(64) float turned[kMeasured][kMaxSize];
  alignas(64) int8_t codes[kMaxSize];
  float lengths[kMeasured];
  int32_t unused;
  const int size = head.size;
  for (int first = 0; first < count; first += kMeasured) {
    const int some = count - first < kMeasured ? count - first : kMeasured;
    for (int q = 0; q < some; q++) {
      load_multiplied(head.key_type, queries[first + q], size, query);
      turn_query(head, query, turned[q]);
      const float unit = quantize_to_int8(head, queries[first + q], codes, &unused);
      const float step =
          head.key_type == Type::planes ? max_magnitude(turned[q], size) * kInt16Step : 0.0f;
      vf rounding = {}, mean = {}, size_of_mean = {};
      for (int i = 0; i < size; i += W) {
        const vf code = to_float(load_bytes<int8_t>(reinterpret_cast<const std::byte*>(codes + i)));
        const vf lost = load(turned[q] + i) - splat(unit) * code;
        rounding += max(lost, -lost);
        if (!head.rounding) continue;
        const vf of_mean = load(head.rounding->mean + i);
        mean += lost * of_mean;
        size_of_mean += max(of_mean, -of_mean);
      }
      const float steps = step * static_cast<float>(size * (kGreatestLevel + kLevels / 2));
      to[first + q] = {0, kErrorSlack * (sum_of(rounding) * kGreatestLevel + steps),
                       kErrorSlack * (std::fabs(sum_of(mean)) + step * sum_of(size_of_mean))};
    }
    dual_lengths(turned, some, size, head.rounding, lengths);
    for (int q = 0; q < some; q++) to[first + q].length = kErrorSlack * lengths[q];
  }
}

// What the units of a query multiply, for W keys or for the largest of some.
struct KeyErrors {
  vf length, scale, mean;

  vf of(const ErrorUnits& units) const {
    const vf error =
        splat(units.length) * length + splat(units.rounding) * scale + splat(units.mean) * mean;
    return -max(-error, splat(-kMostError));
  }
};

SUFFICE_INLINE KeyErrors key_errors(const KVHead& head, int row) {
  const vi pair = load_bits(head.key_scales + row);
  const vf scale = first_bf16(pair), share = second_bf16(pair);
  const vf size = max(scale, -scale);
  return {size * load_lengths(head.key_errors + row), size, max(share, -share)};
}

inline void bound_blocks(const KVHead& head, const CodedTiles& tiles, int count, const float* peaks,
                         const ErrorUnits* units, const uint64_t* kept, const uint64_t* exact,
                         const BlockErrors& to) {
  const float* scores = tiles.scores;
  for (int i = tiles.begin; i < tiles.end; i++) {
    const int within = (i - tiles.begin) % kTileBlocks;
    if (i != tiles.begin && within == 0) scores += tiles.stride;
    const int row = (tiles.list ? tiles.list[i] : i) * kPanel;
    const uint64_t counts = kept[(i - tiles.begin) / kTileBlocks] >> (within * kPanel);
    const uint64_t off = ~exact[(i - tiles.begin) / kTileBlocks] >> (within * kPanel);
    for (int q = 0; q < count; q++) {
      vf used = {}, more = {}, less = {}, lost = {};
      for (int key = 0; key < kPanel; key += W) {
        const vf error = key_errors(head, row + key).of(units[q]);
        const vf score = load(scores + q * kTileRows + within * kPanel + key) - splat(peaks[q]);
        const auto bits = static_cast<uint32_t>(counts >> key);
        const vf weight = keep_lanes(exp2(score), bits);
        used += weight;
        more += keep_lanes(exp2(score + error) - weight, static_cast<uint32_t>(off >> key));
        less += weight - keep_lanes(exp2(score - error), bits);
        lost += weight * load_lengths(head.value_errors + row + key);
      }
      const size_t at = static_cast<size_t>(q) * to.stride + i - tiles.begin;
      to.used[at] = sum_of(used);
      to.more[at] = sum_of(more);
      to.less[at] = sum_of(less);
      to.lost[at] = sum_of(lost) / kErrorUnit;
    }
  }
}

// The blocks of `bound_light` that are summed together, wherever a traversal starts.
constexpr int kSummedBlocks = 16;

// Some blocks, and what is the same for all queries. Where no row of a block counts, the largest
// errors of such blocks of its tile serve for all; other blocks are `whole`: row by row.
struct LightBlocks {
  int count = 0;
  int whole = 0;
  int place[kSummedBlocks];  // of these
  uint32_t counts[kSummedBlocks], off[kSummedBlocks];
  alignas(64) float length[kSummedBlocks][kPanel], scale[kSummedBlocks][kPanel];
  alignas(64) float mean[kSummedBlocks][kPanel], value[kSummedBlocks][kPanel];
  vf most[kSummedBlocks / kTileBlocks][3] = {};
  alignas(64) float most_length[kSummedBlocks] = {}, most_scale[kSummedBlocks] = {};
  alignas(64) float most_mean[kSummedBlocks] = {}, is_unread[kSummedBlocks] = {};

  void add_rows(const KVHead& head, int row, uint32_t kept, uint32_t exact) {
    for (int key = 0; key < kPanel; key += W) {
      const KeyErrors errors = key_errors(head, row + key);
      store(length[whole] + key, errors.length);
      store(scale[whole] + key, errors.scale);
      store(mean[whole] + key, errors.mean);
      store(value[whole] + key, load_lengths(head.value_errors + row + key));
    }
    counts[whole] = kept;
    off[whole] = ~exact;
    place[whole++] = count;
  }

  // `scores`: of any query. Rows that the token does not see may hold anything.
  void add_unread(const KVHead& head, int row, const float* scores) {
    vf* const of_tile = most[count / kTileBlocks];
    for (int key = 0; key < kPanel; key += W) {
      const KeyErrors errors = key_errors(head, row + key);
      const vi seen = load(scores + key) > splat(-kInfinity);
      const vf parts[3] = {errors.length, errors.scale, errors.mean};
      for (int i = 0; i < 3; i++) of_tile[i] = max(of_tile[i], as_float(as_bits(parts[i]) & seen));
    }
    is_unread[count] = 1;
  }

  void end() {
    for (int b = 0; b < count; b += kTileBlocks) {
      const vf* const of_tile = most[b / kTileBlocks];
      const float largest[3] = {max_of(of_tile[0]), max_of(of_tile[1]), max_of(of_tile[2])};
      for (int i = b; i < b + kTileBlocks; i++) {
        most_length[i] = largest[0];
        most_scale[i] = largest[1];
        most_mean[i] = largest[2];
      }
    }
  }
};

// One query's sums over such blocks; `scores`: of its rows, from the first block of `blocks` on.
struct LightSums {
  alignas(64) float more[kSummedBlocks];
  vf less = {}, lost = {};

  void add_unread(const LightBlocks& blocks, const ErrorUnits& units, const float* masses) {
    alignas(64) float known[kSummedBlocks] = {};
    std::memcpy(known, masses, sizeof(float) * blocks.count);
    for (int i = 0; i < kSummedBlocks; i += W) {
      const KeyErrors most{load(blocks.most_length + i), load(blocks.most_scale + i),
                           load(blocks.most_mean + i)};
      store(more + i, load(known + i) * exp2(most.of(units)) * load(blocks.is_unread + i));
    }
  }

  void add_rows(const LightBlocks& blocks, int i, const ErrorUnits& units, const float* scores,
                float peak) {
    vf above = {};
    for (int key = 0; key < kPanel; key += W) {
      const KeyErrors errors{load(blocks.length[i] + key), load(blocks.scale[i] + key),
                             load(blocks.mean[i] + key)};
      const vf factor = exp2(errors.of(units)), weight = exp2(load(scores + key) - splat(peak));
      const vf used = keep_lanes(weight, blocks.counts[i] >> key);
      above += keep_lanes(weight * factor - used, blocks.off[i] >> key);
      less += used - used / factor;
      lost += used * load(blocks.value[i] + key);
    }
    more[blocks.place[i]] = sum_of(above);
  }
};

inline void bound_light(const KVHead& head, const CodedTiles& tiles, int count, const float* peaks,
                        const ErrorUnits* units, const uint64_t* kept, const uint64_t* exact,
                        const float* masses, const LightBounds& to) {
  for (int q = 0; q < count; q++) to.totals[q] = {};
  const auto scores_at = [&](int i, int q) {
    const int tile = (i - tiles.begin) / kTileBlocks, within = (i - tiles.begin) % kTileBlocks;
    return tiles.scores + static_cast<size_t>(tile) * tiles.stride + q * kTileRows +
           within * kPanel;
  };
  for (int i = tiles.begin; i < tiles.end;) {
    LightBlocks blocks;
    const int first = i, end = (i / kSummedBlocks + 1) * kSummedBlocks;
    for (; i < end && i < tiles.end; i++, blocks.count++) {
      const int tile = (i - tiles.begin) / kTileBlocks;
      const int shift = (i - tiles.begin) % kTileBlocks * kPanel;
      const int row = (tiles.list ? tiles.list[i] : i) * kPanel;
      const auto counts = static_cast<uint32_t>(kept[tile] >> shift & 0xffff);
      const auto known = static_cast<uint32_t>(exact[tile] >> shift & 0xffff);
      if (counts | known)
        blocks.add_rows(head, row, counts, known);
      else
        blocks.add_unread(head, row, scores_at(i, 0));
    }
    blocks.end();
    for (int q = 0; q < count; q++) {
      LightSums sums;
      const size_t at = static_cast<size_t>(q) * to.stride + first - tiles.begin;
      sums.add_unread(blocks, units[q], masses + at);
      for (int each = 0; each < blocks.whole; each++)
        sums.add_rows(blocks, each, units[q], scores_at(first + blocks.place[each], q), peaks[q]);
      std::memcpy(to.more + at, sums.more, sizeof(float) * blocks.count);
      vf more = {};
      for (int b = 0; b < kSummedBlocks; b += W) more += load(sums.more + b);
      to.totals[q].more += sum_of(more);
      to.totals[q].less += sum_of(sums.less);
      to.totals[q].lost += sum_of(sums.lost) / kErrorUnit;
    }
  }
}

inline void compare_blocks(const CodedTiles& tiles, const int32_t* chosen, int blocks, int count,
                           const float* peaks, const uint64_t* kept, const uint64_t* exact,
                           const float* scores, float* more, float* less) {
  for (int i = 0; i < blocks; i++) {
    const int tile = chosen[i] / kTileBlocks, within = chosen[i] % kTileBlocks * kPanel;
    const uint64_t counts = kept[tile] >> within, off = ~exact[tile] >> within;
    const float* const estimates = tiles.scores + static_cast<size_t>(tile) * tiles.stride + within;
    const float* const own = scores + static_cast<size_t>(i / kTileBlocks) * count * kTileRows +
                             i % kTileBlocks * kPanel;
    for (int q = 0; q < count; q++) {
      vf above = {}, below = {};
      for (int key = 0; key < kPanel; key += W) {
        const vf peak = splat(peaks[q]), none = {};
        const vf found = exp2(load(own + q * kTileRows + key) - peak);
        const vf used = counts & 0xffff
                            ? keep_lanes(exp2(load(estimates + q * kTileRows + key) - peak),
                                         static_cast<uint32_t>(counts >> key))
                            : none;
        const vf lost = keep_lanes(found - used, static_cast<uint32_t>(off >> key));
        above += max(lost, none);
        below += max(-lost, none);
      }
      more[static_cast<size_t>(q) * blocks + i] = sum_of(above);
      less[static_cast<size_t>(q) * blocks + i] = counts & 0xffff ? sum_of(below) : 0.0f;
    }
  }
}
