// Compares what kernels/emulated.inl has in place of AVX-512 and VNNI with the definitions of the
// instructions, lane by lane. Prints each that differs and exits with their number.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>

#pragma GCC target("avx2,fma,f16c,bmi,bmi2")

namespace {

#include "kernels/emulated.inl"

std::mt19937 generator(1);
int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s differs\n", what);
  failures++;
}

template <class Lane>
struct Lanes {
  Lane lane[64 / sizeof(Lane)];
  template <class Vector>
  Vector as() const {
    Vector to;
    std::memcpy(&to, lane, sizeof to);
    return to;
  }
  template <class Vector>
  static Lanes of(const Vector& from) {
    Lanes to{};
    std::memcpy(to.lane, &from, sizeof from);
    return to;
  }
  static Lanes random() {
    Lanes to;
    for (Lane& each : to.lane) each = static_cast<Lane>(generator());
    return to;
  }
};
using Bytes = Lanes<uint8_t>;
using Shorts = Lanes<int16_t>;
using Integers = Lanes<int32_t>;
using Bits = Lanes<uint32_t>;

float number(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float without_small(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }

// Sums that matter: random bits, and exponents near each other, near zero and near the largest.
uint32_t float_bits() {
  const uint32_t bits = generator();
  const uint32_t exponents[] = {bits >> 23 & 255, 120 + (bits >> 23 & 15), bits >> 23 & 3, 253};
  return (bits & 0x807fffff) | exponents[generator() % 4] << 23;
}

void products_of_bfloat16() {
  Bits total, a, b;
  for (int i = 0; i < 16; i++) {
    total.lane[i] = float_bits();
    a.lane[i] = float_bits() >> 16 | (float_bits() & 0xffff0000);
    b.lane[i] = float_bits() >> 16 | (float_bits() & 0xffff0000);
  }
  const Bits found =
      Bits::of(_mm512_dpbf16_ps(total.as<__m512>(), a.as<__m512bh>(), b.as<__m512bh>()));
  for (int i = 0; i < 16; i++) {
    float sum = without_small(number(total.lane[i]));
    for (int place : {1, 0}) {
      const auto half = [&](uint32_t pair) {
        return without_small(number(place ? pair & 0xffff0000 : pair << 16));
      };
      sum = without_small(std::fma(half(a.lane[i]), half(b.lane[i]), sum));
    }
    expect(same(sum, number(found.lane[i])), "dpbf16");
  }
}

void rounding_to_bfloat16() {
  Bits from;
  for (uint32_t& each : from.lane) each = generator() % 4 ? float_bits() : generator() << 15;
  const auto found = Lanes<uint16_t>::of(_mm512_cvtneps_pbh(from.as<__m512>()));
  for (int i = 0; i < 16; i++) {
    const float value = without_small(number(from.lane[i]));
    const float low = number(bits_of(value) & 0xffff0000);  // the neighbours, exact as doubles
    const double step = std::ldexp(1.0, std::max(std::ilogb(value == 0 ? 1 : value), -126) - 7);
    const double above = std::fabs(double{value} - low) / step;
    const bool up = above > 0.5 || (above == 0.5 && (bits_of(value) >> 16 & 1));
    const uint32_t wanted = (bits_of(value) >> 16) + up;
    const bool nan = std::isnan(value) && std::isnan(number(uint32_t{found.lane[i]} << 16));
    expect(nan || found.lane[i] == wanted, "cvtneps");
  }
}

void products_of_integers() {
  const Integers total = Integers::random();
  const Bytes a = Bytes::random(), b = Bytes::random();
  const Integers bytes =
      Integers::of(_mm512_dpbusd_epi32(total.as<__m512i>(), a.as<__m512i>(), b.as<__m512i>()));
  const Integers words =
      Integers::of(_mm512_dpwssd_epi32(total.as<__m512i>(), a.as<__m512i>(), b.as<__m512i>()));
  const Shorts x = Shorts::of(a), y = Shorts::of(b);
  for (int i = 0; i < 16; i++) {
    int64_t of_bytes = total.lane[i], of_words = total.lane[i];
    for (int j = 4 * i; j < 4 * i + 4; j++) of_bytes += a.lane[j] * static_cast<int8_t>(b.lane[j]);
    for (int j = 2 * i; j < 2 * i + 2; j++) of_words += int64_t{x.lane[j]} * y.lane[j];
    expect(bytes.lane[i] == static_cast<int32_t>(of_bytes), "dpbusd");
    expect(words.lane[i] == static_cast<int32_t>(of_words), "dpwssd");
  }
}

void moves() {
  const Shorts a = Shorts::random(), b = Shorts::random();
  Shorts places = Shorts::random();
  const Shorts both =
      Shorts::of(_mm512_permutex2var_epi16(a.as<__m512i>(), places.as<__m512i>(), b.as<__m512i>()));
  for (int i = 0; i < 32; i++) {
    const int place = places.lane[i] & 63;
    expect(both.lane[i] == (place < 32 ? a.lane[place] : b.lane[place - 32]), "permutex2var_epi16");
  }
  const Integers c = Integers::random(), d = Integers::random(), wide = Integers::random();
  const Integers taken =
      Integers::of(_mm512_permutex2var_epi32(c.as<__m512i>(), wide.as<__m512i>(), d.as<__m512i>()));
  for (int i = 0; i < 16; i++) {
    const int place = wide.lane[i] & 31;
    expect(taken.lane[i] == (place < 16 ? c.lane[place] : d.lane[place - 16]),
           "permutex2var_epi32");
  }
  const Bytes table = Bytes::random(), index = Bytes::random();
  const Bytes looked_up = Bytes::of(_mm512_shuffle_epi8(table.as<__m512i>(), index.as<__m512i>()));
  const uint64_t mask = _mm512_test_epi8_mask(table.as<__m512i>(), index.as<__m512i>());
  const Bytes blended =
      Bytes::of(_mm512_mask_blend_epi8(mask, table.as<__m512i>(), index.as<__m512i>()));
  for (int i = 0; i < 64; i++) {
    const uint8_t at = index.lane[i];
    expect(looked_up.lane[i] == (at & 128 ? 0 : table.lane[i / 16 * 16 + at % 16]), "shuffle");
    const bool chosen = table.lane[i] & at;
    expect((mask >> i & 1) == chosen, "test_epi8");
    expect(blended.lane[i] == (chosen ? at : table.lane[i]), "blend");
  }
  Lanes<float> numbers, kept, packed;
  for (int i = 0; i < 16; i++) numbers.lane[i] = kept.lane[i] = static_cast<float>(generator());
  const auto chosen = static_cast<uint16_t>(generator());
  packed = Lanes<float>::of(_mm512_maskz_compress_ps(chosen, numbers.as<__m512>()));
  Lanes<float> ones;
  for (float& each : ones.lane) each = -1;
  _mm512_mask_storeu_ps(kept.lane, chosen, ones.as<__m512>());
  for (int i = 0, place = 0; i < 16; i++) {
    const bool taken_lane = chosen >> i & 1;
    expect(kept.lane[i] == (taken_lane ? -1 : numbers.lane[i]), "mask_storeu");
    if (taken_lane) expect(packed.lane[place++] == numbers.lane[i], "compress");
    if (i == 15)
      for (; place < 16; place++) expect(packed.lane[place] == 0, "compress");
  }
  const Integers lanes = Integers::random();
  const Shorts narrow = Shorts::of(_mm512_cvtepi32_epi16(lanes.as<__m512i>()));
  const Integers quarters =
      Integers::of(_mm512_shuffle_i32x4(lanes.as<__m512i>(), a.as<__m512i>(), 0x8d));
  for (int i = 0; i < 16; i++) {
    const int place = 0x8d >> i / 4 * 2 & 3;
    const Integers& from = i < 8 ? lanes : Integers::of(a);
    expect(quarters.lane[i] == from.lane[place * 4 + i % 4], "shuffle_i32x4");
  }
  const Integers mixed =
      Integers::of(_mm512_shuffle_i64x2(lanes.as<__m512i>(), a.as<__m512i>(), 0xe4));
  for (int i = 0; i < 16; i++) {
    expect(narrow.lane[i] == static_cast<int16_t>(lanes.lane[i]), "cvtepi32_epi16");
    expect(mixed.lane[i] == (i < 8 ? lanes.lane[i] : Integers::of(a).lane[i]), "shuffle_i64x2");
  }
}

void unpacking() {
  const Integers lanes = Integers::random(), more = Integers::random();
  const auto one = lanes.as<__m512>(), other = more.as<__m512>();
  const auto pairs = lanes.as<__m512d>(), other_pairs = more.as<__m512d>();
  const Integers low = Integers::of(_mm512_unpacklo_ps(one, other));
  const Integers high = Integers::of(_mm512_unpackhi_ps(one, other));
  const Integers low_pairs = Integers::of(_mm512_unpacklo_pd(pairs, other_pairs));
  const Integers high_pairs = Integers::of(_mm512_unpackhi_pd(pairs, other_pairs));
  for (int i = 0; i < 16; i++) {
    const Integers from[2] = {lanes, more};
    const int four = i / 4 * 4, single = four + i % 4 / 2, pair = four + i % 2;
    expect(low.lane[i] == from[i % 2].lane[single], "unpacklo_ps");
    expect(high.lane[i] == from[i % 2].lane[single + 2], "unpackhi_ps");
    expect(low_pairs.lane[i] == from[i % 4 / 2].lane[pair], "unpacklo_pd");
    expect(high_pairs.lane[i] == from[i % 4 / 2].lane[pair + 2], "unpackhi_pd");
  }
}

void scaling() {
  Lanes<float> x, power;
  for (int i = 0; i < 16; i++) {
    x.lane[i] = 0.7f + static_cast<float>(generator() % 1000) / 1000;
    power.lane[i] = static_cast<float>(static_cast<int>(generator() % 400) - 140);
  }
  x.lane[3] = power.lane[3] = NAN;
  power.lane[5] = -INFINITY;
  const __mmask16 mask =
      _mm512_cmp_ps_mask(power.as<__m512>(), Lanes<float>{}.as<__m512>() - 126.0f, _CMP_NLT_UQ);
  const __mmask16 least =
      _mm512_cmp_ps_mask(power.as<__m512>(), Lanes<float>{}.as<__m512>() - 126.0f, _CMP_GE_OQ);
  const __mmask32 half = _mm512_kunpackw(mask, least);
  expect(half == (static_cast<uint32_t>(mask) << 16 | least), "kunpackw");
  expect(_cvtmask64_u64(_mm512_kunpackd(half, least)) == (uint64_t{half} << 32 | least),
         "kunpackd");
  const auto found =
      Lanes<float>::of(_mm512_maskz_scalef_ps(mask, x.as<__m512>(), power.as<__m512>()));
  for (int i = 0; i < 16; i++) {
    expect((mask >> i & 1) == !(power.lane[i] < -126), "cmp_ps");
    expect((least >> i & 1) == (power.lane[i] >= -126), "cmp_ps");
    const float wanted = power.lane[i] < -126 ? 0.0f
                         : i == 3             ? NAN
                                              : std::ldexp(x.lane[i], int(power.lane[i]));
    expect(same(found.lane[i], wanted), "scalef");
  }
}

}  // namespace

int main() {
  for (int i = 0; i < 2000; i++) {
    products_of_bfloat16();
    rounding_to_bfloat16();
    products_of_integers();
    moves();
    unpacking();
    scaling();
  }
  return failures > 0;
}
