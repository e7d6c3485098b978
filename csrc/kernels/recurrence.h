// Linear recurrences, as kernels take them: a head's matrix S [key_size][value_size] becomes
//
//   S <- diag(decays) S + key change^T,   output = S^T query
//
// with change = value or, by the delta rule, strength (value - S^T key) of the decayed S.
// Sources: Dao and Gu 2024, Transformers are SSMs (Mamba-2), eq. 16; Yang et al. 2024, Gated Delta
// Networks, eq. 10; Kimi Team 2025, Kimi Linear, eq. 1.
#pragma once

namespace suffice {

constexpr int kMostKeySize = 512;

// What one row does to a head's matrix.
struct StateRow {
  const float* key = nullptr;     // [key_size]
  const float* query = nullptr;   // [key_size]; null: it is applied again, without an output
  const float* decays = nullptr;  // [key_size], or one for all
  const float* value = nullptr;   // [value_size]; of a row that is applied again, its change
  float* change = nullptr;        // [value_size]: what the row adds, unless null
  float* output = nullptr;        // [value_size]
  float strength = 1;             // of the delta rule
  int parent = -1;                // the row that it continues; -1: what came before all
};

// Panels of a head's matrix, and the rows that change them. Matrices are
// [panels][key_size][kPanel].
struct StatePart {
  const float* from = nullptr;
  float* back = nullptr;            // where the matrix is left after `again`; null: nowhere
  float* to = nullptr;              // where it is left after all rows; null: nowhere
  const StateRow* again = nullptr;  // committed rows that the matrix does not have yet
  int agains = 0;
  const StateRow* rows = nullptr;
  int count = 0;
  int key_size = 0;
  int first = 0, last = 0;   // panels
  bool by_entry = false;     // each entry of a key has its decay
  bool corrects = false;     // by the delta rule
  float* scratch = nullptr;  // [recurrence_scratch(key_size)]
};

constexpr int kStatePanels = 4;  // that a kernel takes together, at most
constexpr int recurrence_scratch(int key_size) { return kStatePanels * key_size * 16; }

}  // namespace suffice
