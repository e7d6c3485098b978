// Included by passes.cpp once per instruction set, whose vectors hold SUFFICE_LANES floats.

constexpr int kLanes = SUFFICE_LANES;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using LaneMask = int32_t __attribute__((vector_size(4 * kLanes)));

inline float larger(float a, float b) { return a > b ? a : b; }

bool block_maxima(const float* values, int count, float* maxima) {
  LaneMask unordered = {};
  const int full = count / kLogitBlock;
  for (int block = 0; block < full; block++) {
    const float* from = values + block * kLogitBlock;
    Lanes top, next;
    std::memcpy(&top, from, sizeof top);
    unordered |= top != top;
    for (int i = kLanes; i < kLogitBlock; i += kLanes) {
      std::memcpy(&next, from + i, sizeof next);
      top = next > top ? next : top;
      unordered |= next != next;
    }
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; j++) top[j] = larger(top[j + half], top[j]);
    maxima[block] = top[0];
  }
  int32_t any = 0;
  for (int j = 0; j < kLanes; j++) any |= unordered[j];
  if (full < logit_blocks(count)) maxima[full] = values[full * kLogitBlock];
  for (int i = full * kLogitBlock; i < count; i++) {
    maxima[full] = larger(values[i], maxima[full]);
    any |= values[i] != values[i];
  }
  return any != 0;
}

// exp(x) for x in [-40, 0]: 2^n times a polynomial of the rest, within 2 units in the last place.
// `weigh` of suffice.sampling.reference does the same operations.
inline float exp_of(float x) {
  constexpr float kRounding = 0x1.8p23f;  // added, it leaves the nearest integer
  const float n = (x * 1.44269504f + kRounding) - kRounding;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;                                    // coefficients of Cephes' expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

int64_t weigh(const float* values, int count, float top, float temperature, int64_t* weights) {
  constexpr double kRounding = 0x1.8p52;  // added, it leaves the nearest integer in the low bits
  int64_t sum = 0;
  for (int i = 0; i < count; i++) {
    const float scaled = (values[i] - top) / temperature;
    const float weight = exp_of(larger(scaled, -40.0f));  // beyond -40 a weight rounds to zero
    const double units = static_cast<double>(weight) * (int64_t{1} << kWeightBits);
    weights[i] = std::bit_cast<int64_t>(units + kRounding) - std::bit_cast<int64_t>(kRounding);
    sum += weights[i];
  }
  return sum;
}

constexpr Passes table = {block_maxima, weigh};
