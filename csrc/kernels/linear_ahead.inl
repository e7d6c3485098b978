// How products prefetch their weights.

// Prefetch distance in bytes of a stream. With AVX2, prefetching helps only where arithmetic takes
// about as long as reading: the core's own prefetchers would run the two one after the other. Where
// arithmetic takes less, they do better alone.
constexpr int kAhead = SUFFICE_LEVEL == 4 ? 4096 : 2048;

// Weights that a tile prefetches, for its first panel: one line for each line used, `step` bytes
// apart.
struct Ahead {
  const std::byte* line;
  int step = kLineBytes;
};

template <Type T, int B>
SUFFICE_INLINE void fetch_weights(const std::byte* line) {
  if constexpr (SUFFICE_LEVEL == 4)
    fetch_near(line);
  else if constexpr (B >= 3 && B * weight_pair(T) >= 6)
    fetch(line);
}
