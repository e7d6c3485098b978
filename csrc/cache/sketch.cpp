#include "cache/sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bf16.h"

namespace suffice {
namespace {

constexpr float kGreatestCode = 15;

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

Four load(const float* from) {
  Four four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

// Codes of one channel of a chunk's keys, [kSketchRows].
struct Channel {
  float low, scale;

  explicit Channel(const float* values) {
    Four least = load(values), greatest = least;
    for (int row = 4; row < kSketchRows; row += 4) {
      const Four four = load(values + row);
      least = four < least ? four : least;
      greatest = four > greatest ? four : greatest;
    }
    low = from_bf16(to_bf16(std::min({least[0], least[1], least[2], least[3]})));
    scale = from_bf16(to_bf16(
        (std::max({greatest[0], greatest[1], greatest[2], greatest[3]}) - low) / (kGreatestCode)));
  }

  // Encodes the values; adds the squares of their residuals to `squares` [kSketchRows].
  void encode(const float* values, uint8_t* codes, float* squares) const {
    constexpr float kWhole = 3 << 22;  // values this large have no fraction
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int row = 0; row < kSketchRows; row += 4) {
      const Four four = load(values + row);
      Four code = (four - low) * inverse + kWhole - kWhole;
      code = code > 0.0f ? code : Four{};
      code = code < kGreatestCode ? code : Four{} + kGreatestCode;
      const Four left = four - (scale * code + low), sum = load(squares + row) + left * left;
      std::memcpy(squares + row, &sum, sizeof sum);
      const FourInts whole = __builtin_convertvector(code, FourInts);
      for (int i = 0; i < 4; i++) codes[row + i] = static_cast<uint8_t>(whole[i]);
    }
  }
};

// Reorders the codes [size][kSketchRows] for the kernels: see cache/kv_head.h.
void pack(const uint8_t* codes, int size, uint8_t* to) {
  for (int block = 0; block < kSketchBlocks; block++)
    for (int d = 0; d < size; d += 8)
      for (int row = 0; row < kPanel; row++)
        for (int i = 0; i < 4; i++, to++) {
          const uint8_t* low = codes + (d + i) * kSketchRows + block * kPanel + row;
          *to = static_cast<uint8_t>(low[0] | low[4 * kSketchRows] << 4);
        }
}

}  // namespace

void encode_sketch(const KVHead& head, int chunk) {
  const int size = head.size;
  std::byte* const to = head.sketch + chunk * sketch_bytes(size);
  uint16_t* const scales = reinterpret_cast<uint16_t*>(to);
  uint16_t* const lows = scales + size;
  float* const residuals = reinterpret_cast<float*>(lows + size);
  const size_t elements = static_cast<size_t>(kSketchRows) * size;
  std::vector<float> keys(elements), channels(elements);
  std::vector<uint8_t> codes(elements);
  kernels().rows.load_rows(head, chunk * kSketchRows, kSketchRows, keys.data(), nullptr);
  for (int d = 0; d < size; d++)
    for (int row = 0; row < kSketchRows; row++)
      channels[d * kSketchRows + row] = keys[row * size + d];
  float squares[kSketchRows] = {};
  for (int d = 0; d < size; d++) {
    const float* values = &channels[d * kSketchRows];
    const Channel channel(values);
    lows[d] = to_bf16(channel.low);
    scales[d] = to_bf16(channel.scale);
    channel.encode(values, &codes[d * kSketchRows], squares);
  }
  pack(codes.data(), size, reinterpret_cast<uint8_t*>(to + sketch_codes_at(size)));
  for (int b = 0; b < kSketchBlocks; b++)
    residuals[b] = std::sqrt(*std::max_element(squares + b * kPanel, squares + (b + 1) * kPanel)) *
                   kSquareSlack;
}

}  // namespace suffice
