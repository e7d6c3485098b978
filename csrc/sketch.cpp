#include "sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace suffice {
namespace {

uint16_t to_bf16(float value) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

}  // namespace

void encode_sketch(const Head& head, int chunk) {
  const int size = head.size;
  std::byte* const to = head.sketch + chunk * sketch_bytes(size);
  uint16_t* const scales = reinterpret_cast<uint16_t*>(to);
  uint16_t* const lows = scales + size;
  float* const residuals = reinterpret_cast<float*>(lows + size);
  uint8_t* const codes = reinterpret_cast<uint8_t*>(to + sketch_codes_at(size));
  std::vector<float> keys(static_cast<size_t>(kSketchRows) * size);
  kernels().load_rows(head, chunk * kSketchRows, kSketchRows, keys.data(), nullptr);
  float squares[kSketchRows] = {};
  std::memset(codes, 0, static_cast<size_t>(kSketchRows) * size / 2);
  for (int d = 0; d < size; d++) {
    float least = keys[d], most = keys[d];
    for (int row = 1; row < kSketchRows; row++) {
      least = std::min(least, keys[row * size + d]);
      most = std::max(most, keys[row * size + d]);
    }
    lows[d] = to_bf16(least);
    scales[d] = to_bf16((most - from_bf16(lows[d])) / 15.0f);
    const float low = from_bf16(lows[d]), scale = from_bf16(scales[d]);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int row = 0; row < kSketchRows; row++) {
      const float key = keys[row * size + d];
      const int code = std::clamp(static_cast<int>(std::lrintf((key - low) * inverse)), 0, 15);
      const float left = key - (scale * static_cast<float>(code) + low);
      squares[row] += left * left;
      const size_t at = static_cast<size_t>(row / kPanel) * kPanel * size / 2 +
                        static_cast<size_t>(d / 8) * kLineBytes + row % kPanel * 4 + d % 4;
      codes[at] |= static_cast<uint8_t>(code << (d % 8 / 4 * 4));
    }
  }
  for (int b = 0; b < kSketchBlocks; b++)
    residuals[b] = std::sqrt(*std::max_element(squares + b * kPanel, squares + (b + 1) * kPanel)) *
                   kSquareSlack;
}

}  // namespace suffice
