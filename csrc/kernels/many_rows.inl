// Scores and values of a tile for many more query rows than registers hold.
//
// Such rows take a tile's keys, and later its values, from lines that are unpacked once for all of
// them: converted, zipped and in the order of use. A line holds what 4 bytes of a query row, or of
// its weights, multiply for 16 keys, or 16 elements of values. The lines of 16 keys or elements are
// a unit; those of some units fit the first cache. Each sum has the operations of `score` and `add`
// in their order, so that its bits do not depend on how many rows there are.

// From one more row on, unpacking pays.
constexpr int kManyRows = 3 * kQueries;

// Whether it pays for a type. float32 is stored as it is multiplied. AVX2 converts float16 while
// loading, and without VNNI takes several instructions for a product with codes.
template <Type T>
constexpr bool kUnpacks = T == Type::f32       ? false
                          : T == Type::f16     ? SUFFICE_LEVEL != 3
                          : T == Type::kmeans4 ? SUFFICE_VNNI || SUFFICE_LEVEL == 0
                                               : true;

// What is multiplied: lanes of float32, or of pairs or fours of narrower numbers.
template <Type T>
using Taken = std::conditional_t<has_scales(T) || kBf16Pairs<T>, vi, vf>;

template <class V>
SUFFICE_INLINE void store_line(const V* line, std::byte* to) {
  static_assert(sizeof(V) * kVectors == kLineBytes);
  for (int v = 0; v < kVectors; v++) std::memcpy(to + v * sizeof(V), line + v, sizeof(V));
}

// Query elements whose 4 bytes are multiplied at once.
template <Type T>
constexpr int kElementsAtOnce = T == Type::kmeans4 || kSplit<T>  ? 4
                                : has_scales(T) || kBf16Pairs<T> ? 2
                                                                 : 1;

// Steps through a tile's rows of values.
template <Type T>
int steps_of(const Tile& tile) {
  constexpr int at_once = kRowsAtOnce<T, kBf16Pairs<T>>;
  return (tile.rows + at_once - 1) / at_once;
}

// The keys of a block, one line for each step through the elements; prefetches the `next` block.
// Second planes are `rest` away.
template <Type T>
void unpack_keys(int size, const std::byte* keys, const std::byte* next, ptrdiff_t rest,
                 std::byte* to) {
  constexpr int step_bytes = kPanel * key_run(T);
  const int bytes = static_cast<int>(kPanel * elements_bytes(T, size));
  for (int at = 0; at < bytes; at += kLineBytes) {
    fetch(next + at);
    if constexpr (T == Type::planes) fetch(next + at + rest);
    if constexpr (kSplit<T>) {
      vi bytes[2];
      load_plane_bytes(keys + at, rest, bytes);
      for (int i = 0; i < 2; i++, to += kLineBytes) store_line(bytes + i, to);
    } else if constexpr (T == Type::planes) {
      vi pairs[kVectors][4];
      for (int v = 0; v < kVectors; v++)
        load_plane_pairs(keys + at + v * kVectorBytes, rest, pairs[v]);
      for (int i = 0; i < 4; i++, to += kLineBytes) {
        vi line[kVectors];
        for (int v = 0; v < kVectors; v++) line[v] = pairs[v][i];
        store_line(line, to);
      }
    } else if constexpr (T == Type::kmeans4) {
      const vi levels = load_bits(kKeyCodebook.levels), half = splat_bits(0x0f0f0f0f);
      vi low[kVectors], high[kVectors];
      for (int v = 0; v < kVectors; v++) {
        const vi codes = load_bits(keys + at + v * kVectorBytes);
        low[v] = look_up(levels, codes & half);
        high[v] = look_up(levels, (codes >> 4) & half);
      }
      store_line(low, to);
      store_line(high, to + kLineBytes);
      to += 2 * kLineBytes;
    } else if constexpr (kBf16Pairs<T>) {
      vi pairs[kVectors];
      zip_halves<1>(keys + at, keys + at + kLineBytes / 2, pairs);
      store_line(pairs, to);
      to += kLineBytes;
    } else {
      for (int within = 0; within < kLineBytes; within += step_bytes, to += kLineBytes) {
        Taken<T> line[kVectors];
        if constexpr (T == Type::i8)
          load_pairs(keys + at + within, line);
        else
          load_sixteen<T>(keys + at + within, line);
        store_line(line, to);
      }
    }
  }
}

// The same for 16 `count` elements of a tile's values from `from` on, one line for each step
// through the rows; prefetches the next tile with the first.
template <Type T>
void unpack_values(int size, const Tile& tile, int from, int count, std::byte* to) {
  constexpr int at_once = kRowsAtOnce<T, kBf16Pairs<T>>;
  const int steps = steps_of<T>(tile);
  const int row_bytes = static_cast<int>(elements_bytes(T, size));
  for (int step = 0; step < steps; step++, to += kLineBytes) {
    const int place = step * at_once, block = place / kPanel, within = place % kPanel;
    const std::byte* const next = tile.next_values[block] + within * row_bytes;
    if (from == 0) fetch_row(next, at_once * row_bytes);
    if (T == Type::planes && from == 0) fetch_row(next + tile.value_rest, at_once * row_bytes);
    const std::byte* rows[at_once];
    for (int i = 0; i < at_once; i++)
      rows[i] = (kBf16Pairs<T> && place + i >= tile.rows
                     ? kNoValues
                     : tile.values[block] + (within + i) * row_bytes) +
                from * elements_bytes(T, kPanel);
    Taken<T> line[2][kVectors];
    for (int unit = 0; unit < count; unit += 2) {
      const bool two = unit + 2 <= count;
      if (two)
        load_units<T, kBf16Pairs<T>, 2>(rows, tile.value_rest, line);
      else
        load_units<T, kBf16Pairs<T>, 1>(rows, tile.value_rest, line);
      store_line(line[0], to + unit * steps * kLineBytes);
      if (two) store_line(line[1], to + (unit + 1) * steps * kLineBytes);
      for (const std::byte*& row : rows) row += 2 * elements_bytes(T, kPanel);
    }
  }
}

// Adds U units of lines times the words of Q rows. `Scores`: words are of queries, else of weights.
template <Type T, bool Scores, int Q, int U, class Sum>
SUFFICE_INLINE void multiply_lines(const std::byte* lines, int steps, const std::byte* const* words,
                                   Sum (*total)[U][kVectors]) {
  constexpr int at_once = Scores && T == Type::kmeans4 ? 2 : 1;  // steps
  for (int step = 0; step < steps; step += at_once) {
    Taken<T> line[U][at_once][kVectors];
    for (int u = 0; u < U; u++)
      for (int i = 0; i < at_once; i++)
        for (int v = 0; v < kVectors; v++)
          std::memcpy(&line[u][i][v],
                      lines + (u * steps + step + i) * kLineBytes + v * kVectorBytes, kVectorBytes);
    for (int q = 0; q < Q; q++) {
      const auto taken = word<Taken<T>>(words[q] + 4 * step);
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++) {
          Sum& sum = total[q][u][v];
          if constexpr (at_once == 2) {
            const auto next = word<Taken<T>>(words[q] + 4 * (step + 1));
            if constexpr (SUFFICE_VNNI)
              sum = dot_halves(sum, line[u][0][v], line[u][1][v], taken, next);
            else  // a 16-bit sum has no room for more
              sum += widen(dot_halves(vi{}, line[u][0][v], line[u][1][v], taken, next));
          } else if constexpr ((T == Type::kmeans4 || kSplit<T>) && Scores) {
            sum = add_quads(sum, line[u][0][v], taken);
          } else if constexpr (T == Type::kmeans4 || kSplit<T>) {
            sum = add_quads(sum, taken, line[u][0][v]);
          } else if constexpr (kBf16Pairs<T> && Scores) {
            sum = dot_bf16(sum, line[u][0][v], taken);
          } else if constexpr (kBf16Pairs<T>) {
            sum = dot_bf16(sum, taken, line[u][0][v]);
          } else {
            sum = multiply_add(line[u][0][v], taken, sum);
          }
        }
    }
  }
}

// Units whose lines are unpacked together: as many as registers hold sums of.
constexpr int kUnitsUnpacked = units_for(kQueries);

// For groups of kUnitsUnpacked of `units`, calls unpack(unit, count), then
// multiply.operator()<Q, U>(first, unit) for all rows.
template <class Unpack, class Multiply>
SUFFICE_INLINE void in_register_tiles(int count, int units, Unpack unpack, Multiply multiply) {
  constexpr int least = (kManyRows + 1) / (kManyRows / kQueries + 1);  // rows of a group
  for (int unit = 0; unit < units; unit += kUnitsUnpacked)
    dispatch<kUnitsUnpacked>(units - unit, [&]<int U>() {
      unpack(unit, U);
      in_units<kQueries, least>(
          count, [&]<int Q>(int first) { multiply.template operator()<Q, U>(first, unit); });
    });
}

// As `score`.
template <Type T>
void score_unpacked(const KVHead& head, const Tile& tile, const Queries& queries, int count,
                    float* scores, std::byte* lines) {
  using Sum = std::conditional_t<has_scales(T), vi, vf>;
  const int steps = head.size / kElementsAtOnce<T>;
  const auto unpack = [&](int block, int units) {
    for (int u = 0; u < units; u++)
      unpack_keys<T>(head.size, tile.keys[block + u], tile.next_keys[block + u], tile.key_rest,
                     lines + u * steps * kLineBytes);
  };
  in_register_tiles(count, tile.blocks, unpack, [&]<int Q, int U>(int first, int block) {
    const std::byte* words[Q];
    for (int q = 0; q < Q; q++) words[q] = row_of<T>(queries, first + q, head.size);
    Sum total[Q][U][kVectors];
    clear(total);
    multiply_lines<T, true, Q, U>(lines, steps, words, total);
    for (int q = 0; kSplit<T> && q < Q; q++) {  // then the lower bytes of queries
      words[q] += head.size;
      for (int u = 0; u < U; u++)
        for (int v = 0; v < kVectors; v++) total[q][u][v] *= 256;
    }
    if constexpr (kSplit<T>) multiply_lines<T, true, Q, U>(lines, steps, words, total);
    for (int q = 0; q < Q; q++)
      for (int u = 0; u < U; u++)
        store_scores<T>(head, tile.row[block + u], queries, first + q, total[q][u],
                        scores + (first + q) * kTileRows + (block + u) * kPanel);
  });
}

// As `add`.
template <Type T>
void add_unpacked(const KVHead& head, const Tile& tile, const Weights& weights, int count,
                  float* output, std::byte* lines) {
  constexpr bool pairs = kBf16Pairs<T>;
  const auto unpack = [&](int unit, int units) {
    unpack_values<T>(head.size, tile, unit, units, lines);
  };
  in_register_tiles(
      count, head.value_size / kPanel, unpack, [&]<int Q, int U>(int first, int unit) {
        const std::byte* words[Q];
        for (int q = 0; q < Q; q++)
          words[q] = static_cast<const std::byte*>(weights_at<T, pairs>(weights, first + q, 0));
        float* const to = output + first * head.size + unit * kPanel;
        WeightedSums<T, Q, U, pairs, true> sums;
        sums.begin(to, head.size);
        multiply_lines<T, false, Q, U>(lines, steps_of<T>(tile), words, sums.total);
        sums.end(to, head.size, weights.units + first);
      });
}
