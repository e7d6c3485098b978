// How the values of a weight are rounded to codes.
#pragma once

#include <cstdint>

namespace suffice {

// Each group of `group` columns has its own scale, and with minima a minimum of at most 0. They are
// found by trial: of the scales that `shares` give, the one whose codes lose least with their best
// scale (and minimum). `levels` [count] are ascending whole numbers, at most 64 of them; if `even`,
// they are all from `lowest` to `highest` and need not be listed.
//
//     without minima    a scale is a share of the value of greatest magnitude
//     with minima       levels are 0, 1, ...; a scale is the range of the values over a share
//
// `importance` [columns] weighs the errors of columns; null: all alike.
struct Rounding {
  int group = 0;
  bool minima = false;
  bool even = false;
  float lowest = 0.0f, highest = 0.0f;
  const float* levels = nullptr;
  int count = 0;
  const float* shares = nullptr;
  int tried = 0;
  const float* importance = nullptr;
};
constexpr int kMostLevels = 64;
constexpr int kMostGroup = 64;

// Codes [rows][columns]; bytes of scales, and of minima or null [rows][groups]; their factors, two
// float16 [rows][spans][2] (see code_layout.h).
struct RoundedGroups {
  uint8_t* codes;
  int8_t* scales;
  uint8_t* minima;
  uint16_t* outer;
};

}  // namespace suffice
