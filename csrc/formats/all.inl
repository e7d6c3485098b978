// Included by blocks.cpp inside the namespace of an instruction set.
// clang-format off: each file uses those before it
#include "numbers.inl"
#include "blocks_of_32.inl"
#include "blocks_of_256.inl"
#include "blocks_of_few_levels.inl"
#include "decode.inl"
#include "panels.inl"
#include "array_panels.inl"
#include "blocks_of_grids.inl"
#include "grid_panels.inl"
// clang-format on

template <class Type>
constexpr Loops loops_of() {
  Loops found{.type = Type::type};
  if constexpr (Type::type.decoded()) found.decode = decode<Type>;
  if constexpr (Type::type.coded()) {
    if constexpr (Type::type.decoded())
      found.write_panel = panel_of_blocks<Type>;
    else
      found.write_panel = panel_of_places<Type>;
    for (int code = 0; code < 1 << Type::type.layout.bits; code++)
      found.levels[code] = static_cast<uint8_t>(Type::levels[code] + kLevelOffset);
  }
  return found;
}

template <class... Types>
constexpr std::array<Loops, sizeof...(Types)> all_loops() {
  return {loops_of<Types>()...};
}

constexpr auto loops = all_loops<F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K,
                                 Q5_K, Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4, IQ2_XXS,
                                 IQ2_XS, IQ2_S, IQ1_S, IQ1_M, IQ3_XXS, IQ3_S>();
